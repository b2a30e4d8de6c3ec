//! Opens object files whose paths come from a trace.
//!
//! A path in a trace is what the target said; it may name a FIFO, a device, or another file than then. Only
//! regular files are opened, for reading, and a file counts as the module only if its build id is the one
//! that was recorded.

use super::data::{Data, StableFile};
use super::discarded::Discarded;
use object::read::{Object, ReadCache};
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
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
    /// It has no build id to tell, and was written since.
    #[error("it was written after it was loaded, and has no build id to tell whether it is the same")]
    Newer,
    /// It is not the one that a debug link means.
    #[error("its checksum is not the one in the debug link")]
    OtherChecksum,
}

/// Troubles that are kept, of all files together.
const MAX_TROUBLES: usize = 1000;

/// Holds the bytes of every file that symbols were read from.
#[derive(Default)]
pub struct FileStore {
    caches: Arena<ReadCache<StableFile>>,
    sections: Arena<Vec<u8>>,
    discarded: Arena<[Discarded; 2]>,
    /// Bytes in `sections`.
    unpacked: Cell<u64>,
    troubles: RefCell<Vec<String>>,
}

impl core::fmt::Debug for FileStore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "FileStore({} files)", self.caches.len())
    }
}

pub(crate) type ElfFile<'a> = object::File<'a, Data<'a>>;

/// An object file and where it lies.
pub(crate) struct Opened<'a> {
    pub(crate) elf: ElfFile<'a>,
    pub(crate) path: PathBuf,
    pub(crate) modified: Option<SystemTime>,
}

impl FileStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens an object file. With a non-empty `build_id` it must have that one.
    pub(crate) fn open(&self, path: &Path, build_id: &[u8]) -> Result<Opened<'_>, FileError> {
        let file = StableFile::open(path)?;
        let modified = file.modified();
        let cache = self.caches.alloc(ReadCache::new(file));
        let elf = ElfFile::parse(Data::File(cache))?;
        if !build_id.is_empty() {
            let found = elf.build_id()?;
            if found != Some(build_id) {
                return Err(FileError::OtherBuild { found: found.map_or("none".into(), hex) });
            }
        }
        Ok(Opened { elf, path: path.to_owned(), modified })
    }

    /// Opens an object file that was found inside another.
    pub(crate) fn open_inner(&self, bytes: Vec<u8>, outer: &Opened<'_>) -> Result<Opened<'_>, FileError> {
        let elf = ElfFile::parse(Data::Memory(self.keep(bytes)))?;
        Ok(Opened { elf, path: outer.path.clone(), modified: outer.modified })
    }

    /// Keeps bytes as long as the store.
    pub(crate) fn keep(&self, bytes: Vec<u8>) -> &[u8] {
        self.unpacked.set(self.unpacked.get() + bytes.len() as u64);
        self.sections.alloc(bytes)
    }

    /// What tells addresses of discarded code apart in a file.
    pub(crate) fn discarded(&self, elf: &ElfFile<'_>) -> &[Discarded; 2] {
        self.discarded.alloc(Discarded::of(elf))
    }

    /// How many bytes are kept.
    pub(crate) fn kept(&self) -> u64 {
        self.unpacked.get()
    }

    /// Notes what could not be used, a whole sentence.
    pub(crate) fn trouble(&self, what: String) {
        let mut troubles = self.troubles.borrow_mut();
        if troubles.len() < MAX_TROUBLES && !troubles.contains(&what) {
            troubles.push(what);
        }
    }

    /// Takes back what was noted since there were so many.
    pub(crate) fn troubles_since(&self, count: usize) -> Vec<String> {
        let mut troubles = self.troubles.borrow_mut();
        let first = count.min(troubles.len());
        troubles.split_off(first)
    }

    pub(crate) fn trouble_count(&self) -> usize {
        self.troubles.borrow().len()
    }

    pub(crate) fn troubles(&self) -> Vec<String> {
        self.troubles.borrow().clone()
    }
}

/// Bytes of a trace or an object as the path they are.
pub(crate) fn path_of(bytes: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
