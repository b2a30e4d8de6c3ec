//! Why the symbols of a file can't be used.

use alloc::vec::Vec;

use crate::{Errno, module::BuildId};

/// Why the symbols of a file can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// It can't be opened or read.
    #[error("{} can't be read: {errno}", path.escape_ascii())]
    Unreadable {
        /// The file.
        path: Vec<u8>,
        /// The kernel's answer.
        errno: Errno,
    },
    /// It is a directory, a device or a pipe.
    #[error("{} is not a regular file", path.escape_ascii())]
    NotRegular {
        /// The file.
        path: Vec<u8>,
    },
    /// It is longer than any object file.
    #[error("{} has {len} bytes, which is more than is read", path.escape_ascii())]
    TooLarge {
        /// The file.
        path: Vec<u8>,
        /// Its length, or that of what it holds compressed.
        len: u64,
    },
    /// It is no object file, or a damaged one.
    #[error("{} is not a usable object file: {what}", path.escape_ascii())]
    Malformed {
        /// The file.
        path: Vec<u8>,
        /// What is wrong with it.
        what: &'static str,
    },
    /// It was replaced since the object was loaded.
    #[error("{} is not what is loaded: it has {}, and the loaded object has {}", path.escape_ascii(), Id(found), Id(loaded))]
    Replaced {
        /// The file.
        path: Vec<u8>,
        /// The file's build id.
        found: Option<BuildId>,
        /// The object's.
        loaded: Option<BuildId>,
    },
    /// It has no symbol table, and there is no separate debug file that belongs to it.
    #[error("{} has no symbol table, and no debug file that belongs to it is there", path.escape_ascii())]
    Stripped {
        /// The file.
        path: Vec<u8>,
    },
}

impl FileError {
    /// What could be done instead.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } | Self::NotRegular { .. } => {
                "find the function by an exported name, or pass its address"
            }
            Self::TooLarge { .. } | Self::Malformed { .. } => {
                "install the object's file or its debug file anew"
            }
            Self::Replaced { .. } => "start the program anew, so that the file and what is loaded agree",
            Self::Stripped { .. } => {
                "install the package with the object's debug symbols, or pass the function's address"
            }
        }
    }
}

struct Id<'a>(&'a Option<BuildId>);

impl core::fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            Some(id) => write!(f, "the build id {id}"),
            None => write!(f, "no build id"),
        }
    }
}
