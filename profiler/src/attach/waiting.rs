//! Waiting for a reason to end a recording: a signal, the time, the process's end. A signal may also be one that something
//! else is done on.
//!
//! # Safety
//! System calls on live structures, initialised before use.

use std::ffi::c_int;
use std::time::Duration;

/// Signals that ask for the end.
const ENDING: [c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The signals that ask for the end, and one that doesn't, blocked in this thread and all that it starts, and waited for.
#[derive(Debug)]
pub(crate) struct Signals(libc::sigset_t);

/// What came of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// None of them came in this time.
    Late,
    /// One that asks for the end.
    Ending,
    /// The other one.
    Other,
}

impl Signals {
    /// Blocks them.
    pub(crate) fn block(other: Option<c_int>) -> Self {
        // SAFETY: the set is initialised before use.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in ENDING.into_iter().chain(other) {
                libc::sigaddset(&mut set, signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            Self(set)
        }
    }

    /// Waits for one of them.
    pub(crate) fn wait(&self, time: Duration) -> Waited {
        let time = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(time.subsec_nanos()),
        };
        // SAFETY: set and time are live for the call.
        match unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), &time) } {
            ..=0 => Waited::Late,
            signal if ENDING.contains(&signal) => Waited::Ending,
            _ => Waited::Other,
        }
    }
}
