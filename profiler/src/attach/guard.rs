//! Who takes the agent out when grapnel is killed: a process of its own that waits for nothing else.
//!
//! It is made before grapnel opens the trace or starts a thread, has a session of its own, so that neither a terminal's
//! signals nor those to grapnel's group reach it, and reads from a pipe. A byte says that all is done; the pipe's end says
//! that grapnel is gone.
//!
//! # Safety
//! System calls on descriptors and structures of our own. The child of the fork is a copy of a process with one thread, and
//! may do all that this may.

use super::detach::clean_up;
use crate::run::process::Process;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::FromRawFd;

/// The guard, while grapnel lives.
#[derive(Debug)]
pub(crate) struct Guard {
    pipe: File,
    child: libc::pid_t,
}

impl Guard {
    /// Has a process wait for this one's end, to take the agent out of `pid` then.
    pub(crate) fn start(pid: u32, process: &Process) -> io::Result<Self> {
        let mut ends = [0; 2];
        // SAFETY: two descriptors come back, new and ours.
        let (mut read, write) = unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
                return Err(io::Error::last_os_error());
            }
            (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
        };
        // SAFETY: see the module's header.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(write);
                // SAFETY: this process's own session and name.
                unsafe {
                    libc::setsid();
                    libc::prctl(libc::PR_SET_NAME, c"grapnel-guard".as_ptr());
                    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
                        libc::signal(signal, libc::SIG_IGN);
                    }
                }
                if !matches!(read.read(&mut [0]), Ok(1)) && !process.has_ended() {
                    clean_up(pid);
                }
                std::process::exit(0)
            }
            child => Ok(Self { pipe: write, child }),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.pipe.write_all(&[1]);
        // SAFETY: waits for our own child, which ends at that byte.
        unsafe { libc::waitpid(self.child, std::ptr::null_mut(), 0) };
    }
}
