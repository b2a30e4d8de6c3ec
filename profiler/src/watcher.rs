//! A process of its own that waits for this one's end, whatever brings that, and then undoes what can't stay.
//!
//! It has a session of its own, so that neither a terminal's signals nor those to grapnel's group reach it, and reads from a
//! pipe what it has to know. The pipe's end says that grapnel is gone.
//!
//! # Safety
//! System calls on descriptors of our own. The child of the fork is a copy of a process with one thread, and may do all that
//! this may.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::FromRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The process that waits, while this one lives.
#[derive(Debug)]
pub(crate) struct Watcher {
    pipe: File,
    child: libc::pid_t,
}

impl Watcher {
    /// Has a process of this name `watch` the end of a pipe. To be called before a thread is started.
    ///
    /// # Errors
    /// When there can't be another process, or no pipe.
    pub(crate) fn start(name: &CStr, watch: impl FnOnce(File)) -> io::Result<Self> {
        let mut ends = [0; 2];
        // SAFETY: two descriptors come back, new and ours.
        let (read, write) = unsafe {
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
                    libc::prctl(libc::PR_SET_NAME, name.as_ptr());
                    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGPIPE] {
                        libc::signal(signal, libc::SIG_IGN);
                    }
                }
                // What called this goes on in the other process alone.
                let watched = catch_unwind(AssertUnwindSafe(|| watch(read)));
                std::process::exit(i32::from(watched.is_err()))
            }
            child => Ok(Self { pipe: write, child }),
        }
    }

    /// Tells it something.
    pub(crate) fn say(&self, bytes: &[u8]) {
        // One that is gone can't be told.
        let _ = (&self.pipe).write_all(bytes);
    }

    /// Waits until it has ended, which it was told to.
    pub(crate) fn wait(&self) {
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(self.child, std::ptr::null_mut(), 0) };
    }
}
