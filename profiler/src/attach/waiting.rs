//! Waiting for a reason to end a recording: a signal, the time, the process's end.
//!
//! # Safety
//! System calls on live structures, initialised before use.

use std::ffi::c_int;
use std::time::Duration;

/// Signals that ask for the end.
const ENDING: [c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The signals that ask for the end, blocked in this thread and all that it starts, and waited for.
#[derive(Debug)]
pub(crate) struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks them.
    pub(crate) fn block() -> Self {
        // SAFETY: the set is initialised before use.
        unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in ENDING {
                libc::sigaddset(&mut set, signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            Self(set)
        }
    }

    /// Waits for one of them. False if none came in this time.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let time = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(time.subsec_nanos()),
        };
        // SAFETY: set and time are live for the call.
        unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), &time) > 0 }
    }
}
