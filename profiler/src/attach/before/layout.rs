//! How each version of glibc lays its heap out (`malloc/malloc.c` and `malloc/arena.c` of its sources).

use std::ops::{Range, RangeInclusive};

/// The oldest and the newest of version 2 whose heap is laid out as it is taken to be here.
const VERSIONS: RangeInclusive<u32> = 27..=43;

/// The smallest chunk, and by how much the next list's are larger.
const SMALLEST: u64 = 32;
const STEP: u64 = 16;

/// What differs from version to version.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) minor: u32,
}

/// Places in `malloc_state`.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Lists of small blocks that were freed; 2.43 has none.
    pub(super) fast: Option<usize>,
    pub(super) top: usize,
    pub(super) bins: usize,
    pub(super) next: usize,
    pub(super) len: usize,
}

/// A thread's cache of freed blocks: numbers, and then as many lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cache {
    /// The bytes of a number.
    number: usize,
    pub(super) lists: usize,
    /// Whether the numbers say how many there is room for, not how many there are.
    pub(super) tells_room: bool,
}

impl Layout {
    /// That of 2.`minor`, if it is known.
    pub(super) fn of(minor: u32) -> Option<Self> {
        VERSIONS.contains(&minor).then_some(Self { minor })
    }

    pub(super) fn state(self) -> State {
        if self.minor < 43 {
            State { fast: Some(16), top: 96, bins: 112, next: 2160, len: 2200 }
        } else {
            State { fast: None, top: 8, bins: 24, next: 2072, len: 2112 }
        }
    }

    /// The length of what a heap that isn't the main one's begins with: ar_ptr, prev, size, mprotect_size; since 2.35 also
    /// pagesize, and what fills up.
    pub(super) fn heap_header(self) -> u64 {
        if self.minor < 35 { 32 } else { 48 }
    }

    /// In `malloc_par`, from `n_mmaps` to `sbrk_base`. Besides the two words between there are n_mmaps_max, max_n_mmaps and
    /// no_dyn_threshold; since 2.35 also four bytes that fill up.
    pub(super) fn counts(self) -> usize {
        if self.minor < 35 { 32 } else { 36 }
    }

    /// Whether the largest chunk that a cache takes may be as long as `largest` says, for which it has `lists` lists of chunks of
    /// one size each.
    pub(super) fn fits_lists(self, lists: u64, largest: u64) -> bool {
        let of_chunk = |chunk: u64| chunk.max(SMALLEST) - SMALLEST;
        let by_size = |chunk: u64| of_chunk(chunk) / STEP + 1;
        let by_block = |block: u64| block.checked_add(23).map(|padded| padded & !15);
        if !(1..=64).contains(&lists) {
            return false;
        }
        match self.minor {
            ..42 => by_block(largest).is_some_and(|chunk| by_size(chunk) == lists),
            // At first the largest block, once it was set the chunk; and larger ones leave the number alone.
            42 => by_size(largest) >= lists || by_block(largest).is_some_and(|chunk| by_size(chunk) == lists),
            // What is smaller than this.
            _ => largest % STEP == 1 && by_size(largest - 1) >= lists,
        }
    }

    pub(super) fn cache(self) -> Cache {
        let number = if self.minor < 30 { 1 } else { 2 };
        if self.minor < 42 {
            Cache { number, lists: 64, tells_room: false }
        } else {
            Cache { number, lists: 76, tells_room: true }
        }
    }

    /// Whether the links of freed blocks are mixed with their own addresses.
    pub(super) fn is_mixed(self) -> bool {
        self.minor >= 32
    }

    /// Whether a thread without a cache has the address of an empty one of the library's instead of none.
    pub(super) fn has_empty_cache(self) -> bool {
        self.minor >= 43
    }

    /// How much longer a mapping is than the chunk in it says, with what lies before that.
    pub(super) fn more_than_chunk(self) -> u64 {
        if self.minor < 43 { 0 } else { 16 }
    }

    /// How much of a chunk with a mapping of its own can't be used.
    pub(super) fn less_than_chunk(self) -> u64 {
        if self.minor < 43 { 16 } else { 8 }
    }

    /// The least that is cut off of a mapping for an alignment's sake.
    pub(super) fn least_cut(self) -> u64 {
        if self.minor < 43 { SMALLEST } else { STEP }
    }

    /// Whether the bytes in mappings are counted right: 2.43 takes 16 too many each time that one is given another length.
    pub(super) fn counts_bytes(self) -> bool {
        self.minor < 43
    }
}

impl Cache {
    pub(super) fn len(self) -> usize {
        self.lists * (self.number + 8)
    }

    /// The sizes that its chunk may have: what is left of a free one goes along with it where that is too little for a chunk.
    pub(super) fn chunk_sizes(self) -> Range<u64> {
        let least = (self.len() as u64 + 8).next_multiple_of(STEP);
        least..least + SMALLEST
    }

    pub(super) fn number(self, bytes: &[u8], list: usize) -> u64 {
        let mask = (1 << (8 * self.number)) - 1;
        super::word(bytes, self.number * list) & mask
    }

    pub(super) fn first(self, bytes: &[u8], list: usize) -> u64 {
        super::word(bytes, self.lists * self.number + 8 * list)
    }

    /// How long the chunks in a list are: of one size in the first 64, up to twice as long as the shortest in those that follow.
    pub(super) fn sizes(self, list: usize) -> Range<u64> {
        match list.checked_sub(64) {
            None => size_of_list(list)..size_of_list(list) + 1,
            Some(large) => 1 << (10 + large)..1 << (11 + large),
        }
    }
}

/// The size of the chunks in a list of those of one size.
pub(super) fn size_of_list(list: usize) -> u64 {
    SMALLEST + STEP * list as u64
}

#[cfg(test)]
mod tests {
    use super::Layout;

    #[test]
    fn what_caches_take_is_known_by_version() {
        let fits = |minor, lists, largest| Layout::of(minor).expect("a version").fits_lists(lists, largest);
        // 64 lists, the last of chunks of 1040 bytes with blocks of 1032.
        for (minor, largest) in [(27, 1032), (41, 1032), (42, 1032), (43, 1041)] {
            assert!(fits(minor, 64, largest), "2.{minor}");
            assert!(!fits(minor, 64, 900) && !fits(minor, 65, largest) && !fits(minor, 0, 0), "2.{minor}");
        }
        // Set by glibc.malloc.tcache_max: to 100, and to a megabyte.
        assert!(fits(41, 6, 100) && fits(42, 6, 112) && fits(43, 6, 113));
        assert!(fits(42, 64, 1_048_592) && fits(43, 64, 1_048_593));
        assert!(Layout::of(26).is_none() && Layout::of(44).is_none());
    }

    #[test]
    fn a_cache_is_as_long_as_it_is_laid_out() {
        let size = |minor| Layout::of(minor).expect("a version").cache().chunk_sizes().start;
        assert_eq!((size(27), size(31), size(41), size(42), size(43)), (592, 656, 656, 768, 768));
    }
}
