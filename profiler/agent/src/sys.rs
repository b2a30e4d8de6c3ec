//! System calls, raw: errno is the target's. What a filter of the program's wouldn't let pass isn't made ([`crate::sandbox`]),
//! and fails with `ENOSYS`.
//!
//! # Safety
//! Each wrapper passes the kernel pointers to live memory of the right size; a mapping that is returned is
//! new and nobody else's.

use crate::native::kernel;
use crate::{ledger, life, native, sandbox, session, tls};
use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::Ordering;
use syscalls::{Errno, Sysno};

// Where a thread's errno lies.
#[cfg(all(not(grapnel_attached), target_os = "android"))]
pub(crate) use libc::__errno as errno_location;
#[cfg(all(not(grapnel_attached), not(target_os = "android")))]
pub(crate) use libc::__errno_location as errno_location;

pub(crate) const PAGE: usize = 4096;

/// Numbers of the kernel's `uapi/linux/mman.h` and `elf.h` that the crate of libc has for glibc alone.
pub(crate) const MREMAP_MAYMOVE: i32 = 1;
pub(crate) const MREMAP_FIXED: i32 = 2;
pub(crate) const MREMAP_DONTUNMAP: i32 = 4;
pub(crate) const PF_W: u32 = 2;
pub(crate) const PF_R: u32 = 4;

/// Makes a system call, if the program's filters have nothing against it. Arguments that it doesn't have are zeroes: filters
/// may look at them.
///
/// # Safety
/// As the call says.
pub(crate) unsafe fn call(number: Sysno, arguments: [usize; 6]) -> Result<usize, Errno> {
    if sandbox::refuses(number, &arguments) {
        return Err(Errno::ENOSYS);
    }
    // SAFETY: the caller's promise.
    unsafe { unasked(number, arguments) }
}

/// Makes a system call, whatever the filters.
///
/// # Safety
/// As the call says.
unsafe fn unasked(number: Sysno, [a, b, c, d, e, f]: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { syscalls::syscall!(number, a, b, c, d, e, f) }
}

/// Arguments, and zeroes for those that are not there.
pub(crate) fn padded<const N: usize>(given: [usize; N]) -> [usize; 6] {
    core::array::from_fn(|at| given.get(at).copied().unwrap_or(0))
}

/// [`call`] with arguments of any kind.
macro_rules! syscall {
    ($number:expr $(, $argument:expr)* $(,)?) => {
        $crate::sys::call($number, $crate::sys::padded([$($argument as usize),*]))
    };
}
#[cfg(not(grapnel_attached))]
pub(crate) use syscall;

/// Whether the kernel's pages are as large as [`PAGE`] says: on AArch64 they may be larger.
#[cfg(not(grapnel_attached))]
pub(crate) fn has_such_pages() -> bool {
    // SAFETY: looks through what the kernel gave the process at its start.
    unsafe { libc::getauxval(libc::AT_PAGESZ) == PAGE as libc::c_ulong }
}

/// The address of the path by which the kernel was told to execute this program; 0 if there is none.
#[cfg(not(grapnel_attached))]
pub(crate) fn path_of_program() -> usize {
    // SAFETY: looks through what the kernel gave the process at its start.
    unsafe { libc::getauxval(libc::AT_EXECFN) as usize }
}

/// Anonymous private memory, zeroed.
pub(crate) fn map_anonymous(len: usize) -> Option<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
    let address =
        unsafe { syscall!(kernel::MMAP, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1isize, 0) };
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
    let (flags, offset) = (libc::MAP_SHARED | libc::MAP_NORESERVE, kernel::map_offset(offset));
    // SAFETY: as in `map_anonymous`.
    let address =
        unsafe { syscall!(kernel::MMAP, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, offset) };
    kept(address.ok()?, len)
}

/// A second view of shared memory that is mapped at `of`: `skip` bytes behind it in its file, `len` bytes. For
/// when the file can't be opened (no /proc, no descriptors left).
pub(crate) fn map_again(of: *mut u8, skip: u64, len: usize) -> Option<*mut u8> {
    let skip = skip as usize;
    // SAFETY: an old length of 0 leaves the shared mapping at `of` as it is and makes another.
    let start = unsafe { syscall!(Sysno::mremap, of, 0, skip + len, MREMAP_MAYMOVE) }.ok()?;
    // SAFETY: the front of the mapping that was just made, which nobody uses.
    let _ = unsafe { syscall!(Sysno::munmap, start, skip) };
    kept(start + skip, len)
}

/// Where the program's break is.
pub(crate) fn program_break() -> Option<usize> {
    // SAFETY: no address below the break's start is asked for, so it stays where it is.
    unsafe { syscall!(Sysno::brk, 0) }.ok()
}

/// Whether a page is mapped. What can't be asked counts as mapped.
pub(crate) fn is_mapped(page: usize) -> bool {
    let mut is_resident = 0u8;
    // SAFETY: a byte for the page, which is live; the page itself is not touched.
    let asked = unsafe { syscall!(Sysno::mincore, page, PAGE, &raw mut is_resident) };
    asked != Err(Errno::ENOMEM)
}

/// The size of a shared memory segment of System V.
pub(crate) fn segment_size(id: i32) -> Option<usize> {
    // The kernel's `struct shmid64_ds`, whose size follows the rights.
    const SIZE_AT: usize = if size_of::<usize>() == 8 { 48 } else { 36 } / size_of::<usize>();
    let mut facts = [0usize; 32];
    // SAFETY: the structure is live, and longer than the kernel's.
    unsafe { syscall!(Sysno::shmctl, id, kernel::IPC_STAT, facts.as_mut_ptr()) }.ok()?;
    Some(facts[SIZE_AT])
}

/// Moves a mapping to where another is, which goes. False if it can't be, and both are as they were.
pub(crate) fn move_over(from: *mut u8, len: usize, to: *mut u8) -> bool {
    let flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    // SAFETY: callers pass two mappings of ours, of the same length and use.
    let moved = unsafe { syscall!(Sysno::mremap, from, len, len, flags, to) }.is_ok();
    if moved {
        ledger::unmapped(from.addr(), len);
    }
    moved
}

/// Puts zeroes in the place of a shared mapping of ours, shared as well: some limits count what is private. False if that can't be.
pub(crate) fn map_zeroes_over(at: *mut u8, len: usize) -> bool {
    let zeroes = |at: *mut u8, fixed: i32| {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, or one in the place of a mapping of ours, which holds atomics alone.
        unsafe { syscall!(kernel::MMAP, at, len, rights, flags, -1isize, 0) }.ok()
    };
    // Made apart and then moved: kernels before 6.12 have taken away what was there when they come to what may fail. Where there is no
    // room for both it must do without.
    if let Some(new) = zeroes(ptr::null_mut(), 0).and_then(|new| kept(new, len)) {
        if move_over(new, len, at) {
            return true;
        }
        unmap(new, len);
    }
    zeroes(at, libc::MAP_FIXED).is_some()
}

/// The inode of this process's namespace of process ids, or 0 where that can't be seen.
pub(crate) fn process_namespace() -> u64 {
    let mut buffer = [0; 64];
    // `pid:[4026531836]`
    let link = read_link(c"/proc/self/ns/pid", &mut buffer);
    link.iter().filter(|byte| byte.is_ascii_digit()).fold(0, |n, byte| 10 * n + u64::from(byte - b'0'))
}

/// What is known of a file, by its path.
fn status_at(directory: i32, path: &CStr) -> Result<kernel::Stat, Errno> {
    let mut stat = core::mem::MaybeUninit::<kernel::Stat>::zeroed();
    // SAFETY: the path is zero-terminated, the structure live and as large as the kernel's.
    unsafe { syscall!(native::FSTATAT, directory, path.as_ptr(), stat.as_mut_ptr(), 0)? };
    // SAFETY: filled in, and valid as zeroes too.
    Ok(unsafe { stat.assume_init() })
}

/// Which file a path leads to: its device, and its number there.
#[cfg(not(grapnel_attached))]
pub(crate) fn identity(path: &CStr) -> Option<[u64; 2]> {
    let status = status_at(libc::AT_FDCWD, path).ok()?;
    Some([status.st_dev, status.st_ino])
}

/// Sees that a file is a regular one.
fn see_regular(directory: i32, path: &CStr) -> Result<(), Errno> {
    // Of the kernel's `uapi/linux/stat.h`: the width of a mode is another in each libc.
    const S_IFMT: u32 = 0o170_000;
    const S_IFREG: u32 = 0o100_000;
    let mode = status_at(directory, path)?.st_mode;
    if mode & S_IFMT == S_IFREG { Ok(()) } else { Err(Errno::EACCES) }
}

/// Opens a regular file; anything else is not touched (a FIFO would wait, or wake somebody).
pub(crate) fn open_regular(path: &CStr) -> Result<i32, Errno> {
    see_regular(libc::AT_FDCWD, path)?;
    open(path, libc::O_RDONLY | libc::O_NONBLOCK)
}

/// Whether this process may execute what is there, as far as its path says.
#[cfg(not(grapnel_attached))]
pub(crate) fn is_executable(directory: i32, path: &CStr) -> bool {
    see_regular(directory, path).is_ok() && may(directory, path, libc::X_OK)
}

/// Opens a file that [`is_executable`].
#[cfg(not(grapnel_attached))]
pub(crate) fn open_executable(directory: i32, path: &CStr) -> Result<i32, Errno> {
    open_at(directory, path, libc::O_RDONLY | libc::O_NONBLOCK)
}

/// Opens the file of a descriptor once more, to read it.
#[cfg(not(grapnel_attached))]
pub(crate) fn open_again(fd: i32) -> Result<i32, Errno> {
    const FOLDER: &[u8] = b"/proc/self/fd/";
    // The digits of 32 bits, and a zero.
    let mut path = [0; FOLDER.len() + 10 + 1];
    let (folder, digits) = path.split_at_mut(FOLDER.len());
    folder.copy_from_slice(FOLDER);
    let fd = u32::try_from(fd).map_err(|_| Errno::EBADF)?;
    let len = fd.checked_ilog10().map_or(1, |log| log as usize + 1);
    let mut left = fd;
    for digit in digits[..len].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    open_regular(CStr::from_bytes_until_nul(&path).map_err(|_| Errno::EBADF)?)
}

/// The mode of an open file, its user and its group.
#[cfg(not(grapnel_attached))]
pub(crate) fn owner(fd: i32) -> Option<(u32, u32, u32)> {
    let mut stat = core::mem::MaybeUninit::<kernel::Stat>::zeroed();
    // SAFETY: the structure is live and as large as the kernel's.
    unsafe { syscall!(kernel::FSTAT, fd, stat.as_mut_ptr()) }.ok()?;
    // SAFETY: filled in, and valid as zeroes too.
    let stat = unsafe { stat.assume_init() };
    Some((stat.st_mode, stat.st_uid, stat.st_gid))
}

/// Whether whoever executes an open file gets capabilities by it.
#[cfg(not(grapnel_attached))]
pub(crate) fn has_capabilities(fd: i32) -> bool {
    let name = c"security.capability".as_ptr();
    // SAFETY: the name is zero-terminated; a buffer of no length asks for the value's length only.
    unsafe { syscall!(Sysno::fgetxattr, fd, name, 0, 0) }.is_ok_and(|len| len != 0)
}

/// The real and the effective user.
#[cfg(not(grapnel_attached))]
pub(crate) fn users() -> [u32; 2] {
    // SAFETY: takes no memory.
    [Sysno::getuid, Sysno::geteuid].map(|id| unsafe { syscall!(id) }.unwrap_or(0) as u32)
}

/// The real and the effective group.
#[cfg(not(grapnel_attached))]
pub(crate) fn groups() -> [u32; 2] {
    // SAFETY: takes no memory.
    [Sysno::getgid, Sysno::getegid].map(|id| unsafe { syscall!(id) }.unwrap_or(0) as u32)
}

/// A limit of this process's, by its number, as it holds now; nothing if that can't be asked.
#[cfg(not(grapnel_attached))]
pub(crate) fn limit(which: u32) -> Option<u64> {
    // The kernel's `struct rlimit64`: the limit that holds, and the most that it can be set to.
    let mut limits = [0u64; 2];
    // SAFETY: asks this process's own, into a live structure.
    unsafe { syscall!(Sysno::prlimit64, 0, which, 0, limits.as_mut_ptr()) }.ok()?;
    Some(limits[0])
}

#[cfg(not(grapnel_attached))]
const PR_SET_MM: i32 = 35;

/// Tells the kernel where the environment ends that it shows of this process. It may not let us.
#[cfg(not(grapnel_attached))]
pub(crate) fn end_environment_at(address: usize) -> bool {
    const PR_SET_MM_ENV_END: i32 = 11;
    // SAFETY: changes no memory, but what of it is shown.
    unsafe { syscall!(Sysno::prctl, PR_SET_MM, PR_SET_MM_ENV_END, address, 0, 0) }.is_ok()
}

/// Tells the kernel where all parts of this process are. It may not let us.
#[cfg(not(grapnel_attached))]
pub(crate) fn set_parts(parts: &crate::exec::Parts) {
    const PR_SET_MM_MAP: i32 = 14;
    let (address, len) = (ptr::from_ref(parts), size_of_val(parts));
    // SAFETY: the structure is live and as long as said; callers pass where the parts are, but for what is shown of them.
    let _ = unsafe { syscall!(Sysno::prctl, PR_SET_MM, PR_SET_MM_MAP, address, len, 0) };
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

/// Whether memory at an address can be read: asked by a call that reads a mask from there, and then refuses to do anything. Not
/// where a filter is against asking.
#[cfg(not(grapnel_attached))]
pub(crate) fn is_readable(address: usize) -> bool {
    const NO_SUCH_WAY: i32 = -1;
    // SAFETY: the kernel copies the mask, and changes none, since there is no such way to do it.
    let asked = unsafe { syscall!(Sysno::rt_sigprocmask, NO_SUCH_WAY, address, 0, 8) };
    asked == Err(Errno::EINVAL)
}

pub(crate) fn open(path: &CStr, flags: i32) -> Result<i32, Errno> {
    open_at(libc::AT_FDCWD, path, flags)
}

fn open_at(directory: i32, path: &CStr, flags: i32) -> Result<i32, Errno> {
    // SAFETY: the path is zero-terminated.
    unsafe { syscall!(Sysno::openat, directory, path.as_ptr(), flags | libc::O_CLOEXEC, 0) }
        .map(|fd| fd as i32)
}

pub(crate) fn close(fd: i32) {
    // SAFETY: callers close what they opened.
    let _ = unsafe { syscall!(Sysno::close, fd) };
}

pub(crate) fn read_at(fd: i32, buffer: &mut [u8], offset: u64) -> usize {
    let [a, b, c] = kernel::read_offset(offset);
    // SAFETY: the buffer is live and as long as said.
    unsafe { syscall!(Sysno::pread64, fd, buffer.as_mut_ptr(), buffer.len(), a, b, c) }.unwrap_or(0)
}

/// Whether the file can be opened with the rights that the next program's loader will have, whichever of the real and
/// the effective ones those are: capabilities that this process has will be gone. It isn't opened for that: other threads would see
/// the descriptor.
#[cfg(not(grapnel_attached))]
pub(crate) fn readable(path: &CStr) -> bool {
    may_really(libc::AT_FDCWD, path, libc::R_OK) && may(libc::AT_FDCWD, path, libc::R_OK)
}

/// Whether the real rights allow it.
#[cfg(not(grapnel_attached))]
fn may_really(directory: i32, path: &CStr, mode: i32) -> bool {
    // SAFETY: the path is zero-terminated.
    unsafe { syscall!(Sysno::faccessat, directory, path.as_ptr(), mode) }.is_ok()
}

/// Whether the effective rights allow it; the real ones where the kernel can't be asked for these (before 5.8, and where a filter
/// around the whole process doesn't know the call and says `EPERM`).
#[cfg(not(grapnel_attached))]
fn may(directory: i32, path: &CStr, mode: i32) -> bool {
    const AT_EACCESS: i32 = 0x200;
    // SAFETY: the path is zero-terminated.
    match unsafe { syscall!(Sysno::faccessat2, directory, path.as_ptr(), mode, AT_EACCESS) } {
        Err(Errno::ENOSYS | Errno::EPERM) => may_really(directory, path, mode),
        asked => asked.is_ok(),
    }
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

/// This process's id; 0 if a filter keeps it from being known.
pub(crate) fn process_id() -> u32 {
    // SAFETY: takes no memory.
    if let Ok(id) = unsafe { syscall!(Sysno::getpid) } {
        return id as u32;
    }
    match session::segment() {
        Some(segment) if life::current() != 0 => segment.pid.load(Ordering::Relaxed),
        // The only thread of a fork has the id of its process.
        _ => thread_id_of_libc(),
    }
}

pub(crate) fn parent_id() -> Option<u32> {
    // SAFETY: takes no memory.
    unsafe { syscall!(Sysno::getppid) }.ok().map(|id| id as u32)
}

/// This thread's id; 0 if a filter keeps it from being known.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: takes no memory.
    unsafe { syscall!(Sysno::gettid) }.map_or_else(|_| thread_id_of_libc(), |id| id as u32)
}

/// The same, by a call that is surely allowed.
pub(crate) fn thread_id_unasked() -> u32 {
    // SAFETY: takes no memory.
    unsafe { unasked(Sysno::gettid, [0; 6]) }.unwrap_or(0) as u32
}

/// The id of the parent, by a call that is surely allowed; 0 where that is outside of the namespace.
pub(crate) fn parent_id_unasked() -> u32 {
    // SAFETY: takes no memory.
    unsafe { unasked(Sysno::getppid, [0; 6]) }.unwrap_or(0) as u32
}

/// The id of this thread that libc keeps; 0 where that isn't known. The child of a `vfork` has its parent's.
pub(crate) fn thread_id_of_libc() -> u32 {
    tls::thread_id()
}

/// Whether the process has a thread of this id.
pub(crate) fn thread_exists(process: u32, thread: u32) -> bool {
    // SAFETY: signal 0 is not sent.
    let sent = unsafe { syscall!(Sysno::tgkill, process, thread, 0) };
    sent != Err(Errno::ESRCH)
}

/// The same, by a call that is surely allowed.
pub(crate) fn thread_exists_unasked(process: u32, thread: u32) -> bool {
    // SAFETY: signal 0 is not sent.
    let sent = unsafe { unasked(Sysno::tgkill, [process as usize, thread as usize, 0, 0, 0, 0]) };
    sent != Err(Errno::ESRCH)
}

/// Whether a task shares this process's memory, as far as can be found out.
pub(crate) fn shares_memory(task: u32) -> bool {
    const KCMP_VM: usize = 1;
    // SAFETY: compares, and takes no memory.
    match unsafe { syscall!(Sysno::kcmp, thread_id_unasked(), task, KCMP_VM, 0, 0) } {
        Ok(order) => order == 0,
        Err(Errno::ESRCH) => false,
        Err(_) => {
            // SAFETY: signal 0 is not sent.
            let sent = unsafe { syscall!(Sysno::tkill, task, 0) };
            sent != Err(Errno::ESRCH)
        }
    }
}

/// Nanoseconds of CLOCK_MONOTONIC, or what the processor's clock makes of it.
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC).unwrap_or_else(sandbox::clock::estimated_ns)
}

/// Nanoseconds of one of the kernel's clocks; nothing if a filter is against asking.
pub(crate) fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live for the call.
    unsafe { syscall!(Sysno::clock_gettime, clock, &raw mut time) }.ok()?;
    Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// The processor time of this thread; nothing if a filter is against asking.
pub(crate) fn thread_cpu_ns() -> Option<u64> {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
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
pub(crate) fn futex_wait(futex: &core::sync::atomic::AtomicU32, expected: u32, nanoseconds: libc::c_long) {
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

/// Blocks every signal but one and returns the mask as it was; nothing if a filter is against it, and all is as it was. Raw, so that
/// even libc's own signals are blocked.
///
/// `SIGTRAP` isn't: a program that steps through its own code meets one at each instruction, ours too, and is killed by it where it is blocked.
pub(crate) fn block_signals() -> Option<u64> {
    let (all, mut old) = (!(1u64 << (libc::SIGTRAP - 1)), 0u64);
    // SAFETY: both masks are the kernel's 8 bytes.
    let blocked =
        unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut old, 8) };
    blocked.ok().map(|_| old)
}

pub(crate) fn restore_signals(mask: u64) {
    // SAFETY: the mask is the kernel's 8 bytes.
    let _ = unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, 0, 8) };
}

/// Where the kernel has this thread's alternate signal stack begin, and whether the thread runs on it.
pub(crate) fn alternate_stack() -> Option<(usize, bool)> {
    let mut stack = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: asks, into a live structure.
    unsafe { syscall!(Sysno::sigaltstack, 0, &raw mut stack) }.ok()?;
    let is_there = stack.ss_flags & libc::SS_DISABLE == 0;
    is_there.then(|| (stack.ss_sp.addr(), stack.ss_flags & libc::SS_ONSTACK != 0))
}

/// Whether this thread runs on its alternate signal stack.
pub(crate) fn on_signal_stack() -> bool {
    alternate_stack().is_some_and(|(_, is_on)| is_on)
}

/// Ends the process as `abort` does: by SIGABRT, also where this thread has it blocked, and where a handler comes back from it.
#[cfg(any(grapnel_cdylib, not(grapnel_attached)))]
pub(crate) fn abort() -> ! {
    let only = 1u64 << (libc::SIGABRT - 1);
    // The kernel's own form: handler, flags, restorer, and a mask of 8 bytes.
    let default = [libc::SIG_DFL, 0, 0, 0, 0];
    // SAFETY: the mask has the kernel's size.
    let _ = unsafe { syscall!(Sysno::rt_sigprocmask, libc::SIG_UNBLOCK, &raw const only, 0, 8) };
    // SAFETY: sends this thread a signal that the process may not survive; nothing else.
    let _ = unsafe { syscall!(Sysno::tgkill, process_id(), thread_id(), libc::SIGABRT) };
    // SAFETY: the action is as long as the kernel reads.
    let _ = unsafe { syscall!(Sysno::rt_sigaction, libc::SIGABRT, &raw const default, 0, 8) };
    // SAFETY: as above.
    let _ = unsafe { syscall!(Sysno::tgkill, process_id(), thread_id(), libc::SIGABRT) };
    end_process(134)
}

/// Ends the process: by a filter that is against that, if need be.
#[cfg(any(grapnel_cdylib, not(grapnel_attached)))]
pub(crate) fn end_process(status: usize) -> ! {
    loop {
        // SAFETY: it ends the process.
        let _ = unsafe { unasked(Sysno::exit_group, padded([status])) };
    }
}

/// Ends the calling thread, and nothing else.
#[cfg(grapnel_attached)]
pub(crate) fn exit_thread() -> ! {
    loop {
        // SAFETY: the thread is the agent's own, and nobody waits for what is on its stack.
        let _ = unsafe { unasked(Sysno::exit, [0; 6]) };
    }
}
