//! Resource limits: the user's are for PROGRAM, not for what grapnel does beside it.
//!
//! # Safety
//! System calls on live structures.

use std::io;

/// The limits that stand in grapnel's way, as they were.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits([(libc::__rlimit_resource_t, libc::rlimit); 3]);

impl Limits {
    /// Raises, for this process, the limits on open files (a trace and a handle for each process), on the size of
    /// files (the shared memory is a sparse file of many terabytes), and on processor time (which is for each process, and this one may serve
    /// many), as far as that is allowed.
    pub(crate) fn raise() -> Self {
        Self([libc::RLIMIT_NOFILE, libc::RLIMIT_FSIZE, libc::RLIMIT_CPU].map(|resource| {
            let mut was = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: see the module's header.
            unsafe {
                libc::getrlimit(resource, &mut was);
                let free = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
                if resource == libc::RLIMIT_NOFILE || libc::setrlimit(resource, &free) != 0 {
                    let most = libc::rlimit { rlim_cur: was.rlim_max, rlim_max: was.rlim_max };
                    libc::setrlimit(resource, &most);
                }
            }
            (resource, was)
        }))
    }

    /// Sets them back, for PROGRAM. Makes system calls only: for the child between fork and exec.
    pub(crate) fn restore(&self) {
        for (resource, was) in &self.0 {
            // SAFETY: see the module's header.
            unsafe { libc::setrlimit(*resource, was) };
        }
    }
}

/// How large the first thread's stack may grow, in bytes.
pub(crate) fn stack_limit() -> libc::rlim_t {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: see the module's header.
    unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) };
    limit.rlim_cur
}

/// What to say of a file that could not be made as large as it has to be.
pub(crate) fn explain(error: io::Error) -> io::Error {
    if error.raw_os_error() == Some(libc::EFBIG) {
        return io::Error::new(
            error.kind(),
            "file sizes are limited; raise the limit (`ulimit -f unlimited`)",
        );
    }
    error
}
