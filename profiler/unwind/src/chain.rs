//! For each leaf at its depth, the frames nearest to it as they were the last time.
//!
//! A walk looks up a rule for each frame, one after the other, and then a node for each. In a program that needs the
//! processor's caches for itself each of these waits for memory. Walks from one leaf most often begin with the same few
//! frames: here these lie side by side, with their rules and their nodes, so that a walk waits once.

use crate::Error;
use crate::memo::{Found, Record};
use crate::native::{PackedRule, prefetch};
use crate::tree::NodeId;
use crate::zeroed::{Zeroable, zeroed};
use alloc::vec::Vec;

/// The binary logarithm of the most chains.
const MOST_BITS: u32 = 11;
/// Frames of a chain: what two cache lines hold.
const FRAMES: usize = 6;

#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default)]
struct Chain {
    /// Leaf first; 0 where there is none.
    pcs: [u64; FRAMES],
    rules: [PackedRule; FRAMES],
    /// The nodes of the first `len` frames, where the stack of the next frame is `parent`.
    nodes: [NodeId; FRAMES],
    parent: NodeId,
    len: u32,
}

const _: () = assert!(size_of::<Chain>() == 128);

// SAFETY: made of numbers.
unsafe impl Zeroable for Chain {}

/// The chains. Looking up and storing neither allocate nor lock. What is found is right whatever chain it is found in: a
/// rule belongs to a pc, and nodes to a parent and pcs.
#[derive(Debug)]
pub(crate) struct Chains(Vec<Chain>);

impl Chains {
    /// `1 << bits` chains, but no more than there are numbers for.
    pub(crate) fn new(bits: u32) -> Result<Self, Error> {
        Ok(Chains(zeroed(1 << bits.min(MOST_BITS))?))
    }

    /// To be called when a pc may have another rule, or a node another meaning.
    pub(crate) fn forget(&mut self) {
        self.0.fill(Chain::default());
    }

    /// The number of the chain of a leaf. One at the same depth most often has the same callers.
    #[inline(always)]
    pub(crate) fn of(&self, pc: u64, sp: u64) -> usize {
        let hash = (pc ^ (sp << 20)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - MOST_BITS);
        hash as usize & self.0.len().wrapping_sub(1)
    }

    /// Asks the processor for a chain.
    #[inline(always)]
    pub(crate) fn expect(&self, chain: usize) {
        if let Some(chain) = self.0.get(chain) {
            prefetch(&chain.pcs);
            prefetch(&chain.nodes);
        }
    }

    /// The rule for the frame at `pc`, the one with this number from the leaf, if that is as it was.
    #[inline(always)]
    pub(crate) fn rule(&self, chain: usize, frame: usize, pc: u64) -> Option<PackedRule> {
        let chain = self.0.get(chain)?;
        chain.pcs.get(frame).filter(|&&other| other == pc)?;
        chain.rules.get(frame).copied()
    }

    /// Keeps a rule for the next walk.
    #[inline(always)]
    pub(crate) fn set_rule(&mut self, chain: usize, frame: usize, pc: u64, rule: PackedRule) {
        if let Some(chain) = self.0.get_mut(chain)
            && let (Some(to_pc), Some(to_rule)) = (chain.pcs.get_mut(frame), chain.rules.get_mut(frame))
        {
            (*to_pc, *to_rule) = (pc, rule);
            // The nodes are those of other frames.
            chain.len = 0;
        }
    }

    /// Whether the chain begins with frames at these pcs.
    #[inline(always)]
    fn is(chain: &Chain, pcs: impl ExactSizeIterator<Item = u64>) -> bool {
        pcs.len() <= FRAMES && pcs.zip(&chain.pcs).all(|(pc, other)| pc == *other)
    }

    /// The nodes of these frames, leaf first and none of them a guess, below `parent`, if they are what was there the last
    /// time, or the ones next to the leaf of those that were: the node behind them then says that all others are the same.
    #[inline(always)]
    pub(crate) fn nodes(&self, chain: usize, parent: NodeId, frames: &[Found]) -> Option<&[NodeId]> {
        let chain = self.0.get(chain)?;
        let len = chain.len as usize;
        let behind = match frames.len() {
            all if all == len => chain.parent,
            fewer if fewer < len => *chain.nodes.get(fewer)?,
            _ => return None,
        };
        let same = behind == parent && Self::is(chain, frames.iter().map(|frame| frame.pc));
        if same { chain.nodes.get(..frames.len()) } else { None }
    }

    /// Keeps the nodes of these frames, root first and none of them a guess.
    #[inline(always)]
    pub(crate) fn set_nodes(&mut self, chain: usize, parent: NodeId, frames: &[Record]) {
        let Some(chain) = self.0.get_mut(chain) else { return };
        if Self::is(chain, frames.iter().rev().map(|frame| frame.pc)) {
            for (node, frame) in chain.nodes.iter_mut().zip(frames.iter().rev()) {
                *node = frame.node;
            }
            (chain.parent, chain.len) = (parent, frames.len() as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memo::{Memo, Path};
    use crate::native::UnwindRule;
    use crate::stack::Range;
    use crate::start::Cursor;
    use crate::tree::{FrameFlags, Stack};

    fn path(pcs: &[u64]) -> Path {
        let mut path = Path::new(FRAMES + 1).unwrap();
        for &pc in pcs {
            path.push(Cursor { pc, sp: 0, fp: 0 }, 0, FrameFlags::NONE, false);
        }
        path
    }

    /// The path's frames with nodes from 1 on.
    fn interned(path: &Path) -> Memo {
        let mut memo = Memo::new(FRAMES + 1).unwrap();
        let nodes: Vec<NodeId> = (1..=path.len() as u32).rev().map(NodeId).collect();
        memo.take(path, Range::default());
        let mut frames = 0..;
        path.adopt(&nodes, Stack::ROOT, |stack| memo.set_stack(frames.next().unwrap(), stack));
        memo
    }

    #[test]
    fn nodes_are_those_of_the_same_frames_below_the_same_parent() {
        let (mut chains, rule) = (Chains::new(4).unwrap(), PackedRule::new(UnwindRule::ROOT));
        let at = chains.of(10, 0);
        let walk = |chains: &mut Chains, pcs: &[u64]| {
            for (frame, &pc) in pcs.iter().enumerate() {
                if chains.rule(at, frame, pc).is_none() {
                    chains.set_rule(at, frame, pc, rule);
                }
            }
        };
        let three = path(&[10, 20, 30]);
        walk(&mut chains, &[10, 20, 30]);
        chains.set_nodes(at, NodeId::ROOT, interned(&three).frames_from(0));
        let found = chains.nodes(at, NodeId::ROOT, three.frames());
        assert_eq!(found, Some(&[NodeId(3), NodeId(2), NodeId(1)][..]));
        assert_eq!(chains.nodes(at, NodeId(7), three.frames()), None);
        assert_eq!(chains.nodes(at, NodeId::ROOT, path(&[10, 20]).frames()), None);
        // Below what was there behind them, those next to the leaf are the same.
        assert_eq!(chains.nodes(at, NodeId(1), path(&[10, 20]).frames()), Some(&[NodeId(3), NodeId(2)][..]));
        assert_eq!(chains.nodes(at, NodeId(2), path(&[10]).frames()), Some(&[NodeId(3)][..]));
        assert_eq!(chains.nodes(at, NodeId(1), path(&[10]).frames()), None);
        assert_eq!(chains.nodes(at, NodeId(1), path(&[10, 21]).frames()), None);
        assert_eq!(chains.nodes(at, NodeId::ROOT, path(&[10, 20, 31]).frames()), None);
        // A walk whose nodes were not kept.
        walk(&mut chains, &[10, 20, 31]);
        assert_eq!(chains.nodes(at, NodeId::ROOT, path(&[10, 20, 31]).frames()), None);
        let seven = path(&[10, 20, 31, 40, 50, 60, 70]);
        walk(&mut chains, &[10, 20, 31, 40, 50, 60, 70]);
        chains.set_nodes(at, NodeId::ROOT, interned(&seven).frames_from(0));
        assert_eq!(chains.nodes(at, NodeId::ROOT, seven.frames()), None);
    }
}
