//! Children: they go on with the table of their parent, and a mark in what they allocate if the parent has one.
//!
//! # Safety
//! A fork that libc makes holds the locks of this mode from before it until after it, so a child finds its tables whole.
//! Meanwhile the fork waits for the allocator's locks: so no handler of signals waits for one of these. It doesn't hold those of
//! the agent's heap and of what else the agent does for the process, since handlers take memory, but waits until nobody does
//! ([`crate::forking`]); and `renew` looks at them. One that is
//! made without libc is noticed at its first call by a page that the kernel empties in each child. There another thread
//! may have been in the middle of a change, which is left as it is: entries are written one by one.

use super::{blocks, dump, freed, log, record, unreachable, walk};
use crate::lock::Guard;
use crate::{context, forking, heap, life, modules, session, sys};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// Whether this process is marked: what its children allocate will be told apart.
static MARKED: AtomicBool = AtomicBool::new(false);
/// Whether it was forked from one that is.
static IN_CHILD: AtomicBool = AtomicBool::new(false);
static NONE: AtomicU32 = AtomicU32::new(1);
/// Not 0, but for a child that hasn't noticed yet that it is one.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const NONE).cast_mut());

/// All locks, in the order in which they are taken.
struct Held {
    _looks: Guard<'static>,
    _records: Guard<'static>,
    _freed: Guard<'static>,
    _blocks: blocks::Held,
    _stacks: Guard<'static>,
    _walkers: Guard<'static>,
}

struct Cell(UnsafeCell<Option<Held>>);
// SAFETY: used by the thread that forks, under the locks that it holds.
unsafe impl Sync for Cell {}
static HELD: Cell = Cell(UnsafeCell::new(None));

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
    let held = Held {
        _looks: unreachable::hold(),
        _records: record::hold(),
        _freed: freed::hold(),
        _blocks: blocks::hold(),
        _stacks: walk::STACKS.lock(),
        _walkers: walk::WALKERS.lock(),
    };
    // SAFETY: all locks are held.
    unsafe { *HELD.0.get() = Some(held) };
    forking::begin();
}

unsafe extern "C" fn after() {
    forking::end();
    // SAFETY: the locks are held by this thread, which took them in `before`.
    drop(unsafe { (*HELD.0.get()).take() });
}

unsafe extern "C" fn in_child() {
    // SAFETY: as in `after`; the thread's other self took them.
    drop(unsafe { (*HELD.0.get()).take() });
    // Not `look`: a kernel that empties no page must not leave a child with what another thread held.
    renew();
}

/// In a child, in its only thread.
#[cold]
fn renew() {
    forking::renew();
    let torn = life::PROCESS.is_locked() || heap::is_busy();
    if session::header().is_some() {
        let _ = context::revive();
    }
    if torn {
        heap::abandon();
        life::PROCESS.renew();
        modules::renew();
    }
    log::renew();
    dump::renew();
    unreachable::renew();
    record::renew();
    freed::renew();
    blocks::renew();
    walk::STACKS.renew();
    walk::WALKERS.renew();
    walk::forked();
    IN_CHILD.store(MARKED.load(Ordering::Relaxed) || is_in_child(), Ordering::Relaxed);
    notice().store(1, Ordering::Release);
}
