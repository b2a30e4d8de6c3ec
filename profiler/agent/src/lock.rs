//! A lock for the slow paths, and the guard that comes with it.
//!
//! # Safety
//! Signals are blocked while the lock is held, so its holder is never interrupted by code that could want it.
//! Nothing is called under it that could wait for the target: no loader, no libc lock. So it is always given
//! back, except by a thread that is not there any more: in a child of fork the lock of the parent's other
//! thread stays taken. [`crate::life`] makes all locks new there.

use crate::{sys, tls};
use core::sync::atomic::{AtomicBool, Ordering};

/// A spin lock; holding it is short and rare.
#[derive(Debug, Default)]
pub(crate) struct Lock(AtomicBool);

/// Signals blocked, lock held.
#[derive(Debug)]
pub(crate) struct Guard<'a> {
    lock: &'a Lock,
    _quiet: Quiet,
}

/// Signals blocked, in this thread; within another, for nothing more than a count. It keeps the mask itself where the
/// thread's block is that of others too.
#[derive(Debug)]
pub(crate) struct Quiet(Option<u64>);

impl Quiet {
    pub(crate) fn new() -> Self {
        let tls = tls::get();
        if tls::is_shared(tls) {
            return Self(Some(sys::block_signals()));
        }
        if tls.locks.get() == 0 {
            tls.mask.set(sys::block_signals());
        }
        tls.locks.set(tls.locks.get() + 1);
        Self(None)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Some(mask) = self.0 {
            return sys::restore_signals(mask);
        }
        let tls = tls::get();
        tls.locks.set(tls.locks.get() - 1);
        if tls.locks.get() == 0 {
            sys::restore_signals(tls.mask.get());
        }
    }
}

impl Lock {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    pub(crate) fn lock(&self) -> Guard<'_> {
        let quiet = Quiet::new();
        let mut turns = 0u32;
        while self.0.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            turns += 1;
            match turns {
                0..64 => core::hint::spin_loop(),
                64..256 => sys::yield_now(),
                // A real-time thread that only yields would keep the holder from its processor for ever.
                _ => sys::sleep_briefly(),
            }
        }
        Guard { lock: self, _quiet: quiet }
    }

    /// For where the holder may wait for the caller.
    #[cfg(not(grapnel_attached))]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_>> {
        let quiet = Quiet::new();
        let taken = self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        taken.then(|| Guard { lock: self, _quiet: quiet })
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Only in the child of a fork, whose one thread is the caller.
    pub(crate) fn renew(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Where the agent's own frames are left for good: no lock is taken any more, signals are as they were.
#[cfg(any(grapnel_cdylib, not(grapnel_attached)))]
pub(crate) fn let_signals_through() {
    let tls = tls::get();
    if tls.locks.replace(0) != 0 {
        sys::restore_signals(tls.mask.get());
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // The signals come after this, with the field.
        self.lock.0.store(false, Ordering::Release);
    }
}
