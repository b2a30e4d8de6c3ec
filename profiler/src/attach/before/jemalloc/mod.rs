//! jemalloc's heap (version 5.3.0): extents, which a radix tree leads to, those of small blocks with a bit for each; less what
//! waits in the threads' caches to be given out again.
//!
//! No symbol is needed. Arenas are found by their shape: one says twice which it is, and twice where it has its memory from. From
//! them the tree is found, and the caches of all threads. Each arena counts, of each size, how many blocks it has given out: what was
//! found must be as many. What jemalloc has for itself is what the caches say that they lie in, and as large together as
//! the arenas have counted.
//!
//! - `extents`: the tree, and what it leads to
//! - `caches`: what threads have in reserve

mod caches;
mod extents;

use super::object::{self, Object};
use super::{Blocks, Unknown, View, half, word};
use caches::Caches;
use extents::{Extents, NUMBER_OF_BINS, NUMBER_OF_SIZES, size_of};
use std::ops::Range;

/// What its constants say of its version.
const VERSION: &[u8] = b"5.3.0-0-g54eaed1d8b56b1aa528be3bdd1877e59c56fa90c\0";
/// Where arenas begin, and the list of them: at a line of a processor's cache.
const LINE: u64 = 64;
/// The most arenas that there can be.
const MOST: usize = 4095;

/// Places in an arena.
mod arena {
    /// How many bytes jemalloc has for itself.
    pub(super) const INTERNAL: usize = 0x38;
    /// What is counted of each size of large blocks: how many were given out, and how many were given back.
    pub(super) const LARGE: usize = 0x3d0;
    pub(super) const LARGE_LEN: usize = 48;
    /// The first of the caches that have to do with it.
    pub(super) const CACHES: usize = 0x2898;
    pub(super) const NUMBER: usize = 0x13428;
    pub(super) const TREE: usize = 0x13440;
    pub(super) const BASE: usize = 0x13448;
    pub(super) const NUMBER_AGAIN: usize = 0x13450;
    pub(super) const BASE_AGAIN: usize = 0x13458;
    /// What is counted of each size of small blocks.
    pub(super) const BINS: usize = 0x13468;
    pub(super) const BIN_LEN: usize = 224;
    /// In a bin: how many blocks are given out, and how many extents there are.
    pub(super) const BIN_BLOCKS: usize = 136;
    pub(super) const BIN_EXTENTS: usize = 176;
    pub(super) const LEN: usize = BINS + super::NUMBER_OF_BINS * BIN_LEN;
}

/// Where to look.
#[derive(Debug)]
pub(super) struct Jemalloc {
    /// The addresses of all arenas, by number; 0 for none.
    arenas: Range<u64>,
    /// The library's variables.
    data: Range<u64>,
}

/// An arena's variables.
struct Arena {
    at: u64,
    bytes: Vec<u8>,
}

/// Whether an object is jemalloc of the version that is known, or has it in itself.
pub(super) fn is_known(view: View<'_>, object: &Object) -> Result<bool, Unknown> {
    for constants in object.constants() {
        let bytes = object::read(view, constants)?;
        if bytes.windows(VERSION.len()).any(|found| found == VERSION) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What is read of an arena to know it by.
fn looks_like(view: View<'_>, data: &Range<u64>, at: u64, number: u64) -> bool {
    const START: usize = arena::NUMBER;
    const LEN: usize = (arena::BINS - START) / 8;
    if !at.is_multiple_of(LINE) || data.contains(&at) {
        return false;
    }
    let Ok(words) = view.words::<LEN>(at.wrapping_add(START as u64)) else { return false };
    let at = |place: usize| words[(place - START) / 8];
    at(arena::NUMBER) & 0xffff_ffff == number
        && at(arena::NUMBER_AGAIN) & 0xffff_ffff == number
        && data.contains(&at(arena::TREE))
        && at(arena::BASE) != 0
        && at(arena::BASE) == at(arena::BASE_AGAIN)
}

impl Jemalloc {
    pub(super) fn find(view: View<'_>, object: &Object) -> Result<Self, Unknown> {
        let data = object.data()?;
        let mut found = Vec::new();
        for part in touched(view, &data) {
            let bytes = object::read(view, part.clone())?;
            for (at, word) in (part.start..).step_by(8).zip(bytes.as_chunks().0) {
                let word = u64::from_ne_bytes(*word);
                if word != 0 && at.is_multiple_of(LINE) && looks_like(view, &data, word, 0) {
                    found.push(at);
                }
            }
        }
        // The first one's address stands elsewhere too.
        let is_list = |at: &u64| {
            let list = *at..at.saturating_add(8 * MOST as u64);
            let Ok(bytes) = object::read(view, list.clone()) else { return false };
            let mut words = (0..).zip(bytes.as_chunks().0);
            list.end <= data.end
                && words.all(|(number, word)| match u64::from_ne_bytes(*word) {
                    0 => true,
                    at => looks_like(view, &data, at, number),
                })
        };
        found.retain(is_list);
        match found[..] {
            [at] => Ok(Self { arenas: at..at + 8 * MOST as u64, data }),
            [] => Err(Unknown::Structure("jemalloc's arenas were not found")),
            _ => Err(Unknown::Structure("several things look like jemalloc's arenas")),
        }
    }

    fn arenas(&self, view: View<'_>) -> Result<Vec<Option<Arena>>, Unknown> {
        let bytes = object::read(view, self.arenas.clone())?;
        let addresses = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        let arena = |(number, at)| {
            if at == 0 {
                return Ok(None);
            }
            if !looks_like(view, &self.data, at, number) {
                return Err(Unknown::Broken { what: "an arena", at });
            }
            let mut bytes = vec![0; arena::LEN];
            view.read(at, &mut bytes)?;
            Ok(Some(Arena { at, bytes }))
        };
        let mut arenas: Vec<_> = (0..).zip(addresses).map(arena).collect::<Result<_, _>>()?;
        let used = arenas.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        arenas.truncate(used);
        let mut trees = arenas.iter().flatten().map(|arena| word(&arena.bytes, arena::TREE));
        let first = trees.next();
        if first.is_none() || trees.any(|tree| Some(tree) != first) {
            return Err(Unknown::Structure("jemalloc's arenas are not all of one heap"));
        }
        Ok(arenas)
    }

    fn extents(&self, view: View<'_>, arenas: &[Option<Arena>]) -> Result<Extents, Unknown> {
        let first = arenas.iter().flatten().next();
        let tree = first.map_or(0, |arena| word(&arena.bytes, arena::TREE));
        Extents::find(view, tree, &self.data)
    }

    /// How much memory it has for small blocks, while it runs; nothing if it looks broken.
    pub(super) fn bytes(&self, view: View<'_>) -> u64 {
        let extents = self.arenas(view).and_then(|arenas| self.extents(view, &arenas));
        extents.map_or(0, |extents| extents.bytes())
    }

    /// All live blocks.
    pub(super) fn blocks(&self, view: View<'_>) -> Result<Blocks, Unknown> {
        let arenas = self.arenas(view)?;
        let extents = self.extents(view, &arenas)?;
        for (number, arena) in arenas.iter().enumerate() {
            let counted = extents.of_arena(number);
            match arena {
                Some(arena) => arena.agrees(&counted)?,
                None if counted.is_empty() => {}
                None => return Err(Unknown::Structure("there are extents of no arena")),
            }
        }
        if extents.arenas() > arenas.len() {
            return Err(Unknown::Structure("there are extents of no arena"));
        }
        let mut blocks = extents.blocks();
        let mut own = 0;
        for arena in arenas.iter().flatten() {
            for cache in Caches::of(view, word(&arena.bytes, arena::CACHES), arena.at) {
                let cache = cache?;
                own += blocks.take_out(cache.room, None)?;
                for (index, cached) in cache.blocks {
                    blocks.take_out(cached, Some(size_of(index)))?;
                }
            }
        }
        let internal = arenas.iter().flatten().map(|arena| word(&arena.bytes, arena::INTERNAL));
        if internal.fold(0, u64::wrapping_add) != own {
            return Err(Unknown::Structure("jemalloc has more for itself than was found"));
        }
        Ok(Blocks { plain: blocks.rest(), within: Vec::new() })
    }
}

impl Arena {
    /// Whether it has counted as many blocks of each size.
    fn agrees(&self, counted: &extents::Counted) -> Result<(), Unknown> {
        for index in 0..NUMBER_OF_SIZES {
            let found = counted.of_size(index);
            let (blocks, extents) = match index.checked_sub(NUMBER_OF_BINS) {
                None => {
                    let bin = arena::BINS + index * arena::BIN_LEN;
                    let extents = word(&self.bytes, bin + arena::BIN_EXTENTS);
                    (word(&self.bytes, bin + arena::BIN_BLOCKS), extents)
                }
                Some(large) => {
                    let at = arena::LARGE + large * arena::LARGE_LEN;
                    let number = word(&self.bytes, at).wrapping_sub(word(&self.bytes, at + 8));
                    (number, number)
                }
            };
            if found != (blocks, extents) {
                return Err(Unknown::Broken {
                    what: "an arena with other blocks than it has counted",
                    at: self.at,
                });
            }
        }
        if half(&self.bytes, arena::NUMBER) != half(&self.bytes, arena::NUMBER_AGAIN) {
            return Err(Unknown::Broken { what: "an arena", at: self.at });
        }
        Ok(())
    }
}

/// The parts of a range that were ever touched, from whole words on.
fn touched(view: View<'_>, range: &Range<u64>) -> Vec<Range<u64>> {
    const PAGE: u64 = 4096;
    let (first, end) = (range.start / PAGE, range.end.div_ceil(PAGE));
    let pages = view.memory.pages(first, end - first);
    let mut parts: Vec<Range<u64>> = Vec::new();
    for page in first..end {
        if pages.as_ref().is_some_and(|pages| pages.get((page - first) as usize) == Some(&false)) {
            continue;
        }
        let start = (page * PAGE).max(range.start.next_multiple_of(8));
        let end = ((page + 1) * PAGE).min(range.end);
        match parts.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ if start < end => parts.push(start..end),
            _ => {}
        }
    }
    parts
}
