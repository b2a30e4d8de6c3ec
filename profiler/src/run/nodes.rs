//! Numbers for the nodes of a trace: equal nodes that rings tell get one.

use super::queue::Numbers;
use grapnel_trace::wire;
use hashbrown::HashMap;

/// The trace's nodes. A ring tells all nodes that a walk needs and that the last one had not, and here those that came
/// lately are found again. Others may come once more, and the analysis takes them for the same. Where there are several rings,
/// whose threads come to the same stacks, all nodes are found that were told since; and where so many came once more that a reader
/// of the trace would have no numbers left ([`MOST_TOLD_AGAIN`]).
#[derive(Debug, Default)]
pub(super) struct Nodes {
    count: u32,
    /// The module whose frames are left out of stacks: that of the agent, which is amid those of what functions call that it stands in front of. 0 for none.
    own: u32,
    /// How many frames have none: a trace numbers as many as 32 bits can.
    lost: u64,
    /// Whether all nodes from here on are found again.
    finds_all: bool,
    known: HashMap<(u32, u64), u32>,
    lately: Lately,
    /// Those whose frames have numbers too large for one word.
    large: HashMap<(u32, u64, u32, u8), u32>,
}

/// No more of those are kept where not all are.
const MOST_LARGE: usize = 1 << 16;

/// How many numbers a trace gives before all nodes are found again. The analysis reads a trace of 2^28 numbers and 2^26 nodes that
/// differ: half of its numbers are left for these, each of which is told once more, and some twice, until the ring numbers its nodes
/// from 1 again.
const MOST_TOLD_AGAIN: u32 = 1 << 27;

impl Nodes {
    /// From here on there are several rings.
    pub(super) fn of_several_rings(&mut self) {
        self.find_all();
    }

    /// From here on each node is found again that is told from here on.
    #[cold]
    fn find_all(&mut self) {
        self.finds_all = true;
        self.lately = Lately::default();
    }

    /// From here on, frames of this module are left out of stacks.
    pub(super) fn leave_out(&mut self, module: u32) {
        self.own = module;
    }

    /// Whether frames of this module are.
    #[inline]
    pub(super) fn are_left_out(&self, module: u32) -> bool {
        module == self.own && module != 0
    }

    /// Whether one of these frames, as a NODES record has them, is.
    #[inline]
    pub(super) fn has_left_out(&self, frames: &[u64]) -> bool {
        self.own != 0 && frames.iter().any(|&frame| self.are_left_out(wire::frame_of(frame).1))
    }

    /// How many frames were left out of stacks, since there are no numbers for more.
    pub(super) fn lost_frames(&self) -> u64 {
        self.lost
    }

    /// The number of a node, and whether it is new. Without numbers for more, its parent's.
    pub(super) fn number(&mut self, parent: u32, pc: u64, module: u32, flags: u8) -> (u32, bool) {
        let frame = wire::frame(pc, module, flags);
        let key = (parent, pc, module, flags);
        let known = match frame {
            Some(frame) => self.find(parent, frame),
            None => self.large.get(&key).copied(),
        };
        if let Some(number) = known {
            return (number, false);
        }
        let Some(next) = self.count.checked_add(1) else {
            self.lost += 1;
            return (parent, false);
        };
        self.count_to(next);
        match frame {
            Some(frame) => self.put(parent, frame, next),
            None => {
                if self.large.len() >= MOST_LARGE && !self.finds_all {
                    self.large.clear();
                }
                self.large.insert(key, next);
            }
        }
        (next, true)
    }

    /// As [`Nodes::number`], of nodes of which each but the first is below the one before it. Their numbers go to `numbers`.
    #[inline]
    pub(super) fn number_all(&mut self, parent: u32, frames: &[u64], numbers: &mut Numbers) -> New {
        let first = self.count.saturating_add(1);
        let mut new = New { known: 0, parent, first };
        while let Some(number) = frames.get(new.known).and_then(|&frame| self.find(new.parent, frame)) {
            numbers.push(number);
            new = New { known: new.known + 1, parent: number, first };
        }
        let others = frames.get(new.known..).unwrap_or(&[]);
        if others.len() as u64 > u64::from(u32::MAX - self.count) {
            return self.lose_all(new.parent, frames.len(), others.len(), numbers);
        }
        numbers.go_on(self.count, others.len() as u32);
        self.count_to(self.count + others.len() as u32);
        let mut parent = new.parent;
        for (number, &frame) in (first..).zip(others) {
            self.put(parent, frame, number);
            parent = number;
        }
        new
    }

    /// Where there are not enough numbers for the last `others` of so many: these have that of the parent, and none is new.
    #[cold]
    fn lose_all(&mut self, parent: u32, frames: usize, others: usize, numbers: &mut Numbers) -> New {
        self.count = u32::MAX;
        self.lost += others as u64;
        (0..others).for_each(|_| numbers.push(parent));
        New { known: frames, parent, first: u32::MAX }
    }

    /// So many numbers are given now.
    #[inline]
    fn count_to(&mut self, count: u32) {
        self.count = count;
        if count >= MOST_TOLD_AGAIN && !self.finds_all {
            self.find_all();
        }
    }

    #[inline]
    fn find(&mut self, parent: u32, frame: u64) -> Option<u32> {
        let lately = self.lately.find(parent, frame);
        if lately.is_some() || !self.finds_all {
            return lately;
        }
        let number = *self.known.get(&(parent, frame))?;
        self.lately.put(parent, frame, number);
        Some(number)
    }

    #[inline]
    fn put(&mut self, parent: u32, frame: u64, number: u32) {
        self.lately.put(parent, frame, number);
        if self.finds_all {
            self.known.insert((parent, frame), number);
        }
    }
}

/// Nodes of which the first may be known. Below a new one there are only new ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct New {
    pub(super) known: usize,
    /// What the first new one is below, and its number.
    pub(super) parent: u32,
    pub(super) first: u32,
}

/// A node: the frame as a NODES record has it, below its parent. Its number is 0 where there is none.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    frame: u64,
    parent: u32,
    number: u32,
}

/// The nodes that came lately, by parent and frame: where too many meet, the one that was asked for longest ago is forgotten.
/// Small enough to stay near the processor.
#[derive(Debug, Default)]
struct Lately(Vec<[Slot; Self::WAYS]>);

impl Lately {
    /// What a cache line holds, the last that was asked for first.
    const WAYS: usize = 4;
    const SETS_LOG2: u32 = 14;

    fn set(&mut self, parent: u32, frame: u64) -> Option<&mut [Slot; Self::WAYS]> {
        let hash = (u64::from(parent).rotate_left(40) ^ frame).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0.get_mut((hash >> (u64::BITS - Self::SETS_LOG2)) as usize)
    }

    #[inline]
    fn find(&mut self, parent: u32, frame: u64) -> Option<u32> {
        let set = self.set(parent, frame)?;
        let is_it = |slot: &Slot| slot.frame == frame && slot.parent == parent && slot.number != 0;
        let at = set.iter().position(is_it)?;
        set[..=at].rotate_right(1);
        Some(set[0].number)
    }

    #[inline]
    fn put(&mut self, parent: u32, frame: u64, number: u32) {
        if self.0.is_empty() {
            self.0.resize(1 << Self::SETS_LOG2, Default::default());
        }
        if let Some(set) = self.set(parent, frame) {
            set.rotate_right(1);
            set[0] = Slot { frame, parent, number };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stacks at random, as a ring tells them: all nodes of each, again and again.
    #[test]
    fn each_node_has_the_number_of_one_that_is_equal() {
        let frame = |n: u64| wire::frame(0x1000 + n, 1, 0).expect("small numbers");
        let (mut nodes, mut numbers) = (Nodes::default(), Numbers::default());
        let (mut state, mut local) = (1u64, 0);
        // Of each number of the trace, what it stands for: the root's is 0.
        let mut told = vec![(0, 0)];
        for _ in 0..50_000 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let path: Vec<u64> = (0..8).map(|level| frame(state >> (40 + 2 * level) & 3)).collect();
            let new = nodes.number_all(0, &path, &mut numbers);
            let mut parent = new.parent;
            for (number, frame) in (new.first..).zip(&path[new.known..]) {
                assert_eq!(told.len(), number as usize);
                told.push((parent, *frame));
                parent = number;
            }
            let mut parent = 0;
            for frame in &path {
                local += 1;
                let number = numbers.of(local);
                assert_eq!(told[number as usize], (parent, *frame));
                parent = number;
            }
        }
        // Of 400,000 some 56,000 differ. There is room for that many, but not everywhere as much as is asked for.
        assert!((50_000..100_000).contains(&told.len()), "{}", told.len());
    }

    #[test]
    fn without_numbers_for_more_frames_are_left_out() {
        let frame = |n: u64| wire::frame(0x1000 + n, 1, 0).expect("small numbers");
        for several_rings in [false, true] {
            let mut nodes = Nodes { count: u32::MAX - 3, ..Nodes::default() };
            if several_rings {
                nodes.of_several_rings();
            }
            let mut numbers = Numbers::default();
            let new = nodes.number_all(0, &[frame(0), frame(1)], &mut numbers);
            assert_eq!((new.known, new.first, numbers.of(2)), (0, u32::MAX - 2, u32::MAX - 1));
            let new = nodes.number_all(numbers.of(2), &[frame(2), frame(3)], &mut numbers);
            assert_eq!((new.known, numbers.of(3), numbers.of(4)), (2, u32::MAX - 1, u32::MAX - 1));
            assert_eq!(nodes.number(7, 0x2000, 1, 0), (7, false));
            // What has a number is found all the same.
            let new = nodes.number_all(0, &[frame(0), frame(1), frame(5)], &mut numbers);
            assert_eq!(
                (new.known, [5, 6, 7].map(|at| numbers.of(at))),
                (3, [u32::MAX - 2, u32::MAX - 1, u32::MAX - 1])
            );
            assert_eq!(nodes.lost_frames(), 4);
        }
    }

    #[test]
    fn frames_of_large_numbers_are_found_again_and_those_below_them_too() {
        let frame = wire::frame(0x1000, 1, 0).expect("small numbers");
        let (mut nodes, mut numbers) = (Nodes::default(), Numbers::default());
        for (pc, module) in [(1 << 48, 1), (0x1000, 1 << 12)] {
            assert_eq!(wire::frame(pc, module, 0), None);
            let (number, is_new) = nodes.number(0, pc, module, 0);
            assert!(is_new);
            assert_eq!(nodes.number_all(number, &[frame], &mut numbers).known, 0);
            assert_eq!(nodes.number(0, pc, module, 0), (number, false));
            assert_eq!(nodes.number_all(number, &[frame], &mut numbers).known, 1);
            // No more than so many are kept.
            for other in 1..=MOST_LARGE as u64 {
                assert!(nodes.number(number, pc + other, 1 << 12, 0).1);
            }
            assert!(nodes.large.len() <= MOST_LARGE);
        }
    }

    /// More stacks than [`Lately`] has room for, again and again: a long recording must not use up the numbers that a reader has.
    #[test]
    fn of_very_many_nodes_none_is_told_again_and_again() {
        const STACKS: u64 = 100_000;
        let frame = |n: u64| wire::frame(0x1000 + n, 1, 0).expect("small numbers");
        let new_in = |nodes: &mut Nodes| {
            let before = nodes.count;
            for n in 0..STACKS {
                nodes.number_all(0, &[frame(n % 10), frame(n)], &mut Numbers::default());
            }
            u64::from(nodes.count - before)
        };
        let mut nodes = Nodes::default();
        new_in(&mut nodes);
        assert!(new_in(&mut nodes) > STACKS / 2);
        nodes.count = MOST_TOLD_AGAIN - 1;
        // Once more, since what was told before is not kept, and then no more; but for what was told below a node of before.
        assert!((STACKS..=STACKS + 11).contains(&new_in(&mut nodes)));
        assert_eq!([new_in(&mut nodes), new_in(&mut nodes)], [1, 0]);
    }

    #[test]
    fn what_is_asked_for_stays() {
        let mut nodes = Nodes::default();
        let mut numbers = Numbers::default();
        let frame = |n: u64| wire::frame(0x1000 + n, 1, 0).expect("small numbers");
        for n in 0..1_000_000 {
            let new = nodes.number_all(0, &[frame(0), frame(1 + n)], &mut numbers);
            assert_eq!(new.known, usize::from(n != 0));
        }
    }
}
