//! System calls and their structures. Offsets are of 64 bits, in two registers of which the first is even.
//!
//! # Safety
//! The routines are called as the kernel's interface says, by `sys` alone.

use syscalls::{Errno, Sysno, syscall};

use crate::sys::PAGE;

/// Signal handlers return to what the kernel gives them.
pub(crate) const RESTORER: Option<unsafe extern "C" fn()> = None;

/// Asks for the effective user, of 32 bits.
pub(crate) const EFFECTIVE_USER: Sysno = Sysno::geteuid32;

/// The system calls that wait for signals.
pub(crate) const SIGNAL_WAITS: &[Sysno] = &[Sysno::rt_sigtimedwait, Sysno::rt_sigtimedwait_time64];

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
    unsafe { syscall!(Sysno::mmap2, addr, len, prot, flags, fd, offset / PAGE) }
}

/// # Safety
/// As the system call.
pub(crate) unsafe fn pread(fd: i32, buf: *mut u8, len: usize, offset: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::pread64, fd, buf, len, 0, offset, 0) }
}

/// # Safety
/// As the system call.
pub(crate) unsafe fn pwrite(fd: i32, buf: *const u8, len: usize, offset: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::pwrite64, fd, buf, len, 0, offset, 0) }
}
