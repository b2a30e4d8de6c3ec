//! Threads that end while the kernel keeps this one waiting.
//!
//! A thread that becomes another program waits for all others of its process to be gone, and those that are traced go only when
//! their tracer has seen their end. A tracer that asks to trace that very thread waits until it has become the program. So both
//! would wait for each other: another thread of the tracer's looks meanwhile.
//!
//! # Safety
//! The kernel is told how much is asked of it, and nothing is filled in.

use super::freeze::threads;
use std::ptr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How long the kernel may take before anybody looks.
const PATIENCE: Duration = Duration::from_millis(10);

/// Does work that may have to wait for threads of the process that this thread traces to be gone. Who waits for such a thread
/// later is told that it isn't there.
pub(crate) fn while_reaping<T>(pid: u32, work: impl FnOnce() -> T) -> T {
    let (done, over) = channel::<()>();
    std::thread::scope(|scope| {
        let reaper = std::thread::Builder::new().spawn_scoped(scope, move || {
            while over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                threads(pid).unwrap_or_default().into_iter().for_each(reap);
            }
        });
        let result = work();
        drop(done);
        // Without a thread it may take longer; a panic in there is nobody's.
        if let Ok(reaper) = reaper {
            let _ = reaper.join();
        }
        result
    })
}

/// Sees a thread's end, if it has ended and is one that this process traces.
fn reap(tid: i32) {
    let flags = libc::WEXITED | libc::WNOHANG | libc::__WALL;
    // SAFETY: nothing is filled in.
    unsafe { libc::waitid(libc::P_PID, tid.cast_unsigned(), ptr::null_mut(), flags) };
}
