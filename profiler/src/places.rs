//! Places for those who are served at once: a bounded number.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many there are, and how many are taken.
#[derive(Debug)]
pub(crate) struct Places {
    all: usize,
    taken: Arc<AtomicUsize>,
}

/// One of them. It is free again when this is dropped, also by a panic.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Places {
    pub(crate) fn new(all: usize) -> Self {
        Self { all, taken: Arc::default() }
    }

    /// A place, if there is one left.
    pub(crate) fn take(&self) -> Option<Place> {
        let place = Place(Arc::clone(&self.taken));
        (self.taken.fetch_add(1, Ordering::Relaxed) < self.all).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
