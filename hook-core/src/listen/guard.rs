//! Which threads are in a guarded listener.
//!
//! A thread has an entry while it is in one. A listener may be left without an end, by a thread that ends in it or by a
//! `longjmp` out of it; so the entry names a word on the stack that holds the entry's address while the listener's frame
//! is there, and is taken for left over when the word holds something else, or lies a little below the stack pointer,
//! where that frame can't be on the same stack. The kernel says where a signal handler's stack is; coroutines whose stacks lie
//! within 64 KiB of each other are taken for one.
//!
//! # Safety
//! The word of an entry is read through the kernel, since its stack may be gone.

use super::{
    miss,
    places::{BUCKET, THREADS},
};
use crate::{
    atomic::{AtomicUsize, Ordering::*},
    native, sys,
};

/// What lies this near below the stack pointer is the same stack.
const NEAR: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Entry {
    /// The thread pointer; 0 while the entry is free.
    pub(super) thread: AtomicUsize,
    /// Where the word is.
    pub(super) word: AtomicUsize,
}

/// A thread's entry is in one of these, which its address says.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Bucket(pub(super) [Entry; BUCKET]);

/// This thread is in a guarded listener.
pub(super) struct Guard<'a> {
    entry: &'static Entry,
    word: &'a mut usize,
}

impl<'a> Guard<'a> {
    /// `None` if the thread is in one already. `word` lies in the frame that the guard is for.
    #[inline(never)]
    pub(super) fn enter(word: &'a mut usize) -> Option<Self> {
        let thread = native::thread_pointer();
        // Control blocks lie at the ends of mappings, many zeroes apart.
        let hash = (thread as u64 >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
        let bucket = &THREADS[hash as usize % THREADS.len()].0;
        let here = core::ptr::from_mut(word) as usize;
        for entry in bucket.iter().filter(|entry| entry.thread.load(Relaxed) == thread) {
            if entry.is_live(here) {
                return None;
            }
            entry.thread.store(0, Release);
        }
        let take = |entry: &&Entry| {
            entry.thread.load(Relaxed) == 0
                && entry.thread.compare_exchange(0, thread, Acquire, Relaxed).is_ok()
        };
        let Some(entry) = bucket.iter().find(take) else {
            miss();
            return None;
        };
        *word = core::ptr::from_ref(entry) as usize;
        entry.word.store(here, Release);
        Some(Self { entry, word })
    }
}

impl Entry {
    #[cold]
    fn is_live(&self, here: usize) -> bool {
        let at = self.word.load(Acquire);
        let holds = match sys::read_word(at) {
            // A word of this machine is the lower part of it.
            Ok(word) => word as usize == core::ptr::from_ref(self) as usize,
            // What can't be looked at may still be there.
            Err(errno) => errno != sys::EFAULT,
        };
        // A handler on its own stack has interrupted what is on the other.
        let beside = sys::signal_stack().is_some_and(|stack| stack.contains(&at) != stack.contains(&here));
        holds && (beside || !(at < here && here - at < NEAR))
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        *self.word = 0;
        let thread = native::thread_pointer();
        // Should it have been taken for left over, it may be another thread's.
        let _ = self.entry.thread.compare_exchange(thread, 0, Release, Relaxed);
    }
}
