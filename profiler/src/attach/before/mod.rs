//! What a process had allocated before: the live blocks of the `malloc` that it calls, glibc's, jemalloc's or mimalloc's, read from
//! outside while all threads stand.
//!
//! No symbol and no debug file is needed, but for an allocator that is in the program itself. What is looked for has a shape that
//! nothing else has, and what was found is checked against everything else that the allocator keeps of it: a heap of which
//! anything isn't as it must be is not known at all, and the reason is said.
//!
//! - `object`: an object that is loaded, as it lies in memory
//! - `jemalloc`, `mimalloc`: their heaps
//! - `glibc`: its heap, with what follows
//! - `library`: the C library, its version, its variables, where its threads keep theirs
//! - `arena`: the variable from which all arenas are found; what memory they have
//! - `chunks`: what lies in that memory, one after another
//! - `layout`: what differs from version to version of it
//! - `freed`: those that look used, and wait in the caches of threads and arenas to be given out again
//! - `mapped`: blocks that are mappings of their own
//! - `pause`: threads that stand in the middle of `malloc` go on until they are out of it
//! - `calls`: where its code lies

mod arena;
mod calls;
mod chunks;
mod freed;
mod glibc;
mod jemalloc;
mod layout;
mod library;
mod mapped;
mod mimalloc;
mod object;
mod pause;

pub(super) use pause::{Pause, settle};

use super::freeze::Frozen;
use super::memory::Memory;
use super::target::MapLine;
use crate::leaks::copy_bytes;
use crate::run::recording::Blocks;
use calls::Calls;
use glibc::Glibc;
use grapnel_analysis::report::words::human_bytes;
use jemalloc::Jemalloc;
use library::Library;
use mimalloc::Mimalloc;
use object::Object;
use std::time::Duration;

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
    #[error(
        "its malloc is that of {0}, whose heap isn't known: that of glibc, jemalloc 5.3.0 and mimalloc 2.0.9 is"
    )]
    Allocator(String),
    #[error("its malloc is in {0}, which has no symbols that say where all of the allocator's code is")]
    NoSymbols(String),
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

/// Where the heap is whose `malloc` the program calls.
#[derive(Debug)]
enum Of {
    Glibc(Box<Glibc>),
    Mimalloc(Mimalloc),
    Jemalloc(Jemalloc),
}

/// What is known of a process's heap while it runs: where to look when it stands.
#[derive(Debug)]
pub(super) struct Heap {
    of: Of,
    calls: Calls,
}

impl Heap {
    /// Finds whose heap it is, and makes room for as much as there is now.
    pub(super) fn find(pid: u32, memory: &Memory, maps: &[MapLine], wanted: Wanted) -> Result<Self, Unknown> {
        if wanted == Wanted::Never {
            return Err(Unknown::Unwanted);
        }
        let view = View { pid, memory };
        let limited = |bytes| match wanted {
            Wanted::Short if bytes > LARGE => Err(Unknown::Large { bytes }),
            _ => Ok(()),
        };
        let libc = Library::object(view, maps)?;
        // Where libc's own calls lead, all others' do.
        let malloc = libc.bound(view, b"malloc")?.filter(|malloc| !libc.image.contains(malloc));
        let Some(malloc) = malloc else {
            let library = Library::of(view, &libc)?;
            limited(glibc::bytes(view, maps, &library))?;
            let calls = Calls::of_libc(&library);
            return Ok(Self { of: Of::Glibc(Box::new(Glibc::find(view, maps, library))), calls });
        };
        let object = Object::around(view, maps, malloc)?;
        let (of, bytes) = if let Some(version) = mimalloc::version(view, &object) {
            let heap = Mimalloc::find(view, &object, version)?;
            let bytes = heap.bytes(view, maps);
            (Of::Mimalloc(heap), bytes)
        } else if jemalloc::is_known(view, &object)? {
            let heap = Jemalloc::find(view, &object)?;
            let bytes = heap.bytes(view);
            (Of::Jemalloc(heap), bytes)
        } else {
            return Err(Unknown::Allocator(object.name));
        };
        limited(bytes)?;
        Ok(Self { of, calls: Calls::of_allocator(pid, &object, malloc, &libc)? })
    }

    /// All live blocks of a process that stands.
    pub(super) fn blocks(
        &mut self,
        pid: u32,
        memory: &Memory,
        maps: &[MapLine],
        frozen: &Frozen,
    ) -> Result<Blocks, Unknown> {
        let view = View { pid, memory };
        let pointers = frozen.registers().map(|(_, registers)| registers.thread_pointer());
        match &mut self.of {
            Of::Glibc(heap) => heap.blocks(view, maps, pointers),
            Of::Mimalloc(heap) => heap.blocks(view, maps, pointers),
            Of::Jemalloc(heap) => heap.blocks(view),
        }
    }
}
