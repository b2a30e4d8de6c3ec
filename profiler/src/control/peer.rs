//! Who is at the other end of a socket, by the kernel's word.
//!
//! # Safety
//! A system call that fills in a live structure of integers.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// Who made the other end, or listened there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// The process; 0 for one that has no number here: it is of a namespace of process ids that isn't below this one.
    pub(super) pid: u32,
    /// Its user.
    pub(super) user: u32,
}

impl Peer {
    /// `None` where the kernel doesn't say.
    pub(super) fn of(stream: &UnixStream) -> Option<Self> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let size = size_of_val(&found) as libc::socklen_t;
        let mut len = size;
        let (fd, at) = (stream.as_raw_fd(), (&raw mut found).cast());
        // SAFETY: the structure and its length are live.
        let error = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &mut len) };
        let is_told = error == 0 && len == size;
        is_told.then_some(Self { pid: found.pid.cast_unsigned(), user: found.uid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(Peer::of(&one), Some(Peer { pid: std::process::id(), user }));
    }
}
