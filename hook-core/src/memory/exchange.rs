//! Changing code that threads run, where it can't be written through `/proc/self/mem`: a changed copy of the pages takes
//! their place.
//!
//! The kernel moves pages from one address to another at once (`mremap` with `MREMAP_FIXED`): between two instructions they
//! are the old ones, and then the new ones, and who comes to them meanwhile waits. At no time is a mapping writable and
//! executable, or is code without the right to run. An emulator is told by it, as by every system call that changes
//! mappings, that its translations of the pages are stale.
//!
//! The price: the pages are copies, no longer those of their file, and each run of them is a mapping of its own.
//!
//! # Safety
//! The copy is a new mapping, and unmapped if it doesn't take the place. What took their place is as executable as what was
//! there. Whoever changes the same pages by other means between the copy and the exchange loses that change: only pages that
//! may not be written are exchanged, so no store does.

use core::ops::Range;

use super::{rights, view::pages};
use crate::{
    native,
    sys::{self, EFAULT, Errno},
};

/// A changed copy of pages, with the rights that it needs to take their place.
pub(super) struct Copy {
    at: usize,
    pages: Range<usize>,
}

impl Copy {
    /// Copies the pages with other bytes at `address`, for which they are to be those of [`pages`]. Where it answers, the kernel
    /// allows what was written to have these rights.
    pub(super) fn of(address: usize, bytes: &[u8], rights: i32) -> Result<Self, Errno> {
        let pages = pages(address, bytes.len());
        let (writable, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, at a place of the kernel's choice.
        let at = unsafe { sys::mmap(0, pages.len(), writable, flags, None) }?;
        let copy = Self { at, pages };
        let pages = &copy.pages;
        // SAFETY: the copy is as long as the pages, and nothing else knows it. The reference is gone before its rights change.
        let memory = unsafe { core::slice::from_raw_parts_mut(at as *mut u8, pages.len()) };
        if sys::copy_memory(pages.start, memory)? < memory.len() {
            return Err(EFAULT);
        }
        let there = memory.get_mut(address - pages.start..).and_then(|rest| rest.get_mut(..bytes.len()));
        there.ok_or(EFAULT)?.copy_from_slice(bytes);
        // SAFETY: nothing writes to the copy any more, and nothing runs it yet.
        unsafe { sys::mprotect(at, pages.len(), rights) }?;
        native::flush(at..at + pages.len());
        Ok(copy)
    }

    /// Takes the place of the pages.
    ///
    /// # Safety
    /// As [`exchange`].
    pub(super) unsafe fn take_place(self) -> Result<(), Errno> {
        // SAFETY: what takes the place of the pages holds the same code, but for the bytes that the caller may change.
        unsafe { sys::move_mapping(self.at, self.pages.len(), self.pages.start) }?;
        core::mem::forget(self);
        Ok(())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // SAFETY: it was not moved, and nothing else knows it.
        let _ = unsafe { sys::munmap(self.at, self.pages.len()) };
    }
}

/// Writes code into pages that may be exchanged, as [`is_plain_code`] has just said.
///
/// # Safety
/// The bytes at `address` are code that the caller may change, and whoever runs them meanwhile finds either the old ones or
/// the new ones. Nobody else changes code in these pages meanwhile.
pub(super) unsafe fn exchange(address: usize, bytes: &[u8]) -> Result<(), Errno> {
    let copy = Copy::of(address, bytes, libc::PROT_READ | libc::PROT_EXEC)?;
    // SAFETY: the caller's promise.
    unsafe { copy.take_place() }
}

/// Whether the pages may be exchanged: they are private, and may be read and executed and not written.
pub(super) fn is_plain_code(pages: &Range<usize>) -> Result<bool, Errno> {
    rights::are(pages, |mapping| mapping.read && mapping.execute && !mapping.write && !mapping.shared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::PAGE;

    fn map(len: usize, rights: i32, flags: i32) -> usize {
        // SAFETY: a new mapping.
        unsafe { sys::mmap(0, len, rights, flags | libc::MAP_ANONYMOUS, None) }.unwrap()
    }

    const CODE: i32 = libc::PROT_READ | libc::PROT_EXEC;

    #[test]
    fn pages_are_exchanged_as_wholes() {
        let start = map(3 * PAGE, CODE, libc::MAP_PRIVATE);
        let at = start + 2 * PAGE - 3;
        for round in 1..20u8 {
            // SAFETY: nothing runs the code.
            unsafe { exchange(at, &[round; 6]) }.unwrap();
            let mut expected = vec![0; 3 * PAGE];
            expected[2 * PAGE - 3..2 * PAGE + 3].fill(round);
            let mut found = vec![1; 3 * PAGE];
            assert_eq!(sys::copy_memory(start, &mut found), Ok(found.len()));
            assert!(found == expected);
        }
        assert_eq!(is_plain_code(&(start..start + 3 * PAGE)), Ok(true));
        // SAFETY: the pages are ours and unused from here on.
        unsafe { sys::munmap(start, 3 * PAGE) }.unwrap();
    }

    #[test]
    fn what_may_be_written_or_is_shared_is_no_plain_code() {
        for (rights, flags) in [
            (libc::PROT_READ, libc::MAP_PRIVATE),
            (CODE | libc::PROT_WRITE, libc::MAP_PRIVATE),
            (CODE, libc::MAP_SHARED),
        ] {
            let start = map(2 * PAGE, rights, flags);
            assert_eq!(is_plain_code(&pages(start + 5, 1)), Ok(false));
            // SAFETY: the pages are ours and unused from here on.
            unsafe { sys::munmap(start, 2 * PAGE) }.unwrap();
        }
        assert_eq!(is_plain_code(&pages(0x10, 1)), Ok(false));
    }
}
