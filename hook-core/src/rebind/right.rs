//! The right to change words, held by one thread of the process at a time.
//!
//! Two threads that change words of one page at once would take the right to write from each other: one makes the page
//! writable, finds that the other has, and stores when that has protected it again.

use core::sync::atomic::{AtomicU64, Ordering::*};

use crate::sys::{self, Errno};

/// The ids of the process and the thread that hold it; 0 if nobody does. In a child made by fork a holder of the parent's
/// doesn't count.
static HOLDER: AtomicU64 = AtomicU64::new(0);

/// How many milliseconds are waited for another thread.
const PATIENCE: usize = 5000;

pub(super) struct Right(());

impl Right {
    /// Waits for the right, but not for ever: its holder may be a thread that this one has interrupted or stopped.
    pub(super) fn begin() -> Result<Self, Errno> {
        let pid = sys::pid() as u32;
        let me = u64::from(pid) << 32 | u64::from(sys::tid() as u32);
        for _ in 0..PATIENCE {
            let free = |holder: u64| ((holder >> 32) as u32 != pid).then_some(me);
            match HOLDER.fetch_update(Acquire, Relaxed, free) {
                Ok(_) => return Ok(Self(())),
                // A signal handler came between.
                Err(holder) if holder == me => return Err(Errno(libc::EDEADLK)),
                Err(_) => sys::sleep_a_millisecond(),
            }
        }
        Err(Errno(libc::EBUSY))
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        HOLDER.store(0, Release);
    }
}
