//! Asks the kernel whether memory can be read.
//!
//! # Safety
//! The system call made here passes addresses that may be bad. It relies on the kernel to answer `EFAULT` for these,
//! and on wakes and moves of no thread to change nothing at a good address. Linux does so, and emulators of it, which
//! pass a futex on, do too; calls with a structure that emulators translate answer for some that they didn't look at.

use core::sync::atomic::{AtomicPtr, Ordering};
use syscalls::{Errno, Sysno};

/// The unit in which memory is mapped and probed.
pub(crate) const PAGE: u64 = 4096;

/// The start of the page that holds `address`.
#[inline]
pub(crate) fn page_of(address: u64) -> u64 {
    address & !(PAGE - 1)
}

/// Says of a system call, by its number and arguments, whether it must not be made.
pub type Refuses = fn(usize, &[usize; 6]) -> bool;

static REFUSES: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Before the kernel is asked whether memory can be read, `refuses` is asked whether that is allowed: the process may have put
/// itself under a filter for system calls. What can't be asked about counts as unreadable, so stacks may end there.
pub fn ask_before_probing(refuses: Refuses) {
    REFUSES.store(refuses as *mut (), Ordering::Release);
}

fn is_refused(arguments: &[usize; 6]) -> bool {
    let refuses = REFUSES.load(Ordering::Acquire);
    // SAFETY: null, which is no function, or the one that was stored.
    let refuses = unsafe { core::mem::transmute::<*mut (), Option<Refuses>>(refuses) };
    refuses.is_some_and(|refuses| refuses(Sysno::futex as usize, arguments))
}

/// Whether the page that holds `address` can be read.
///
/// `FUTEX_CMP_REQUEUE` compares the word at the address with a value, and if they are equal moves none of its waiters:
/// either answer means that the word was read. Any other one (a filter that refuses the call) counts as unreadable.
#[cold]
pub fn page_is_readable(address: u64) -> bool {
    const CMP_REQUEUE_PRIVATE: usize = 4 | 128;
    let Ok(page) = usize::try_from(page_of(address)) else { return false };
    let arguments = [page, CMP_REQUEUE_PRIVATE, 0, 0, page, 0];
    if is_refused(&arguments) {
        return false;
    }
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the kernel reads 4 bytes at the address or answers EFAULT; no thread is woken or moved.
    let answer = unsafe { syscalls::syscall!(Sysno::futex, a, b, c, d, e, f) };
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
