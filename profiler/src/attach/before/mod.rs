//! What a process had allocated before: the live blocks of glibc's `malloc`, read from outside while all threads stand.
//!
//! No symbol and no debug file is needed. What is looked for has a shape that nothing else has, and what was found is checked
//! against everything else that glibc keeps of it: a heap of which anything isn't as it must be is not known at all, and the
//! reason is said.
//!
//! - `library`: the C library, its version, its variables, where its threads keep theirs
//! - `arena`: the variable from which all arenas are found; what memory they have
//! - `chunks`: what lies in that memory, one after another
//! - `layout`: what differs from version to version of it
//! - `freed`: those that look used, and wait in the caches of threads and arenas to be given out again
//! - `mapped`: blocks that are mappings of their own
//! - `pause`: threads that stand in the middle of `malloc` go on until they are out of it

mod arena;
mod chunks;
mod freed;
mod layout;
mod library;
mod mapped;
mod pause;

pub(super) use pause::{Pause, settle};

use super::freeze::Frozen;
use super::memory::Memory;
use super::target::MapLine;
use crate::leaks::copy_bytes;
use crate::run::recording::Block;
use arena::Arenas;
use chunks::Chunk;
use grapnel_analysis::report::words::human_bytes;
use library::Library;
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

/// A heap in which it is looked only where the process may stand still for as long as it likes. A tenth of it has taken 50 to 90 ms.
const LARGE: u64 = 1 << 30;
/// A look for mappings that takes longer is not taken while the process stands.
const LONG: Duration = Duration::from_millis(20);

/// Whether it is looked at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Wanted {
    /// If the process need not stand still for long: its heap has no more than a gigabyte
    #[default]
    Short,
    /// However long that takes
    Always,
    /// Not at all
    Never,
}

/// Why a process's blocks aren't known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unknown {
    #[error("the program does not use glibc (no libc.so.6 is loaded)")]
    NoLibrary,
    #[error("the C library's tables in memory can't be read")]
    Tables,
    #[error("glibc {major}.{minor} keeps its heap in a way that isn't known")]
    Version { major: u32, minor: u32 },
    #[error("libc's own malloc has not been used")]
    Unused,
    #[error("the heap's structure was not understood: {0}")]
    Structure(&'static str),
    #[error("the heap's structure was not understood: {what} at {at:#x}")]
    Broken { what: &'static str, at: u64 },
    #[error(
        "the heap's structure was not understood: {found} of {expected} blocks with mappings of their own were found"
    )]
    Mapped { found: u64, expected: u64 },
    #[error("a thread is in the middle of malloc, and stays there")]
    Busy,
    #[error("the process's memory can't be read")]
    Memory,
    #[error(
        "its heap has {}, and the process would stand still for the time that it takes to look through that; --before always \
         does so",
        human_bytes(*bytes)
    )]
    Large { bytes: u64 },
    #[error("it was not to be looked for (--before never)")]
    Unwanted,
}

impl Unknown {
    /// How often the process is stopped, in case that it is different at another moment.
    pub(super) fn looks(&self) -> u32 {
        match self {
            Self::Busy => 6,
            Self::Memory | Self::Structure(_) | Self::Broken { .. } | Self::Mapped { .. } => 3,
            _ => 1,
        }
    }
}

/// Another process's memory, read in bulk.
#[derive(Clone, Copy, Debug)]
struct View<'m> {
    pid: u32,
    memory: &'m Memory,
}

impl View<'_> {
    fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), Unknown> {
        let read = copy_bytes(self.pid, at, bytes);
        let rest = &mut bytes[read..];
        if rest.is_empty() {
            return Ok(());
        }
        self.memory.read(at.wrapping_add(read as u64), rest).map_err(|_| Unknown::Memory)
    }

    fn words<const N: usize>(&self, at: u64) -> Result<[u64; N], Unknown> {
        let mut bytes = [[0; 8]; N];
        self.read(at, bytes.as_flattened_mut())?;
        Ok(bytes.map(u64::from_ne_bytes))
    }
}

/// The word at an offset of bytes that were read; 0 behind their end.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u64::from_ne_bytes(*word))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |half| u32::from_ne_bytes(*half))
}

/// What is known of a process's heap while it runs: where to look when it stands.
#[derive(Debug)]
pub(super) struct Heap {
    library: Library,
    /// For what will be found: memory that was touched, so that the process need not wait for that.
    chunks: Vec<Chunk>,
    blocks: Vec<Block>,
    /// Where blocks were that are mappings of their own: to look everywhere takes long.
    mapped: BTreeSet<u64>,
    /// Whether it is looked everywhere all the same.
    may_search: bool,
}

impl Heap {
    /// Finds the C library, and makes room for as much as there is now.
    pub(super) fn find(pid: u32, memory: &Memory, maps: &[MapLine], wanted: Wanted) -> Result<Self, Unknown> {
        if wanted == Wanted::Never {
            return Err(Unknown::Unwanted);
        }
        let view = View { pid, memory };
        let library = Library::find(view, maps)?;
        // While it runs it may look broken anywhere.
        if let Ok(arenas) = Arenas::find(view, &library, &library.data(view)?, maps)
            && arenas.bytes() > LARGE
            && wanted == Wanted::Short
        {
            return Err(Unknown::Large { bytes: arenas.bytes() });
        }
        let mut chunks = Vec::new();
        let arenas = walk(view, &library, maps, &mut chunks);
        let blocks = vec![(1, 1); chunks.len() + chunks.len() / 8];
        let mut mapped = BTreeSet::new();
        let since = Instant::now();
        let _ =
            arenas.and_then(|arenas| mapped::find(view, library.layout, &arenas, maps, &mut mapped, true));
        let may_search = since.elapsed() < LONG;
        Ok(Self { library, chunks, blocks, mapped, may_search })
    }

    /// Where the code of `malloc` and its kin lies.
    fn code(&self) -> Range<u64> {
        self.library.malloc.clone()
    }

    /// All live blocks of a process that stands.
    pub(super) fn blocks(
        &mut self,
        pid: u32,
        memory: &Memory,
        maps: &[MapLine],
        frozen: &Frozen,
    ) -> Result<Vec<Block>, Unknown> {
        let view = View { pid, memory };
        let Self { library, chunks, blocks, mapped, may_search } = self;
        let arenas = walk(view, library, maps, chunks)?;
        let pointers = frozen.registers().map(|(_, registers)| registers.thread_pointer());
        freed::take_out(view, library, &arenas, pointers, chunks)?;
        let mapped = mapped::find(view, library.layout, &arenas, maps, mapped, *may_search)?;
        let mut blocks = std::mem::take(blocks);
        blocks.clear();
        blocks.extend(
            chunks.iter().filter(|chunk| !chunk.is_free()).map(|chunk| (chunk.block, chunk.usable())),
        );
        blocks.extend(mapped);
        Ok(blocks)
    }
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
