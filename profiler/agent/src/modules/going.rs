//! While the dynamic linker unloads objects: their tables may be gone before we hear which ones they were.
//!
//! It says that it is about to, unmaps, and says that its list is at rest again. In between a walk may be led into such an object, by a word that is no
//! return address. So nothing is looked up then in what may go, which is all that came after the start; whoever needs it waits, but not for ever:
//! the thread that unloads may want a lock that a handler of a signal has interrupted.
//!
//! # Safety
//! Whoever looks something up has said so before it asks here, and the thread that unloads waits for those after it has said that. Both have a full
//! fence in between. What is left is a walk that takes longer than is waited for.

use super::TABLE;
use crate::{context, life, listing, sys};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use grapnel_unwind::ModuleTable;

/// The thread that unloads; 0 for none.
static BY: AtomicU32 = AtomicU32::new(0);
/// The id of the first module that may go.
static FIRST: AtomicU32 = AtomicU32::new(0);
/// That was waited for in vain: its end isn't heard of.
static IN_VAIN: AtomicBool = AtomicBool::new(false);

/// How often is waited, for twentieths of a millisecond.
const PATIENCE: u32 = 400;

/// Modules from this id on may go.
pub(super) fn may_from(id: u32) {
    FIRST.store(id, Ordering::Relaxed);
}

/// The linker's list changes, or has changed.
pub(super) fn heed() {
    if !listing::is_unloading() {
        return;
    }
    BY.store(sys::thread_id(), Ordering::SeqCst);
    fence(Ordering::SeqCst);
    for _ in 0..PATIENCE {
        // Who doesn't record doesn't walk. In the child of a fork the lock may be that of a thread that isn't there.
        if life::current() == 0 {
            break;
        }
        let guard = life::PROCESS.lock();
        if !TABLE.is_lent(|table| context::reads(table, &guard)) {
            break;
        }
        drop(guard);
        sys::sleep_briefly();
    }
}

/// The list is at rest, and all that has gone is known.
pub(super) fn end() {
    if BY.load(Ordering::Relaxed) != 0 && !listing::is_unloading() {
        BY.store(0, Ordering::Release);
        IN_VAIN.store(false, Ordering::Relaxed);
    }
}

/// Whether nothing is to be looked up now in the module at an address.
#[inline]
pub(super) fn may_be(table: &ModuleTable, address: u64) -> bool {
    let by = BY.load(Ordering::Relaxed);
    by != 0
        && table.module_at(address).is_some_and(|id| id >= FIRST.load(Ordering::Relaxed))
        && !IN_VAIN.load(Ordering::Relaxed)
        && by != sys::thread_id()
}

/// Waits for the end.
#[cold]
#[inline(never)]
pub(super) fn wait() {
    for _ in 0..PATIENCE {
        if BY.load(Ordering::Acquire) == 0 {
            return;
        }
        sys::sleep_briefly();
    }
    IN_VAIN.store(true, Ordering::Relaxed);
}
