//! System calls, made directly: no libc function is called, so `errno` is never touched and no lock is ever taken.
//!
//! # Safety
//! Calls that only hand out or take in kernel objects are safe functions. Those that change mappings or memory are
//! `unsafe`, and say what the caller owes.
//!
//! Nothing here allocates, except where a `Vec` is in the signature, and to ask about threads.

mod auxiliary;
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) mod fake;
mod file;
mod memory;
mod signal;
mod thread;

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) use fake::syscall;
use syscalls::Sysno;
#[cfg(not(all(test, target_arch = "x86_64")))]
pub(crate) use syscalls::syscall;

use crate::native;

pub(crate) use auxiliary::auxiliary;
pub(crate) use file::Fd;
use file::may_be_as_large;
#[cfg(feature = "files")]
pub(crate) use file::{FileStatus, read_link};
pub(crate) use memory::{
    brk, copy_memory, keep_from_children, map_code, mmap, move_mapping, mprotect, munmap, name_mapping,
    read_word, register_core_sync, store_memory, sync_cores,
};
pub(crate) use signal::{
    SigAction, set_signal_action, signal_action, signal_stack, signal_this_thread, signal_thread,
};
pub(crate) use thread::{
    Thread, began, leaves_waiting, proc_has_our_numbers, threads, ticks, wait_for_change, wake_all,
};

/// An error number of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let errno = syscalls::Errno::new(self.0);
        match (errno.name(), errno.description()) {
            (Some(name), Some(text)) => write!(f, "{name} ({text})"),
            _ => write!(f, "errno {}", self.0),
        }
    }
}

impl core::fmt::Debug for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

impl From<syscalls::Errno> for Errno {
    fn from(errno: syscalls::Errno) -> Self {
        Self(errno.into_raw())
    }
}

pub(crate) type Result<T> = core::result::Result<T, Errno>;

pub(crate) const EINTR: Errno = Errno(libc::EINTR);
pub(crate) const EFBIG: Errno = Errno(libc::EFBIG);
pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
pub(crate) const ENOMEM: Errno = Errno(libc::ENOMEM);
pub(crate) const EFAULT: Errno = Errno(libc::EFAULT);
pub(crate) const EIO: Errno = Errno(libc::EIO);
pub(crate) const EEXIST: Errno = Errno(libc::EEXIST);

/// The size of a page on x86-64. Where it varies, it is to come from the auxiliary vector.
pub(crate) const PAGE: usize = 4096;

fn retry(mut call: impl FnMut() -> core::result::Result<usize, syscalls::Errno>) -> Result<usize> {
    loop {
        match call().map_err(Errno::from) {
            Err(EINTR) => {}
            other => return other,
        }
    }
}

/// The process's id, asked from the kernel each time: a cached one would be wrong after fork.
pub(crate) fn pid() -> i32 {
    // SAFETY: getpid has no preconditions and can't fail.
    unsafe { syscall!(Sysno::getpid) }.unwrap_or(0) as i32
}

/// The thread's id.
pub(crate) fn tid() -> i32 {
    // SAFETY: gettid has no preconditions and can't fail.
    unsafe { syscall!(Sysno::gettid) }.unwrap_or(0) as i32
}

/// The user whose rights this thread has.
pub(crate) fn effective_user() -> u32 {
    // SAFETY: the call has no preconditions and can't fail.
    unsafe { syscall!(native::EFFECTIVE_USER) }.map_or(u32::MAX, |user| user as u32)
}

/// Lets others run for a millisecond, or until a signal comes.
pub(crate) fn sleep_a_millisecond() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    // SAFETY: the kernel reads one structure.
    let _ = unsafe { syscall!(Sysno::nanosleep, &raw const time, 0) };
}
