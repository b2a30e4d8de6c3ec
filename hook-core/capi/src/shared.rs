//! The set that all callers of this interface share.
//!
//! # Safety
//! One thread at a time has the set: who has put its process into the holder. A thread that doesn't exist in this process,
//! because it was forked off while another had the set, may have left the set in any state; it is then neither read nor
//! freed, and a new one takes its place.

use std::{
    cell::UnsafeCell,
    ptr,
    sync::atomic::{AtomicU32, Ordering::*},
};

use engine::HookSet;

/// Which set it is, of those that a process has had.
pub(crate) type Generation = u32;

struct Cell(UnsafeCell<Option<HookSet>>);

// SAFETY: only the holder touches it.
unsafe impl Sync for Cell {}

static SET: Cell = Cell(UnsafeCell::new(None));
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// The process whose thread has the set; 0 if none has.
static HOLDER: AtomicU32 = AtomicU32::new(0);

/// The set, had by this thread.
pub(crate) struct Shared(());

impl Shared {
    /// `None` if another thread has the set, or this one around this call.
    pub(crate) fn lock() -> Option<Self> {
        let pid = std::process::id();
        let before = HOLDER.fetch_update(Acquire, Relaxed, |holder| (holder != pid).then_some(pid)).ok()?;
        if before != 0 {
            GENERATION.fetch_add(1, Relaxed);
            // SAFETY: this thread is the holder, and the one before isn't in this process. What was there is not dropped.
            unsafe { ptr::write(SET.0.get(), None) };
        }
        Some(Self(()))
    }

    pub(crate) fn generation(&self) -> Generation {
        GENERATION.load(Relaxed)
    }

    pub(crate) fn set(&mut self) -> &mut HookSet {
        // SAFETY: this thread is the holder, and `self` is borrowed for as long.
        unsafe { &mut *SET.0.get() }.get_or_insert_with(HookSet::new)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        HOLDER.store(0, Release);
    }
}
