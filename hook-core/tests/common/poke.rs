//! Changing code as someone else would.

use crate::code::start;

/// What another patcher would do.
pub(crate) fn poke(at: *const (), bytes: &[u8]) {
    let page = at as usize & !4095;
    let rights = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: the test's own code, which nothing runs meanwhile; it may run and be written at once for a moment.
    unsafe {
        assert_eq!(libc::mprotect(page as *mut _, 8192, rights | libc::PROT_WRITE), 0);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), start(at).cast_mut().cast(), bytes.len());
        assert_eq!(libc::mprotect(page as *mut _, 8192, rights), 0);
    }
}
