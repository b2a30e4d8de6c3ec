//! Asks the kernel whether memory can be read.
//!
//! # Safety
//! The system call made here passes addresses that may be bad. It relies on the kernel to answer `EFAULT` for these,
//! and on wakes and moves of no thread to change nothing at a good address. Linux does so, and emulators of it, which
//! pass a futex on, do too; calls with a structure that emulators translate answer for some that they didn't look at.

use syscalls::{Errno, Sysno};

/// The unit in which memory is mapped and probed.
pub(crate) const PAGE: u64 = 4096;

/// The start of the page that holds `address`.
#[inline]
pub(crate) fn page_of(address: u64) -> u64 {
    address & !(PAGE - 1)
}

/// Whether the page that holds `address` can be read.
///
/// `FUTEX_CMP_REQUEUE` compares the word at the address with a value, and if they are equal moves none of its waiters:
/// either answer means that the word was read. Any other one (a filter that refuses the call) counts as unreadable.
#[cold]
pub(crate) fn page_is_readable(address: u64) -> bool {
    const CMP_REQUEUE_PRIVATE: usize = 4 | 128;
    let Ok(page) = usize::try_from(page_of(address)) else { return false };
    // SAFETY: the kernel reads 4 bytes at the address or answers EFAULT; no thread is woken or moved.
    let answer = unsafe { syscalls::syscall!(Sysno::futex, page, CMP_REQUEUE_PRIVATE, 0, 0, page, 0) };
    matches!(answer, Ok(0) | Err(Errno::EAGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_good_from_bad() {
        let local = 0u64;
        assert!(page_is_readable(&raw const local as u64));
        assert!(page_is_readable(tells_good_from_bad as *const () as u64));
        assert!(!page_is_readable(8));
        assert!(!page_is_readable(0xffff_8000_0000_0000));
        assert!(!page_is_readable(0x1234_5678_9abc_def0));
    }
}
