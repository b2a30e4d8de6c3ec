//! Whether this process records at all, and what a fork makes of that.
//!
//! A *life* is the time in which one process records: it has a number, which each thread's contexts carry. The
//! number stands on a page that the kernel empties in every child of a fork (MADV_WIPEONFORK), however the
//! fork was made: number 0 means that nothing is recorded here, or not yet. So the hot path learns all it
//! needs from one comparison, and a child never writes into its parent's rings.
//!
//! # Safety
//! The page is mapped once and never unmapped. What runs in a child's first moments ([`Revival`]) runs in its
//! only thread, guarded by a word on the same page.

use crate::hot::HOT;
use crate::lock::Lock;
use crate::sys;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The page's contents.
#[derive(Debug)]
pub(crate) struct Page {
    life: AtomicU64,
    /// Not 0 while, in the child of a fork, somebody sees to the new life.
    reviving: AtomicU32,
}

pub(crate) static NONE: Page = Page { life: AtomicU64::new(0), reviving: AtomicU32::new(1) };
/// The last number given: kept through fork, so that a child's differs from all its ancestors'.
static LAST: AtomicU64 = AtomicU64::new(0);
/// Recording has ended for good in this process and its children.
static OFF: AtomicBool = AtomicBool::new(false);

/// Guards everything of the process that is not one thread's: contexts, modules.
pub(crate) static PROCESS: Lock = Lock::whole_in_children();

#[inline(always)]
fn page() -> &'static Page {
    // SAFETY: NONE, or the page as `prepare` mapped it.
    unsafe { &*HOT.life.load(Ordering::Relaxed) }
}

/// Whether there is a page that forks empty.
fn is_prepared() -> bool {
    !core::ptr::eq(page(), &NONE)
}

/// The life that goes on now; 0 for none.
#[inline(always)]
pub(crate) fn current() -> u64 {
    page().life.load(Ordering::Relaxed)
}

/// Makes the page. False when there is no memory, or no page that forks empty.
pub(crate) fn prepare() -> bool {
    let Some(address) = sys::map_anonymous(sys::PAGE) else { return false };
    if sys::advise(address, sys::PAGE, libc::MADV_WIPEONFORK).is_err() {
        return false;
    }
    HOT.life.store(address.cast(), Ordering::Release);
    true
}

/// Begins a life: from here on events are recorded.
pub(crate) fn begin() {
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    page().life.store(number, Ordering::Release);
}

/// In the only thread of a child that libc's `fork` made, whose page the kernel should have emptied: does that.
#[cfg(not(grapnel_attached))]
pub(crate) fn empty() {
    let page = page();
    if is_prepared() && page.life.load(Ordering::Relaxed) != 0 {
        page.life.store(0, Ordering::Relaxed);
        page.reviving.store(0, Ordering::Release);
    }
}

/// Whether there has been a life, in this process or in one that it is the child of by forks.
pub(crate) fn has_been() -> bool {
    LAST.load(Ordering::Relaxed) != 0
}

/// Ends all recording in this process, for good.
pub(crate) fn end() {
    OFF.store(true, Ordering::Relaxed);
    if is_prepared() {
        page().life.store(0, Ordering::Release);
    }
}

/// Whether that has happened.
pub(crate) fn is_over() -> bool {
    OFF.load(Ordering::Relaxed)
}

/// Leave to begin a new life in the child of a fork: given once, to its only thread.
#[derive(Debug)]
pub(crate) struct Revival(());

/// Asks, after life 0 was seen, whether this is the child of a fork whose new life is ours to begin.
pub(crate) fn revival() -> Option<Revival> {
    if OFF.load(Ordering::Relaxed) || !is_prepared() {
        return None;
    }
    let page = page();
    if page.life.load(Ordering::Acquire) != 0 {
        return None;
    }
    let first = page.reviving.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
    first.then_some(Revival(()))
}
