//! glibc's heap: chunks that follow one another, of arenas, less those in caches.

use super::arena::Arenas;
use super::chunks::Chunk;
use super::library::Library;
use super::{Blocks, LONG, Unknown, View, chunks, freed, mapped};
use crate::attach::target::MapLine;
use std::collections::BTreeSet;
use std::time::Instant;

/// What is known of it while the process runs.
#[derive(Debug)]
pub(super) struct Glibc {
    library: Library,
    /// For what will be found: memory that was touched, so that the process need not wait for that.
    chunks: Vec<Chunk>,
    blocks: Blocks,
    /// Where blocks were that are mappings of their own: to look everywhere takes long.
    mapped: BTreeSet<u64>,
    /// Whether it is looked everywhere all the same.
    may_search: bool,
}

impl Glibc {
    /// Makes room for as much as there is now.
    pub(super) fn find(view: View<'_>, maps: &[MapLine], library: Library) -> Self {
        let mut chunks = Vec::new();
        let arenas = walk(view, &library, maps, &mut chunks);
        let plain = vec![(1, 1); chunks.len() + chunks.len() / 8];
        let mut mapped = BTreeSet::new();
        let since = Instant::now();
        let _ =
            arenas.and_then(|arenas| mapped::find(view, library.layout, &arenas, maps, &mut mapped, true));
        let may_search = since.elapsed() < LONG;
        Self { library, chunks, blocks: Blocks { plain, within: Vec::new() }, mapped, may_search }
    }

    /// All live blocks. `pointers`: each thread's own.
    pub(super) fn blocks(
        &mut self,
        view: View<'_>,
        maps: &[MapLine],
        pointers: impl Iterator<Item = u64>,
    ) -> Result<Blocks, Unknown> {
        let Self { library, chunks, blocks, mapped, may_search } = self;
        let arenas = walk(view, library, maps, chunks)?;
        freed::take_out(view, library, &arenas, pointers, chunks)?;
        let mapped = mapped::find(view, library.layout, &arenas, maps, mapped, *may_search)?;
        let mut blocks = std::mem::take(blocks);
        blocks.plain.clear();
        blocks.plain.extend(
            chunks.iter().filter(|chunk| !chunk.is_free()).map(|chunk| (chunk.block, chunk.usable())),
        );
        blocks.plain.extend(mapped);
        Ok(blocks)
    }
}

/// How much memory its arenas have, while it runs: then it may look broken anywhere.
pub(super) fn bytes(view: View<'_>, maps: &[MapLine], library: &Library) -> u64 {
    let arenas = library.data(view).and_then(|data| Arenas::find(view, library, &data, maps));
    arenas.map_or(0, |arenas| arenas.bytes())
}

/// Finds all used chunks of all arenas, by address.
fn walk(
    view: View<'_>,
    library: &Library,
    maps: &[MapLine],
    chunks: &mut Vec<Chunk>,
) -> Result<Arenas, Unknown> {
    chunks.clear();
    let data = library.data(view)?;
    let arenas = Arenas::find(view, library, &data, maps)?;
    if arenas.is_locked() {
        return Err(Unknown::Busy);
    }
    for region in &arenas.regions {
        chunks::walk(view, region, chunks)?;
    }
    // Regions may come in any order.
    chunks.sort_unstable_by_key(|chunk| chunk.block);
    Ok(arenas)
}
