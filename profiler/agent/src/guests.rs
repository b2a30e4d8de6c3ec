//! Processes that share a thread's block: made by `clone` with the program's memory and without a thread pointer of their own, they run
//! beside the thread that made them, with its thread pointer.
//!
//! Such a one, a guest, is told from the thread by its id, which libc keeps for the thread alone. It has a block in a table here. To ask for an
//! id takes a system call, so nobody asks before the program has called `clone` in that way. What a gap of a sample is counted in stays the
//! thread's block: hooks lower it that look nothing up. The child of a `vfork` shares the block too, but while it runs its parent stands still.
//!
//! Not seen are guests that are made without libc's function. Where filters for system calls may be against asking, guests use the thread's block.
//!
//! # Safety
//! A place belongs to the task whose id stands in it. It is emptied before that id is stored.

use crate::hooks::{Function, Hooked};
use crate::hot::HOT;
use crate::native::guests::grapnel_agent_clone;
use crate::tls::{self, Tls};
use crate::{life, sandbox, sys};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

/// What a call of `clone` is looked at for, and what of that makes a guest.
pub(crate) const FLAGS: usize = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_SETTLS) as usize;
pub(crate) const GUEST: usize = libc::CLONE_VM as usize;

/// How many guests there may be at a time.
const PLACES: usize = 64;
/// In a place that is being emptied: no id.
const TAKEN: u32 = u32::MAX;

struct Place {
    /// The id of the task that it belongs, or belonged to; 0 for none yet.
    task: AtomicU32,
    block: UnsafeCell<MaybeUninit<Tls>>,
}

// SAFETY: see the module's header.
unsafe impl Sync for Place {}

impl Place {
    const fn free() -> Self {
        Self { task: AtomicU32::new(0), block: UnsafeCell::new(MaybeUninit::zeroed()) }
    }

    fn block(&'static self) -> &'static Tls {
        // SAFETY: a block is all zeroes at first.
        unsafe { (*self.block.get()).assume_init_ref() }
    }
}

static TABLE: [Place; PLACES] = [const { Place::free() }; PLACES];
/// Of those for whom there is no place: nothing is recorded any more.
static SPARE: Place = Place::free();

/// Whether there may be guests.
#[inline(always)]
pub(crate) fn may_be() -> bool {
    HOT.has_guests.load(Ordering::Relaxed)
}

/// The block of this task, whose thread pointer leads to `own`.
#[cold]
#[inline(never)]
pub(crate) fn block(own: &'static Tls) -> &'static Tls {
    let kept = tls::thread_id();
    if kept == 0 || sandbox::is_any() {
        return own;
    }
    match sys::thread_id_unasked() {
        task if task == kept || task == 0 => own,
        task => TABLE
            .iter()
            .find(|place| place.task.load(Ordering::Relaxed) == task)
            .map_or_else(|| take(task), Place::block),
    }
}

/// A place for a guest that has none.
#[cold]
#[inline(never)]
fn take(task: u32) -> &'static Tls {
    for place in &TABLE {
        let before = place.task.load(Ordering::Relaxed);
        if before == TAKEN || (before != 0 && sys::process_exists(before)) {
            continue;
        }
        if place.task.compare_exchange(before, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            // SAFETY: it belongs to nobody.
            unsafe { (*place.block.get()).as_mut_ptr().write_bytes(0, 1) };
            place.task.store(task, Ordering::Release);
            return place.block();
        }
    }
    life::end();
    SPARE.block()
}

/// Whether it is a guest's own block.
pub(crate) fn is_of_one(block: &Tls) -> bool {
    let at = ptr::from_ref(block).addr();
    TABLE.as_ptr_range().start.addr() <= at && at < TABLE.as_ptr_range().end.addr()
}

/// Whether it is that of all for whom there was no place.
#[inline(always)]
pub(crate) fn is_spare(block: &Tls) -> bool {
    ptr::eq(block, SPARE.block.get().cast())
}

/// The function to hook. Its stub notes that a guest is being made, and goes on to libc's own code.
pub(crate) fn functions() -> [Hooked; 1] {
    [(b"clone", grapnel_agent_clone, Function::Clone)]
}
