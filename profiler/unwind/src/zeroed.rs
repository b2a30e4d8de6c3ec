//! Arrays of zeroes that need not be written.
//!
//! # Safety
//! [`zeroed`] relies on [`Zeroable`]: that all-zero bytes are a value of the type.

use crate::Error;
use alloc::alloc::{Layout, alloc_zeroed};
use alloc::vec::Vec;

/// A type for which all-zero bytes are a value.
///
/// # Safety
/// They are.
pub(crate) unsafe trait Zeroable: Copy {}

// SAFETY: zero is a number.
unsafe impl Zeroable for u32 {}

// SAFETY: an array has no bytes but those of its items.
unsafe impl<T: Zeroable, const N: usize> Zeroable for [T; N] {}

/// `len` items, all zero bytes. Where the allocator hands out fresh pages, none is touched until it is used.
pub(crate) fn zeroed<T: Zeroable>(len: usize) -> Result<Vec<T>, Error> {
    let bytes = len.saturating_mul(size_of::<T>());
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let layout = Layout::array::<T>(len).map_err(|_| Error::OutOfMemory { bytes })?;
    // SAFETY: the layout's size is not 0.
    let items = unsafe { alloc_zeroed(layout) };
    if items.is_null() {
        return Err(Error::OutOfMemory { bytes });
    }
    // SAFETY: allocated by the global allocator with the layout of `len` items; all are initialised, since `T` is
    // Zeroable.
    Ok(unsafe { Vec::from_raw_parts(items.cast::<T>(), len, len) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_or_an_error() {
        assert_eq!(zeroed::<u32>(3), Ok(vec![0; 3]));
        assert_eq!(zeroed::<u32>(0), Ok(vec![]));
        assert_eq!(zeroed::<u32>(usize::MAX), Err(Error::OutOfMemory { bytes: usize::MAX }));
        // More than any machine has, where a number can say so.
        if let Some(bytes) = 1usize.checked_shl(60) {
            assert_eq!(zeroed::<u32>(bytes / 4), Err(Error::OutOfMemory { bytes }));
        }
    }
}
