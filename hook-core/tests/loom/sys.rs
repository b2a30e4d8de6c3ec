//! The system calls that are made.

use crate::{atomic::Ordering::*, native};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(i32);

pub(crate) const EFAULT: Errno = Errno(14);

/// All stacks are there: those that are modelled, and those of the model.
pub(crate) fn read_word(at: usize) -> Result<u64, Errno> {
    match at {
        0 => Err(EFAULT),
        native::STACKS..0x1000 => Ok(native::on_stack(at).load(Relaxed)),
        // SAFETY: a word of the calling thread, which a guard was given.
        _ => Ok(unsafe { (at as *const u64).read_volatile() }),
    }
}

pub(crate) fn signal_stack() -> Option<core::ops::Range<usize>> {
    None
}
