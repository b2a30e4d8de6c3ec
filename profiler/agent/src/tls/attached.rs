//! The block of a thread in a process that the agent was put into while it ran: in a table, by the thread pointer.
//!
//! There is no room in the static TLS of threads that exist already. A thread is told by its thread pointer, which no two
//! living threads of a process have in common (but those that share their block with their maker in the other form too),
//! and by its id, which libc keeps at a place behind the thread pointer that the command found out. So a new thread on an
//! old one's stack finds an empty block. Blocks are never given back; one that nobody can tell from a new one is.
//!
//! # Safety
//! As in [`crate::tls`]. A slot belongs to the thread whose pointer stands in it. The table is a mapping of its whole size,
//! made before the first hook is in. The place of the id is readable in every thread: the command has looked.

use super::{Sampling, Tls};
use crate::{guests, life, sys};
use core::cell::Cell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

const LOG2: u32 = 15;
/// How many thread pointers there may be in the life of a recording, or nearly so many.
const SLOTS: usize = 1 << LOG2;
/// How many slots are looked at for one of them: while the table isn't nearly full, one of the first few is its own.
const PROBES: usize = 128;

#[repr(C, align(64))]
#[derive(Debug)]
struct Slot {
    tls: Tls,
    /// The thread pointer; 0 for a slot that is free.
    pointer: AtomicUsize,
    /// The thread's id; only itself looks.
    thread: Cell<u32>,
}

const _: () = assert!(size_of::<Slot>() == 384);

static TABLE: AtomicPtr<Slot> = AtomicPtr::new(core::ptr::null_mut());
/// Bytes from the thread pointer to the thread's id.
static THREAD_AT: AtomicU32 = AtomicU32::new(0);

/// Makes the table. False without memory.
pub(crate) fn prepare(thread_at: u32) -> bool {
    let Some(table) = sys::map_anonymous((SLOTS + 1) * size_of::<Slot>()) else { return false };
    THREAD_AT.store(thread_at, Ordering::Relaxed);
    TABLE.store(table.cast(), Ordering::Release);
    true
}

/// The id of this thread that libc keeps.
pub(crate) fn thread_id() -> u32 {
    let at = THREAD_AT.load(Ordering::Relaxed);
    if at == 0 {
        return 0;
    }
    // SAFETY: as in `get`.
    unsafe { crate::native::thread(at) }.1
}

/// This thread's block.
#[inline(always)]
pub(crate) fn get() -> &'static Tls {
    let own = own();
    if guests::may_be() { guests::block(own) } else { own }
}

/// What hooks lower that look it up.
#[inline(always)]
pub(crate) fn sampling() -> &'static Sampling {
    &get().sampling
}

/// That of the thread whose thread pointer this is.
#[inline(always)]
fn own() -> &'static Tls {
    // SAFETY: the id lies where the command found it.
    let (pointer, thread) = unsafe { crate::native::thread(THREAD_AT.load(Ordering::Relaxed)) };
    let first = slot(first_of(pointer));
    if first.pointer.load(Ordering::Relaxed) == pointer && first.thread.get() == thread {
        return &first.tls;
    }
    &find(pointer, thread).tls
}

#[inline(always)]
fn first_of(pointer: usize) -> usize {
    ((pointer >> 6) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> (64 - LOG2)
}

#[inline(always)]
fn slot(index: usize) -> &'static Slot {
    // SAFETY: the table has so many slots, of atomics and of cells that only their own thread touches.
    unsafe { &*TABLE.load(Ordering::Relaxed).add(index % SLOTS) }
}

#[cold]
#[inline(never)]
fn find(pointer: usize, thread: u32) -> &'static Slot {
    let first = first_of(pointer);
    for index in first..first + PROBES {
        let slot = slot(index);
        let mut owner = slot.pointer.load(Ordering::Relaxed);
        if owner == 0 {
            let taken = slot.pointer.compare_exchange(0, pointer, Ordering::Relaxed, Ordering::Relaxed);
            owner = taken.err().unwrap_or(pointer);
        }
        if owner == pointer {
            renew(slot, thread);
            return slot;
        }
    }
    // More threads than there is room for: from here on nothing is recorded, and nothing that matters is kept in the block that
    // those share which came too late.
    life::end();
    spare()
}

/// The slot behind the table.
fn spare() -> &'static Slot {
    // SAFETY: the mapping has one slot more than the table. Its cells are of those that record nothing.
    unsafe { &*TABLE.load(Ordering::Relaxed).add(SLOTS) }
}

/// Whether a block is that of several threads.
#[inline(always)]
pub(crate) fn is_shared(tls: &Tls) -> bool {
    core::ptr::eq(tls, &raw const spare().tls) || guests::is_spare(tls)
}

/// Makes the block that of the thread with this id.
fn renew(slot: &Slot, thread: u32) {
    if slot.thread.get() == thread {
        return;
    }
    let mask = sys::block_signals();
    // In the child of a fork it is the same thread under another id, perhaps in the middle of a recording.
    let is_forked = life::current() == 0 && slot.thread.get() != 0;
    if !is_forked {
        // SAFETY: the block is this thread's, which holds no reference into it that outlives a call, and is not
        // interrupted. Zeroes are what it begins with.
        unsafe { core::ptr::from_ref(&slot.tls).cast_mut().write_bytes(0, 1) };
    }
    slot.thread.set(thread);
    if let Some(mask) = mask {
        sys::restore_signals(mask);
    }
}
