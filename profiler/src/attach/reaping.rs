//! Threads that end while the kernel keeps this one waiting.
//!
//! A thread that becomes another program waits for all others of its process to be gone, and those that are traced go only when
//! their tracer has seen their end. A tracer that asks to trace that very thread waits until it has become the program. So both
//! would wait for each other: another thread of the tracer's looks meanwhile.
//!
//! # Safety
//! The kernel fills in live structures.

use super::freeze::threads;
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

/// Sees a thread's end, if it has ended and is one that this process traces. That a traced thread has stopped the kernel tells
/// whoever asks for ends, too, and only once: that is left to who traces it.
fn reap(tid: i32) {
    let wait = |flags| {
        // SAFETY: zeroes are a valid value, and what a wait without an answer leaves.
        let mut said: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `said` is live.
        let result = unsafe { libc::waitid(libc::P_PID, tid.cast_unsigned(), &raw mut said, flags) };
        if result == 0 { said.si_code } else { 0 }
    };
    let flags = libc::WEXITED | libc::WNOHANG | libc::__WALL;
    if [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&wait(flags | libc::WNOWAIT)) {
        // What has ended says nothing else any more.
        wait(flags);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tracee::{Stop, Tracee};
    use super::*;
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    fn sleeping() -> Child {
        Command::new("sleep").arg("100").stdin(Stdio::null()).spawn().expect("sleep is there")
    }

    #[test]
    fn a_stop_is_left_to_the_tracer() {
        let mut child = sleeping();
        let tid = child.id().cast_signed();
        let mut tracee = Tracee::seize(tid, 0).expect("a child may be traced");
        tracee.interrupt().expect("it is there");
        let state = || std::fs::read_to_string(format!("/proc/{tid}/stat")).unwrap_or_default();
        while !state().contains(") t ") {
            std::thread::yield_now();
        }
        reap(tid);
        let stop = tracee.wait_until(Instant::now() + Duration::from_secs(10));
        assert!(matches!(stop, Some(Stop::Asked)), "{stop:?}");
        tracee.let_go();
        child.kill().expect("it is there");
        child.wait().expect("it ends");
    }

    #[test]
    fn an_end_is_seen() {
        let mut child = sleeping();
        let tid = child.id().cast_signed();
        child.kill().expect("it is there");
        while std::fs::read_to_string(format!("/proc/{tid}/stat")).is_ok() {
            reap(tid);
        }
        assert!(child.wait().is_err(), "its end was seen before");
    }
}
