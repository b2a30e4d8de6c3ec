//! Opens object files whose paths come from a trace.
//!
//! A path in a trace is what the target said; it may name a FIFO, a device, or another file than then. Only
//! regular files are opened, for reading, and a file counts as the module only if its build id is the one
//! that was recorded.

use object::read::{Object, ReadCache, ReadCacheOps};
use std::fs::{File, Metadata, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use typed_arena::Arena;

/// Why a file is not used. The sentence leaves out the file's name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It can't be opened or read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It is a directory, a device, a pipe.
    #[error("it is not a regular file")]
    NotRegular,
    /// It is no object file that we can read.
    #[error("it is not a readable ELF file ({0})")]
    Format(#[from] object::read::Error),
    /// It is another build of the module.
    #[error("it changed since the recording (its build id is {found})")]
    OtherBuild {
        /// The file's build id in hex, or "none".
        found: String,
    },
}

/// Holds the bytes of every file that symbols were read from.
#[derive(Default)]
pub struct FileStore {
    caches: Arena<ReadCache<StableFile>>,
    pub(crate) sections: Arena<Vec<u8>>,
}

impl core::fmt::Debug for FileStore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "FileStore({} files)", self.caches.len())
    }
}

pub(crate) type ElfFile<'a> = object::File<'a, &'a ReadCache<StableFile>>;

/// An object file and where it lies.
pub(crate) struct Opened<'a> {
    pub(crate) elf: ElfFile<'a>,
    pub(crate) path: PathBuf,
}

impl FileStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens an object file. With a non-empty `build_id` it must have that one.
    pub(crate) fn open(&self, path: &Path, build_id: &[u8]) -> Result<Opened<'_>, FileError> {
        let cache = self.caches.alloc(ReadCache::new(StableFile::open(path)?));
        let elf = ElfFile::parse(&*cache)?;
        if !build_id.is_empty() {
            let found = elf.build_id()?;
            if found != Some(build_id) {
                return Err(FileError::OtherBuild { found: found.map_or("none".into(), hex) });
            }
        }
        Ok(Opened { elf, path: path.to_owned() })
    }

    /// Opens the separate debug file of a module, wherever distributions keep it under `debug_dirs`:
    /// by its build id, or by the name in `.gnu_debuglink` next to the module. What has neither the build
    /// id nor the checksum that it should is passed over.
    pub(crate) fn open_debug(
        &self,
        debug_dirs: &[PathBuf],
        build_id: &[u8],
        main: Option<&Opened<'_>>,
    ) -> Option<Opened<'_>> {
        let by_id =
            debug_dirs.iter().filter_map(|dir| self.open(&build_id_path(dir, build_id)?, build_id).ok());
        if let Some(opened) = by_id.into_iter().next() {
            return Some(opened);
        }
        let main = main?;
        let (name, crc) = main.elf.gnu_debuglink().ok()??;
        let name = file_name(name)?;
        let dir = main.path.parent()?;
        let global = debug_dirs.iter().map(|root| root.join(dir.strip_prefix("/").unwrap_or(dir)));
        for dir in [dir.to_owned(), dir.join(".debug")].into_iter().chain(global) {
            let path = dir.join(&name);
            let Ok(opened) = self.open(&path, build_id) else { continue };
            let fits = !build_id.is_empty() || checksum_of(&path).is_some_and(|found| found == crc);
            if fits && path != main.path {
                return Some(opened);
            }
        }
        None
    }

    /// Opens the package of split DWARF units that belongs to an object: beside it, with `.dwp` behind its
    /// name. The ids of its units tell whether they fit.
    pub(crate) fn open_package(&self, of: &Opened<'_>) -> Option<Opened<'_>> {
        let mut path = of.path.clone().into_os_string();
        path.push(".dwp");
        self.open(Path::new(&path), &[]).ok()
    }

    /// Opens the file that `dwz` moved common debug information to.
    pub(crate) fn open_sup(&self, debug_dirs: &[PathBuf], of: &Opened<'_>) -> Option<Opened<'_>> {
        let (name, build_id) = of.elf.gnu_debugaltlink().ok()??;
        let by_id = debug_dirs.iter().filter_map(|dir| build_id_path(dir, build_id));
        let by_name = of.path.parent()?.join(path_of(name));
        by_id.chain([by_name]).find_map(|path| self.open(&path, build_id).ok())
    }
}

fn checksum_of(path: &Path) -> Option<u32> {
    StableFile::open(path).ok()?.crc32().ok()
}

/// `DIR/.build-id/ab/cdef.debug`.
fn build_id_path(dir: &Path, build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    Some(dir.join(".build-id").join(hex(&[*first])).join(hex(rest) + ".debug"))
}

/// The name of a file without any directory, so that a link can't lead elsewhere.
fn file_name(name: &[u8]) -> Option<PathBuf> {
    Some(path_of(name).file_name()?.into())
}

/// Bytes of a trace or an object as the path they are.
pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A regular file that is opened anew for each read, so that a process with a thousand libraries doesn't
/// need a thousand descriptors. A file that was replaced in between gives an error instead of a mixture.
#[derive(Debug)]
pub(crate) struct StableFile {
    path: PathBuf,
    identity: Identity,
    position: u64,
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
    fn open(path: &Path) -> Result<Self, FileError> {
        let (_, identity) = open_regular(path)?;
        Ok(Self { path: path.to_owned(), identity, position: 0 })
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
    fn crc32(&self) -> Result<u32, FileError> {
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
        let len = self.reopen().map_err(drop)?.read_at(buffer, self.position).map_err(drop)?;
        self.position += len as u64;
        Ok(len)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ()> {
        self.reopen().map_err(drop)?.read_exact_at(buffer, self.position).map_err(drop)?;
        self.position += buffer.len() as u64;
        Ok(())
    }
}
