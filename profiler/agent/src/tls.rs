//! Thread-local state: zero in each new thread, without a destructor.
//!
//! Where it lies depends on how the agent came into the process: `tls/preloaded.rs` for one that the dynamic linker
//! loaded, `tls/attached.rs` for one that was put into a process that runs.
//!
//! # Safety
//! [`get`] returns this thread's own block. Only the thread itself uses it (its signal handlers included), so
//! `Cell`s suffice, and the pointer is not kept beyond a call.

#[cfg(grapnel_attached)]
pub(crate) mod attached;
#[cfg(not(grapnel_attached))]
mod preloaded;

#[cfg(grapnel_attached)]
pub(crate) use attached::{get, is_shared, sampling, thread_id};
#[cfg(not(grapnel_attached))]
pub(crate) use preloaded::{get, is_shared, prepare, sampling, thread_id};

use crate::context::Context;
use crate::entry::SavedRegisters;
use crate::sandbox::Node;
use core::cell::Cell;

/// How many recordings of one thread may be inside one another: one, and one by a signal handler in its middle.
pub(crate) const LEVELS: usize = 2;

/// Of how many calls of operators and of allocators' functions it is known which these are.
pub(crate) const FRAMES: usize = 4;

/// How many calls of operators, or of allocators' functions, around that which a thread is in are known.
pub(crate) const AROUND: usize = 2;

/// What a thread keeps when only some allocations are recorded; see [`crate::sampling`].
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Sampling {
    /// The bytes that are left until the next allocation to be recorded; below 0 in that one.
    pub(crate) left: Cell<i64>,
    /// Where the thread is in its random numbers; 0 before the first.
    pub(crate) random: Cell<u64>,
    /// The mean that the gap was drawn with.
    pub(crate) mean: Cell<u64>,
    /// What records cost since the last look at that, in ticks of the processor's clock.
    pub(crate) own_ticks: Cell<u64>,
    /// How many there were.
    pub(crate) records: Cell<u64>,
    /// What the gap was when it was drawn.
    pub(crate) drawn: Cell<i64>,
    /// The bytes that were allocated since then, and how many allocations that were, as estimated.
    pub(crate) bytes: Cell<u64>,
    pub(crate) calls: Cell<f64>,
    /// The mean by which a block is to be recorded that a function with a slot is about to give.
    pub(crate) chosen: Cell<u64>,
    /// The bytes that were allocated until the gap was drawn; it wraps.
    pub(crate) passed: Cell<usize>,
}

/// A thread's state. All zeroes at the start. What an event needs comes first, in one cache line.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Tls {
    /// What the thread records with, by level; of the life `life`.
    pub(crate) contexts: [Cell<*mut Context>; LEVELS],
    /// The life that `contexts` belong to; see [`crate::life`].
    pub(crate) life: Cell<u64>,
    /// How many recordings this thread is in the middle of.
    pub(crate) level: Cell<usize>,
    /// Where to go on when the agent meets a fault of its own; null while none of its code runs.
    pub(crate) rescue: Cell<*const SavedRegisters>,
    /// The stack pointer from which libc's own code was called; see [`crate::hooks`]. 0 when it was not.
    pub(crate) inside: Cell<usize>,
    /// Where the stub of each level's recording saved its registers.
    pub(crate) entries: [Cell<usize>; LEVELS],
    /// How many locks this thread holds, and how often it has blocked signals besides: while it is not 0, they are.
    pub(crate) locks: Cell<usize>,
    /// The signal mask as it was before the first of them.
    pub(crate) mask: Cell<u64>,
    /// Memory for an environment too large for the stack, and its length in bytes; used again each time.
    pub(crate) environment: Cell<(*mut u8, usize)>,
    pub(crate) sampling: Sampling,
    /// The newest filter for system calls that the thread is under; see [`crate::sandbox`].
    pub(crate) filters: Cell<*const Node>,
    /// Whether reading the processor's clock is a fault in this thread.
    pub(crate) no_clock: Cell<bool>,
    /// Where the thread says whether its system calls are signals; see [`crate::sandbox`]. 0 for nowhere.
    pub(crate) selector: Cell<usize>,
    /// Whether the thread holds locks with signals let through, since a filter is against blocking them.
    pub(crate) unblocked: Cell<bool>,
    /// Whether the call under way came by a slot's stub, which makes the function's call itself; see [`crate::meter`].
    pub(crate) by_slot: Cell<bool>,
    /// How often the thread has said that it is about to fork; see [`crate::forking`].
    pub(crate) forks: Cell<u16>,
    /// The newest fork that the thread has waited for in vain.
    pub(crate) vain: Cell<u16>,
    /// How many locks this thread has taken.
    pub(crate) guards: Cell<u16>,
    /// How often it asks for the dynamic linker's list; see [`crate::forking`].
    #[cfg(not(grapnel_attached))]
    pub(crate) listing: Cell<u16>,
    /// What the thread walks with in [`crate::debug`].
    #[cfg(not(grapnel_attached))]
    pub(crate) walking: Cell<*mut crate::debug::Walking>,
    #[cfg(grapnel_attached)]
    _walking: u64,
    /// The call of libc's that was last made for an operator: [`Nested::word`](crate::slots::Nested), or 0.
    pub(crate) nested: Cell<usize>,
    /// What `inside` was in the calls around that which it is of; see [`crate::slots::around`].
    pub(crate) around: [Cell<usize>; AROUND],
    /// Values of `inside` and the slots that they are of, as far as they are known; the next one to be forgotten. See [`crate::slots::frames`].
    pub(crate) frames: [Cell<usize>; FRAMES],
    pub(crate) slots: [Cell<u16>; FRAMES],
    pub(crate) oldest: Cell<u16>,
    /// How many bytes have been asked for by calls of families' functions, and amid any call, where all allocations are recorded; it wraps.
    pub(crate) asked: Cell<u32>,
    /// The newest of these calls, inner ones first: where a stub saved its registers, and how many bytes had been asked for when it began, the lower half of
    /// both; see [`crate::families`].
    pub(crate) asked_before: [Cell<(u32, u32)>; 3],
}
