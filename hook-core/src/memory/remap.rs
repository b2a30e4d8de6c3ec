//! Changing code of a file for everybody at once, with no trap at its start: the file's pages are mapped anew, changed through
//! `/proc/self/mem`, and moved over those that are run.
//!
//! As in `exchange.rs`, threads find the old pages or the new ones, and who comes to them meanwhile waits. These stay pages of
//! their file at its offset, for whoever reads the list of mappings, and what is as the file has it takes no memory.
//!
//! # Safety
//! The new pages are changed until they hold what the old ones do but for the pieces, so it doesn't matter which file they are
//! of. Whoever changes code in the old ones meanwhile by other means loses that change.

use alloc::vec::Vec;
use core::{ffi::CStr, ops::Range};

use super::{
    maps::{self, Maps},
    runs::Piece,
    view::{self, Bytes, MemoryView},
};
use crate::sys::{self, EFAULT, Errno, Fd, PAGE};

/// Pieces of code in pages that can be mapped anew. Everything that takes an allocation is done.
#[derive(Debug, Default)]
pub(crate) struct Remapping {
    pieces: Vec<Piece>,
    runs: Vec<Run>,
    /// By the numbers of their inodes.
    files: Vec<(u64, Option<Fd>)>,
}

#[derive(Debug)]
struct Run {
    pages: Range<usize>,
    inode: u64,
    offset: usize,
}

/// Each run becomes a mapping of its own, and splits another in two, for good. Where the process has as many it is left out: the
/// kernel allows 65530 unless told otherwise, and the program needs some, too.
const MOST_MAPPINGS: usize = 16384;

impl Remapping {
    /// Leaves out what isn't plain code of a file.
    pub(crate) fn of(view: &MemoryView, pieces: impl Iterator<Item = Piece>) -> Self {
        let mut all = Self { pieces: pieces.collect(), ..Self::default() };
        let maps = match Maps::read() {
            Ok(maps) if view.is_file().is_ok() && !all.pieces.is_empty() => maps,
            _ => return Self::default(),
        };
        all.pieces.sort_unstable_by_key(|piece| piece.at);
        let Self { pieces, runs, files } = &mut all;
        pieces.retain(|piece| {
            let pages = view::pages(piece.at, piece.bytes.as_slice().len());
            let Some((inode, offset)) = plain_code(&maps, pages.start) else { return false };
            let so = |page| plain_code(&maps, page) == Some((inode, offset + (page - pages.start)));
            if !pages.clone().step_by(PAGE).all(so) || !is_open(files, inode, pages.start) {
                return false;
            }
            let count = maps.count() + 2 * runs.len();
            match runs.last_mut() {
                Some(run)
                    if pages.start <= run.pages.end
                        && run.inode == inode
                        && run.offset + (pages.start - run.pages.start) == offset =>
                {
                    run.pages.end = run.pages.end.max(pages.end);
                }
                _ if count >= MOST_MAPPINGS => return false,
                _ => runs.push(Run { pages, inode, offset }),
            }
            true
        });
        all
    }

    /// Leaves out pieces of owners that need none any more. Nothing is allocated.
    pub(crate) fn keep(&mut self, wanted: impl Fn(usize) -> bool) {
        self.pieces.retain(|piece| wanted(piece.owner));
    }

    /// Changes the pieces, and tells of each owner whose piece is changed. Nothing is allocated.
    ///
    /// # Safety
    /// The pieces are code that the caller may change, and whoever runs them meanwhile finds the old bytes or the new ones.
    /// Nobody else changes code in their pages meanwhile, or what is mapped there.
    pub(crate) unsafe fn carry_out(&self, view: &MemoryView, mut tell: impl FnMut(usize)) {
        for run in &self.runs {
            let file = self.files.iter().find(|(inode, _)| *inode == run.inode);
            let Some((_, Some(file))) = file else { continue };
            let first = self.pieces.partition_point(|piece| piece.at < run.pages.start);
            let behind = self.pieces.partition_point(|piece| piece.at < run.pages.end);
            let pieces = self.pieces.get(first..behind).unwrap_or(&[]);
            // SAFETY: the caller's promise.
            if !pieces.is_empty() && unsafe { renew(view, run, file, pieces) }.is_ok() {
                pieces.iter().for_each(|piece| tell(piece.owner));
            }
        }
    }
}

/// The file's inode and the offset of a page of code that nobody writes or shares.
fn plain_code(maps: &Maps, page: usize) -> Option<(u64, usize)> {
    let mapping = maps.find(page)?;
    let plain = mapping.read && mapping.execute && !mapping.write && !mapping.shared && mapping.inode != 0;
    plain.then(|| (mapping.inode, mapping.offset + (page - mapping.range.start)))
}

/// Whether the file at an address could be opened, now or before.
fn is_open(files: &mut Vec<(u64, Option<Fd>)>, inode: u64, at: usize) -> bool {
    if let Some((_, file)) = files.iter().find(|(known, _)| *known == inode) {
        return file.is_some();
    }
    let file = maps::path_at(at).and_then(|mut path| {
        path.push(0);
        Fd::open(CStr::from_bytes_with_nul(&path).ok()?, libc::O_RDONLY | libc::O_NONBLOCK).ok()
    });
    let is_there = file.is_some();
    files.push((inode, file));
    is_there
}

/// # Safety
/// As [`Remapping::carry_out`]; the pieces begin in the run.
unsafe fn renew(view: &MemoryView, run: &Run, file: &Fd, pieces: &[Piece]) -> Result<(), Errno> {
    let len = run.pages.len();
    let new = sys::map_code(file, run.offset, len)?;
    let filled = run.pages.clone().step_by(PAGE).try_for_each(|page| {
        let to = new + (page - run.pages.start);
        // SAFETY: the new mapping is as long as the run, and nothing else knows it.
        unsafe { fill(view, page, to, pieces) }
    });
    // SAFETY: what takes the place of the pages holds the same code, but for the pieces.
    filled.and_then(|()| unsafe { sys::move_mapping(new, len, run.pages.start) }).inspect_err(|_| {
        // SAFETY: it was not moved, and nothing else knows it.
        let _ = unsafe { sys::munmap(new, len) };
    })
}

/// Makes a new page what the old one is but for the pieces.
///
/// # Safety
/// The new page is the caller's, and nothing runs it.
unsafe fn fill(view: &MemoryView, page: usize, to: usize, pieces: &[Piece]) -> Result<(), Errno> {
    let (mut wanted, mut found) = ([0; PAGE], [0; PAGE]);
    if sys::copy_memory(page, &mut wanted)? < PAGE || sys::copy_memory(to, &mut found)? < PAGE {
        return Err(EFAULT);
    }
    let reaching = page.saturating_sub(Bytes::MAX)..page + PAGE;
    let first = pieces.partition_point(|piece| piece.at < reaching.start);
    for piece in pieces.iter().skip(first).take_while(|piece| piece.at < reaching.end) {
        for (byte, at) in piece.bytes.as_slice().iter().zip(piece.at..) {
            if let Some(slot) = at.checked_sub(page).and_then(|offset| wanted.get_mut(offset)) {
                *slot = *byte;
            }
        }
    }
    let differs = |at: &usize| wanted.get(*at) != found.get(*at);
    let (first, last) = ((0..PAGE).find(differs), (0..PAGE).rfind(differs));
    let (Some(first), Some(last)) = (first, last) else { return Ok(()) };
    let bytes = wanted.get(first..=last).unwrap_or(&[]);
    // SAFETY: the caller's promise.
    unsafe { view.write_through_file(to + first, bytes) }
}
