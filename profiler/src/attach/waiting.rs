//! Waiting for a reason to end a recording: a signal, the time, the process's end. A signal may also be one that something
//! else is done on.
//!
//! A terminal's signals don't stop grapnel: the process's threads would soon wait for room in their rings, for as long as it takes.
//!
//! # Safety
//! System calls on live structures, initialised before use.

use std::ffi::c_int;
use std::time::Duration;

/// Signals that ask for the end.
const ENDING: [c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Signals that would stop this process, but for that which nobody can block.
const STOPPING: [c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// The signals that ask for the end, those that would stop us, and one of neither kind, blocked in this thread and all that it
/// starts, and waited for.
#[derive(Debug)]
pub(crate) struct Signals(libc::sigset_t);

/// What came of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// None of them came in this time.
    Late,
    /// One that asks for the end.
    Ending,
    /// One that would have stopped us.
    Stopping,
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
            for signal in ENDING.into_iter().chain(STOPPING).chain(other) {
                libc::sigaddset(&mut set, signal);
            }
            // One that is ignored and blocked is told to who waits for it all the same. That isn't what `nohup` is for; scripts
            // have SIGINT ignored in what they start beside them, and mean nothing by it.
            let mut hangup: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut hangup) == 0
                && hangup.sa_sigaction == libc::SIG_IGN
            {
                libc::sigdelset(&mut set, libc::SIGHUP);
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
            signal if STOPPING.contains(&signal) => Waited::Stopping,
            _ => Waited::Other,
        }
    }
}
