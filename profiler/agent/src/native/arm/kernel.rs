//! System calls and their structures: where offsets of 64 bits are two words, of which the first is an even argument.

use syscalls::Sysno;

/// Takes an offset in pages.
pub(crate) const MMAP: Sysno = Sysno::mmap2;

/// The system calls that give a [`Stat`], of a path and of a descriptor.
pub(crate) const FSTATAT: Sysno = Sysno::fstatat64;
pub(crate) const FSTAT: Sysno = Sysno::fstat64;
pub(crate) type Stat = libc::stat64;

/// Asks for a structure as it is since Linux 2.0 (the kernel's `IPC_64`).
pub(crate) const IPC_STAT: libc::c_int = 2 | 0x100;

/// An offset as [`MMAP`] takes it.
pub(crate) fn map_offset(offset: u64) -> usize {
    (offset / crate::sys::PAGE as u64) as usize
}

/// The last three arguments of `pread64`.
pub(crate) fn read_offset(offset: u64) -> [usize; 3] {
    [0, offset as usize, (offset >> 32) as usize]
}

/// The system calls of [`crate::sandbox`]'s list that have other names elsewhere.
pub(crate) const CALLS: &[Sysno] =
    &[Sysno::fstat64, Sysno::fstatat64, Sysno::geteuid32, Sysno::mmap2, Sysno::rt_sigtimedwait_time64];
