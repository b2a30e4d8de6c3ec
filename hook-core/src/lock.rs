//! A lock that a signal handler, a child made by fork and a thread that was stopped can't wait for without end.

use core::sync::atomic::{AtomicU64, Ordering::*};

use crate::sys::{self, Errno};

/// How many milliseconds are waited for another thread.
const PATIENCE: usize = 5000;

/// Held by one thread of the process at a time.
#[derive(Debug, Default)]
pub(crate) struct Lock {
    /// The ids of the process and the thread that hold it; 0 if nobody does. In a child made by fork a holder of the
    /// parent's doesn't count.
    holder: AtomicU64,
}

/// The lock, held by this thread.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    lock: &'a Lock,
    /// A thread held it that isn't in this process: it was forked off in the middle of what that thread did.
    pub(crate) torn: bool,
}

/// This thread, as no other thread of this process or of a child is known.
pub(crate) fn this_thread() -> u64 {
    u64::from(sys::pid() as u32) << 32 | u64::from(sys::tid() as u32)
}

/// Whether that thread is one of this process.
pub(crate) fn is_of_this_process(thread: u64) -> bool {
    (thread >> 32) as i32 == sys::pid()
}

impl Lock {
    pub(crate) const fn new() -> Self {
        Self { holder: AtomicU64::new(0) }
    }

    /// Waits for the lock, but not for ever: its holder may be a thread that this one has interrupted or stopped.
    ///
    /// `EDEADLK` if this thread holds it, and a signal handler or a listener came between; `EBUSY` if another did for
    /// seconds.
    pub(crate) fn hold(&self) -> Result<Held<'_>, Errno> {
        let me = this_thread();
        for _ in 0..PATIENCE {
            let free = |holder: u64| (!is_of_this_process(holder)).then_some(me);
            match self.holder.fetch_update(Acquire, Relaxed, free) {
                Ok(before) => return Ok(Held { lock: self, torn: before != 0 }),
                Err(holder) if holder == me => return Err(Errno(libc::EDEADLK)),
                Err(_) => sys::sleep_a_millisecond(),
            }
        }
        Err(Errno(libc::EBUSY))
    }

    /// Whether this thread holds it.
    pub(crate) fn is_held_here(&self) -> bool {
        self.holder.load(Relaxed) == this_thread()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.lock.holder.store(0, Release);
    }
}
