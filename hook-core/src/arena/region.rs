//! One piece of memory for code, and the ways to make it.
//!
//! # Safety
//! A region is a new mapping, and only its arena knows of it.

use alloc::vec::Vec;
use core::ops::Range;

use super::CodeSlot;
use crate::{
    memory::{maps::Maps, place::map_near},
    sys::{self, Errno, Fd},
};

/// How memory for code was made without ever being writable and executable at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CodeWay {
    /// An executable and a writable view of one file in memory.
    TwoViews,
    /// Written first, then made executable.
    Protect,
}

#[derive(Debug)]
pub(super) struct Region {
    pub(super) code: Range<usize>,
    /// The writable view; `None` once the region is sealed.
    pub(super) view: Option<usize>,
    /// What is taken: slots one after the other from the start, and slots at chosen places.
    pub(super) used: usize,
    pub(super) pinned: Vec<Range<usize>>,
    pub(super) way: CodeWay,
    pub(super) pid: i32,
}

impl Region {
    pub(super) fn serves(&self, pid: i32) -> bool {
        self.view.is_some() && self.pid == pid
    }

    pub(super) fn room(&self) -> usize {
        let end = self.pinned.iter().map(|taken| taken.start).min().unwrap_or(self.code.end);
        end.saturating_sub(self.next())
    }

    pub(super) fn is_free(&self, range: &Range<usize>) -> bool {
        self.next() <= range.start
            && range.end <= self.code.end
            && self.pinned.iter().all(|taken| range.end <= taken.start || taken.end <= range.start)
    }

    pub(super) fn next(&self) -> usize {
        self.code.start + self.used
    }

    pub(super) fn pin(&mut self, at: usize, len: usize) -> CodeSlot {
        self.pinned.push(at..at + len);
        CodeSlot { at, len }
    }

    pub(super) fn take(&mut self, len: usize) -> CodeSlot {
        let slot = CodeSlot { at: self.next(), len };
        self.used += len;
        slot
    }
}

/// Memory that is executable in one view and writable in another.
pub(super) fn two_views(
    near: usize,
    len: usize,
    reach: &Range<usize>,
    maps: Option<&Maps>,
) -> Result<Region, Errno> {
    let file = Fd::memory(c"grapnel-code", len)?;
    let code =
        map_near(near, len, reach, maps, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_SHARED, Some(&file))?;
    // SAFETY: a new mapping, at a place of the kernel's choice.
    let view =
        unsafe { sys::mmap(0, len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, Some(&file)) }
            .inspect_err(|_| {
                // SAFETY: the executable view was just made, and nothing knows it yet.
                let _ = unsafe { sys::munmap(code, len) };
            })?;
    let pid = sys::pid();
    // A child that keeps the view could only waste it: `serves` compares process ids.
    // SAFETY: a child finds itself not served by the region and doesn't touch its view.
    let _ = unsafe { sys::keep_from_children(view, len) };
    Ok(Region {
        code: code..code + len,
        view: Some(view),
        used: 0,
        pinned: Vec::new(),
        way: CodeWay::TwoViews,
        pid,
    })
}
