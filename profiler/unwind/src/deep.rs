//! Stacks deeper than the depth limit.
//!
//! Of such a stack the frames nearest to the leaf are kept, as many as the limit says: its *window*. A walk that ended at the
//! limit each time would find no frame of the last one at the root to go on from, and cost what all frames of the window cost.
//! So walks go on beyond the limit, to the root, and are remembered whole, in more memory. Then a walk is what it is for
//! other stacks, a few frames more or less than the last one, with these differences:
//!
//! - Only the words of the window are compared. What lies rootward of it may have changed, and no frame of it is
//!   taken for one of the stack before it was in a window that was compared.
//! - Frames beyond the limit have no nodes of their own: it is the window that has one, below the mark of a stack that was cut. As
//!   the recursion goes deeper by a frame all of the window's frames have others before them. So windows are found by a
//!   sum over their frames, which is the difference of two sums from the root on, and only those that are new are looked
//!   up frame by frame.
//!
//! Where stacks are deeper than that memory is, or where most frames of each walk are new, as in coroutines that are all deep, walks
//! end at the limit, and it is tried again after some thousand of them.

use crate::Error;
use crate::memo::{Memo, Path};
use crate::tree::{FrameKey, NodeId};
use crate::zeroed::{Zeroable, zeroed};
use alloc::vec::Vec;

/// By how much the memory grows each time.
const GROWTH: usize = 4;
/// How many walks end at the limit before deeper ones are tried again.
const REST: u32 = 1 << 12;
/// How many times the frames that can be kept may be walked in vain.
const PATIENCE: usize = 4;
/// The binary logarithm of the number of windows that are kept.
const WINDOW_BITS: u32 = 12;

/// A polynomial over the halves of frames' keys at two points, modulo the prime 2^61 - 1: two different windows of `n` frames have the
/// same sum with a probability of (n / 2^60)^2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum([u64; 2]);

impl Sum {
    const BITS: u32 = 61;
    const PRIME: u64 = (1 << Self::BITS) - 1;
    /// Two numbers without a pattern.
    const POINTS: Sum = Sum([0x0b5a_d4ec_eda1_ce2a, 0x1f83_d9ab_fb41_bd6b]);

    /// `self * by + plus`.
    fn times_plus(self, by: Sum, plus: u32) -> Sum {
        let ([a, b], [by_a, by_b]) = (self.0, by.0);
        Sum([(a, by_a), (b, by_b)].map(|(a, by)| {
            let product = u128::from(a) * u128::from(by) + u128::from(plus);
            reduced((product as u64 & Self::PRIME) + (product >> Self::BITS) as u64)
        }))
    }

    fn less(self, other: Sum) -> Sum {
        let ([a, b], [other_a, other_b]) = (self.0, other.0);
        Sum([reduced(a + Self::PRIME - other_a), reduced(b + Self::PRIME - other_b)])
    }

    fn with(self, key: FrameKey) -> Sum {
        let key = key.bits();
        self.times_plus(Self::POINTS, key as u32).times_plus(Self::POINTS, (key >> 32) as u32)
    }

    /// What a sum is multiplied by where so many frames come after it.
    fn shift(frames: usize) -> Sum {
        (0..2 * frames).fold(Sum([1, 1]), |shift, _| shift.times_plus(Self::POINTS, 0))
    }
}

/// A number below twice the prime, modulo the prime.
fn reduced(number: u64) -> u64 {
    number.checked_sub(Sum::PRIME).unwrap_or(number)
}

// SAFETY: made of numbers.
unsafe impl Zeroable for Sum {}

/// A window that was looked up. Its node is 0 where there is none.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    sum: Sum,
    node: NodeId,
}

// SAFETY: made of numbers.
unsafe impl Zeroable for Window {}

/// How far walks go, and what is known of windows.
#[derive(Debug)]
pub(crate) struct Deep {
    /// The most frames of a stack.
    shown: usize,
    /// The most frames of a walk now: no fewer than a stack's.
    limit: usize,
    /// How many there is memory for, and may be at most.
    room: usize,
    most: usize,
    /// How many walks are to end at the limit of a stack.
    rest: u32,
    /// How many frames were walked more than walks to that limit would have.
    debt: usize,
    /// For each number of frames from the root their sum, as far as the memo says.
    sums: Vec<Sum>,
    shift: Sum,
    windows: Vec<Window>,
}

impl Deep {
    /// Stacks of up to `shown` frames, found by walks of up to `most`. Allocates nothing yet.
    pub(crate) fn new(shown: usize, most: usize) -> Self {
        Deep {
            shown,
            limit: shown,
            room: shown,
            most: most.max(shown),
            rest: 0,
            debt: 0,
            sums: Vec::new(),
            shift: Sum::default(),
            windows: Vec::new(),
        }
    }

    /// The most frames of a walk.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Windows have nodes no more.
    pub(crate) fn forget(&mut self) {
        self.windows.fill(Window::default());
    }

    /// A walk came to the limit. Whether another one goes further now, or less far: what was walked is forgotten then.
    #[cold]
    #[inline(never)]
    pub(crate) fn limit_was_met(&mut self, path: &mut Path, memo: &mut Memo) -> bool {
        if self.limit == self.shown && self.rest != 0 {
            self.rest -= 1;
            return false;
        }
        let goes_further = self.limit < self.room || (self.room < self.most && self.grow(path, memo).is_ok());
        if goes_further {
            self.limit = self.room;
        } else if self.limit > self.shown {
            self.go_less_far();
        } else {
            self.rest = REST;
            return false;
        }
        memo.forget();
        true
    }

    fn go_less_far(&mut self) {
        (self.limit, self.rest, self.debt) = (self.shown, REST, 0);
    }

    fn grow(&mut self, path: &mut Path, memo: &mut Memo) -> Result<(), Error> {
        let room = self.room.saturating_mul(GROWTH).min(self.most);
        let (new_path, new_memo) = (Path::new(room)?, Memo::new(room)?);
        let sums = zeroed(room + 1)?;
        if self.windows.is_empty() {
            self.windows = zeroed(1 << WINDOW_BITS)?;
            self.shift = Sum::shift(self.shown);
        }
        (*path, *memo, self.sums, self.room) = (new_path, new_memo, sums, room);
        Ok(())
    }

    /// So many frames of a walk beyond the limit of a stack were new. Whether such walks are worth while.
    pub(crate) fn walked(&mut self, frames: usize) -> bool {
        self.debt = (self.debt + frames).saturating_sub(self.shown);
        let is_worth = self.debt <= self.most.saturating_mul(PATIENCE);
        if !is_worth {
            self.go_less_far();
        }
        is_worth
    }

    /// The sum of the window at the leaf of the walk in `memo`, which is deeper than a stack.
    fn sum(&mut self, memo: &mut Memo) -> Sum {
        let mut last = self.sums.get(memo.summed()).copied().unwrap_or_default();
        let from = memo.summed();
        for (sum, key) in
            self.sums.get_mut(from + 1..).unwrap_or_default().iter_mut().zip(memo.keys_from(from))
        {
            last = last.with(key);
            *sum = last;
        }
        memo.are_summed();
        let before = self.sums.get(memo.len().wrapping_sub(self.shown)).copied().unwrap_or_default();
        last.less(before.times_plus(self.shift, 0))
    }

    /// The node of the window at the leaf of the walk in `memo`, which is deeper than a stack; `look_up` finds one that isn't known.
    pub(crate) fn node(&mut self, memo: &mut Memo, look_up: impl FnOnce(&Memo) -> NodeId) -> NodeId {
        let sum = self.sum(memo);
        let at = (sum.0[0] >> (Sum::BITS - WINDOW_BITS)) as usize;
        let Some(window) = self.windows.get_mut(at) else { return look_up(memo) };
        if window.sum != sum || window.node == NodeId::ROOT {
            *window = Window { sum, node: look_up(memo) };
        }
        window.node
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::Range;
    use crate::start::Cursor;
    use crate::tree::FrameFlags;

    fn sum(keys: &[u64]) -> Sum {
        let keys = keys.iter().map(|&pc| FrameKey::new(pc, FrameFlags::NONE));
        keys.fold(Sum::default(), Sum::with)
    }

    #[test]
    fn a_windows_sum_is_that_of_its_frames_whatever_is_before_them() {
        let frames: Vec<u64> = (0..40).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        for len in 1..frames.len() {
            for start in 0..frames.len() - len {
                let (before, window) = (&frames[..start], &frames[start..start + len]);
                let whole = sum(&frames[..start + len]);
                assert_eq!(whole.less(sum(before).times_plus(Sum::shift(len), 0)), sum(window));
            }
        }
    }

    #[test]
    fn windows_that_differ_have_different_sums() {
        let mut sums = std::collections::HashSet::new();
        // Also where only the order differs, where frames differ by the prime, and by their flags.
        for pcs in [[1, 2], [Sum::PRIME, 0], [5, 5 + (1 << 61)]] {
            for n in 0..1 << 12_u32 {
                let frames: Vec<u64> = (0..12).map(|at| pcs[(n >> at & 1) as usize]).collect();
                assert!(sums.insert(sum(&frames).0), "{frames:x?}");
            }
        }
        assert!(sums.iter().flatten().all(|&number| number < Sum::PRIME));
    }

    /// A recursion through two functions and one through many, up and down: what is looked up is what differs.
    #[test]
    fn windows_that_came_before_are_not_looked_up() {
        const SHOWN: usize = 8;
        for (functions, differ) in [(1, 1), (2, 2), (64, 64)] {
            let (mut path, mut memo) = (Path::new(SHOWN).unwrap(), Memo::new(SHOWN).unwrap());
            let mut deep = Deep::new(SHOWN, 500);
            while deep.limit() < 500 {
                assert!(deep.limit_was_met(&mut path, &mut memo));
            }
            let mut looked_up = Vec::new();
            for _ in 0..4 {
                for depth in (20..300).chain((20..300).rev()) {
                    memo.cut_to(depth - 1);
                    path.clear();
                    for frame in (memo.len()..depth).rev() {
                        let at = Cursor { pc: 0x1000 + 4 * (frame % functions) as u64, sp: 0, fp: 0 };
                        path.push(at, 1, FrameFlags::NONE, true);
                    }
                    memo.take_without_nodes(&path, Range::default());
                    let node = deep.node(&mut memo, |memo| {
                        looked_up.push(memo.keys_from(memo.len() - SHOWN).collect::<Vec<_>>());
                        NodeId(looked_up.len() as u32)
                    });
                    let window: Vec<_> = memo.keys_from(depth - SHOWN).collect();
                    assert_eq!(looked_up[node.0 as usize - 1], window);
                }
            }
            assert_eq!(looked_up.len(), differ);
            deep.forget();
            deep.node(&mut memo, |_| {
                looked_up.push(Vec::new());
                NodeId(1)
            });
            assert_eq!(looked_up.len(), differ + 1);
        }
    }

    #[test]
    fn walks_go_as_far_as_is_worth_while() {
        let (mut path, mut memo) = (Path::new(10).unwrap(), Memo::new(10).unwrap());
        let mut deep = Deep::new(10, 100);
        let mut met = |deep: &mut Deep| deep.limit_was_met(&mut path, &mut memo);
        let limits = [(); 3].map(|()| (met(&mut deep), deep.limit()));
        assert_eq!(limits, [(true, 40), (true, 100), (true, 10)]);
        // Deeper than there is room for, it is left alone for a while.
        assert!((0..REST).all(|_| !met(&mut deep)));
        assert_eq!((met(&mut deep), deep.limit()), (true, 100));
        // So it is where most frames are new, and not where few are.
        assert!((0..1000).all(|_| deep.walked(10)));
        let worth = (0..).take_while(|_| deep.walked(90)).count();
        assert_eq!((worth, deep.limit()), (PATIENCE * 100 / 80, 10));
        // Without more to be had, nothing changes.
        let mut fixed = Deep::new(10, 0);
        assert_eq!((met(&mut fixed), fixed.limit()), (false, 10));
    }
}
