//! Asks the kernel whether memory can be read.
//!
//! # Safety
//! The system call made here passes addresses that may be bad. It relies on the kernel to answer `EFAULT` for
//! these, and on an invalid `how` so that a good address changes nothing. Linux does so. An emulator of Linux that
//! looks at `how` first, as qemu-user does, makes every page seem readable: there, a broken chain can fault.

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
/// `rt_sigprocmask` copies the set from the address before it looks at `how`: `EINVAL` means that the copy worked.
/// Any other answer (a filter that refuses the call) counts as unreadable.
#[cold]
pub(crate) fn page_is_readable(address: u64) -> bool {
    const NOT_A_HOW: usize = 0x7fff;
    const SET_BYTES: usize = 8;
    // SAFETY: the kernel reads 8 bytes at the address or answers EFAULT; with this `how` it writes nothing.
    let answer = unsafe {
        syscalls::syscall!(Sysno::rt_sigprocmask, NOT_A_HOW, page_of(address) as usize, 0usize, SET_BYTES)
    };
    answer == Err(Errno::EINVAL)
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
