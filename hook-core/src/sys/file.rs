//! Files, and this process's own memory as a file.

use core::ffi::CStr;

use syscalls::Sysno;

use super::{EFBIG, EINVAL, EIO, Result, retry, syscall};
use crate::native;

/// A descriptor that is closed when it goes.
#[derive(Debug)]
pub(crate) struct Fd(i32);

/// Whether this process may make a file so large. To find out by trying would end it (`SIGXFSZ`).
pub(super) fn may_be_as_large(len: usize) -> Result<()> {
    let mut limits = [0u64; 2];
    // SAFETY: two words for the kernel to write, and none to read.
    let asked =
        retry(|| unsafe { syscall!(Sysno::prlimit64, 0, libc::RLIMIT_FSIZE, 0, limits.as_mut_ptr()) });
    if asked.is_ok() && limits[0] < len as u64 { Err(EFBIG) } else { Ok(()) }
}

impl Fd {
    /// Opens a path, close-on-exec.
    pub(crate) fn open(path: &CStr, flags: i32) -> Result<Self> {
        // SAFETY: `path` is a NUL-terminated string that outlives the call; opening touches no memory of ours.
        let fd = retry(|| unsafe {
            syscall!(Sysno::openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC, 0)
        })?;
        Ok(Self(fd as i32))
    }

    /// Opens this process's memory to read and write. `/proc/self` is the first thread, which shows nothing more once it has
    /// ended by itself; then this thread shows the memory (Linux 3.17). In this order, as emulators make their own
    /// `/proc/self` alone.
    pub(crate) fn own_memory() -> Result<Self> {
        let first = Self::open(c"/proc/self/mem", libc::O_RDWR);
        if first.as_ref().is_ok_and(Self::shows_memory) {
            return first;
        }
        let other = Self::open(c"/proc/thread-self/mem", libc::O_RDWR);
        match other {
            Ok(file) if file.shows_memory() => Ok(file),
            _ => Err(first.err().unwrap_or(EIO)),
        }
    }

    fn shows_memory(&self) -> bool {
        self.read_at(&mut [0], core::ptr::from_ref(self) as usize) == Ok(1)
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
        may_be_as_large(len)?;
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

    /// Takes all out of the file that is in it.
    pub(crate) fn empty(&self) -> Result<()> {
        // SAFETY: no memory is concerned.
        retry(|| unsafe { syscall!(Sysno::ftruncate, self.0, 0) }).map(drop)
    }

    /// What the file is.
    pub(crate) fn status(&self) -> Result<FileStatus> {
        FileStatus::at(self.0, c"", libc::AT_EMPTY_PATH)
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

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStatus {
    /// It holds bytes: it is no folder, pipe or device.
    pub(crate) is_regular: bool,
    pub(crate) len: u64,
    /// How many names lead to it.
    pub(crate) links: u32,
    /// The id of the user that it belongs to.
    pub(crate) owner: u32,
    /// When it was written last, in hundredths of a second since 1970.
    pub(crate) written: u64,
}

impl FileStatus {
    /// What a path leads to. Nothing is opened.
    #[cfg(feature = "files")]
    pub(crate) fn of(path: &CStr) -> Result<Self> {
        Self::at(libc::AT_FDCWD, path, 0)
    }

    fn at(directory: i32, path: &CStr, flags: i32) -> Result<Self> {
        /// `STATX_TYPE`, `STATX_NLINK`, `STATX_UID`, `STATX_MTIME` and `STATX_SIZE`.
        const ASKED: u32 = 0x1 | 0x4 | 0x8 | 0x40 | 0x200;
        /// Those of libc have another type on some machines (inode(7)).
        const S_IFMT: u32 = 0o170_000;
        const S_IFREG: u32 = 0o100_000;
        // `statx` has one layout on all machines.
        let mut words = [0u64; 32];
        // SAFETY: `path` is a NUL-terminated string that outlives the call; the kernel writes `struct statx`, 256 bytes.
        retry(|| unsafe {
            syscall!(Sysno::statx, directory, path.as_ptr(), flags, ASKED, words.as_mut_ptr())
        })?;
        // `stx_nlink`, the 32 bits at offset 16, `stx_uid` behind it, `stx_mode`, the 16 bits at 28, and `stx_size` at 40.
        // `stx_mtime` at 112: seconds, and the 32 bits behind them nanoseconds.
        let [_, _, third, fourth, _, len, .., seconds, nanoseconds] =
            *words.first_chunk::<16>().unwrap_or(&[0; 16]);
        let [third, fourth, nanoseconds] = [third, fourth, nanoseconds].map(u64::to_ne_bytes);
        let half = |[a, b, c, d, ..]: [u8; 8]| u32::from_ne_bytes([a, b, c, d]);
        let other = |[_, _, _, _, a, b, c, d]: [u8; 8]| u32::from_ne_bytes([a, b, c, d]);
        let [_, _, _, _, low, high, ..] = fourth;
        let mode = u32::from(u16::from_ne_bytes([low, high]));
        Ok(Self {
            is_regular: mode & S_IFMT == S_IFREG,
            len,
            links: half(third),
            owner: other(third),
            written: seconds * 100 + u64::from(half(nanoseconds)) / 10_000_000,
        })
    }
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
