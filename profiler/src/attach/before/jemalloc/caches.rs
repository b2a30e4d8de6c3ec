//! Caches: each thread has, of each size, a stack of blocks that were freed, or got in advance, and will be given out next.
//!
//! All that have to do with an arena are in a ring. The stacks of one follow one another in memory that jemalloc has for itself.

use super::super::{Unknown, View, half, word};
use super::extents::NUMBER_OF_BINS;

/// More of them than there can be.
const MOST: usize = 1 << 20;

/// Places in what is kept of a cache: the next one, its arena, where its stacks lie, and the cache itself.
const LEN: usize = 176;
const NEXT: usize = 0;
const ARENA: usize = 40;
const ROOM: usize = 160;
const CACHE: usize = 168;

/// The most stacks that one has.
const STACKS: usize = 73;
/// Places in a stack: where its top is, and the lower halves of the lowest halves of where it is when it is full, and when empty.
const STACK: usize = 24;
const TOP: usize = 0;
const FULL: usize = 18;
const EMPTY: usize = 20;
/// What lies before the first.
const BEFORE: u64 = 8;

/// What a cache has.
#[derive(Debug)]
pub(super) struct Cache {
    /// The block that its stacks lie in.
    pub(super) room: u64,
    /// Indices of sizes, and blocks.
    pub(super) blocks: Vec<(usize, u64)>,
}

/// All that have to do with an arena.
#[derive(Debug)]
pub(super) struct Caches<'v> {
    view: View<'v>,
    arena: u64,
    first: u64,
    next: u64,
    count: usize,
}

impl<'v> Caches<'v> {
    /// `first`: the first of them, 0 for none.
    pub(super) fn of(view: View<'v>, first: u64, arena: u64) -> Self {
        Self { view, arena, first, next: first, count: 0 }
    }

    fn read(&mut self) -> Result<Cache, Unknown> {
        let at = self.next;
        let broken = Unknown::Broken { what: "a thread's cache of freed blocks", at };
        let mut own = [0; LEN];
        self.view.read(at, &mut own)?;
        self.count += 1;
        self.next = word(&own, NEXT);
        let (room, cache) = (word(&own, ROOM), word(&own, CACHE));
        let [back] = self.view.words(cache)?;
        if back != at || word(&own, ARENA) != self.arena || room == 0 || self.count > MOST {
            return Err(broken);
        }
        let mut stacks = [0; STACKS * STACK];
        self.view.read(cache.wrapping_add(8), &mut stacks)?;
        let mut blocks = Vec::new();
        let mut end = room.wrapping_add(BEFORE);
        for (index, stack) in stacks.chunks_exact(STACK).enumerate() {
            let top = word(stack, TOP);
            let [full, empty] = [FULL, EMPTY].map(|at| half(stack, at) as u16);
            // Not used: all of them are 0, or it has no room.
            if top == 0 && index >= NUMBER_OF_BINS || full == empty && top == room {
                continue;
            }
            // Each begins where the one before it ends.
            let start = end;
            end = start.saturating_add(u64::from(empty.wrapping_sub(full)));
            let is_one =
                start as u16 == full && (start..=end).contains(&top) && (end - top).is_multiple_of(8);
            if !is_one {
                return Err(broken);
            }
            let mut bytes = vec![0; (end - top) as usize];
            self.view.read(top, &mut bytes)?;
            blocks.extend(bytes.as_chunks().0.iter().map(|word| (index, u64::from_ne_bytes(*word))));
        }
        Ok(Cache { room, blocks })
    }
}

impl Iterator for Caches<'_> {
    type Item = Result<Cache, Unknown>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == 0 || self.count != 0 && self.next == self.first {
            return None;
        }
        let cache = self.read();
        if cache.is_err() {
            self.next = 0;
        }
        Some(cache)
    }
}
