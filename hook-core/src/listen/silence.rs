//! A thread that no listener is told of for a while: it is in a function of others that holds a lock and calls hooked ones.
//! A listener that wants the same lock, as one on `malloc` that takes a backtrace may, would wait for its own thread.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use crate::{
    lock::{Held, Lock},
    native,
};

static LOCK: Lock = Lock::new();
/// The thread pointer of the thread; 0 if there is none.
static THREAD: AtomicUsize = AtomicUsize::new(0);

/// No listener is told of this thread.
pub(crate) struct Silence(Option<Held<'static>>);

impl Silence {
    /// For one thread at a time: another waits. It begins without, should that take seconds, or be silent already.
    pub(crate) fn begin() -> Self {
        let held = LOCK.hold().ok();
        if held.is_some() {
            THREAD.store(native::thread_pointer(), Relaxed);
        }
        Self(held)
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        if self.0.is_some() {
            THREAD.store(0, Relaxed);
        }
    }
}

/// Whether no listener is told of this thread.
#[inline(always)]
pub(super) fn is_here() -> bool {
    // SAFETY: the function takes no notice of its arguments.
    THREAD.load(Relaxed) == native::thread_pointer() && unsafe { native::aside(is_this_thread, [0; 3]) } != 0
}

/// In a child made by fork another thread may have the thread pointer of one that was forked off.
#[cold]
extern "C" fn is_this_thread(_: usize, _: usize, _: usize) -> usize {
    LOCK.is_held_here().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_is_silent_until_the_end() {
        assert!(!is_here());
        let silence = Silence::begin();
        assert!(is_here());
        drop(Silence::begin());
        assert!(is_here());
        std::thread::spawn(|| assert!(!is_here())).join().unwrap();
        drop(silence);
        assert!(!is_here());
    }
}
