//! Asks the kernel whether memory can be read.
//!
//! # Safety
//! The system call made here passes addresses that may be bad. It relies on the kernel to answer `EFAULT` for these,
//! and on wakes and moves of no thread to change nothing at a good address. Linux does so, and emulators of it, which
//! pass a futex on, do too; calls with a structure that emulators translate answer for some that they didn't look at.

use crate::memory::read_byte;
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

fn is_refused(number: Sysno, arguments: &[usize; 6]) -> bool {
    let refuses = REFUSES.load(Ordering::Acquire);
    // SAFETY: null, which is no function, or the one that was stored.
    let refuses = unsafe { core::mem::transmute::<*mut (), Option<Refuses>>(refuses) };
    refuses.is_some_and(|refuses| refuses(number as usize, arguments))
}

/// Copies what lies at `address`, of one page, if all of it can be read, at this very moment: another thread may unmap it at any. `None` where the kernel isn't to be
/// asked to.
fn copy_of_page(address: u64, into: &mut [u8]) -> Option<bool> {
    let own = [usize::try_from(address).ok()?, into.len()];
    let local = [into.as_mut_ptr().expose_provenance(), into.len()];
    if is_refused(Sysno::getpid, &[0; 6]) {
        return None;
    }
    // SAFETY: takes no memory.
    let process = unsafe { syscalls::syscall!(Sysno::getpid) }.ok()?;
    let [local, own] = [&raw const local, &raw const own].map(|vector| vector.expose_provenance());
    let arguments = [process, local, 1, own, 1, 0];
    if is_refused(Sysno::process_vm_readv, &arguments) {
        return None;
    }
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the kernel writes to `into` alone, and answers `EFAULT` where it can't read.
    match unsafe { syscalls::syscall!(Sysno::process_vm_readv, a, b, c, d, e, f) } {
        Ok(copied) => Some(copied == into.len()),
        Err(Errno::EFAULT) => Some(false),
        Err(_) => None,
    }
}

/// Copies what lies at `address`, if all of it can be read. Where the kernel can't be asked to, it is asked whether the pages can be read, and they
/// are read after that.
///
/// For what is not known to stay: what leads there was guessed.
#[cold]
pub(crate) fn copy(address: u64, into: &mut [u8]) -> bool {
    let Some(end) = address.checked_add(into.len() as u64) else { return false };
    let (mut at, mut rest) = (address, into);
    while at < end {
        let len = (page_of(at).saturating_add(PAGE).min(end) - at) as usize;
        let Some((part, behind)) = rest.split_at_mut_checked(len) else { return false };
        let is_copied = copy_of_page(at, part).unwrap_or_else(|| {
            let can_be = page_is_readable(at);
            if can_be {
                for (byte, from) in part.iter_mut().zip(at..) {
                    // SAFETY: the page was just found readable.
                    *byte = unsafe { read_byte(from) };
                }
            }
            can_be
        });
        if !is_copied {
            return false;
        }
        (at, rest) = (at + len as u64, behind);
    }
    true
}

/// [`copy`] of so many bytes.
pub(crate) fn copied<const N: usize>(address: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    copy(address, &mut bytes).then_some(bytes)
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
    if is_refused(Sysno::futex, &arguments) {
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

    #[test]
    fn copies_what_can_be_read() {
        // SAFETY: a fresh mapping of two pages, of which the second is given back.
        let page = unsafe {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let page = libc::mmap(core::ptr::null_mut(), 2 * PAGE as usize, protection, flags, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            libc::munmap(page.byte_add(PAGE as usize), PAGE as usize);
            page.byte_add(PAGE as usize - 8).cast::<u64>().write(0x0102_0304_0506_0708);
            page as u64
        };
        assert_eq!(copied(page + PAGE - 8), Some(0x0102_0304_0506_0708u64.to_ne_bytes()));
        assert_eq!(copied::<8>(page + PAGE - 7), None);
        assert_eq!(copied::<8>(page + PAGE), None);
        assert_eq!(copied::<8>(u64::MAX - 3), None);
        assert_eq!(copied::<8>(8), None);
        let across = [7u8; 3 * PAGE as usize];
        let start = page_of(across.as_ptr() as u64 + PAGE - 1);
        assert_eq!(copied(start + PAGE - 5), Some([7; 11]));
        // SAFETY: nothing refers to the page any more.
        unsafe { libc::munmap(page as *mut _, PAGE as usize) };
    }
}
