//! Chunks: what a region consists of. Each says how long it is, and whether the one before it is used.

use super::arena::{Region, SIZE_BITS};
use super::{Unknown, View, word};

/// Of a chunk's size.
const BEFORE_IS_USED: u64 = 1;
const IS_MAPPED: u64 = 2;
const IS_OTHERS: u64 = 4;
/// Where a heap ends, there are chunks without a block; each is so long.
const FENCE: u64 = 16;
/// How much is read at once: no more than a processor has near.
const WINDOW: usize = 1 << 18;
/// What is looked at of each chunk: two words of its own, and the first one of its block.
const LOOKED_AT: usize = 24;

/// A chunk that isn't in a list of free ones that its neighbour knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// The address of its block.
    pub(super) block: u64,
    /// Its length, and whether it is free all the same.
    size: u64,
    /// The first word of its block.
    pub(super) first: u64,
}

impl Chunk {
    /// All of it.
    pub(super) fn size(&self) -> u64 {
        self.size & !SIZE_BITS
    }

    /// What may be used: all but the word with the size. The next one's first word belongs to it.
    pub(super) fn usable(&self) -> u64 {
        self.size() - 8
    }

    pub(super) fn is_free(&self) -> bool {
        self.size & SIZE_BITS != 0
    }

    /// It is no block of the program's. False if that was known.
    pub(super) fn set_free(&mut self) -> bool {
        let was = self.is_free();
        self.size |= 1;
        !was
    }
}

/// Memory of which one piece after another is read.
struct Window<'v> {
    view: View<'v>,
    start: u64,
    /// Where the memory ends.
    end: u64,
    bytes: Vec<u8>,
}

impl Window<'_> {
    /// The words at an address; behind the end they are 0.
    fn look(&mut self, at: u64) -> Result<[u64; 3], Unknown> {
        let offset = at.wrapping_sub(self.start);
        let is_here = offset.saturating_add(LOOKED_AT as u64) <= self.bytes.len() as u64;
        if !is_here && (offset > self.bytes.len() as u64 || self.start + (self.bytes.len() as u64) < self.end)
        {
            let len = self.end.saturating_sub(at).min(WINDOW as u64);
            self.bytes.resize(len as usize, 0);
            self.start = at;
            self.view.read(at, &mut self.bytes)?;
        }
        let offset = at.wrapping_sub(self.start) as usize;
        Ok(std::array::from_fn(|index| word(&self.bytes, offset + 8 * index)))
    }
}

/// Adds all used chunks of a region, those in caches among them.
pub(super) fn walk(view: View<'_>, region: &Region, all: &mut Vec<Chunk>) -> Result<(), Unknown> {
    let broken = |what, at| Err(Unknown::Broken { what, at });
    let end = region.range.end;
    let mut window = Window { view, start: 0, end, bytes: Vec::new() };
    // One of which the next says whether it is used.
    let mut open: Option<(u64, u64, u64)> = None;
    let mut at = region.range.start;
    loop {
        let [before, head, first] = window.look(at)?;
        let (size, head_of_next) = (head & !SIZE_BITS, head);
        if let Some((start, head, first)) = open.take() {
            let len = head & !SIZE_BITS;
            match head_of_next & BEFORE_IS_USED {
                // Before the last words of a heap there is what was left of its top.
                _ if size == 0 => {}
                BEFORE_IS_USED if head & IS_MAPPED != 0 || (head & IS_OTHERS == 0) != region.main => {
                    return broken("a chunk of another arena", start);
                }
                BEFORE_IS_USED => all.push(Chunk { block: start + 16, size: len, first }),
                _ if before != len => return broken("a free chunk with two sizes", start),
                _ => {}
            }
        }
        let rest = end.saturating_sub(at);
        if region.top == Some(at) {
            let fits = head & BEFORE_IS_USED != 0 && (FENCE..=rest).contains(&size);
            return if fits { Ok(()) } else { broken("a last chunk of a wrong size", at) };
        }
        if size < 2 * FENCE || size > rest {
            let fences = if size == FENCE { 2 } else { 1 };
            let is_end = region.top.is_none() && (size == 0 || size == FENCE) && rest == fences * FENCE;
            return if is_end { Ok(()) } else { broken("a chunk of a wrong size", at) };
        }
        open = Some((at, head, first));
        at += size;
    }
}
