//! Code that is kept in mind by where it lies: what a call returns into says whose the call is.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

/// A range of addresses; empty at first.
#[derive(Debug)]
pub(crate) struct Span {
    start: AtomicUsize,
    len: AtomicUsize,
}

impl Span {
    pub(crate) const fn empty() -> Self {
        Self { start: AtomicUsize::new(0), len: AtomicUsize::new(0) }
    }

    pub(crate) fn set(&self, range: &Range<usize>) {
        self.start.store(range.start, Ordering::Relaxed);
        self.len.store(range.len(), Ordering::Relaxed);
    }

    /// Where it begins; 0 where there is none.
    #[inline(always)]
    pub(crate) fn start(&self) -> usize {
        self.start.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.start()) < self.len.load(Ordering::Relaxed)
    }
}
