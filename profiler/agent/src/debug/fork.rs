//! Children: they go on with the table of their parent, and a mark in what they allocate if the parent has one.
//!
//! # Safety
//! A fork that libc makes waits until nobody has a lock of this mode, nor one of the agent's heap and of what else the agent does for
//! the process, and who wants one waits for the fork ([`crate::forking`]): so a child finds its tables whole. It has none
//! itself: the fork waits for locks of libc's, whose holders may allocate. So neither waits without an end, and where they did so in vain,
//! and in a fork that is made without libc, which is noticed at its first call by a page that the kernel empties in each child, another thread
//! may have been in the middle of a change. That is left as it is: entries are written one by one, so it is one that is half there, but
//! where a list was just then growing.

use super::{blocks, dump, freed, log, record, unreachable, walk};
use crate::lock::Lock;
use crate::{forked, forking, heap, life, modules, session, sys};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// Whether this process is marked: what its children allocate will be told apart.
static MARKED: AtomicBool = AtomicBool::new(false);
/// Whether it was forked from one that is.
static IN_CHILD: AtomicBool = AtomicBool::new(false);
static NONE: AtomicU32 = AtomicU32::new(1);
/// Not 0, but for a child that hasn't noticed yet that it is one.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NONE).cast_mut());

/// All locks, in the order in which they are taken.
pub(crate) fn locks() -> impl Iterator<Item = &'static Lock> {
    let first = [&unreachable::LOCK, &record::LOCK, &freed::LOCK];
    first.into_iter().chain(blocks::locks()).chain([&walk::STACKS, &walk::WALKERS])
}

/// Marks this process.
pub(crate) fn mark() {
    MARKED.store(true, Ordering::Relaxed);
}

/// Whether what is allocated is to be marked.
pub(crate) fn is_in_child() -> bool {
    IN_CHILD.load(Ordering::Relaxed)
}

pub(crate) fn prepare() {
    if let Some(page) = sys::map_anonymous(sys::PAGE)
        && sys::advise(page, sys::PAGE, libc::MADV_WIPEONFORK).is_ok()
    {
        PAGE.store(page.cast(), Ordering::Release);
        notice().store(1, Ordering::Release);
    }
    // SAFETY: the functions are this library's, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
}

fn notice() -> &'static AtomicU32 {
    // SAFETY: NONE, or a page that is never unmapped.
    unsafe { &*PAGE.load(Ordering::Acquire) }
}

/// Sees to it that this process knows whether it is a child.
#[inline]
pub(crate) fn look() {
    if notice().load(Ordering::Relaxed) == 0 {
        renew();
    }
}

unsafe extern "C" fn before() {
    forking::begin();
}

unsafe extern "C" fn after() {
    forking::end();
}

unsafe extern "C" fn in_child() {
    // Not `look`: a kernel that empties no page must not leave a child with what another thread held.
    renew();
}

/// In a child, in its only thread.
#[cold]
fn renew() {
    forking::renew();
    let torn = life::PROCESS.is_locked() || heap::is_busy();
    if session::header().is_some() {
        forked::begin(None);
    }
    // Where a handler forked amid a recording, it was seen to then.
    if forking::TORN.swap(false, Ordering::Relaxed) || torn {
        heap::abandon();
        life::PROCESS.renew();
        modules::renew();
    }
    log::renew();
    dump::renew();
    locks().for_each(Lock::renew);
    unreachable::forked();
    record::forked();
    walk::forked();
    IN_CHILD.store(MARKED.load(Ordering::Relaxed) || is_in_child(), Ordering::Relaxed);
    notice().store(1, Ordering::Release);
}
