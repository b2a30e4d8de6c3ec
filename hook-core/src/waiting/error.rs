//! Why a hook that waits isn't in.

use crate::{Errno, Error, rebind::Rebinding, symbol::LookupError};

/// Why a hook that waits isn't in, or can't wait.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// Another thread is changing hooks, or loads an object, for seconds; or this thread is, around this call.
    #[error("hooks or the list of loaded objects are being changed at this moment: {errno}")]
    Busy {
        /// `EDEADLK` if it is this thread, else `EBUSY`.
        errno: Errno,
    },
    /// The dynamic linker's list of objects can't be found.
    #[error("the dynamic linker's list of objects can't be found")]
    NoList,
    /// The function that the dynamic linker calls when its list has changed can't be hooked.
    #[error("loaded objects can't be followed: {source}")]
    NoNotice {
        /// The reason.
        source: Error,
    },
    /// The object is loaded, and doesn't have the function.
    #[error(transparent)]
    NotFound(#[from] LookupError),
    /// The function can't be hooked, or the hook not be removed.
    #[error(transparent)]
    Hook(#[from] Error),
    /// No hook of this number waits.
    #[error("nothing of number {number} waits")]
    NoSuchWait {
        /// Its number.
        number: u64,
    },
}

impl WaitError {
    /// What could be done instead.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Busy { .. } => "try again when that is done; a listener can't change hooks",
            Self::NoList => "hook the function after dlopen has returned; is the program linked statically?",
            Self::NoNotice { .. } => "hook the function after dlopen has returned",
            Self::NotFound(error) => error.remedy(),
            Self::Hook(error) => error.remedy(),
            Self::NoSuchWait { .. } => "nothing needs to be done",
        }
    }
}

/// A rebinding that can't be carried on to other objects. What it has changed stays as it is.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub struct NotCarriedOn {
    /// The rebinding.
    pub rebinding: Rebinding,
    /// The reason.
    pub source: WaitError,
}
