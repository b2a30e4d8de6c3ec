//! Live blocks as `get_malloc_leak_info` and dumps show them: those of one size and one backtrace are one record.
//!
//! Two stacks are one if their frames are, as far as frames are asked for: what differs only further up is merged.

use super::stacks::{EMPTY, Stacks};
use super::table::Block;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// Set in the size of a block that was allocated in a process forked from one that is marked.
pub(crate) const IN_CHILD: u64 = 1 << 31;

/// Blocks of one size and one backtrace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) size: usize,
    pub(crate) in_child: bool,
    pub(crate) count: usize,
    /// Which of [`Live::frames`].
    frames: (usize, usize),
    /// The first of its blocks, by address.
    first: usize,
}

/// All records, in the order of Android's: first what is no child's, by size from the largest, by the number of frames
/// from the most, by address.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) records: Vec<Record>,
    frames: Vec<usize>,
}

impl Live {
    /// Of these blocks, with so many frames at most; `None` without memory.
    pub(crate) fn of(blocks: &[Block], stacks: &Stacks, most_frames: usize) -> Option<Self> {
        let mut live = Self::default();
        let mut numbers: Vec<u32> = Vec::new();
        numbers.try_reserve_exact(blocks.len()).ok()?;
        numbers.extend(blocks.iter().map(|block| block.stack));
        numbers.sort_unstable();
        numbers.dedup();
        // The frames of each stack, and then each stack by its frames, so that equal ones have one place.
        let mut places: Vec<(usize, usize)> = Vec::new();
        places.try_reserve_exact(numbers.len()).ok()?;
        for &number in &numbers {
            let start = live.frames.len();
            for pc in stacks.frames(number).take(most_frames) {
                live.frames.try_reserve(1).ok()?;
                live.frames.push(pc);
            }
            places.push((start, live.frames.len()));
        }
        let mut order: Vec<usize> = Vec::new();
        order.try_reserve_exact(places.len()).ok()?;
        order.extend(0..places.len());
        order.sort_unstable_by(|&a, &b| live.at(places[a]).cmp(live.at(places[b])));
        for pair in 1..order.len() {
            let (before, this) = (order[pair - 1], order[pair]);
            if live.at(places[before]) == live.at(places[this]) {
                places[this] = places[before];
            }
        }
        live.records.try_reserve_exact(blocks.len()).ok()?;
        for block in blocks {
            let frames = numbers.binary_search(&block.stack).map_or((0, 0), |at| places[at]);
            let Block { size, in_child, address, .. } = *block;
            live.records.push(Record { size, in_child, count: 1, frames, first: address });
        }
        live.records.sort_unstable_by_key(|record| {
            let len = record.frames.1 - record.frames.0;
            (record.in_child, Reverse(record.size), Reverse(len), record.frames.0, record.first)
        });
        live.records.dedup_by(|this, kept| {
            let same = (this.in_child, this.size, this.frames) == (kept.in_child, kept.size, kept.frames);
            kept.count += usize::from(same);
            same
        });
        live.records.sort_by_key(|record| {
            let len = record.frames.1 - record.frames.0;
            (record.in_child, Reverse(record.size), Reverse(len), record.first)
        });
        Some(live)
    }

    fn at(&self, (start, end): (usize, usize)) -> &[usize] {
        &self.frames[start..end]
    }

    /// The frames of a record, the leaf first.
    pub(crate) fn frames(&self, record: &Record) -> &[usize] {
        self.at(record.frames)
    }

    /// The bytes of all blocks.
    pub(crate) fn total(&self) -> usize {
        self.records.iter().fold(0, |sum, record| sum.wrapping_add(record.size.wrapping_mul(record.count)))
    }
}

/// How many bytes a record has in the buffer, with words of `W` bytes.
pub(crate) const fn record_bytes<const W: usize>(frames: usize) -> usize {
    W * (2 + frames)
}

/// Writes the buffer of `get_malloc_leak_info` for a process whose words have `W` bytes: for each record its size, how
/// many blocks it has, and `frames` addresses, of which those that it lacks are zero. `put` gets an offset and the bytes
/// there; the buffer is zero before.
pub(crate) fn encode<const W: usize>(live: &Live, frames: usize, mut put: impl FnMut(usize, &[u8])) {
    for (number, record) in live.records.iter().enumerate() {
        let mut at = number * record_bytes::<W>(frames);
        let mut word = |value: u64| {
            put(at, &value.to_ne_bytes()[..W]);
            at += W;
        };
        let mark = if record.in_child { IN_CHILD } else { 0 };
        word(record.size as u64 | mark);
        word(record.count as u64);
        live.frames(record).iter().take(frames).for_each(|&pc| word(pc as u64));
    }
}

const _: () = assert!(cfg!(target_endian = "little"), "a word is the first bytes of a wider one");
const _: () = assert!(EMPTY == 0);

#[cfg(test)]
mod tests {
    use super::*;

    fn block(address: usize, size: usize, stack: u32, in_child: bool) -> Block {
        Block { address, size, stack, in_child, traced: true, offset: 0 }
    }

    fn example() -> Live {
        let mut stacks = Stacks::new();
        let root = stacks.add(EMPTY, 0x900);
        let other_root = stacks.add(EMPTY, 0x901);
        let [a, b] = [root, other_root].map(|root| {
            let caller = stacks.add(root, 0x200);
            stacks.add(caller, 0x100)
        });
        let short = stacks.add(EMPTY, 0x300);
        // Between equal records lie others of the same size, by every measure.
        let blocks = [
            block(0x10, 50, a, false),
            block(0x20, 50, short, false),
            block(0x30, 50, b, false),
            block(0x40, 50, EMPTY, false),
            block(0x50, 50, a, true),
            block(0x60, 70, short, true),
            block(0x70, 9, short, false),
            block(0x80, 50, short, false),
            block(0x90, 50, b, false),
        ];
        Live::of(&blocks, &stacks, 2).expect("memory")
    }

    #[test]
    fn records_are_fully_merged_and_in_order() {
        let live = example();
        let seen: Vec<_> = live
            .records
            .iter()
            .map(|record| (record.in_child, record.size, record.count, live.frames(record).to_vec()))
            .collect();
        assert_eq!(
            seen,
            [
                (false, 50, 3, vec![0x100, 0x200]),
                (false, 50, 2, vec![0x300]),
                (false, 50, 1, vec![]),
                (false, 9, 1, vec![0x300]),
                (true, 70, 1, vec![0x300]),
                (true, 50, 1, vec![0x100, 0x200]),
            ]
        );
        assert_eq!(live.total(), 6 * 50 + 9 + 70 + 50);
    }

    fn encoded<const W: usize>(frames: usize) -> Vec<u8> {
        let live = example();
        let mut bytes = vec![0; record_bytes::<W>(frames) * live.records.len()];
        encode::<W>(&live, frames, |at, part| bytes[at..at + part.len()].copy_from_slice(part));
        bytes
    }

    #[test]
    fn the_buffer_has_words_of_four_bytes_on_32_bits_and_of_eight_on_64() {
        let right = [
            [50, 3, 0x100, 0x200, 0],
            [50, 2, 0x300, 0, 0],
            [50, 1, 0, 0, 0],
            [9, 1, 0x300, 0, 0],
            [0x8000_0000 | 70, 1, 0x300, 0, 0],
            [0x8000_0000 | 50, 1, 0x100, 0x200, 0],
        ];
        let words4: Vec<u64> = encoded::<4>(3)
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")).into())
            .collect();
        let words8: Vec<u64> = encoded::<8>(3)
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
            .collect();
        assert_eq!(words4, right.as_flattened());
        assert_eq!(words8, right.as_flattened());
    }
}
