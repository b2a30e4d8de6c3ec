//! What lies before a return address, outside of modules' code.

use crate::probe::{copy, page_of};

/// As many bytes as the longest instruction that calls a function takes, and no fewer than two instructions of 32 bits.
const BYTES: usize = 8;

/// The bytes before `pc`; 0 for those that can't be read, which is in no instruction that calls.
///
/// Off the hot path: asks the kernel.
pub(crate) fn bytes_before(pc: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let (first, last) = (pc.saturating_sub(BYTES as u64), pc.saturating_sub(1));
    if !copy(first, &mut bytes[BYTES - (pc - first) as usize..]) {
        bytes = [0; BYTES];
        // Those of the last page alone.
        let start = page_of(last).max(first);
        if !copy(start, &mut bytes[BYTES - (pc - start) as usize..]) {
            bytes = [0; BYTES];
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::PAGE;

    #[test]
    fn what_cannot_be_read_is_zero() {
        // SAFETY: a fresh mapping, of which the first page is given back.
        let page = unsafe {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let pages = libc::mmap(core::ptr::null_mut(), 2 * PAGE as usize, protection, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            libc::munmap(pages, PAGE as usize);
            let page = pages.byte_add(PAGE as usize);
            page.cast::<[u8; 9]>().write([1, 2, 3, 4, 5, 6, 7, 8, 9]);
            page as u64
        };
        assert_eq!(bytes_before(page), [0; BYTES]);
        assert_eq!(bytes_before(page + 3), [0, 0, 0, 0, 0, 1, 2, 3]);
        assert_eq!(bytes_before(page + 8), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes_before(page + 9), [2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!((bytes_before(0), bytes_before(3)), ([0; BYTES], [0; BYTES]));
        assert_eq!((bytes_before(u64::MAX), bytes_before(page - 1)), ([0; BYTES], [0; BYTES]));
        // SAFETY: nothing refers to the page any more.
        unsafe { libc::munmap(page as *mut _, PAGE as usize) };
    }
}
