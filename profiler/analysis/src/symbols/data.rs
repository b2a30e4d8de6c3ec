//! The bytes of object files: read when they are asked for, and only as many as a good file needs.

use super::files::FileError;
use object::read::{ReadCache, ReadCacheOps, ReadRef};
use std::fs::{File, Metadata, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bytes of a file, or of what a file held compressed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Data<'a> {
    File(&'a ReadCache<StableFile>),
    Memory(&'a [u8]),
}

impl<'a> ReadRef<'a> for Data<'a> {
    fn len(self) -> Result<u64, ()> {
        match self {
            Self::File(file) => file.len(),
            Self::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        match self {
            Self::File(file) => file.read_bytes_at(offset, size),
            Self::Memory(bytes) => bytes.read_bytes_at(offset, size),
        }
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        match self {
            Self::File(file) => file.read_bytes_at_until(range, delimiter),
            Self::Memory(bytes) => bytes.read_bytes_at_until(range, delimiter),
        }
    }
}

/// What is read of a file beyond twice its length: names and headers are read, and kept, in pieces.
const EXTRA: u64 = 1 << 30;

/// A regular file that is opened anew for each read, so that a process with a thousand libraries doesn't
/// need a thousand descriptors. A file that was replaced in between gives an error instead of a mixture.
#[derive(Debug)]
pub(crate) struct StableFile {
    path: PathBuf,
    identity: Identity,
    position: u64,
    /// How much more may be read. Sections of a malformed file can overlap a thousandfold, and all is kept.
    budget: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    len: u64,
    modified: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl StableFile {
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let (_, identity) = open_regular(path)?;
        let budget = identity.len.saturating_mul(2).saturating_add(EXTRA);
        Ok(Self { path: path.to_owned(), identity, position: 0, budget })
    }

    /// When the content was last changed.
    pub(crate) fn modified(&self) -> Option<SystemTime> {
        let (seconds, nanoseconds) = self.identity.modified;
        let whole = std::time::Duration::from_secs(u64::try_from(seconds).ok()?);
        SystemTime::UNIX_EPOCH.checked_add(whole + std::time::Duration::from_nanos(nanoseconds as u64))
    }

    fn spend(&mut self, len: usize) -> Result<(), ()> {
        self.budget = self.budget.checked_sub(len as u64).ok_or(())?;
        Ok(())
    }

    fn reopen(&self) -> Result<File, FileError> {
        let (file, identity) = open_regular(&self.path)?;
        if identity == self.identity {
            Ok(file)
        } else {
            Err(std::io::Error::other("it changed while it was read").into())
        }
    }

    /// The checksum that `.gnu_debuglink` has.
    pub(crate) fn crc32(&self) -> Result<u32, FileError> {
        let file = self.reopen()?;
        let mut hasher = crc32fast::Hasher::new();
        let mut buffer = vec![0; 1 << 16];
        let mut at = 0;
        loop {
            let len = file.read_at(&mut buffer, at)?;
            if len == 0 {
                return Ok(hasher.finalize());
            }
            hasher.update(&buffer[..len]);
            at += len as u64;
        }
    }
}

/// Looks before it opens, since opening a device may already do something, and looks again at what it
/// opened. Without blocking, so that a FIFO put there in between does not hold us up.
fn open_regular(path: &Path) -> Result<(File, Identity), FileError> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(FileError::NotRegular);
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(FileError::NotRegular);
    }
    let identity = Identity::of(&metadata);
    Ok((file, identity))
}

impl ReadCacheOps for StableFile {
    fn len(&mut self) -> Result<u64, ()> {
        Ok(self.identity.len)
    }

    fn seek(&mut self, position: u64) -> Result<u64, ()> {
        self.position = position;
        Ok(position)
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ()> {
        self.spend(buffer.len())?;
        let len = self.reopen().map_err(drop)?.read_at(buffer, self.position).map_err(drop)?;
        self.position += len as u64;
        Ok(len)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ()> {
        self.spend(buffer.len())?;
        self.reopen().map_err(drop)?.read_exact_at(buffer, self.position).map_err(drop)?;
        self.position += buffer.len() as u64;
        Ok(())
    }
}
