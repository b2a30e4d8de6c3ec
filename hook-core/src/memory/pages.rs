//! Memory as it is at one time, each page read once.

use alloc::{boxed::Box, collections::BTreeMap};
use core::{cell::RefCell, ops::Range};

use super::{
    maps::Maps,
    view::{Bytes, MemoryView},
};
use crate::{extent::Objects, sys::PAGE};

/// How many pages are kept.
const MOST: usize = 1024;

/// Reads code for plans. Hundreds of functions lie in a page, and each system call reads a whole one.
///
/// What is read may be as old as the value. A commit looks again at what it changes.
#[derive(Debug)]
pub(crate) struct Pages<'a> {
    view: &'a MemoryView,
    /// `None` for a page that can't be read.
    pages: RefCell<BTreeMap<usize, Option<Box<[u8; PAGE]>>>>,
    objects: Objects,
}

impl<'a> Pages<'a> {
    pub(crate) fn new(view: &'a MemoryView) -> Self {
        Self { view, pages: RefCell::default(), objects: Objects::default() }
    }

    /// Where they are read, and what can be written.
    pub(crate) fn memory(&self) -> &'a MemoryView {
        self.view
    }

    /// The addresses of the function around one: see [`Objects::extent`].
    pub(crate) fn extent(&self, maps: &Maps, address: usize) -> Option<Range<usize>> {
        self.objects.extent(maps, address)
    }

    /// Those of one beside the function at `own`: see [`Objects::neighbour`].
    pub(crate) fn neighbour(&self, maps: &Maps, own: usize, address: usize) -> Option<Range<usize>> {
        self.objects.neighbour(maps, own, address)
    }

    /// The addresses of the function around one, as its unwind entry says: see [`Objects::described`].
    pub(crate) fn described(&self, maps: &Maps, address: usize) -> Option<Range<usize>> {
        self.objects.described(maps, address)
    }

    /// Reads what can be read of `buf.len()` bytes at `address`, and says how much that is.
    pub(crate) fn read(&self, address: usize, buf: &mut [u8]) -> usize {
        let mut pages = self.pages.borrow_mut();
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = address.wrapping_add(done);
            let start = at & !(PAGE - 1);
            if pages.len() >= MOST && !pages.contains_key(&start) {
                pages.clear();
            }
            let page = pages.entry(start).or_insert_with(|| {
                let mut page = Box::new([0; PAGE]);
                (self.view.read(start, &mut page[..]) == PAGE).then_some(page)
            });
            let Some(there) = page.as_ref().and_then(|page| page.get(at - start..)) else { break };
            let len = there.len().min(rest.len());
            for (slot, byte) in rest.iter_mut().zip(there) {
                *slot = *byte;
            }
            done += len;
        }
        done
    }

    /// A few bytes at `address`; fewer where memory ends.
    pub(crate) fn bytes(&self, address: usize, len: usize) -> Bytes {
        let mut buf = [0; Bytes::MAX];
        let len = len.min(Bytes::MAX);
        let n = buf.get_mut(..len).map_or(0, |buf| self.read(address, buf));
        Bytes::new(buf.get(..n).unwrap_or(&[]))
    }

    /// Whether exactly these bytes are at `address`.
    pub(crate) fn holds(&self, address: usize, expected: &[u8]) -> bool {
        self.bytes(address, expected.len()).as_slice() == expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_those_of_memory_and_end_where_it_ends() {
        let view = MemoryView::open();
        let pages = Pages::new(&view);
        let code = Pages::read as *const () as usize;
        for (from, len) in [(0, 1), (3, 24), (PAGE - 5, 10), (PAGE, 3 * PAGE)] {
            let (mut ours, mut theirs) = (vec![1; len], vec![2; len]);
            assert_eq!(pages.read(code + from, &mut ours), view.read(code + from, &mut theirs));
            assert_eq!(ours, theirs);
        }
        assert!(pages.holds(code, view.bytes(code, 24).as_slice()));
        assert!(!pages.holds(code, &[0x0f, 0x0b, 0x0f, 0x0b]));
        // SAFETY: a fresh mapping of two pages, of which the second goes again.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = crate::sys::mmap(0, 2 * PAGE, libc::PROT_READ, flags, None).unwrap();
            crate::sys::munmap(start + PAGE, PAGE).unwrap();
            start
        };
        assert_eq!(pages.read(start + PAGE - 4, &mut [0; 8]), 4);
        assert_eq!(pages.read(start + PAGE, &mut [0; 8]), 0);
    }

    #[test]
    fn pages_without_end_take_no_memory_without_end() {
        let view = MemoryView::open();
        let pages = Pages::new(&view);
        for page in 0..3 * MOST {
            pages.read(page * PAGE, &mut [0]);
        }
        assert!(pages.pages.borrow().len() <= MOST);
    }
}
