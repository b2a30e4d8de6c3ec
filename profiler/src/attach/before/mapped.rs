//! Blocks that have mappings of their own: large ones. libc keeps no list of them, and counts them.
//!
//! So they are looked for where mappings are that have no file: at the start of a page, with a length of whole pages and the
//! mark of such a chunk. Where an alignment was asked for, the chunk begins further on, and says by how much; the head of what
//! was cut off still stands at the start. What was found must be as many, and as large, as libc has counted.

use super::super::target::MapLine;
use super::arena::{Arenas, SIZE_BITS};
use super::layout::Layout;
use super::{Unknown, View};
use crate::leaks::present_pages;
use crate::run::recording::Block;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const PAGE: u64 = 4096;
const IS_MAPPED: u64 = 2;

/// All of them. `known`: pages at which there were some lately; those at which there are some now are left there. If it may
/// take long, it is looked everywhere.
pub(super) fn find(
    view: View<'_>,
    layout: Layout,
    arenas: &Arenas,
    maps: &[MapLine],
    known: &mut BTreeSet<u64>,
    may_take_long: bool,
) -> Result<Vec<Block>, Unknown> {
    let (count, bytes) = arenas.mapped;
    let mut found = Found { view, layout, blocks: BTreeMap::new(), bytes: 0 };
    let may_have = |line: &&MapLine| {
        let is_heap = |heap: &Range<u64>| heap.contains(&line.range.start);
        let has_no_name = line.name.is_empty() || line.name.starts_with("[anon");
        line.inode == 0 && line.readable && has_no_name && !arenas.heaps.iter().any(is_heap)
    };
    let places: Vec<Range<u64>> = maps.iter().filter(may_have).map(|line| line.range.clone()).collect();
    for place in &places {
        if found.is_all(count, bytes) {
            break;
        }
        for &page in known.range(place.clone()) {
            found.take(page, place.end)?;
        }
        // Most lie side by side from the start of a mapping on.
        let mut at = place.start;
        while let Some(next) = found.take(at, place.end)? {
            at = next;
        }
    }
    for place in &places {
        if found.is_all(count, bytes) || !may_take_long {
            break;
        }
        let mut behind = place.start;
        for part in present_pages(view.pid, place.clone()) {
            let mut at = part.start.max(behind);
            while at < part.end {
                at = found.take(at, place.end)?.unwrap_or(at + PAGE);
            }
            behind = at;
        }
    }
    *known = found.blocks.keys().copied().collect();
    if !found.is_all(count, bytes) {
        return Err(Unknown::Mapped { found: found.blocks.len() as u64, expected: count });
    }
    Ok(found.blocks.into_values().map(|(block, _)| block).collect())
}

struct Found<'v> {
    view: View<'v>,
    layout: Layout,
    /// By the page at which their mappings begin, and where these end.
    blocks: BTreeMap<u64, (Block, u64)>,
    bytes: u64,
}

impl Found<'_> {
    fn is_all(&self, count: u64, bytes: u64) -> bool {
        let counted = bytes.checked_sub(self.bytes);
        let is_counted = counted.is_some_and(|more| more == 0 || !self.layout.counts_bytes());
        self.blocks.len() as u64 == count && is_counted
    }

    /// Takes the block of the mapping that begins at a page, if one does, and says where it ends.
    fn take(&mut self, page: u64, end: u64) -> Result<Option<u64>, Unknown> {
        if page >= end {
            return Ok(None);
        }
        if let Some((_, end)) = self.blocks.get(&page) {
            return Ok(Some(*end));
        }
        let Ok([before, head]) = self.view.words(page) else { return Ok(None) };
        let whole = (head & !SIZE_BITS).saturating_add(self.layout.more_than_chunk());
        let is_chunk = head & SIZE_BITS == IS_MAPPED && head & !SIZE_BITS != 0;
        if before != 0 || !is_chunk || !whole.is_multiple_of(PAGE) || whole > end - page && whole > 1 << 47 {
            return Ok(None);
        }
        // One that was aligned may have been given another length since.
        let cut = self.cut(page, whole, end)?;
        let (cut, size) = cut.unwrap_or((0, whole));
        if cut + size > end - page {
            return Ok(None);
        }
        let end = page + cut + size;
        let usable = size - self.layout.more_than_chunk() - self.layout.less_than_chunk();
        self.blocks.insert(page, ((page + cut + 16, usable), end));
        self.bytes += cut + size;
        Ok(Some(end))
    }

    /// How much of a mapping's start was cut off for the sake of an alignment, and how long it is from there on.
    fn cut(&self, page: u64, whole: u64, end: u64) -> Result<Option<(u64, u64)>, Unknown> {
        for log2 in 5..48 {
            let alignment = 1u64 << log2;
            let mut cut = (page + 16).next_multiple_of(alignment) - 16 - page;
            if cut < self.layout.least_cut() {
                cut += alignment;
            }
            if cut >= whole {
                break;
            }
            let Ok([before, head]) = self.view.words(page + cut) else { break };
            let size = (head & !SIZE_BITS).saturating_add(self.layout.more_than_chunk());
            let fits = before == cut && head & SIZE_BITS == IS_MAPPED && size <= end - page;
            if fits && head & !SIZE_BITS != 0 && (cut + size).is_multiple_of(PAGE) {
                return Ok(Some((cut, size)));
            }
        }
        Ok(None)
    }
}
