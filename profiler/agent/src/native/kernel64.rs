//! System calls and their structures, where offsets are words.

use syscalls::Sysno;

pub(crate) const MMAP: Sysno = Sysno::mmap;

/// The system call that gives a [`Stat`] of a descriptor. That of a path has a name for each machine.
#[cfg(not(grapnel_attached))]
pub(crate) const FSTAT: Sysno = Sysno::fstat;
pub(crate) type Stat = libc::stat;

pub(crate) const IPC_STAT: libc::c_int = 2;

/// An offset as [`MMAP`] takes it.
pub(crate) fn map_offset(offset: u64) -> usize {
    offset as usize
}

/// The last three arguments of `pread64`.
pub(crate) fn read_offset(offset: u64) -> [usize; 3] {
    [offset as usize, 0, 0]
}
