//! Forks that libc makes happen while no thread changes what the child needs whole.
//!
//! A child has its parent's memory and one of its threads. Where another thread was in the middle of a change, under
//! a lock, the child can't use what was changed. So a thread that is about to fork says so and waits until nobody
//! holds such a lock; whoever wants one meanwhile waits until the fork is over. Neither waits without an end: a fork takes locks
//! of libc's, which may be those of a thread that waits here. What has gone on without waiting is noticed in the child.

use crate::lock::Lock;
use crate::{heap, life, sys, tls};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// How many forks are about to be made.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Somebody has waited for one in vain: until the next, nobody waits.
static IN_VAIN: AtomicBool = AtomicBool::new(false);
/// How often either side asks again, a twentieth of a millisecond apart or more. Turns and no time: on a busy machine the other
/// one may not run for longer than any time that could be given here, and a turn takes longer there too.
const TURNS: u32 = 1000;

/// What a child needs whole.
fn locks() -> [&'static Lock; 2] {
    [&life::PROCESS, &heap::LOCK]
}

/// This thread is about to fork.
pub(crate) fn begin() {
    let tls = tls::get();
    tls.forks.set(tls.forks.get() + 1);
    IN_VAIN.store(false, Ordering::Relaxed);
    FORKS.fetch_add(1, Ordering::Relaxed);
    // Before the locks are looked at. Whoever takes one takes it before looking for forks: one of the two sees the other.
    fence(Ordering::SeqCst);
    for _ in 0..TURNS {
        if locks().iter().all(|lock| !lock.is_locked() || lock.is_own()) {
            return;
        }
        sys::sleep_briefly();
    }
}

/// This thread has forked, or could not.
pub(crate) fn end() {
    let tls = tls::get();
    let Some(left) = tls.forks.get().checked_sub(1) else { return };
    tls.forks.set(left);
    FORKS.fetch_sub(1, Ordering::Release);
}

/// In the child of any fork, in its only thread.
pub(crate) fn renew() {
    tls::get().forks.set(0);
    FORKS.store(0, Ordering::Relaxed);
}

/// Whether whoever has just taken a lock, having given it back so often, is to give it back until another thread's fork is over.
/// Not who has another lock, which the fork waits for.
pub(crate) fn come_first(turns: u32) -> bool {
    fence(Ordering::SeqCst);
    if FORKS.load(Ordering::Relaxed) == 0 || IN_VAIN.load(Ordering::Relaxed) {
        return false;
    }
    let tls = tls::get();
    if tls.forks.get() != 0 || tls.locks.get() != 1 {
        return false;
    }
    if turns == TURNS {
        IN_VAIN.store(true, Ordering::Relaxed);
    }
    turns < TURNS
}
