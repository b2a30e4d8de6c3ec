//! System calls of this mode alone: files that are written, and signals that are handled.
//!
//! # Safety
//! As in [`crate::sys`].

use crate::lock::Quiet;
use crate::native::kernel;
use crate::native::restorer::{self, SA_RESTORER};
use crate::sys::syscall;
use alloc::vec::Vec;
use core::ffi::{CStr, c_void};
use core::fmt::{self, Write};
use core::ptr;
use syscalls::{Errno, Sysno};

/// What a system call says that failed, in words.
pub(crate) fn reason(errno: Errno) -> &'static str {
    errno.description().unwrap_or("unknown error")
}

/// The signals that wait for this thread, or for any of the process, as a mask.
fn pending() -> u64 {
    let mut signals = 0u64;
    // SAFETY: the mask has the kernel's size.
    let _ = unsafe { syscall!(Sysno::rt_sigpending, &raw mut signals, 8) };
    signals
}

/// Takes a signal back that waits for this thread.
fn forget(signal: u64) {
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: mask and time are live and as long as the kernel reads.
    let _ = unsafe {
        syscall!(Sysno::rt_sigtimedwait, &raw const signal, ptr::null::<c_void>(), &raw const at_once, 8)
    };
}

/// Writes all of these bytes, or what the kernel takes until it refuses. The signal by which it says why, of which most
/// programs die, is not the program's business.
pub(crate) fn write_all(fd: i32, mut bytes: &[u8], _quiet: &Quiet) -> Result<(), Errno> {
    const SENT: [(Errno, i32); 2] = [(Errno::EPIPE, libc::SIGPIPE), (Errno::EFBIG, libc::SIGXFSZ)];
    let before = pending();
    while !bytes.is_empty() {
        // SAFETY: the bytes are live for the call.
        match unsafe { syscall!(Sysno::write, fd, bytes.as_ptr(), bytes.len()) } {
            Ok(0) => return Err(Errno::EIO),
            Ok(len) => bytes = bytes.get(len..).unwrap_or(&[]),
            Err(Errno::EINTR) => {}
            Err(errno) => {
                let sent = SENT.iter().find(|sent| sent.0 == errno).map(|sent| 1u64 << (sent.1 - 1));
                if let Some(signal) = sent.filter(|signal| before & signal == 0) {
                    forget(signal);
                }
                return Err(errno);
            }
        }
    }
    Ok(())
}

/// Makes a file, or empties one that is there. A symbolic link is not followed, and nobody is waited for: a pipe that has a
/// name is refused where nobody reads it, and takes as much as it has room for where somebody does.
pub(crate) fn create(path: &CStr) -> Result<i32, Errno> {
    const MODE: u32 = 0o644;
    let made = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC;
    let flags = made | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    // SAFETY: the path is zero-terminated.
    unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags, MODE) }.map(|fd| fd as i32)
}

/// Device and inode of what a descriptor leads to.
pub(crate) fn identity(fd: i32) -> Option<(u64, u64)> {
    let mut facts = core::mem::MaybeUninit::<kernel::Stat>::zeroed();
    // SAFETY: the structure is live, and as large as the kernel's.
    unsafe { syscall!(kernel::FSTAT, fd, facts.as_mut_ptr()) }.ok()?;
    // SAFETY: filled in, and valid as zeroes too.
    let facts = unsafe { facts.assume_init() };
    Some((facts.st_dev, facts.st_ino))
}

/// The same file under another number, from this one on, which no program gets that is executed.
pub(crate) fn duplicate(fd: i32, from: i32) -> Option<i32> {
    // SAFETY: no memory is read or written.
    unsafe { syscall!(Sysno::fcntl, fd, libc::F_DUPFD_CLOEXEC, from) }.ok().map(|fd| fd as i32)
}

/// What handles a signal: its number, and what the kernel says of it.
pub(crate) type Handler = unsafe extern "C" fn(i32, *const libc::siginfo_t);

/// The kernel's own structure, which is not libc's.
#[repr(C)]
struct Action {
    handler: Handler,
    flags: usize,
    restorer: Option<unsafe extern "C" fn()>,
    mask: [u32; 2],
}

/// Has a signal handled, as Android does it: system calls go on, and another stack is used if there is one.
///
/// # Safety
/// The handler is safe in a signal.
pub(crate) unsafe fn handle(signal: i32, handler: Handler) -> Result<(), Errno> {
    let flags = (libc::SA_RESTART | libc::SA_ONSTACK | libc::SA_SIGINFO) as usize | SA_RESTORER;
    let action = Action { handler, flags, restorer: restorer::RESTORER, mask: [0; 2] };
    // SAFETY: the kernel reads one structure, whose mask has 8 bytes; the rest is the caller's promise.
    unsafe { syscall!(Sysno::rt_sigaction, signal, &raw const action, 0, 8) }.map(|_| ())
}

/// A file that is written in pieces.
pub(crate) struct File {
    fd: i32,
    bytes: Vec<u8>,
    /// The first thing that went wrong.
    failed: Option<Errno>,
}

impl File {
    const PIECE: usize = 1 << 16;

    pub(crate) fn create(path: &CStr) -> Result<Self, Errno> {
        let fd = create(path)?;
        let mut bytes = Vec::new();
        match bytes.try_reserve_exact(Self::PIECE) {
            Ok(()) => Ok(Self { fd, bytes, failed: None }),
            Err(_) => {
                crate::sys::close(fd);
                Err(Errno::ENOMEM)
            }
        }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(Self::PIECE) {
            if self.bytes.len() + part.len() > Self::PIECE {
                self.flush();
            }
            self.bytes.extend_from_slice(part);
        }
    }

    fn flush(&mut self) {
        if self.failed.is_none() {
            self.failed = write_all(self.fd, &self.bytes, &Quiet::new()).err();
        }
        self.bytes.clear();
    }

    /// Whether all of it was written.
    pub(crate) fn finish(mut self) -> Result<(), Errno> {
        self.flush();
        crate::sys::close(self.fd);
        self.failed.map_or(Ok(()), Err)
    }
}

impl Write for File {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes());
        Ok(())
    }
}
