//! System calls where offsets are words.
//!
//! # Safety
//! The routines are called as the kernel's interface says, by `sys` alone.

use syscalls::{Errno, Sysno};

use crate::sys::syscall;

/// Asks for the effective user, of 32 bits.
pub(crate) const EFFECTIVE_USER: Sysno = Sysno::geteuid;

/// The system calls that wait for signals.
pub(crate) const SIGNAL_WAITS: &[Sysno] = &[Sysno::rt_sigtimedwait];

/// # Safety
/// As the system call.
pub(crate) unsafe fn mmap(
    addr: usize,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    offset: usize,
) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::mmap, addr, len, prot, flags, fd, offset) }
}

/// # Safety
/// As the system call.
pub(crate) unsafe fn pread(fd: i32, buf: *mut u8, len: usize, offset: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::pread64, fd, buf, len, offset) }
}

/// # Safety
/// As the system call.
pub(crate) unsafe fn pwrite(fd: i32, buf: *const u8, len: usize, offset: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::pwrite64, fd, buf, len, offset) }
}
