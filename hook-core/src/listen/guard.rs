//! Which threads are in a guarded listener.
//!
//! A thread has an entry while it is in one. A listener may be left without an end, by a thread that ends in it or by a
//! `longjmp` out of it; so the entry names a word on the stack that holds the entry's address while the listener's frame
//! is there, and is taken for left over when the word holds something else, or lies a little below the stack pointer,
//! where that frame can't be.
//!
//! # Safety
//! The word of an entry is read through the kernel, since its stack may be gone.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use super::miss;
use crate::{native, sys};

/// A thread's entry is in one of these buckets, which its address says.
const BUCKETS: usize = 128;
const BUCKET: usize = 8;
/// What lies this near below the stack pointer is the same stack.
const NEAR: usize = 64 << 10;

struct Entry {
    /// The thread pointer; 0 while the entry is free.
    thread: AtomicUsize,
    /// Where the word is.
    word: AtomicUsize,
}

#[repr(align(128))]
struct Bucket([Entry; BUCKET]);

static TABLE: [Bucket; BUCKETS] =
    [const { Bucket([const { Entry { thread: AtomicUsize::new(0), word: AtomicUsize::new(0) } }; BUCKET]) };
        BUCKETS];

/// This thread is in a guarded listener.
pub(super) struct Guard<'a> {
    entry: &'static Entry,
    word: &'a mut usize,
}

impl<'a> Guard<'a> {
    /// `None` if the thread is in one already. `word` lies in the frame that the guard is for.
    #[inline]
    pub(super) fn enter(word: &'a mut usize) -> Option<Self> {
        let thread = native::thread_pointer();
        // Control blocks lie at the ends of mappings, many zeroes apart.
        let hash = (thread as u64 >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
        let bucket = &TABLE[hash as usize % BUCKETS].0;
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
            Ok(word) => word == core::ptr::from_ref(self) as u64,
            // What can't be looked at may still be there.
            Err(errno) => errno != sys::EFAULT,
        };
        holds && !(at < here && here - at < NEAR)
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        *self.word = 0;
        self.entry.thread.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a frame of its own, as a call from within a listener is.
    #[inline(never)]
    fn may_enter() -> bool {
        core::hint::black_box(Guard::enter(&mut 0)).is_some()
    }

    #[test]
    fn a_thread_is_inside_once() {
        let mut word = 0;
        let guard = Guard::enter(&mut word).unwrap();
        assert!(!may_enter());
        std::thread::spawn(|| assert!(may_enter())).join().unwrap();
        drop(guard);
        assert!(may_enter());
    }

    #[test]
    fn a_guard_whose_frame_is_gone_counts_no_more() {
        let mut word = 0;
        core::mem::forget(Guard::enter(&mut word).unwrap());
        assert!(!may_enter());
        word = 1;
        core::hint::black_box(&mut word);
        assert!(may_enter());
    }
}
