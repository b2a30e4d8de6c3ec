//! Interval timers that this process was started with: exec keeps them, so they are PROGRAM's; fork doesn't, so it has to be
//! given them.
//!
//! # Safety
//! System calls on live structures.

use std::ffi::c_int;

const ALL: [c_int; 3] = [libc::ITIMER_REAL, libc::ITIMER_VIRTUAL, libc::ITIMER_PROF];

/// What was left of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers([libc::itimerval; 3]);

impl Timers {
    /// Takes them, as early as can be: their signals would end this process, not PROGRAM.
    pub(crate) fn take() -> Self {
        Self(ALL.map(|which| {
            let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
            let off = libc::itimerval { it_interval: none, it_value: none };
            let mut was = off;
            // SAFETY: see the module's header.
            unsafe { libc::syscall(libc::SYS_setitimer, which, &raw const off, &raw mut was) };
            was
        }))
    }

    /// Lets them go on from where they were, in the calling process: what grapnel does before PROGRAM begins is not counted.
    /// Makes system calls only: for the child between fork and exec.
    pub(crate) fn set(&self) {
        for (which, was) in ALL.into_iter().zip(&self.0) {
            if was.it_value.tv_sec != 0 || was.it_value.tv_usec != 0 {
                // SAFETY: see the module's header.
                unsafe {
                    libc::syscall(libc::SYS_setitimer, which, &raw const *was, std::ptr::null_mut::<u8>())
                };
            }
        }
    }
}
