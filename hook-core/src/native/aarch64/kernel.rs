//! System calls and their structures.

pub(crate) use crate::native::kernel64::{EFFECTIVE_USER, SIGNAL_WAITS, mmap, pread, pwrite};

/// Signal handlers return to what the kernel gives them.
pub(crate) const RESTORER: Option<unsafe extern "C" fn()> = None;
