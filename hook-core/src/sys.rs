//! System calls, made directly: no libc function is called, so `errno` is never touched and no lock is ever taken.
//!
//! # Safety
//! Calls that only hand out or take in kernel objects are safe functions. Those that change mappings or memory are
//! `unsafe`, and say what the caller owes.
//!
//! Nothing here allocates, except where a `Vec` is in the signature.

use alloc::vec::Vec;
use core::ffi::CStr;

use syscalls::{Sysno, syscall};

use crate::native;

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
pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
pub(crate) const ENOMEM: Errno = Errno(libc::ENOMEM);
pub(crate) const EFAULT: Errno = Errno(libc::EFAULT);
pub(crate) const EEXIST: Errno = Errno(libc::EEXIST);

/// The size of a page on x86-64. Where it varies, it is to come from the auxiliary vector.
pub(crate) const PAGE: usize = 4096;

/// A descriptor that is closed when it goes.
#[derive(Debug)]
pub(crate) struct Fd(i32);

impl Fd {
    /// Opens a path, close-on-exec.
    pub(crate) fn open(path: &CStr, flags: i32) -> Result<Self> {
        // SAFETY: `path` is a NUL-terminated string that outlives the call; opening touches no memory of ours.
        let fd = retry(|| unsafe {
            syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC, 0)
        })?;
        Ok(Self(fd as i32))
    }

    /// An unlinked file in memory, close-on-exec, of `len` zero bytes, whose pages may be mapped executable.
    pub(crate) fn memory(name: &CStr, len: usize) -> Result<Self> {
        const MFD_EXEC: u32 = 0x10;
        // SAFETY: `name` is a NUL-terminated string that outlives the call.
        let create = |flags: u32| retry(|| unsafe { syscall!(Sysno::memfd_create, name.as_ptr(), flags) });
        // Kernels before 6.3 don't know MFD_EXEC and answer EINVAL; later ones may insist on it (vm.memfd_noexec).
        let fd = match create(libc::MFD_CLOEXEC | MFD_EXEC) {
            Err(EINVAL) => create(libc::MFD_CLOEXEC)?,
            other => other?,
        };
        let fd = Self(fd as i32);
        // SAFETY: the file is ours alone and mapped nowhere.
        retry(|| unsafe { syscall!(Sysno::ftruncate, fd.0, len) })?;
        Ok(fd)
    }

    /// Opens a file to write at its end, or makes it, for this user alone; not through a symbolic link, and without waiting
    /// for the reader of a pipe.
    pub(crate) fn append(path: &CStr) -> Result<Self> {
        let to_what_is_there = libc::O_APPEND | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_CLOEXEC | to_what_is_there;
        // SAFETY: `path` is a NUL-terminated string that outlives the call; opening touches no memory of ours.
        let fd = retry(|| unsafe { syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags, 0o600) })?;
        Ok(Self(fd as i32))
    }

    /// Writes at the file's position.
    pub(crate) fn write(&self, buf: &[u8]) -> Result<usize> {
        // SAFETY: the kernel reads `buf`, which is borrowed for the call, and the file is no view of memory.
        retry(|| unsafe { syscall!(Sysno::write, self.0, buf.as_ptr(), buf.len()) })
    }

    /// What the file is, and how long.
    #[cfg(feature = "files")]
    pub(crate) fn kind_and_len(&self) -> Result<(FileKind, u64)> {
        status(self.0, c"", libc::AT_EMPTY_PATH)
    }

    /// Reads at the file's position; 0 at its end.
    pub(crate) fn read(&self, buf: &mut [u8]) -> Result<usize> {
        // SAFETY: the kernel writes at most `buf.len()` bytes at `buf`, which is borrowed for the call.
        retry(|| unsafe { syscall!(Sysno::read, self.0, buf.as_mut_ptr(), buf.len()) })
    }

    /// Reads at an offset.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: usize) -> Result<usize> {
        // SAFETY: the kernel writes at most `buf.len()` bytes at `buf`, which is borrowed for the call.
        retry(|| unsafe { native::pread(self.0, buf.as_mut_ptr(), buf.len(), offset) })
    }

    /// Writes at an offset.
    ///
    /// # Safety
    /// When the file is a view of memory, the caller answers for what that memory then holds.
    pub(crate) unsafe fn write_at(&self, buf: &[u8], offset: usize) -> Result<usize> {
        // SAFETY: the kernel reads `buf`, which is borrowed for the call; the effect is the caller's promise.
        retry(|| unsafe { native::pwrite(self.0, buf.as_ptr(), buf.len(), offset) })
    }

    pub(crate) fn raw(&self) -> i32 {
        self.0
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // The descriptor is gone whatever close answers (Linux, close(2)), so it is not tried again.
        // SAFETY: the descriptor is owned by this value and not used after.
        let _ = unsafe { syscall!(Sysno::close, self.0) };
    }
}

/// What a path leads to.
#[cfg(feature = "files")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileKind {
    Regular,
    Other,
}

/// What a path leads to, and how long it is. Nothing is opened.
#[cfg(feature = "files")]
pub(crate) fn kind_and_len(path: &CStr) -> Result<(FileKind, u64)> {
    status(libc::AT_FDCWD, path, 0)
}

/// `statx` has one layout on all machines.
#[cfg(feature = "files")]
fn status(directory: i32, path: &CStr, flags: i32) -> Result<(FileKind, u64)> {
    const STATX_TYPE: u32 = 0x1;
    const STATX_SIZE: u32 = 0x200;
    let mut words = [0u64; 32];
    let mask = STATX_TYPE | STATX_SIZE;
    // SAFETY: `path` is a NUL-terminated string that outlives the call; the kernel writes `struct statx`, 256 bytes.
    retry(|| unsafe { syscall!(Sysno::statx, directory, path.as_ptr(), flags, mask, words.as_mut_ptr()) })?;
    // `stx_mode`, the 16 bits at offset 28, and `stx_size`, the word at offset 40.
    let [_, _, _, fourth, _, len, ..] = words;
    let [_, _, _, _, low, high, ..] = fourth.to_ne_bytes();
    let mode = u32::from(u16::from_ne_bytes([low, high]));
    Ok((if mode & libc::S_IFMT == libc::S_IFREG { FileKind::Regular } else { FileKind::Other }, len))
}

/// Where a symbolic link leads. A longer answer than the buffer is cut.
#[cfg(feature = "files")]
pub(crate) fn read_link<'a>(path: &CStr, buf: &'a mut [u8]) -> Result<&'a [u8]> {
    // SAFETY: `path` is a NUL-terminated string, and the kernel writes at most `buf.len()` bytes at `buf`; both are
    // borrowed for the call.
    let len = retry(|| unsafe {
        syscall!(Sysno::readlinkat, libc::AT_FDCWD, path.as_ptr(), buf.as_mut_ptr(), buf.len())
    })?;
    Ok(buf.get(..len).unwrap_or(&[]))
}

fn retry(mut call: impl FnMut() -> core::result::Result<usize, syscalls::Errno>) -> Result<usize> {
    loop {
        match call().map_err(Errno::from) {
            Err(EINTR) => {}
            other => return other,
        }
    }
}

/// Maps memory.
///
/// # Safety
/// With `MAP_FIXED` the caller owns what was mapped at that place.
pub(crate) unsafe fn mmap(addr: usize, len: usize, prot: i32, flags: i32, fd: Option<&Fd>) -> Result<usize> {
    // SAFETY: without MAP_FIXED a new mapping disturbs none that exists; with it, the caller owns the place.
    Ok(unsafe { native::mmap(addr, len, prot, flags, fd.map_or(-1, Fd::raw)) }?)
}

/// Unmaps memory.
///
/// # Safety
/// The caller owns the range, and nothing uses it any more.
pub(crate) unsafe fn munmap(addr: usize, len: usize) -> Result<()> {
    // SAFETY: the caller owns the range.
    unsafe { syscall!(Sysno::munmap, addr, len) }?;
    Ok(())
}

/// Changes the protection of whole pages.
///
/// # Safety
/// Nothing that runs meanwhile needs the rights that are taken away.
pub(crate) unsafe fn mprotect(addr: usize, len: usize, prot: i32) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::mprotect, addr, len, prot) }?;
    Ok(())
}

/// Has pages take the place of what is mapped elsewhere, at once.
///
/// # Safety
/// The caller owns the pages, nothing uses them where they are, and what uses those in whose place they come finds the same
/// there, as far as it cares.
pub(crate) unsafe fn move_mapping(from: usize, len: usize, to: usize) -> Result<()> {
    const MREMAP_MAYMOVE: usize = 1;
    const MREMAP_FIXED: usize = 2;
    // SAFETY: the caller's promise.
    unsafe { syscall!(Sysno::mremap, from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to) }?;
    Ok(())
}

/// Keeps a mapping out of children made by fork.
///
/// # Safety
/// No child made by fork uses the range.
pub(crate) unsafe fn keep_from_children(addr: usize, len: usize) -> Result<()> {
    // SAFETY: the caller's promise; the advice changes nothing in this process.
    unsafe { syscall!(Sysno::madvise, addr, len, libc::MADV_DONTFORK) }?;
    Ok(())
}

/// Gives an anonymous mapping a name in /proc/self/maps, where the kernel was built to keep one.
pub(crate) fn name_mapping(addr: usize, len: usize, name: &CStr) {
    // SAFETY: naming changes nothing but the text in /proc/self/maps; `name` outlives the call. Kernels without it
    // answer EINVAL, and the mapping simply has no name.
    let _ = unsafe {
        syscall!(Sysno::prctl, libc::PR_SET_VMA, libc::PR_SET_VMA_ANON_NAME, addr, len, name.as_ptr())
    };
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

/// Lets others run for a millisecond, or until a signal comes.
pub(crate) fn sleep_a_millisecond() {
    let time = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    // SAFETY: the kernel reads one structure.
    let _ = unsafe { syscall!(Sysno::nanosleep, &raw const time, 0) };
}

/// Copies memory of this process, stopping at the first byte that can't be read.
pub(crate) fn copy_memory(from: usize, buf: &mut [u8]) -> Result<usize> {
    match copy_from_process(from, buf) {
        Err(Errno(libc::ENOSYS)) => copy_through_file(from, buf),
        other => other,
    }
}

/// The same where the kernel has no call for it: it is asked to write the memory into a file, page by page.
#[cold]
fn copy_through_file(from: usize, buf: &mut [u8]) -> Result<usize> {
    let file = Fd::memory(c"grapnel-copy", 0)?;
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let at = from.wrapping_add(done);
        let len = rest.len().min(PAGE - at % PAGE);
        // SAFETY: the kernel checks the address itself and answers EFAULT for what isn't mapped; the file is ours alone.
        let copied = retry(|| unsafe { native::pwrite(file.0, at as *const u8, len, 0) })
            .and_then(|len| file.read_at(rest.get_mut(..len).unwrap_or(&mut []), 0));
        match copied {
            Ok(n) if n > 0 => done += n,
            Err(errno) if done == 0 => return Err(errno),
            _ => break,
        }
    }
    Ok(done)
}

fn copy_from_process(from: usize, buf: &mut [u8]) -> Result<usize> {
    let local = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    let remote = libc::iovec { iov_base: from as *mut _, iov_len: buf.len() };
    // SAFETY: the kernel checks `remote` itself and answers EFAULT for what isn't mapped; `local` describes `buf`,
    // which is borrowed for the call.
    retry(|| unsafe {
        syscall!(Sysno::process_vm_readv, pid(), &raw const local, 1, &raw const remote, 1, 0)
    })
}

/// A word of this process's memory. Only [`EFAULT`] says that there is none at the address: sandboxes refuse the call with
/// other errors.
pub(crate) fn read_word(at: usize) -> Result<u64> {
    let mut word = [0; size_of::<u64>()];
    match copy_memory(at, &mut word)? {
        n if n == word.len() => Ok(u64::from_ne_bytes(word)),
        _ => Err(EFAULT),
    }
}

/// A value that the kernel gave the program at its start, by its kind (`AT_`).
pub(crate) fn auxiliary(kind: usize) -> Option<usize> {
    let file = Fd::open(c"/proc/self/auxv", libc::O_RDONLY).ok()?;
    let mut buf = [0u8; 1024];
    let n = file.read(&mut buf).ok()?;
    let (words, _) = buf.get(..n)?.as_chunks::<{ size_of::<usize>() }>();
    let (pairs, _) = words.as_chunks::<2>();
    let mut pairs = pairs.iter().map(|pair| pair.map(usize::from_ne_bytes));
    pairs.find(|[key, _]| *key == kind).map(|[_, value]| value)
}

/// The end of the heap: where `brk` stands. Nothing is changed.
pub(crate) fn brk() -> usize {
    // SAFETY: 0 is below every valid end, so the kernel only answers where it is.
    unsafe { syscall!(Sysno::brk, 0) }.unwrap_or(0)
}

/// Prepares the process for [`sync_cores`].
pub(crate) fn register_core_sync() -> Result<()> {
    const REGISTER_PRIVATE_EXPEDITED_SYNC_CORE: usize = 1 << 6;
    // SAFETY: the command touches no memory.
    unsafe { syscall!(Sysno::membarrier, REGISTER_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0) }?;
    Ok(())
}

/// Every core that runs a thread of this process executes a serialising instruction before it runs the thread on.
pub(crate) fn sync_cores() -> Result<()> {
    const PRIVATE_EXPEDITED_SYNC_CORE: usize = 1 << 5;
    // SAFETY: the command touches no memory.
    unsafe { syscall!(Sysno::membarrier, PRIVATE_EXPEDITED_SYNC_CORE, 0, 0) }?;
    Ok(())
}

/// The kernel's own `struct sigaction`, which is not libc's.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SigAction {
    pub(crate) handler: usize,
    pub(crate) flags: usize,
    restorer: usize,
    mask: [usize; MASK_WORDS],
}

/// The kernel's set of 64 signals is made of words.
const MASK_WORDS: usize = 8 / size_of::<usize>();

impl SigAction {
    /// An action that blocks the signals of `mask` while it runs.
    pub(crate) fn new(handler: usize, flags: usize, mask: u64) -> Self {
        const SA_RESTORER: usize = 0x0400_0000;
        let mask = core::array::from_fn(|i| (mask >> (i as u32 * usize::BITS)) as usize);
        match native::RESTORER {
            Some(restorer) => Self { handler, flags: flags | SA_RESTORER, restorer: restorer as usize, mask },
            None => Self { handler, flags, restorer: 0, mask },
        }
    }
}

/// The action for a signal.
pub(crate) fn signal_action(signal: i32) -> Result<SigAction> {
    let mut old = SigAction::default();
    // SAFETY: the kernel writes one structure at `old`; its mask is 8 bytes long.
    unsafe { syscall!(Sysno::rt_sigaction, signal, 0, &raw mut old, 8) }?;
    Ok(old)
}

/// Sets the action for a signal.
///
/// # Safety
/// The handler fits its flags and is safe in a signal.
pub(crate) unsafe fn set_signal_action(signal: i32, action: &SigAction) -> Result<()> {
    // SAFETY: the kernel reads one structure; the rest is the caller's promise.
    unsafe { syscall!(Sysno::rt_sigaction, signal, core::ptr::from_ref(action), 0, 8) }?;
    Ok(())
}

/// This thread's stack for signal handlers, if it has one.
pub(crate) fn signal_stack() -> Option<core::ops::Range<usize>> {
    let mut stack = libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: the kernel writes one structure; nothing is changed.
    unsafe { syscall!(Sysno::sigaltstack, 0, &raw mut stack) }.ok()?;
    let start = stack.ss_sp as usize;
    (stack.ss_flags & libc::SS_DISABLE == 0).then(|| start..start.saturating_add(stack.ss_size))
}

/// Sends a signal to this thread alone.
pub(crate) fn signal_this_thread(signal: i32) {
    let _ = signal_thread(tid(), signal);
}

/// Sends a signal to a thread of this process; signal 0 only asks whether there is such a thread.
pub(crate) fn signal_thread(thread: i32, signal: i32) -> Result<()> {
    // SAFETY: a signal to one's own process; what it does was decided by its action.
    unsafe { syscall!(Sysno::tgkill, pid(), thread, signal) }?;
    Ok(())
}

/// Whether a thread of this process is one of the kernel's (of io_uring, say), which runs no code of the program.
pub(crate) fn is_kernel_worker(thread: i32) -> bool {
    /// `PF_IO_WORKER` and `PF_USER_WORKER` (include/linux/sched.h).
    const WORKER: u32 = 0x10 | 0x4000;
    /// The place of the flags behind the name, which is in parentheses (proc_pid_stat(5), field 9).
    const FLAGS: usize = 6;
    let path = alloc::format!("/proc/self/task/{thread}/stat\0");
    let mut buf = [0; 256];
    let Ok(path) = CStr::from_bytes_with_nul(path.as_bytes()) else { return false };
    let len = Fd::open(path, libc::O_RDONLY).and_then(|file| file.read(&mut buf)).unwrap_or(0);
    let text = buf.get(..len).unwrap_or(&[]);
    let behind = text.iter().rposition(|byte| *byte == b')').and_then(|at| text.get(at + 2..));
    let flags = behind.and_then(|rest| rest.split(|byte| *byte == b' ').nth(FLAGS));
    let flags = flags.and_then(|digits| core::str::from_utf8(digits).ok()?.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & WORKER != 0)
}

/// The threads of this process. One that is there all the time may be missing if another ends meanwhile.
pub(crate) fn threads() -> Result<Vec<i32>> {
    /// Where the length of an entry of the directory stands, and its name (getdents64(2)).
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let directory = Fd::open(c"/proc/self/task", libc::O_RDONLY | libc::O_DIRECTORY)?;
    let mut threads = Vec::new();
    let mut buf = alloc::vec![0u8; 32 << 10];
    loop {
        // SAFETY: the kernel writes at most `buf.len()` bytes at `buf`, which is borrowed for the call.
        let n = retry(|| unsafe { syscall!(Sysno::getdents64, directory.0, buf.as_mut_ptr(), buf.len()) })?;
        if n == 0 {
            return Ok(threads);
        }
        let mut rest = buf.get(..n).unwrap_or(&[]);
        while let (Some(&[low, high]), Some(name)) = (rest.get(LENGTH..LENGTH + 2), rest.get(NAME..)) {
            let digits = name.iter().take_while(|byte| byte.is_ascii_digit());
            let id = digits.fold(0i32, |id, digit| id.wrapping_mul(10).wrapping_add(i32::from(digit - b'0')));
            threads.extend((id > 0).then_some(id));
            let len = usize::from(u16::from_ne_bytes([low, high]));
            rest = rest.get(len.max(1)..).unwrap_or(&[]);
        }
    }
}
