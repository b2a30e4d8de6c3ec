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

/// Signals blocked, in this thread; within another, for nothing more than a count.
#[derive(Debug)]
pub(crate) struct Quiet {
    /// As it was before the outermost.
    mask: u64,
}

impl Quiet {
    pub(crate) fn new() -> Self {
        let held = &tls::get().locks;
        let mask = if held.get() == 0 { sys::block_signals() } else { 0 };
        held.set(held.get() + 1);
        Self { mask }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let held = &tls::get().locks;
        held.set(held.get() - 1);
        if held.get() == 0 {
            sys::restore_signals(self.mask);
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
            if turns.is_multiple_of(64) { sys::yield_now() } else { core::hint::spin_loop() }
        }
        Guard { lock: self, _quiet: quiet }
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Only in the child of a fork, whose one thread is the caller.
    pub(crate) fn renew(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // The signals come after this, with the field.
        self.lock.0.store(false, Ordering::Release);
    }
}
