//! A lock for the slow paths, and the guard that comes with it.
//!
//! # Safety
//! Signals are blocked while the lock is held, so its holder is never interrupted by code that could want it.
//! Nothing is called under it that could wait for the target: no loader, no libc lock; but under that of [`crate::bound`], which
//! nobody waits for without an end. So it is always given
//! back, except by a thread that is not there any more: in a child of fork the lock of the parent's other
//! thread stays taken, and [`crate::life`] makes all locks new there; and except by one that met a fault of the agent's own while
//! it held it, after which recording is over, and whoever waits leaves the agent too ([`left`]). A guest ([`crate::guests`]) may be killed by
//! itself: that is noticed by who waits, and is the end of the recording as well.
//!
//! A filter for system calls may be against blocking signals. Then a handler may want the lock that its own thread holds: it
//! is known by whom the lock is held, and that is a fault of ours, which ends the recording and not the target.

#[cfg(not(grapnel_attached))]
use crate::forking;
#[cfg(grapnel_cdylib)]
use crate::{guests, life, session};
use crate::{sys, tls};
#[cfg(grapnel_cdylib)]
use core::sync::atomic::AtomicBool;
use core::sync::atomic::{AtomicUsize, Ordering};
#[cfg(grapnel_cdylib)]
use grapnel_trace::shared::failure;

/// A thread has left the agent in the middle of its work, and perhaps a lock taken.
#[cfg(grapnel_cdylib)]
static LEFT: AtomicBool = AtomicBool::new(false);

/// From now on nobody waits for a lock for ever: who held it may be gone.
#[cfg(grapnel_cdylib)]
pub(crate) fn left() {
    LEFT.store(true, Ordering::Relaxed);
}

/// Whether a thread has left the agent, with what it held.
#[cfg(not(grapnel_attached))]
pub(crate) fn has_left() -> bool {
    #[cfg(grapnel_cdylib)]
    return LEFT.load(Ordering::Relaxed);
    #[cfg(not(grapnel_cdylib))]
    false
}

/// A spin lock; holding it is short and rare.
#[derive(Debug, Default)]
pub(crate) struct Lock {
    /// The address of its holder's block, or 0.
    holder: AtomicUsize,
    /// A fork waits for its holder, and whoever wants it for a fork: see [`crate::forking`].
    #[cfg(not(grapnel_attached))]
    is_whole_in_children: bool,
}

/// Signals blocked, lock held.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    lock: &'a Lock,
    _quiet: Quiet,
}

/// Signals blocked, in this thread; within another, for nothing more than a count. It keeps the mask itself where the
/// thread's block is that of others too.
#[derive(Debug)]
pub(crate) struct Quiet(Kept);

#[derive(Debug)]
enum Kept {
    /// By the thread, if the signals could be blocked at all.
    InBlock,
    Here(Option<u64>),
}

impl Quiet {
    pub(crate) fn new() -> Self {
        let tls = tls::get();
        if tls::is_shared(tls) {
            return Self(Kept::Here(sys::block_signals()));
        }
        if tls.locks.get() == 0 {
            let mask = sys::block_signals();
            tls.unblocked.set(mask.is_none());
            tls.mask.set(mask.unwrap_or(0));
        }
        tls.locks.set(tls.locks.get() + 1);
        Self(Kept::InBlock)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        match self.0 {
            Kept::Here(Some(mask)) => sys::restore_signals(mask),
            Kept::Here(None) => {}
            Kept::InBlock => {
                let tls = tls::get();
                // A handler may have left the agent, and the thread's locks with it.
                let left = tls.locks.get().saturating_sub(1);
                tls.locks.set(left);
                if left == 0 && !tls.unblocked.get() {
                    sys::restore_signals(tls.mask.get());
                }
            }
        }
    }
}

impl Lock {
    pub(crate) const fn new() -> Self {
        Self {
            holder: AtomicUsize::new(0),
            #[cfg(not(grapnel_attached))]
            is_whole_in_children: false,
        }
    }

    /// A lock of what the child of a fork needs whole.
    pub(crate) const fn whole_in_children() -> Self {
        Self {
            #[cfg(not(grapnel_attached))]
            is_whole_in_children: true,
            ..Self::new()
        }
    }

    pub(crate) fn lock(&self) -> Guard<'_> {
        let quiet = Quiet::new();
        #[cfg(not(grapnel_attached))]
        if self.is_whole_in_children {
            let mut patience = forking::Patience::new();
            forking::wait(&mut patience);
            self.take();
            // One that began meanwhile.
            while forking::is_to_come_first(&patience) {
                self.holder.store(0, Ordering::Release);
                forking::wait(&mut patience);
                self.take();
            }
            return self.guard(quiet);
        }
        self.take();
        self.guard(quiet)
    }

    /// The guard of this thread, which has taken the lock.
    fn guard(&self, quiet: Quiet) -> Guard<'_> {
        #[cfg(not(grapnel_attached))]
        {
            let guards = &tls::get().guards;
            guards.set(guards.get() + 1);
        }
        Guard { lock: self, _quiet: quiet }
    }

    fn take(&self) {
        let mut turns = 0u32;
        let own = own();
        while let Err(holder) =
            self.holder.compare_exchange_weak(0, own, Ordering::Acquire, Ordering::Relaxed)
        {
            if holder == own && own != NOBODY {
                // That of a guest may have been another's, which was killed.
                #[cfg(grapnel_cdylib)]
                if guests::is_of_one(tls::get()) {
                    holder_is_gone();
                    crate::entry::escape();
                }
                panic!("signals can't be blocked, and a handler met its own thread's lock");
            }
            turns += 1;
            match turns {
                0..64 => core::hint::spin_loop(),
                64..256 => sys::yield_now(),
                _ => {
                    #[cfg(grapnel_cdylib)]
                    if turns.is_multiple_of(LOOK_EVERY) && guests::has_gone(holder) {
                        holder_is_gone();
                    }
                    #[cfg(grapnel_cdylib)]
                    if LEFT.load(Ordering::Relaxed) {
                        // Whatever else is held stays so, and nobody takes it any more either.
                        crate::entry::escape();
                    }
                    // A real-time thread that only yields would keep the holder from its processor for ever.
                    sys::sleep_briefly();
                }
            }
        }
    }

    /// For where the holder may wait for the caller.
    #[cfg(not(grapnel_attached))]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_>> {
        let quiet = Quiet::new();
        let taken = self.holder.compare_exchange(0, own(), Ordering::Acquire, Ordering::Relaxed).is_ok();
        if taken && self.is_whole_in_children && forking::is_to_come_first(&forking::Patience::new()) {
            self.holder.store(0, Ordering::Release);
            return None;
        }
        if taken { Some(self.guard(quiet)) } else { None }
    }

    /// Whether the calling thread holds it.
    pub(crate) fn is_own(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == own()
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.holder.load(Ordering::Relaxed) != 0
    }

    /// Only in the child of a fork, whose one thread is the caller.
    pub(crate) fn renew(&self) {
        self.holder.store(0, Ordering::Relaxed);
    }
}

/// So often it is looked whether the holder is still there, a tenth of a millisecond or more each.
#[cfg(grapnel_cdylib)]
const LOOK_EVERY: u32 = 64;

/// Ends the recording, since what the holder was changing is half done.
#[cfg(grapnel_cdylib)]
#[cold]
fn holder_is_gone() {
    const SAID: &[u8] =
        b"recording has ended: a process that shares the program's memory was killed while it was recorded";
    life::end();
    left();
    session::report_failure(failure::PANIC, SAID);
}

/// A holder that several threads can't be told apart by.
const NOBODY: usize = 1;

fn own() -> usize {
    let tls = tls::get();
    if tls::is_shared(tls) { NOBODY } else { core::ptr::from_ref(tls).addr() }
}

/// Where the agent's own frames are left for good: no lock is taken any more, signals are as they were.
#[cfg(any(grapnel_cdylib, not(grapnel_attached)))]
pub(crate) fn let_signals_through() {
    let tls = tls::get();
    #[cfg(not(grapnel_attached))]
    tls.guards.set(0);
    if tls.locks.replace(0) != 0 && !tls.unblocked.get() {
        sys::restore_signals(tls.mask.get());
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        #[cfg(not(grapnel_attached))]
        {
            let guards = &tls::get().guards;
            guards.set(guards.get().saturating_sub(1));
        }
        // The signals come after this, with the field.
        self.lock.holder.store(0, Ordering::Release);
    }
}
