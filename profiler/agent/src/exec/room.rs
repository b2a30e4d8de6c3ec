//! Memory for an environment that is too large for the caller's stack, which may be a thread's of 16 KiB.
//!
//! It is the thread's, and stays for the next time: in the child of a vfork it is the parent's, which nobody could give back after
//! an exec. Its first word is the id of the thread that uses it, by which a handler is known that has come in between: it
//! takes memory of its own.
//!
//! # Safety
//! Signals are blocked while the memory is chosen, so that only what is chosen is ever used by two.

use crate::lock::Quiet;
use crate::{sys, tls};
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

/// Room for an environment, until the call has failed for which it was made.
#[derive(Debug)]
pub(super) struct Room {
    memory: *mut u8,
    len: usize,
    /// Whether it stays when it is no longer used.
    stays: bool,
}

impl Room {
    /// For so many words; nothing if there is no memory.
    pub(super) fn new(words: usize) -> Option<Self> {
        let _quiet = Quiet::new();
        let len = (size_of::<usize>() * (1 + words)).next_multiple_of(sys::PAGE);
        let thread = sys::thread_id();
        let kept = &tls::get().environment;
        let (memory, kept_len) = kept.get();
        // SAFETY: kept memory is live.
        if kept_len != 0 && unsafe { user(memory) }.load(Ordering::Relaxed) == thread {
            return Some(Self { memory: sys::map_anonymous(len)?, len, stays: false });
        }
        let room = if kept_len < len {
            kept.set((ptr::null_mut(), 0));
            if kept_len != 0 {
                sys::unmap(memory, kept_len);
            }
            let memory = sys::map_anonymous(len)?;
            kept.set((memory, len));
            Self { memory, len, stays: true }
        } else {
            Self { memory, len: kept_len, stays: true }
        };
        // SAFETY: the room's memory is live.
        unsafe { user(room.memory) }.store(thread, Ordering::Relaxed);
        Some(room)
    }

    /// Where the environment goes.
    pub(super) fn words(&self) -> *mut usize {
        self.memory.cast::<usize>().wrapping_add(1)
    }
}

/// Who uses such memory.
///
/// # Safety
/// It is live, and as long as a word.
unsafe fn user<'a>(memory: *mut u8) -> &'a AtomicU32 {
    // SAFETY: the caller's promise; the first word is used as this alone.
    unsafe { AtomicU32::from_ptr(memory.cast()) }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.stays {
            // SAFETY: the room's memory is live.
            unsafe { user(self.memory) }.store(0, Ordering::Relaxed);
        } else {
            sys::unmap(self.memory, self.len);
        }
    }
}
