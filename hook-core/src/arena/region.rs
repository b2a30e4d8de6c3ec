//! One piece of memory for code, and the ways to make it.
//!
//! # Safety
//! A region is a new mapping, and only its arena knows of it.

use alloc::collections::BTreeMap;
use core::ops::Range;

use super::{ALIGN, CodeSlot};
use crate::{
    memory::{
        place::{Atlas, map_near},
        view::MemoryView,
    },
    native::Pattern,
    sys::{self, Errno, Fd},
};

/// How memory for code was made without ever being writable and executable at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CodeWay {
    /// An executable and a writable view of one unlinked file in memory, whose descriptor is closed before the region is
    /// used. Slots can be added while code in the region runs. None is used twice, as children made by fork run the same
    /// memory; it is freed when no slot of the region is in use.
    TwoViews,
    /// Executable from the start, and written through `/proc/self/mem`. Slots can be added while code in it runs.
    ProcMem,
    /// Anonymous memory that is written first and then made executable. Nothing is added after that.
    Protect,
}

impl CodeWay {
    /// Every way, in the order in which they are tried.
    pub const ALL: [Self; 3] = [Self::TwoViews, Self::ProcMem, Self::Protect];
}

const CODE: i32 = libc::PROT_READ | libc::PROT_EXEC;
const DATA: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

#[derive(Debug)]
pub(super) struct Region {
    pub(super) code: Range<usize>,
    /// Where it is written, if it is by itself: the writable view, or what isn't sealed yet.
    pub(super) view: Option<usize>,
    /// Start and end of what is free, never two side by side.
    free: BTreeMap<usize, usize>,
    /// How many bytes were given back and stay as they are, until all of the region was given back.
    pub(super) idle: usize,
    /// For lengths that were asked for: below which address nothing so long is free.
    crowded: BTreeMap<usize, usize>,
    pub(super) way: CodeWay,
    pub(super) pid: i32,
}

impl Region {
    /// Maps memory in the first way that works.
    pub(super) fn new(
        ways: &[CodeWay],
        near: usize,
        len: usize,
        reach: &Range<usize>,
        atlas: &mut Atlas,
    ) -> Result<Self, Errno> {
        let mut failed = sys::ENOMEM;
        for way in ways {
            let made = match way {
                CodeWay::TwoViews => two_views(near, len, reach, atlas),
                CodeWay::ProcMem => through_proc(near, len, reach, atlas),
                CodeWay::Protect => {
                    map_near(near, len, reach, atlas, DATA, ANONYMOUS, None).map(|at| (at, Some(at)))
                }
            };
            match made {
                Ok((at, view)) => {
                    if *way != CodeWay::TwoViews {
                        sys::name_mapping(at, len, c"grapnel-code");
                    }
                    let (code, free) = (at..at + len, BTreeMap::from([(at, at + len)]));
                    return Ok(Self {
                        code,
                        view,
                        free,
                        idle: 0,
                        crowded: BTreeMap::new(),
                        way: *way,
                        pid: sys::pid(),
                    });
                }
                Err(errno) => failed = errno,
            }
        }
        Err(failed)
    }

    /// Whether slots of it can be written, by this process.
    pub(super) fn serves(&self, pid: i32) -> bool {
        self.pid == pid && (self.view.is_some() || self.way == CodeWay::ProcMem)
    }

    /// Nothing in it is in use.
    pub(super) fn is_empty(&self) -> bool {
        self.free.iter().map(|(start, end)| end - start).sum::<usize>() + self.idle == self.code.len()
    }

    /// Whether a child made by fork would run what is written over a slot: it has the hooks that this process had.
    pub(super) fn is_shared(&self) -> bool {
        self.way == CodeWay::TwoViews
    }

    /// Takes the first slot of a length that begins in `reach`.
    pub(super) fn take(&mut self, len: usize, reach: &Range<usize>) -> Option<CodeSlot> {
        let crowded = self.crowded.range(..=len).map(|(_, below)| *below).max();
        let from = crowded.unwrap_or(0).max(reach.start);
        let first = self.free.range(..=from).next_back().map_or(from, |(start, _)| *start);
        let at = self.free.range(first..).take_while(|(start, _)| **start < reach.end).find_map(
            |(&start, &end)| {
                let at = start.max(reach.start).next_multiple_of(ALIGN);
                (at + len <= end && at < reach.end).then_some(at)
            },
        )?;
        // Only a search of everything shows that nothing was free.
        if reach.start <= self.code.start {
            self.crowded.insert(len, at);
        }
        self.carve(at, len)
    }

    /// Takes a slot at one of a pattern's places.
    pub(super) fn take_matching(&mut self, pattern: &Pattern, len: usize) -> Option<CodeSlot> {
        let mut from = self.code.start;
        loop {
            let at = usize::try_from(pattern.next_from(from as u64)?).ok()?;
            let hole = self.free.range(..=at).next_back();
            if hole.is_some_and(|(_, &end)| at + len <= end) {
                return self.carve(at, len);
            }
            let next = *self.free.range(at + 1..).next()?.0;
            // A place in a hole that is too short there may be followed by one in the same hole no more.
            from = next;
        }
    }

    /// Takes free bytes out of the hole that they lie in.
    fn carve(&mut self, at: usize, len: usize) -> Option<CodeSlot> {
        let (&start, &end) = self.free.range(..=at).next_back().filter(|(_, end)| at + len <= **end)?;
        self.free.remove(&start);
        for (start, end) in [(start, at), (at + len, end)] {
            if start < end {
                self.free.insert(start, end);
            }
        }
        Some(CodeSlot { at, len })
    }

    pub(super) fn put_back(&mut self, slot: &CodeSlot) {
        let (mut start, mut end) = (slot.at, slot.at + slot.len);
        if let Some((&before, _)) = self.free.range(..start).next_back().filter(|(_, end)| **end == start) {
            start = before;
        }
        if let Some(behind) = self.free.remove(&end) {
            end = behind;
        }
        self.free.insert(start, end);
        // What is free now may be long enough.
        for below in self.crowded.range_mut(..=end - start).map(|(_, below)| below) {
            *below = start.min(*below);
        }
    }

    /// Makes it executable for good, if it isn't yet.
    pub(super) fn seal(&mut self) -> Result<(), Errno> {
        if self.way == CodeWay::Protect && self.view.is_some() {
            // SAFETY: the region is ours, and nothing writes to it meanwhile, or later: its view goes.
            unsafe { sys::mprotect(self.code.start, self.code.len(), CODE) }?;
            self.view = None;
        }
        Ok(())
    }

    /// Unmaps what it is written through, if that is a mapping of its own.
    ///
    /// # Safety
    /// This process made the region, and nothing is written to it any more.
    pub(super) unsafe fn unmap_view(&self) {
        if let (Some(view), CodeWay::TwoViews) = (self.view, self.way) {
            // SAFETY: the view is the region's own.
            let _ = unsafe { sys::munmap(view, self.code.len()) };
        }
    }

    /// Unmaps all of it.
    ///
    /// # Safety
    /// As [`Self::unmap_view`], and nothing runs its code any more.
    pub(super) unsafe fn unmap(&self) {
        // SAFETY: the caller's promise; the mappings are the region's own.
        unsafe {
            self.unmap_view();
            let _ = sys::munmap(self.code.start, self.code.len());
        }
    }
}

type Made = Result<(usize, Option<usize>), Errno>;

fn two_views(near: usize, len: usize, reach: &Range<usize>, atlas: &mut Atlas) -> Made {
    let file = Fd::memory(c"grapnel-code", len)?;
    let code = map_near(near, len, reach, atlas, CODE, libc::MAP_SHARED, Some(&file))?;
    // SAFETY: a new mapping, at a place of the kernel's choice.
    let view = unsafe { sys::mmap(0, len, DATA, libc::MAP_SHARED, Some(&file)) }.inspect_err(|_| {
        // SAFETY: the executable view was just made, and nothing knows it yet.
        let _ = unsafe { sys::munmap(code, len) };
    })?;
    // A child that keeps the view could only waste it: `serves` compares process ids.
    // SAFETY: a child finds itself not served by the region and doesn't touch its view.
    let _ = unsafe { sys::keep_from_children(view, len) };
    Ok((code, Some(view)))
}

fn through_proc(near: usize, len: usize, reach: &Range<usize>, atlas: &mut Atlas) -> Made {
    let memory = MemoryView::open();
    memory.is_file()?;
    let code = map_near(near, len, reach, atlas, CODE, ANONYMOUS, None)?;
    // SAFETY: a byte of a new mapping that nothing knows yet.
    unsafe { memory.write_through_file(code, super::FILL) }.inspect_err(|_| {
        // SAFETY: as above.
        let _ = unsafe { sys::munmap(code, len) };
    })?;
    Ok((code, None))
}
