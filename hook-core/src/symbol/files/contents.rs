//! The bytes of a file, read when they are asked for.
//!
//! A file is not mapped: whoever cuts it short meanwhile would have the reader killed by SIGBUS. Its bytes are read into
//! anonymous memory as long as the file, of which only what was read takes room. How much that may be has a limit, whatever the
//! file's own headers say.
//!
//! # Safety
//! A chunk of the memory is written once, before a reference to any byte of it is given out, and not after that. The
//! memory goes when the value goes, and references borrow the value.

use alloc::{ffi::CString, vec::Vec};
use core::{
    cell::{Cell, OnceCell},
    ops::Range,
};

use object::ReadRef;

use super::FileError;
use crate::sys::{self, Errno, Fd, FileStatus};

/// How much is read at once.
const CHUNK: usize = 1 << 16;
/// Longer files are refused: no object that is mapped into a process comes near it.
const LEN_MAX: u64 = if size_of::<usize>() == 8 { 1 << 36 } else { 1 << 29 };

/// No more of a file is read into memory: the symbols of the largest programs and their names take less.
const RESIDENT_MAX: usize = if size_of::<usize>() == 8 { 1 << 30 } else { 1 << 27 };
/// Longer names are none.
pub(super) const NAME_MAX: usize = 4096;

/// Longer files have no checksum, which takes time.
const CHECKED_MAX: usize = 1 << 29;

/// Anonymous memory, zero at first.
#[derive(Debug)]
pub(super) struct Pages {
    at: usize,
    len: usize,
}

impl Pages {
    /// Takes memory, of which only what is touched takes room.
    pub(super) fn new(len: usize) -> Result<Self, Errno> {
        let len = len.max(1);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at a place that the kernel chooses disturbs none.
        let at = unsafe { sys::mmap(0, len, libc::PROT_READ | libc::PROT_WRITE, flags, None) }?;
        Ok(Self { at, len })
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory is mapped for as long as the value lives, and borrowed through it alone.
        unsafe { core::slice::from_raw_parts_mut(self.at as *mut u8, self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and references to it borrow the value.
        let _ = unsafe { sys::munmap(self.at, self.len) };
    }
}

/// The bytes of a file, or of what a file held compressed.
#[derive(Debug)]
pub(super) struct Contents {
    pages: Pages,
    len: usize,
    /// Where the bytes come from, and which chunks are there. `None` if all are.
    source: Option<Source>,
}

#[derive(Debug)]
struct Source {
    file: Fd,
    /// A bit for each chunk.
    there: Vec<Cell<u64>>,
    /// How many more bytes may be read.
    left: Cell<usize>,
    /// More was asked for.
    spent: Cell<bool>,
    /// Why a read failed, the first time.
    failed: OnceCell<Errno>,
}

impl Contents {
    /// Opens a regular file.
    pub(super) fn open(path: &[u8]) -> Result<Self, FileError> {
        let failed = |errno| FileError::Unreadable { path: path.into(), errno };
        let name = CString::new(path).map_err(|_| failed(sys::EINVAL))?;
        // Opening a device may already do something, so it is looked at before; and again at what was opened.
        let irregular = || FileError::NotRegular { path: path.into() };
        if !FileStatus::of(&name).map_err(failed)?.is_regular {
            return Err(irregular());
        }
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = Fd::open(&name, flags).map_err(failed)?;
        let FileStatus { is_regular, len, .. } = file.status().map_err(failed)?;
        if !is_regular {
            return Err(irregular());
        }
        if len > LEN_MAX {
            return Err(FileError::TooLarge { path: path.into(), len });
        }
        let len = len as usize;
        let pages = Pages::new(len).map_err(failed)?;
        let there = (0..len.div_ceil(CHUNK).div_ceil(64)).map(|_| Cell::new(0)).collect();
        let (left, spent) = (Cell::new(RESIDENT_MAX), Cell::new(false));
        Ok(Self { pages, len, source: Some(Source { file, there, left, spent, failed: OnceCell::new() }) })
    }

    /// Bytes that are all there: the first `len` of the memory.
    pub(super) fn of(pages: Pages, len: usize) -> Self {
        Self { len: len.min(pages.len), pages, source: None }
    }

    /// What is wrong with a file: that it could not be read, that it asked for more memory than it may have, or else `what`.
    pub(super) fn failure(&self, path: &[u8], what: &'static str) -> FileError {
        let path = path.into();
        match &self.source {
            Some(Source { failed, .. }) if let Some(&errno) = failed.get() => {
                FileError::Unreadable { path, errno }
            }
            Some(Source { spent, .. }) if spent.get() => FileError::TooLarge { path, len: self.len as u64 },
            _ => FileError::Malformed { path, what },
        }
    }

    /// How many bytes there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The bytes of a range of the file.
    pub(super) fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        let len = range.end.checked_sub(range.start)?;
        if range.end > self.len {
            return None;
        }
        if let (Some(source), false) = (&self.source, range.is_empty()) {
            if len > RESIDENT_MAX {
                source.spent.set(true);
                return None;
            }
            for chunk in range.start / CHUNK..=(range.end - 1) / CHUNK {
                self.fill(source, chunk)?;
            }
        }
        // SAFETY: the range lies in the memory, and its chunks are there and aren't written any more.
        Some(unsafe { core::slice::from_raw_parts((self.pages.at + range.start) as *const u8, len) })
    }

    /// Reads a chunk unless it is there.
    fn fill(&self, source: &Source, chunk: usize) -> Option<()> {
        let (word, bit) = (source.there.get(chunk / 64)?, 1 << (chunk % 64));
        if word.get() & bit != 0 {
            return Some(());
        }
        let start = chunk * CHUNK;
        let len = self.len.checked_sub(start)?.min(CHUNK);
        let Some(left) = source.left.get().checked_sub(len) else {
            source.spent.set(true);
            return None;
        };
        source.left.set(left);
        // SAFETY: the bytes lie in the memory, and no reference to any byte of a chunk that isn't there exists.
        let bytes = unsafe { core::slice::from_raw_parts_mut((self.pages.at + start) as *mut u8, len) };
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match source.file.read_at(rest, start + done) {
                // The file was cut short meanwhile.
                Ok(0) => return None,
                Ok(n) => done += n,
                Err(errno) => {
                    let _ = source.failed.set(errno);
                    return None;
                }
            }
        }
        word.set(word.get() | bit);
        Some(())
    }

    /// The checksum that a debug link has.
    pub(super) fn crc32(&self) -> Option<u32> {
        let source = self.source.as_ref().filter(|_| self.len <= CHECKED_MAX)?;
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = alloc::vec![0; CHUNK];
        let mut at = 0;
        while at < self.len {
            // Through one buffer: a debug file may be large, and little of it is looked at.
            let read = source.file.read_at(&mut buffer, at).ok().filter(|&read| read > 0)?;
            hasher.update(buffer.get(..read)?);
            at += read;
        }
        Some(hasher.finalize())
    }
}

impl<'a> ReadRef<'a> for &'a Contents {
    fn len(self) -> Result<u64, ()> {
        Ok(self.len as u64)
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        let end = offset.checked_add(size).ok_or(())?;
        let range = usize::try_from(offset).map_err(drop)?..usize::try_from(end).map_err(drop)?;
        self.get(range).ok_or(())
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let start = usize::try_from(range.start).map_err(drop)?;
        let limit =
            usize::try_from(range.end).map_err(drop)?.min(self.len).min(start.saturating_add(NAME_MAX));
        let mut at = start;
        while at < limit {
            // To the end of the chunk, so that no more is read than is needed.
            let end = limit.min((at / CHUNK + 1) * CHUNK);
            let bytes = self.get(at..end).ok_or(())?;
            if let Some(found) = bytes.iter().position(|&byte| byte == delimiter) {
                return self.get(start..at + found).ok_or(());
            }
            at = end;
        }
        Err(())
    }
}
