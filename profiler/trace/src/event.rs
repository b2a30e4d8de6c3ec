//! The records of a trace, as a reader sees them.

use crate::heaps::Heap;
use crate::mapping::MappingEvent;
use crate::mark::Mark;
use crate::names::Names;
use crate::release::{Alignment, FreedAs};
use alloc::vec::Vec;

/// Which family of functions gave a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Source {
    /// `malloc`.
    Malloc = 0,
    /// `calloc`.
    Calloc = 1,
    /// `realloc` or `reallocarray`.
    Realloc = 2,
    /// `memalign`, `aligned_alloc`, `posix_memalign`, `valloc`, `pvalloc`.
    Aligned = 3,
    /// `operator new`, in all its forms.
    New = 4,
    /// `operator new[]`, in all its forms.
    NewArray = 5,
    /// Not known: the block is older than the recording, whose first events tell of such blocks. None of [`Self::ALL`]: it
    /// was not given out while anybody looked. Its size is what may be used of it.
    Before = 6,
}

impl Source {
    /// The source with this number, as the wire and the file have it.
    pub fn from_u8(n: u8) -> Option<Self> {
        Self::ALL.get(usize::from(n)).copied()
    }

    /// All of them, each at its number, but for [`Self::Before`].
    pub const ALL: [Self; 6] =
        [Self::Malloc, Self::Calloc, Self::Realloc, Self::Aligned, Self::New, Self::NewArray];

    /// The last of these.
    pub const LAST: Self = Self::NewArray;
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It returned this status.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
}

/// What is known of a process when its recording begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Process id, as the drain sees it.
    pub pid: u32,
    /// Its parent's.
    pub ppid: u32,
    /// The arguments, the program's name first. Any bytes.
    pub command: Vec<Vec<u8>>,
    /// The executable's path. Any bytes.
    pub executable: Vec<u8>,
    /// Wall-clock time of the start, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// The machine's architecture, as `uname -m` has it.
    pub machine: Vec<u8>,
    /// The version of grapnel that recorded it. It ends with [`VIA_GOT`] if no code was changed.
    pub recorder: Vec<u8>,
}

/// Ends [`ProcessInfo::recorder`] of a recording through tables of addresses, which not all calls go through.
pub const VIA_GOT: &[u8] = b" --via got";

/// A loaded object: the program, a library, the vDSO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Unique per load: a library closed and opened again has two.
    pub id: u32,
    /// Where its address 0 lies in the process.
    pub bias: u64,
    /// `[start, end)` of its lowest to its highest mapped address in the process.
    pub range: (u64, u64),
    /// The GNU build id; empty when it has none.
    pub build_id: Vec<u8>,
    /// The path it was loaded from. Any bytes.
    pub path: Vec<u8>,
}

impl Module {
    /// The path of the recorder's own part in the process. Its frames are left out of stacks.
    pub const AGENT: &[u8] = b"[grapnel]";
}

/// Flags of a stack node.
pub mod node_flags {
    /// No unwind table covers the code: what lies towards the root was found by frame pointers, likely but not
    /// certain.
    pub const GUESS: u8 = 1;
    /// The kernel's signal frame: the pc is that of the trampoline that returns from the handler.
    pub const SIGNAL: u8 = 2;
    /// A mark at the root in place of the frames beyond the depth limit. Its pc is 0.
    pub const TRUNCATED: u8 = 4;
    /// A mark at the root, whose pc is 0: the frame below it has a caller that was not found.
    pub const NO_CALLER: u8 = TRUNCATED | GUESS;
    /// The pc is that of the instruction that a signal interrupted, not a return address.
    pub const EXACT: u8 = 8;
    /// No frame, but a mark in place of a stack: that of blocks which are older than the recording. Its pc is 0.
    pub const BEFORE: u8 = 16;

    /// Whether a node with these flags has the pc of an instruction, rather than the address behind a call.
    pub fn is_exact(flags: u8) -> bool {
        flags & (SIGNAL | EXACT) != 0
    }
}

/// One record. Events of all threads stand in one order: an order in which they could truly have happened,
/// where every block is given out before it is freed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Nanoseconds since the start of the recording; holds for what follows. Coarse: to within 10 ms.
    Time(u64),
    /// A thread was seen for the first time. Threads are numbered from 0 in the order of these records.
    Thread {
        /// Its number in this trace.
        index: u32,
        /// The kernel's id of it.
        tid: u32,
        /// Its name, as the kernel has it. Any bytes.
        name: Vec<u8>,
    },
    /// A stack is a node in a prefix tree; nodes are numbered from 1 in the order of these records.
    Node {
        /// This node.
        id: u32,
        /// The stack without its leaf frame; 0 is the empty stack.
        parent: u32,
        /// The leaf frame's return address, or its exact pc: see [`node_flags::is_exact`].
        pc: u64,
        /// The module that `pc` lies in; 0 for none.
        module: u32,
        /// See [`node_flags`].
        flags: u8,
    },
    /// A block was given out.
    Alloc {
        /// The thread's number.
        thread: u32,
        /// The stack's node.
        stack: u32,
        /// The block's address.
        address: u64,
        /// Bytes requested.
        size: u64,
        /// Which functions gave it.
        source: Source,
    },
    /// A block was given back.
    Free {
        /// The thread's number.
        thread: u32,
        /// The block's address.
        address: u64,
    },
    /// `realloc` of a block begins: from here until [`Event::ReallocEnd`] or [`Event::ReallocFailed`] of the
    /// same thread the block belongs to nobody.
    ReallocBegin {
        /// The thread's number.
        thread: u32,
        /// The old block's address.
        address: u64,
    },
    /// `realloc` gave out its new block (perhaps at the old address).
    ReallocEnd {
        /// The thread's number.
        thread: u32,
        /// The stack's node.
        stack: u32,
        /// The new block's address.
        address: u64,
        /// Bytes requested.
        size: u64,
        /// The old block's address.
        old: u64,
    },
    /// `realloc` failed: the old block is as it was.
    ReallocFailed {
        /// The thread's number.
        thread: u32,
        /// The old block's address.
        address: u64,
    },
    /// An object was loaded.
    Module(Module),
    /// The object with this id was unloaded.
    Unload(u32),
    /// This many events could not be recorded at about this point.
    Lost(u64),
    /// What the next event of this thread that concerns a block gives out was asked to have this alignment.
    Aligned {
        /// The thread's number.
        thread: u32,
        /// The alignment.
        alignment: Alignment,
    },
    /// From here on only some of this thread's allocations are recorded: one of `s` bytes with probability
    /// `1 - exp(-s / mean)`.
    Sampled {
        /// The thread's number.
        thread: u32,
        /// The mean of the bytes between two that are recorded; not 0.
        mean: u64,
    },
    /// The `realloc` of this thread that took this block gave one that isn't recorded.
    Unsampled {
        /// The thread's number.
        thread: u32,
        /// The old block's address.
        address: u64,
    },
    /// How the next event of this thread that concerns a block gives it back. Stands only before those that seem not
    /// to fit to how the block was got.
    FreedAs(FreedAs),
    /// Memory was mapped or unmapped.
    Mapping(MappingEvent),
    /// A heap besides the program's own, told of before its first event. May come more than once.
    Heap(Heap),
    /// The heap with this number is no more: all its blocks are gone.
    HeapEnd(u32),
    /// The next of those events that are of blocks is of the heap with this number. Those without this before them are of
    /// the program's own.
    InHeap(u32),
    /// What an address is called, in traces that know it otherwise than from the modules' files.
    Names(Names),
    /// A moment that somebody marked. It has a time of its own: a [`Event::Time`] before it, later than that of all before.
    Mark(Mark),
}
