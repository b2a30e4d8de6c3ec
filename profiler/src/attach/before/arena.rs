//! Arenas: the main one, which is a variable of the library's, and those that lie in heaps of their own.
//!
//! The main one is found by its bins: 127 lists in a row, of which most are empty, so that both of their ends lead to
//! themselves. From it a ring leads through all others. What `malloc_state`, `malloc_par` and `heap_info` look like is in `layout`.

use super::super::target::MapLine;
use super::layout::Layout;
use super::library::Library;
use super::{Unknown, View, half, word};
use std::collections::HashSet;
use std::ops::Range;

/// Places in `malloc_state` that are the same in all versions.
const LOCK: usize = 0;
const FLAGS: usize = 4;
/// Bins, and lists of small blocks that were freed.
const BIN_COUNT: usize = 127;
pub(super) const FAST_COUNT: usize = 10;
/// Set in its flags: its memory isn't one piece.
const IN_PIECES: u32 = 2;

/// Heaps of other arenas begin at multiples of this.
const HEAP: u64 = 64 << 20;
/// More arenas, or heaps of one, than there can be.
const MOST: usize = 1 << 16;

const PAGE: u64 = 4096;
/// What is kept of the size of a chunk besides.
pub(super) const SIZE_BITS: u64 = 7;

/// Memory in which chunks follow one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    /// From its first chunk on.
    pub(super) range: Range<u64>,
    /// The last chunk, which is nobody's yet. Without it the region ends where another heap was begun.
    pub(super) top: Option<u64>,
    /// Whether it is of the main arena.
    pub(super) main: bool,
}

/// What `malloc_par` says of blocks with mappings of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    blocks: u32,
    bytes: u64,
    /// Where the main arena's memory begins, got by `sbrk`; 0 for none.
    start: u64,
    /// How many blocks a list of a thread's cache takes.
    depth: u64,
}

/// All arenas of a process.
#[derive(Debug)]
pub(super) struct Arenas {
    pub(super) regions: Vec<Region>,
    /// The first of each of their lists of small blocks that were freed; 0 for none. By arena, by list.
    pub(super) fast: Vec<[u64; FAST_COUNT]>,
    /// How many blocks have mappings of their own, and how large these are together.
    pub(super) mapped: (u64, u64),
    /// How many blocks a list of a thread's cache takes.
    pub(super) depth: u64,
    /// The heaps of all but the main one.
    pub(super) heaps: Vec<Range<u64>>,
    locked: bool,
}

/// An arena's variables.
struct State {
    at: u64,
    bytes: Vec<u8>,
    layout: Layout,
}

impl State {
    fn read(view: View<'_>, layout: Layout, at: u64) -> Result<Self, Unknown> {
        let mut bytes = vec![0; layout.state().len];
        view.read(at, &mut bytes)?;
        Ok(Self { at, bytes, layout })
    }

    fn top(&self) -> u64 {
        word(&self.bytes, self.layout.state().top)
    }

    fn next(&self) -> u64 {
        word(&self.bytes, self.layout.state().next)
    }

    /// Whether it was never given any memory: its top is then what stands for the list of chunks that aren't sorted.
    fn has_nothing(&self) -> bool {
        self.top() == bin(self.layout, self.at, 0)
    }
}

/// What stands for a bin's chunk: one whose links are the bin's ends.
fn bin(layout: Layout, arena: u64, index: usize) -> u64 {
    arena + (layout.state().bins + 16 * index) as u64 - 16
}

impl Arenas {
    /// Finds them all. `data`: the library's variables, and where they lie.
    pub(super) fn find(
        view: View<'_>,
        library: &Library,
        (at, data): &(u64, Vec<u8>),
        maps: &[MapLine],
    ) -> Result<Self, Unknown> {
        let layout = library.layout;
        let main = at + main_arena(layout, *at, data)? as u64;
        let program_break = program_break(maps);
        let counts = counts(data, layout, program_break.as_ref())?;
        let main = State::read(view, layout, main)?;
        let mut found = Self {
            regions: Vec::new(),
            fast: Vec::new(),
            mapped: (u64::from(counts.blocks), counts.bytes),
            depth: counts.depth,
            heaps: Vec::new(),
            locked: false,
        };
        found.take(&main);
        if !main.has_nothing() {
            let top = main.top();
            let range = program_break.filter(|range| range.contains(&top) && range.contains(&counts.start));
            let is_whole = half(&main.bytes, FLAGS) & IN_PIECES == 0;
            let range = range.filter(|_| is_whole && counts.start <= top);
            let range = range.ok_or(Unknown::Structure("the main heap is not in one piece"))?;
            let start = counts.start.next_multiple_of(16);
            found.regions.push(Region { range: start..range.end, top: Some(top), main: true });
        }
        let mut next = main.next();
        let mut seen = HashSet::new();
        while seen.len() < MOST && seen.insert(next) {
            if next == main.at {
                return Ok(found);
            }
            let arena = State::read(view, layout, next)?;
            found.take(&arena);
            found.take_heaps(view, &arena)?;
            next = arena.next();
        }
        Err(Unknown::Structure("the arenas are no ring"))
    }

    fn take(&mut self, arena: &State) {
        self.locked |= half(&arena.bytes, LOCK) != 0;
        let fast = arena.layout.state().fast;
        self.fast.extend(fast.map(|fast| std::array::from_fn(|index| word(&arena.bytes, fast + 8 * index))));
    }

    /// The heaps of another arena than the main one, from the one that its top lies in back to the one that it lies in.
    fn take_heaps(&mut self, view: View<'_>, arena: &State) -> Result<(), Unknown> {
        let bad = |at| Unknown::Broken { what: "a heap's header", at };
        let header = arena.layout.heap_header();
        let first = arena.at & !(HEAP - 1);
        if arena.at != first + header {
            return Err(bad(arena.at));
        }
        let mut top = Some(arena.top());
        let mut heap = arena.top() & !(HEAP - 1);
        for _ in 0..MOST {
            let [owner, before, size] = view.words(heap)?;
            // As many as one arena may have are enough for all.
            if owner != arena.at || size > HEAP || size < header || self.regions.len() > MOST {
                return Err(bad(heap));
            }
            let chunks = heap + header + if heap == first { arena.layout.state().len as u64 } else { 0 };
            let range = chunks.next_multiple_of(16)..heap + size;
            if top.is_some_and(|top| !range.contains(&top)) {
                return Err(bad(heap));
            }
            self.regions.push(Region { range, top: top.take(), main: false });
            self.heaps.push(heap..heap + HEAP);
            if heap == first {
                return if before == 0 { Ok(()) } else { Err(bad(heap)) };
            }
            heap = before;
        }
        Err(Unknown::Structure("an arena's heaps are no list"))
    }

    /// How long all regions are, but for what nobody has got of them yet.
    pub(super) fn bytes(&self) -> u64 {
        let len = |region: &Region| region.top.unwrap_or(region.range.end) - region.range.start;
        self.regions.iter().map(len).sum()
    }

    /// Whether any of them is being changed.
    pub(super) fn is_locked(&self) -> bool {
        self.locked
    }
}

/// The part of the address space that `sbrk` gives.
fn program_break(maps: &[MapLine]) -> Option<Range<u64>> {
    let mut parts = maps.iter().filter(|line| line.name == "[heap]").map(|line| line.range.clone());
    let first = parts.next()?;
    Some(first.start..parts.next_back().map_or(first.end, |last| last.end))
}

/// Where among the library's variables the main arena is.
///
/// The trap: what lies 16 bytes before it or behind it has the same bins, one number further, and where an arena says which comes
/// next it has other numbers, which may be taken for an address.
fn main_arena(layout: Layout, at: u64, data: &[u8]) -> Result<usize, Unknown> {
    let state = layout.state();
    let is_one = |&offset: &usize| {
        let own = |index: usize| {
            let place = offset + state.bins + 16 * index;
            let (first, last) = (word(data, place), word(data, place + 8));
            let is_empty = first == bin(layout, at + offset as u64, index) && last == first;
            (first != 0 && last != 0).then_some(is_empty)
        };
        // The first few are enough to pass over what is none.
        let mut empty = 0;
        for index in 0..BIN_COUNT {
            match own(BIN_COUNT - 1 - index) {
                Some(is_empty) => empty += usize::from(is_empty),
                None => return false,
            }
            if index == 8 && empty == 0 {
                return false;
            }
        }
        let next = word(data, offset + state.next);
        empty >= 4 && next != 0 && next.is_multiple_of(8)
    };
    // The next arena is itself, or lies where arenas do in their heaps.
    let leads_to_arena = |&offset: &usize| {
        let next = word(data, offset + state.next);
        next == at + offset as u64 || (next > HEAP && next % HEAP == layout.heap_header())
    };
    let last = data.len().saturating_sub(state.len);
    let mut found: Vec<usize> = (0..last).step_by(8).filter(is_one).collect();
    if found.len() > 1 {
        found.retain(leads_to_arena);
        if found.len() != 1 {
            return Err(Unknown::Structure("there are several main arenas"));
        }
    }
    found.first().copied().ok_or(Unknown::Unused)
}

/// What `malloc_par` says, which is found by what must be true of its parts.
fn counts(data: &[u8], layout: Layout, program_break: Option<&Range<u64>>) -> Result<Counts, Unknown> {
    let counts = layout.counts();
    let unit = if layout.counts_bytes() { PAGE } else { 16 };
    let one = |offset: usize| {
        let start = word(data, offset);
        let (bytes, most_bytes) = (word(data, offset - 16), word(data, offset - 8));
        let numbers: [u32; 4] = std::array::from_fn(|index| half(data, offset - counts + 4 * index));
        let [blocks, _, most_blocks, is_fixed] = numbers;
        // How many lists the threads' caches have, the largest block in them, and how many of each.
        let [lists, largest, depth] = std::array::from_fn(|index| word(data, offset + 8 + 8 * index));
        let fits = layout.fits_lists(lists, largest) && depth <= u64::from(u16::MAX);
        let is_start = start == 0 || program_break.is_some_and(|range| range.contains(&start));
        let is_one = fits
            && is_start
            && bytes <= most_bytes
            && bytes.is_multiple_of(unit)
            && most_bytes.is_multiple_of(unit)
            && blocks <= most_blocks
            && is_fixed <= 1
            && (blocks == 0 || bytes != 0)
            && (blocks != 0 || bytes == 0 || !layout.counts_bytes());
        is_one.then_some(Counts { blocks, bytes, start, depth })
    };
    let last = data.len().saturating_sub(32);
    let mut found: Vec<Counts> = (counts.next_multiple_of(8)..last).step_by(8).filter_map(one).collect();
    if found.iter().any(|one| one.start != 0) {
        found.retain(|one| one.start != 0);
    }
    match found[..] {
        [one] => Ok(one),
        [] => Err(Unknown::Structure("malloc's settings were not found")),
        _ => Err(Unknown::Structure("there are several that look like malloc's settings")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_beside_the_main_arena_is_none() {
        const AT: u64 = 0x7f00_0000_1000;
        const OFFSET: usize = 64;
        for minor in [31, 36, 43] {
            let layout = Layout { minor };
            let state = layout.state();
            let others = [AT + OFFSET as u64, 0x7f12_3400_0000 + layout.heap_header()];
            for next in others {
                let mut data = vec![0; OFFSET + state.len + 256];
                let mut set = |at: usize, value: u64| data[at..at + 8].copy_from_slice(&value.to_ne_bytes());
                for index in 0..BIN_COUNT {
                    let own = bin(layout, AT + OFFSET as u64, index);
                    set(OFFSET + state.bins + 16 * index, own);
                    set(OFFSET + state.bins + 16 * index + 8, own);
                }
                // Top, the last remainder, and which bins are in use, which is what the bins' neighbours have.
                for at in [state.bins - 16, state.bins - 8, state.next - 16, state.next - 8] {
                    set(OFFSET + at, 0x5555_0000_0008);
                }
                set(OFFSET + state.next, next);
                // How many threads use it, and its size.
                for at in [state.next + 8, state.next + 16, state.next + 24] {
                    set(OFFSET + at, 8);
                }
                assert_eq!(main_arena(layout, AT, &data).ok(), Some(OFFSET), "{minor} {next:x}");
            }
        }
    }
}
