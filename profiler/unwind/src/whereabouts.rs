//! Where stacks are, or were, that any walk has come to know of: so that whoever hears of memory that goes can tell whether that concerns walks.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

/// A bit for each 64 KiB, by the lower half of an address.
static STACKS: [AtomicU64; 1 << 10] = [const { AtomicU64::new(0) }; 1 << 10];
/// The logarithm of the bytes that a bit stands for.
const PART: u32 = 16;

/// The word and the bit of an address.
fn part(address: u64) -> (&'static AtomicU64, u64) {
    let part = address as u32 >> PART;
    (&STACKS[(part / u64::BITS) as usize], 1 << (part % u64::BITS))
}

/// Whether memory may be that of a stack that any walk knows of.
pub fn may_be_stack(start: u64, len: u64) -> bool {
    let (first, last) = (start >> PART, start.saturating_add(len) >> PART);
    let parts = last - first;
    parts >= 1 << (u32::BITS - PART)
        || (0..=parts).any(|number| {
            let (word, bit) = part((first + number) << PART);
            word.load(Ordering::Relaxed) & bit != 0
        })
}

/// Notes that a stack is there.
pub(crate) fn note(range: Range<u64>) {
    for number in range.start >> PART..=range.end.saturating_sub(1) >> PART {
        let (word, bit) = part(number << PART);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StackMemory;

    #[test]
    fn a_stack_that_was_begun_on_is_known() {
        let words = [0u64; 2];
        let at = &raw const words as u64;
        StackMemory::new().begin(at);
        assert!(may_be_stack(at, 1) && may_be_stack(at - (1 << 20), 2 << 20) && may_be_stack(0, u64::MAX));
    }

    #[test]
    fn all_parts_of_a_range_are_noted_and_no_others() {
        // Beyond what a process is given: but the lower half of the address counts, and tests share the table.
        let base = 0x7abc_5a5a_0000;
        let found =
            |first: u64| (0..6).map(|n| may_be_stack(base + first + (n << PART), 4096)).collect::<Vec<_>>();
        let before = found(0);
        note(base + (1 << PART) + 4096..base + (3 << PART) + 4096);
        let now = found(0);
        assert_eq!(now[1..4], [true; 3]);
        assert_eq!([now[0], now[4], now[5]], [before[0], before[4], before[5]]);
        assert!(may_be_stack(base, 2 << PART) && may_be_stack(base + (3 << PART) + 8192, 1 << PART));
    }
}
