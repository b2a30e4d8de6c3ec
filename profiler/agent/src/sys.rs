//! System calls, raw: errno is the target's.
//!
//! # Safety
//! Each wrapper passes the kernel pointers to live memory of the right size; a mapping that is returned is
//! new and nobody else's.

use crate::ledger;
use core::ffi::CStr;
use core::ptr;
use syscalls::{Errno, Sysno, syscall};

pub(crate) const PAGE: usize = 4096;

/// Anonymous private memory, zeroed.
pub(crate) fn map_anonymous(len: usize) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
    let address =
        unsafe { syscall!(Sysno::mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1isize, 0) };
    kept(address.ok()?, len)
}

/// A mapping that was just made, if it could be noted.
fn kept(address: usize, len: usize) -> Option<*mut u8> {
    if !ledger::mapped(address, len) {
        // SAFETY: nobody knows of the mapping yet.
        let _ = unsafe { syscall!(Sysno::munmap, address, len) };
        return None;
    }
    Some(ptr::with_exposed_provenance_mut(address))
}

/// Shared memory of a file.
pub(crate) fn map_file(fd: i32, len: usize, offset: u64) -> Option<*mut u8> {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: as in `map_anonymous`.
    let address =
        unsafe { syscall!(Sysno::mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, offset) };
    kept(address.ok()?, len)
}

/// A second view of shared memory that is mapped at `of`: `skip` bytes behind it in its file, `len` bytes. For
/// when the file can't be opened (no /proc, no descriptors left).
pub(crate) fn map_again(of: *mut u8, skip: u64, len: usize) -> Option<*mut u8> {
    let skip = skip as usize;
    // SAFETY: an old length of 0 leaves the shared mapping at `of` as it is and makes another.
    let start = unsafe { syscall!(Sysno::mremap, of, 0, skip + len, libc::MREMAP_MAYMOVE) }.ok()?;
    // SAFETY: the front of the mapping that was just made, which nobody uses.
    let _ = unsafe { syscall!(Sysno::munmap, start, skip) };
    kept(start + skip, len)
}

/// Where the program's break is.
pub(crate) fn program_break() -> usize {
    // SAFETY: no address below the break's start is asked for, so it stays where it is.
    unsafe { syscall!(Sysno::brk, 0) }.unwrap_or(0)
}

/// The size of a shared memory segment of System V.
pub(crate) fn segment_size(id: i32) -> Option<usize> {
    let mut facts = core::mem::MaybeUninit::<libc::shmid_ds>::zeroed();
    // SAFETY: the structure is live, and as large as the kernel's.
    unsafe { syscall!(Sysno::shmctl, id, libc::IPC_STAT, facts.as_mut_ptr()) }.ok()?;
    // SAFETY: filled in, and valid as zeroes too.
    Some(unsafe { facts.assume_init() }.shm_segsz)
}

/// Moves a mapping to where another is, which goes. False if it can't be, and both are as they were.
pub(crate) fn move_over(from: *mut u8, len: usize, to: *mut u8) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: callers pass two mappings of ours, of the same length and use.
    let moved = unsafe { syscall!(Sysno::mremap, from, len, len, flags, to) }.is_ok();
    if moved {
        ledger::unmapped(from.addr(), len);
    }
    moved
}

/// The inode of this process's namespace of process ids, or 0.
pub(crate) fn process_namespace() -> u64 {
    let mut buffer = [0; 64];
    // `pid:[4026531836]`
    let link = read_link(c"/proc/self/ns/pid", &mut buffer);
    link.iter().filter(|byte| byte.is_ascii_digit()).fold(0, |n, byte| 10 * n + u64::from(byte - b'0'))
}

/// Opens a regular file; anything else is not touched (a FIFO would wait, or wake somebody).
pub(crate) fn open_regular(path: &CStr) -> Result<i32, Errno> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the path is zero-terminated, the structure live and as large as the kernel's.
    unsafe { syscall!(Sysno::newfstatat, libc::AT_FDCWD, path.as_ptr(), stat.as_mut_ptr(), 0)? };
    // SAFETY: filled in, and valid as zeroes too.
    let mode = unsafe { stat.assume_init() }.st_mode;
    if mode & libc::S_IFMT != libc::S_IFREG {
        return Err(Errno::EACCES);
    }
    open(path, libc::O_RDONLY | libc::O_NONBLOCK)
}

pub(crate) fn unmap(address: *mut u8, len: usize) {
    // SAFETY: callers pass a whole mapping of ours that nothing refers to.
    let gone = unsafe { syscall!(Sysno::munmap, address, len) };
    if gone.is_ok() {
        ledger::unmapped(address.addr(), len);
    }
}

pub(crate) fn advise(address: *mut u8, len: usize, advice: i32) -> Result<usize, Errno> {
    // SAFETY: callers pass a mapping of ours, and advice that keeps its contents in this process.
    unsafe { syscall!(Sysno::madvise, address, len, advice) }
}

/// Makes memory of ours inaccessible: a guard page.
pub(crate) fn forbid(address: *mut u8, len: usize) {
    // SAFETY: callers pass pages of ours that nothing refers to.
    let _ = unsafe { syscall!(Sysno::mprotect, address, len, libc::PROT_NONE) };
}

pub(crate) fn open(path: &CStr, flags: i32) -> Result<i32, Errno> {
    // SAFETY: the path is zero-terminated.
    unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC, 0) }
        .map(|fd| fd as i32)
}

pub(crate) fn close(fd: i32) {
    // SAFETY: callers close what they opened.
    let _ = unsafe { syscall!(Sysno::close, fd) };
}

pub(crate) fn read_at(fd: i32, buffer: &mut [u8], offset: u64) -> usize {
    // SAFETY: the buffer is live and as long as said.
    unsafe { syscall!(Sysno::pread64, fd, buffer.as_mut_ptr(), buffer.len(), offset) }.unwrap_or(0)
}

/// Whether the file can be opened with the rights that the next program's loader will have, whichever of the real and
/// the effective ones those are: capabilities that this process has will be gone.
#[cfg(not(grapnel_attached))]
pub(crate) fn readable(path: &CStr) -> bool {
    // SAFETY: the path is zero-terminated; asks with the real rights.
    let asked = unsafe { syscall!(Sysno::faccessat, libc::AT_FDCWD, path.as_ptr(), libc::R_OK) };
    asked.is_ok() && open(path, libc::O_RDONLY).map(close).is_ok()
}

/// The target of a symbolic link; the part of `buffer` that was filled.
pub(crate) fn read_link<'b>(path: &CStr, buffer: &'b mut [u8]) -> &'b [u8] {
    // SAFETY: the path is zero-terminated, the buffer as long as said.
    let len = unsafe {
        syscall!(Sysno::readlinkat, libc::AT_FDCWD, path.as_ptr(), buffer.as_mut_ptr(), buffer.len())
    };
    &buffer[..len.unwrap_or(0).min(buffer.len())]
}

/// The working directory; the part of `buffer` that was filled.
pub(crate) fn working_directory(buffer: &mut [u8]) -> &[u8] {
    // SAFETY: the buffer is as long as said.
    let len = unsafe { syscall!(Sysno::getcwd, buffer.as_mut_ptr(), buffer.len()) }.unwrap_or(0);
    buffer.get(..len.saturating_sub(1)).unwrap_or(&[])
}

pub(crate) fn process_id() -> u32 {
    // SAFETY: takes no memory.
    unsafe { syscall!(Sysno::getpid) }.unwrap_or(0) as u32
}

pub(crate) fn parent_id() -> u32 {
    // SAFETY: takes no memory.
    unsafe { syscall!(Sysno::getppid) }.unwrap_or(0) as u32
}

pub(crate) fn thread_id() -> u32 {
    // SAFETY: takes no memory.
    unsafe { syscall!(Sysno::gettid) }.unwrap_or(0) as u32
}

/// Whether the process has a thread of this id.
pub(crate) fn thread_exists(process: u32, thread: u32) -> bool {
    // SAFETY: signal 0 is not sent.
    let sent = unsafe { syscall!(Sysno::tgkill, process, thread, 0) };
    sent != Err(Errno::ESRCH)
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live for the call.
    let _ = unsafe { syscall!(Sysno::clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The processor time of this thread.
pub(crate) fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is live for the call.
    let _ = unsafe { syscall!(Sysno::clock_gettime, libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(crate) fn thread_name() -> [u8; 16] {
    let mut name = [0; 16];
    // SAFETY: PR_GET_NAME writes 16 bytes at most.
    let _ = unsafe { syscall!(Sysno::prctl, libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

pub(crate) fn yield_now() {
    // SAFETY: takes no memory.
    let _ = unsafe { syscall!(Sysno::sched_yield) };
}

pub(crate) fn sleep_briefly() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
    // SAFETY: `time` is live for the call.
    let _ = unsafe { syscall!(Sysno::nanosleep, &raw const time, 0) };
}

/// Waits on a futex shared between processes, `nanoseconds` at most, while it has the value `expected`.
pub(crate) fn futex_wait(futex: &core::sync::atomic::AtomicU32, expected: u32, nanoseconds: i64) {
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    // SAFETY: futex and timeout are live for the call.
    let _ = unsafe {
        syscall!(Sysno::futex, futex.as_ptr(), libc::FUTEX_WAIT, expected, &raw const timeout, 0, 0)
    };
}

pub(crate) fn futex_wake(futex: &core::sync::atomic::AtomicU32) {
    // SAFETY: the futex is live for the call.
    let _ = unsafe { syscall!(Sysno::futex, futex.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
}

/// Blocks every signal and returns the mask as it was. Raw, so that even libc's own signals are blocked.
pub(crate) fn block_signals() -> u64 {
    let (all, mut old) = (u64::MAX, 0u64);
    // SAFETY: both masks are the kernel's 8 bytes.
    let _ = unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut old, 8) };
    old
}

pub(crate) fn restore_signals(mask: u64) {
    // SAFETY: the mask is the kernel's 8 bytes.
    let _ = unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8) };
}

/// Whether this thread runs on its alternate signal stack.
pub(crate) fn on_signal_stack() -> bool {
    let mut stack = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: asks, into a live structure.
    let asked = unsafe { syscall!(Sysno::sigaltstack, 0, &raw mut stack) };
    asked.is_ok() && stack.ss_flags & libc::SS_ONSTACK != 0
}

/// Ends the process as `abort` does: by SIGABRT, also where this thread has it blocked, and where a handler comes back from it.
#[cfg(any(grapnel_cdylib, not(grapnel_attached)))]
pub(crate) fn abort() -> ! {
    let only = 1u64 << (libc::SIGABRT - 1);
    // The kernel's own form: handler, flags, restorer, mask.
    let default = [libc::SIG_DFL, 0, 0, 0];
    loop {
        // SAFETY: the mask has the kernel's size.
        let _ = unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_UNBLOCK, &raw const only, 0, 8) };
        // SAFETY: sends this thread a signal that the process may not survive; nothing else.
        let _ = unsafe { syscall!(Sysno::tgkill, process_id(), thread_id(), libc::SIGABRT) };
        // SAFETY: the action is as long as the kernel reads.
        let _ = unsafe { syscall!(Sysno::rt_sigaction, libc::SIGABRT, &raw const default, 0, 8) };
        // SAFETY: as above.
        let _ = unsafe { syscall!(Sysno::tgkill, process_id(), thread_id(), libc::SIGABRT) };
        // SAFETY: it ends the process.
        let _ = unsafe { syscall!(Sysno::exit_group, 134) };
    }
}

/// Ends the calling thread, and nothing else.
#[cfg(grapnel_attached)]
pub(crate) fn exit_thread() -> ! {
    loop {
        // SAFETY: the thread is the agent's own, and nobody waits for what is on its stack.
        let _ = unsafe { syscall!(Sysno::exit, 0) };
    }
}
