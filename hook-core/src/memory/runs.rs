//! Writing many pieces of code, with one system call for all that lie in one page.
//!
//! # Safety
//! The bytes between two pieces are written as they were a moment before, so nobody else may change code meanwhile.

use super::view::{Bytes, MemoryView, PatchWay, Unwritten};
use crate::sys::{EFAULT, PAGE};

/// What lies between the pieces isn't there.
const UNREADABLE: Unwritten = Unwritten { way: PatchWay::ProcMem, errno: EFAULT };

/// A piece of code to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) at: usize,
    pub(crate) bytes: Bytes,
    /// Whose it is.
    pub(crate) owner: usize,
}

impl Piece {
    fn end(&self) -> usize {
        self.at + self.bytes.as_slice().len()
    }
}

/// Writes the pieces, and tells of each owner how that went. Nothing is allocated.
///
/// # Safety
/// As [`MemoryView::write_code`] for each piece, and no other thread changes the code around them meanwhile.
pub(crate) unsafe fn write(
    view: &MemoryView,
    pieces: &mut [Piece],
    mut tell: impl FnMut(usize, Result<PatchWay, Unwritten>),
) {
    pieces.sort_unstable_by_key(|piece| piece.at);
    let mut left = &*pieces;
    while let [first, ..] = left {
        let limit = (first.at & !(PAGE - 1)) + PAGE;
        let (run, rest) = left.split_at(left.partition_point(|piece| piece.at < limit));
        left = rest;
        let end = run.iter().map(Piece::end).max().unwrap_or(limit);
        let mut buf = [0; PAGE + Bytes::MAX];
        let written = match buf.get_mut(..end - first.at) {
            // SAFETY: the caller's promise.
            Some(code) => unsafe { write_run(view, run, code) },
            None => Err(UNREADABLE),
        };
        for piece in run {
            tell(piece.owner, written);
        }
    }
}

/// Writes the pieces of one run, with what lies between them as it is.
///
/// # Safety
/// As [`write`].
unsafe fn write_run(view: &MemoryView, run: &[Piece], code: &mut [u8]) -> Result<PatchWay, Unwritten> {
    let start = run.first().map_or(0, |first| first.at);
    if view.read(start, code) < code.len() {
        return Err(UNREADABLE);
    }
    for piece in run {
        for (slot, byte) in code.iter_mut().skip(piece.at - start).zip(piece.bytes.as_slice()) {
            *slot = *byte;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { view.write_code(start, code) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn pieces_are_written_in_any_order_and_across_pages() {
        for view in [MemoryView::open(), MemoryView::without_proc()] {
            // SAFETY: a fresh mapping that nothing else knows.
            let start = unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                sys::mmap(0, 3 * PAGE, libc::PROT_READ | libc::PROT_EXEC, flags, None).unwrap()
            };
            let places = [2 * PAGE + 7, 5, PAGE - 2, PAGE - 8, 16, 3 * PAGE - 5, PAGE + 3];
            let mut pieces: Vec<Piece> = places
                .iter()
                .enumerate()
                .map(|(owner, at)| Piece { at: start + at, bytes: Bytes::new(&[owner as u8 + 1; 5]), owner })
                .collect();
            // Nothing is mapped there.
            pieces.push(Piece { at: 0x10, bytes: Bytes::new(&[1]), owner: 7 });
            let mut told = [0; 8];
            // SAFETY: nothing runs the code.
            unsafe {
                write(&view, &mut pieces, |owner, way| {
                    told[owner] += 1;
                    assert_eq!(way.is_err(), owner == 7);
                });
            }
            assert_eq!(told, [1; 8]);
            let mut expected = vec![0; 3 * PAGE];
            for (i, at) in places.into_iter().enumerate() {
                expected[at..at + 5].fill(i as u8 + 1);
            }
            let mut found = vec![1; 3 * PAGE];
            assert_eq!(view.read(start, &mut found), found.len());
            assert!(found == expected);
            // SAFETY: the pages are ours and unused from here on.
            unsafe { sys::munmap(start, 3 * PAGE) }.unwrap();
        }
    }
}
