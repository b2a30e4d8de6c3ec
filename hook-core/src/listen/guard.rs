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
    #[inline(never)]
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

    #[test]
    fn a_signal_handler_on_its_own_stack_close_above_is_inside() {
        use std::sync::atomic::AtomicBool;
        static ENTERED: AtomicBool = AtomicBool::new(true);
        extern "C" fn handle(_: i32) {
            ENTERED.store(may_enter(), Relaxed);
        }
        #[inline(never)]
        fn interrupted() {
            let mut word = 0;
            let guard = Guard::enter(&mut word).unwrap();
            // SAFETY: the handler may run anywhere.
            unsafe { libc::raise(libc::SIGUSR2) };
            drop(guard);
        }
        // In this frame, so that it lies above the next one's.
        let mut room = [0u8; 32 << 10];
        let stack = libc::stack_t { ss_sp: room.as_mut_ptr().cast(), ss_flags: 0, ss_size: room.len() };
        let handler: extern "C" fn(i32) = handle;
        // SAFETY: the stack outlives its use, and this thread has its own back afterwards.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler as usize, libc::SA_ONSTACK);
            assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
            let mut before: libc::stack_t = std::mem::zeroed();
            assert_eq!(libc::sigaltstack(&raw const stack, &raw mut before), 0);
            interrupted();
            assert_eq!(libc::sigaltstack(&raw const before, std::ptr::null_mut()), 0);
        }
        std::hint::black_box(&mut room);
        assert!(!ENTERED.load(Relaxed));
    }
}
