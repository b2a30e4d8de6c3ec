//! The memory of a process that tests make up: some pages in which code and what is made for it lie. Around them all
//! addresses are taken.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    fmt::Write as _,
    ops::Range,
};

use syscalls::Errno;

use crate::{native::HIGHEST, sys::PAGE};

type Answer = Result<usize, Errno>;

/// How many pages there are. Miri looks through them slowly.
const PAGES: usize = if cfg!(miri) { 96 } else { 512 };
const FIXED_NOREPLACE: usize = 0x10_0000;

fn layout() -> Layout {
    Layout::from_size_align(PAGES * PAGE, PAGE).expect("it is small")
}

/// Pages that may be mapped, with the rights of those that are.
#[derive(Debug)]
pub(crate) struct Memory {
    start: usize,
    rights: Vec<Option<usize>>,
}

impl Memory {
    /// Nothing is mapped.
    pub(crate) fn new() -> Self {
        // SAFETY: the size isn't 0.
        let start = unsafe { alloc_zeroed(layout()) };
        Self { start: start.expose_provenance(), rights: vec![None; PAGES] }
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Maps pages of code in the middle, and says where.
    pub(crate) fn code(&mut self, bytes: &[u8]) -> usize {
        let first = PAGES / 2;
        let pages = bytes.len().div_ceil(PAGE);
        self.rights[first..first + pages].fill(Some(libc::PROT_READ as usize | libc::PROT_EXEC as usize));
        let at = self.start + first * PAGE;
        // SAFETY: the pages are this memory's, and nobody else's.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        at
    }

    fn pages(&self, at: usize, len: usize) -> Result<Range<usize>, Errno> {
        let first = at.checked_sub(self.start).ok_or(Errno::EINVAL)?;
        let range = first / PAGE..(first + len).div_ceil(PAGE);
        if first.is_multiple_of(PAGE) && len > 0 && range.end <= PAGES {
            Ok(range)
        } else {
            Err(Errno::EINVAL)
        }
    }

    fn set(&mut self, pages: Range<usize>, rights: Option<usize>) {
        const BOTH: usize = (libc::PROT_WRITE | libc::PROT_EXEC) as usize;
        assert!(rights.is_none_or(|rights| rights & BOTH != BOTH), "writable and executable at once");
        self.rights[pages].fill(rights);
    }

    pub(super) fn map(&mut self, at: usize, len: usize, rights: usize, flags: usize) -> Answer {
        let fits = |first: &usize| self.rights[*first..].iter().take(len / PAGE).all(Option::is_none);
        let pages = match at {
            0 => {
                let first = (0..=PAGES - len / PAGE).rev().find(fits).ok_or(Errno::ENOMEM)?;
                first..first + len / PAGE
            }
            _ => self.pages(at, len).map_err(|_| Errno::EEXIST)?,
        };
        if self.rights[pages.clone()].iter().any(Option::is_some) {
            return Err(Errno::EEXIST);
        }
        assert!(at == 0 || flags & FIXED_NOREPLACE != 0, "no mapping is replaced");
        let at = self.start + pages.start * PAGE;
        // SAFETY: pages of this memory that weren't mapped.
        unsafe { (at as *mut u8).write_bytes(0, len) };
        self.set(pages, Some(rights));
        Ok(at)
    }

    pub(super) fn unmap(&mut self, at: usize, len: usize) -> Answer {
        let pages = self.pages(at, len)?;
        self.set(pages, None);
        Ok(0)
    }

    pub(super) fn protect(&mut self, at: usize, len: usize, rights: usize) -> Answer {
        let pages = self.pages(at, len)?;
        if self.rights[pages.clone()].contains(&None) {
            return Err(Errno::ENOMEM);
        }
        self.set(pages, Some(rights));
        Ok(0)
    }

    pub(super) fn move_to(&mut self, at: usize, len: usize, to: usize) -> Answer {
        let (from, into) = (self.pages(at, len)?, self.pages(to, len)?);
        let rights = self.rights[from.start];
        // SAFETY: pages of this memory.
        unsafe { core::ptr::copy(at as *const u8, to as *mut u8, len) };
        self.set(into, rights);
        self.set(from, None);
        Ok(to)
    }

    /// How many bytes from an address on are mapped, at most so many.
    fn there(&self, at: usize, len: usize) -> usize {
        let Some(first) = at.checked_sub(self.start).filter(|first| *first < PAGES * PAGE) else {
            // The program's own, as far as it is asked for.
            return if at < 0x1_0000 { 0 } else { len };
        };
        let pages = self.rights[first / PAGE..].iter().take_while(|rights| rights.is_some()).count();
        len.min((first / PAGE + pages) * PAGE - first.min((first / PAGE + pages) * PAGE))
    }

    /// # Safety
    /// There is room at `to`, and what isn't of this memory can be read at `from`.
    pub(crate) unsafe fn read(&self, from: usize, to: *mut u8, len: usize) -> Answer {
        match self.there(from, len) {
            0 => Err(Errno::EFAULT),
            len => {
                // SAFETY: the caller's promise.
                unsafe { core::ptr::copy(from as *const u8, to, len) };
                Ok(len)
            }
        }
    }

    /// # Safety
    /// As [`Self::read`], backwards.
    pub(super) unsafe fn write(&mut self, to: usize, from: *const u8, len: usize) -> Answer {
        match self.there(to, len) {
            0 => Err(Errno::EFAULT),
            len => {
                // SAFETY: the caller's promise.
                unsafe { core::ptr::copy(from, to as *mut u8, len) };
                Ok(len)
            }
        }
    }

    /// As in `/proc/self/maps`.
    pub(super) fn listed(&self) -> String {
        let mut text = String::new();
        let mut line = |range: Range<usize>, rights: usize| {
            let right = |bit: i32, name| if rights & bit as usize != 0 { name } else { '-' };
            let (read, write) = (right(libc::PROT_READ, 'r'), right(libc::PROT_WRITE, 'w'));
            let execute = right(libc::PROT_EXEC, 'x');
            let (start, end) = (range.start, range.end);
            writeln!(text, "{start:x}-{end:x} {read}{write}{execute}p 00000000 00:00 0").expect("text grows");
        };
        line(0x1_0000..self.start, 0);
        for (number, rights) in self.rights.iter().enumerate() {
            let at = self.start + number * PAGE;
            rights.map(|rights| line(at..at + PAGE, rights));
        }
        line(self.start + PAGES * PAGE..HIGHEST, 0);
        text
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it came from there. The hooks in it are gone, and so is what was made for them.
        unsafe { dealloc(self.start as *mut u8, layout()) };
    }
}
