//! Which bytes came when and went when, by stack, in a bounded number of groups.
//!
//! Blocks of one stack that came in one slice of time and went in one are a group. Slices are of a millisecond at first; when
//! there are too many groups, they become twice as long. So the table stays small enough for a browser, whatever the
//! trace's length.

use crate::hash::{AddressMap, FoldHash};
use crate::live::{Block, Totals, Watcher};
use crate::replay::Player;
use std::collections::HashMap;

/// More groups than this are made coarser. Each becomes two rows.
const MOST: usize = 1 << 18;
/// What stands for the end of those that are live at the end.
const NEVER: u32 = u32::MAX;

/// Bytes of one stack that came together and went together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    /// The slices' beginnings, in milliseconds.
    pub(super) born: u64,
    pub(super) died: Option<u64>,
    pub(super) stack: u32,
    pub(super) bytes: u64,
}

/// Groups blocks, and notes the live bytes over time.
pub(super) struct Groups {
    /// The first of equal stacks, by node.
    canonical: Vec<u32>,
    /// By stack and by the slices of birth and death.
    groups: HashMap<(u32, u32, u32), u64, FoldHash>,
    /// When each live block came, in milliseconds.
    born: AddressMap<u32>,
    most: usize,
    /// The logarithm of a slice's length in milliseconds.
    shift: u32,
    now: u32,
    /// Live bytes at moments that are at least `step` nanoseconds apart.
    pub(super) line: Vec<(u64, u64)>,
    step: u64,
}

impl Groups {
    pub(super) fn new(canonical: Vec<u32>, step: u64) -> Self {
        Self {
            canonical,
            groups: HashMap::default(),
            born: AddressMap::default(),
            most: MOST,
            shift: 0,
            now: 0,
            line: vec![(0, 0)],
            step: step.max(1),
        }
    }

    fn add(&mut self, block: Block, born: u32, died: u32) {
        let stack = self.canonical.get(block.stack as usize).copied().unwrap_or(0);
        let key = (stack, born >> self.shift, if died == NEVER { NEVER } else { died >> self.shift });
        *self.groups.entry(key).or_default() += block.size;
        // In the last step all time is one slice, and only stacks are left to be told apart.
        while self.groups.len() > self.most && self.shift < u32::BITS - 1 {
            self.shift += 1;
            let fine = std::mem::take(&mut self.groups);
            for ((stack, born, died), bytes) in fine {
                let died = if died == NEVER { NEVER } else { died >> 1 };
                *self.groups.entry((stack, born >> 1, died)).or_default() += bytes;
            }
        }
    }

    /// All groups in the order of their births, with those of `live` blocks.
    pub(super) fn finish(mut self, live: impl Iterator<Item = (u64, Block)>) -> (Vec<Group>, u64) {
        for (address, block) in live {
            let born = self.born.remove(&address).unwrap_or(0);
            self.add(block, born, NEVER);
        }
        let start = |slice: u32| u64::from(slice) << self.shift;
        let group = |((stack, born, died), bytes)| {
            let died = (died != NEVER).then(|| start(died));
            Group { born: start(born), died, stack, bytes }
        };
        let mut groups: Vec<Group> = self.groups.iter().map(|(&key, &bytes)| group((key, bytes))).collect();
        groups.sort_unstable();
        (groups, 1 << self.shift)
    }
}

impl Watcher for Groups {
    fn added(&mut self, address: u64, _: Block, _: bool) {
        self.born.insert(address, self.now);
    }

    fn removed(&mut self, address: u64, block: Block, _: bool) {
        let born = self.born.remove(&address).unwrap_or(0);
        self.add(block, born, self.now);
    }

    /// A reallocation that failed ended the block and began it anew; what lived in between is cut in two.
    fn restored(&mut self, address: u64, block: Block, peak: bool) {
        self.added(address, block, peak);
    }
}

impl Player for Groups {
    fn moment(&mut self, ns: u64, totals: &Totals) {
        self.now = u32::try_from(ns / 1_000_000).unwrap_or(NEVER - 1);
        let last = self.line.last().map_or(0, |&(time, _)| time);
        if ns.saturating_sub(last) >= self.step {
            self.line.push((ns, totals.live_bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grapnel_trace::{Alignment, Source};

    #[test]
    fn too_many_groups_become_coarser_and_keep_every_byte() {
        let block = |stack, size| Block {
            size,
            stack,
            thread: 0,
            source: Source::Malloc,
            alignment: Alignment::NONE,
            mean: 0,
        };
        let mut groups = Groups::new(vec![0, 1, 2], 1);
        groups.most = 8;
        let mut bytes = 0;
        for n in 0..100_u32 {
            groups.moment(u64::from(n) * 3_000_000, &Totals::default());
            let one = block(1 + n % 2, u64::from(n));
            groups.added(0x1000, one, false);
            groups.moment(u64::from(n + 1) * 3_000_000, &Totals::default());
            groups.removed(0x1000, one, true);
            bytes += one.size;
        }
        groups.added(0x2000, block(2, 7), false);
        let (all, slice) = groups.finish([(0x2000, block(2, 7))].into_iter());
        assert!(all.len() <= 8 && slice >= 64, "{} groups, {slice}", all.len());
        let sum = |of: fn(&Group) -> bool| {
            all.iter().filter(|&group| of(group)).map(|group| group.bytes).sum::<u64>()
        };
        assert_eq!((sum(|group| group.died.is_some()), sum(|group| group.died.is_none())), (bytes, 7));
        assert!(all.iter().all(|group| group.died.is_none_or(|died| died >= group.born)));
        assert!(all.is_sorted_by_key(|group| group.born));
    }
}
