//! System calls and their structures.

pub(crate) use crate::native::kernel64::{EFFECTIVE_USER, SIGNAL_WAITS, mmap, pread, pwrite};

/// A signal handler has to return to this ([`super::signal_return`]).
pub(crate) const RESTORER: Option<unsafe extern "C" fn()> = Some(super::signal_return);
