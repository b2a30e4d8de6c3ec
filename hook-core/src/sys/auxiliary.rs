//! What the kernel told the program at its start.

use core::ffi::{CStr, c_ulong};

use super::Fd;
use crate::listen;

/// A value of the auxiliary vector, by its kind (`AT_`).
pub(crate) fn auxiliary(kind: usize) -> Option<usize> {
    // The first thread's file is empty once it has ended by itself.
    in_file(c"/proc/self/auxv", kind)
        .or_else(|| in_file(c"/proc/thread-self/auxv", kind))
        .or_else(|| in_libc(kind))
}

fn in_file(path: &CStr, kind: usize) -> Option<usize> {
    let file = Fd::open(path, libc::O_RDONLY).ok()?;
    let mut buf = [0u8; 1024];
    let n = file.read(&mut buf).ok()?;
    let (words, _) = buf.get(..n)?.as_chunks::<{ size_of::<usize>() }>();
    let (pairs, _) = words.as_chunks::<2>();
    let mut pairs = pairs.iter().map(|pair| pair.map(usize::from_ne_bytes));
    pairs.find(|[key, _]| *key == kind).map(|[_, value]| value)
}

unsafe extern "C" {
    fn getauxval(kind: c_ulong) -> c_ulong;
}

/// What libc keeps of it: a process that isn't dumpable may have no right to read its own file. It takes no lock.
#[cold]
fn in_libc(kind: usize) -> Option<usize> {
    // SAFETY: the function has no preconditions.
    let value = listen::with_errno_kept(|| unsafe { getauxval(kind as c_ulong) }) as usize;
    Some(value).filter(|&value| value != 0)
}
