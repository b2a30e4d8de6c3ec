//! Forks that libc makes happen while no thread changes what the child needs whole.
//!
//! A child has its parent's memory and one of its threads. Where another thread was in the middle of a change, under
//! a lock, the child can't use what was changed. So a thread that is about to fork says so and waits until nobody
//! holds such a lock; whoever wants one meanwhile waits until the fork is over. Neither waits without an end: a fork takes locks
//! of libc's, which may be those of a thread that waits here. What has gone on without waiting is noticed in the child.
//!
//! The dynamic linker has a lock for its list that glibc doesn't make new in a child: who asks for the list holds it, and in a child of
//! that moment nobody could load a library any more. So that is done like under a lock here too ([`Listing`]), but by any number
//! of threads at a time: whoever has the linker's lock may be among them again, and must not wait for one that waits for it.

use crate::lock::{self, Lock, Quiet};
use crate::{debug, heap, life, sys, tls};
use core::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering, fence};

/// How many forks are about to be made.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// The number of the newest. A thread keeps that of the last one it waited for in vain ([`tls::Tls::vain`]): the others go on waiting.
static NEWEST: AtomicU16 = AtomicU16::new(0);

/// How many hold the lock of the dynamic linker's list for the agent's sake, or wait for it.
static LISTING: AtomicU32 = AtomicU32::new(0);
/// A fork has waited for them in vain: no other does until there are none. Perhaps it has that lock itself, or they wait for who waits for
/// a fork; or a handler has left one of them for good.
static IN_VAIN: AtomicBool = AtomicBool::new(false);

/// This is the child of a fork that did not wait for what a child needs whole, and that is not.
pub(crate) static TORN: AtomicBool = AtomicBool::new(false);

/// This thread does: forks wait until it doesn't, and it waits for none meanwhile. Its signals go on: whoever has the linker's lock may
/// wait for its handlers.
#[derive(Debug)]
pub(crate) struct Listing(());

impl Listing {
    /// To be had before the linker's lock.
    pub(crate) fn begin() -> Self {
        let listing = &tls::get().listing;
        let is_first = listing.get() == 0;
        let mut patience = Patience::new();
        loop {
            if is_first {
                wait(&mut patience);
            }
            let listed = {
                // A handler that forks finds both counts as they are, or neither.
                let _quiet = Quiet::new();
                listing.set(listing.get() + 1);
                LISTING.fetch_add(1, Ordering::AcqRel);
                Self(())
            };
            // One that began meanwhile comes first.
            if !is_first || !is_coming(&patience) {
                return listed;
            }
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        let _quiet = Quiet::new();
        let listing = &tls::get().listing;
        listing.set(listing.get().saturating_sub(1));
        let less = |listing: u32| listing.checked_sub(1);
        if LISTING.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less) == Ok(1) {
            IN_VAIN.store(false, Ordering::Relaxed);
        }
    }
}

/// How long either side waits.
#[derive(Debug)]
pub(crate) struct Patience {
    turns: u32,
    /// When the first turn began; 0 before.
    start_ns: u64,
}

/// Turns of a twentieth of a millisecond or more. Not time alone: on a busy machine the other one may not run for longer than any
/// time that could be given here, and a turn takes longer there too.
const TURNS: u32 = 4000;
/// So many are made in any case, and then no more when so much time has passed: a turn may take a thousand times as long, where the
/// system lets threads sleep for longer.
const LEAST_TURNS: u32 = 50;
const MOST_NS: u64 = 1_000_000_000;

impl Patience {
    pub(crate) fn new() -> Self {
        Patience { turns: 0, start_ns: 0 }
    }

    /// Waits a turn. False where there were enough.
    fn turn(&mut self) -> bool {
        if self.turns == 0 {
            self.start_ns = sys::monotonic_ns();
        }
        if self.is_over() {
            return false;
        }
        self.turns += 1;
        sys::sleep_briefly();
        true
    }

    fn is_over(&self) -> bool {
        let is_late = || sys::monotonic_ns().wrapping_sub(self.start_ns) > MOST_NS;
        self.turns >= TURNS || (self.turns >= LEAST_TURNS && is_late())
    }
}

/// Those of what a child needs whole.
fn locks() -> impl Iterator<Item = &'static Lock> {
    [&life::PROCESS, &heap::LOCK].into_iter().chain(debug::locks())
}

/// This thread is about to fork.
pub(crate) fn begin() {
    let tls = tls::get();
    {
        // A handler that forks itself finds both counts as they are, or neither.
        let _quiet = Quiet::new();
        if tls.forks.replace(tls.forks.get() + 1) == 0 {
            NEWEST.fetch_add(1, Ordering::Relaxed);
        }
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // Before the locks are looked at. Whoever takes one takes it before looking for forks: one of the two sees the other.
    fence(Ordering::SeqCst);
    let mut patience = Patience::new();
    let is_free = |lock: &Lock| !lock.is_locked() || lock.is_own();
    // A handler may fork while its own thread asks for the list.
    let own = u32::from(tls.listing.get());
    let are_others_listing = || LISTING.load(Ordering::Relaxed) > own && !IN_VAIN.load(Ordering::Relaxed);
    let is_all_free = || !are_others_listing() && locks().all(is_free);
    // What a thread held that has left the agent stays so.
    while !lock::has_left() && !is_all_free() && patience.turn() {}
    if are_others_listing() {
        IN_VAIN.store(true, Ordering::SeqCst);
        // The last of them may have ended just before.
        if LISTING.load(Ordering::SeqCst) == 0 {
            IN_VAIN.store(false, Ordering::Relaxed);
        }
    }
    // What was changed under them lies before the fork.
    fence(Ordering::Acquire);
}

/// This thread has forked, or could not.
pub(crate) fn end() {
    let tls = tls::get();
    let _quiet = Quiet::new();
    if let Some(left) = tls.forks.get().checked_sub(1) {
        tls.forks.set(left);
        let less = |forks: u32| forks.checked_sub(1);
        let _ = FORKS.fetch_update(Ordering::Release, Ordering::Relaxed, less);
    }
}

/// In the child of any fork, in its only thread.
pub(crate) fn renew() {
    tls::get().forks.set(0);
    FORKS.store(0, Ordering::Relaxed);
    tls::get().listing.set(0);
    LISTING.store(0, Ordering::Relaxed);
    IN_VAIN.store(false, Ordering::Relaxed);
}

/// Whether another thread's fork is to come first, for which this one has so much patience left. Not where it has taken a lock
/// already, or asks for the linker's list, which the fork waits for.
pub(crate) fn is_to_come_first(patience: &Patience) -> bool {
    is_coming(patience) && tls::get().listing.get() == 0
}

/// The same, whether this thread asks for the list or not.
fn is_coming(patience: &Patience) -> bool {
    fence(Ordering::SeqCst);
    if FORKS.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let tls = tls::get();
    let is_in_vain = tls.vain.get() == NEWEST.load(Ordering::Relaxed);
    tls.forks.get() == 0 && tls.guards.get() == 0 && !is_in_vain && !patience.is_over()
}

/// Waits until there is none.
pub(crate) fn wait(patience: &mut Patience) {
    while is_to_come_first(patience) {
        if !patience.turn() {
            break;
        }
    }
    if patience.turns != 0 && patience.is_over() {
        tls::get().vain.set(NEWEST.load(Ordering::Relaxed));
    }
}
