//! What holds each block, put together by stacks.
//!
//! A block's path is that of its holder and its own stack behind it. Where a stack comes up on a path for the second time,
//! as in a list, a tree, or any circle of types, the path goes back to where it was first: the block counts as an inner one
//! there. So a path is never longer than there are stacks, and of a shape that a person can read.

use super::blocks::Blocks;
use super::scan::{OF_ROOT, Scanned};
use crate::hash::FoldHash;
use grapnel_trace::leaks::{Holder, MAX_PATHS, MAX_ROOTS, Path};
use std::collections::HashMap;

/// How far back on a path a stack is looked for.
const LOOK_BACK: usize = 64;
/// Nodes that are kept for what is put together: one for each root.
const RESERVED: usize = MAX_ROOTS;
/// With more nodes than this, stacks whose innermost frames are the same count as one on a path: a function that calls
/// itself builds a tree of which each block has another stack.
const MANY: usize = 10_000;
/// No node yet.
const NONE: u32 = u32::MAX;

/// The paths of all blocks, and whether some were put together for want of room. `leaf`: the pc of a stack's innermost frame.
pub fn paths(blocks: &Blocks, scanned: &Scanned, leaf: impl Fn(u32) -> u64) -> (Vec<Path>, bool) {
    let mut tree = Tree { paths: Vec::new(), known: HashMap::default(), leaf, cut: false };
    let mut path_of = vec![NONE; blocks.all().len()];
    let mut way = Vec::new();
    for first in 0..path_of.len() as u32 {
        // Back to what is known, and forth again. Holders go round in no circle.
        let mut at = first;
        while path_of[at as usize] == NONE {
            way.push(at);
            match scanned.holders[at as usize] {
                holder if holder & OF_ROOT == 0 => at = holder,
                _ => break,
            }
        }
        while let Some(block) = way.pop() {
            let holder = match scanned.holders[block as usize] {
                holder if holder & OF_ROOT == 0 => Holder::Path(path_of[holder as usize]),
                root => Holder::Root(root & !OF_ROOT),
            };
            let live = &blocks.all()[block as usize];
            let offset = u64::from(scanned.offsets[block as usize]);
            path_of[block as usize] = tree.add(holder, live.stack, live.size, offset);
        }
    }
    (tree.paths, tree.cut)
}

struct Tree<L> {
    paths: Vec<Path>,
    known: HashMap<(u64, u32), u32, FoldHash>,
    leaf: L,
    cut: bool,
}

impl<L: Fn(u32) -> u64> Tree<L> {
    /// Counts a block, and gives its node.
    fn add(&mut self, holder: Holder, stack: u32, bytes: u64, offset: u64) -> u32 {
        let inner = self.before(holder, stack).or_else(|| self.first(holder, stack));
        if let Some(inner) = inner {
            let path = &mut self.paths[inner as usize];
            path.inner_blocks += 1;
            path.inner_bytes = path.inner_bytes.saturating_add(bytes);
            return inner;
        }
        let node = self.node(holder, stack, offset);
        let path = &mut self.paths[node as usize];
        path.blocks += 1;
        path.bytes = path.bytes.saturating_add(bytes);
        node
    }

    /// Where there is no room for another node: the first node of the holder's path.
    fn first(&mut self, holder: Holder, stack: u32) -> Option<u32> {
        let Holder::Path(mut at) = holder else { return None };
        if self.paths.len() < MAX_PATHS - RESERVED
            || self.known.contains_key(&(u64::from(at) << 1 | 1, stack))
        {
            return None;
        }
        self.cut = true;
        while let Holder::Path(before) = self.paths[at as usize].holder {
            at = before;
        }
        Some(at)
    }

    /// A node of this stack that the holder's path has on it.
    fn before(&mut self, holder: Holder, stack: u32) -> Option<u32> {
        let mut holder = holder;
        let are_many = self.paths.len() >= MANY;
        for _ in 0..LOOK_BACK {
            let Holder::Path(at) = holder else { return None };
            let path = &self.paths[at as usize];
            if path.stack == stack {
                return Some(at);
            }
            if are_many && (self.leaf)(path.stack) == (self.leaf)(stack) {
                self.cut = true;
                return Some(at);
            }
            holder = path.holder;
        }
        None
    }

    fn node(&mut self, holder: Holder, stack: u32, offset: u64) -> u32 {
        let key = |holder| match holder {
            Holder::Root(root) => u64::from(root) << 1,
            Holder::Path(path) => u64::from(path) << 1 | 1,
        };
        if let Some(&known) = self.known.get(&(key(holder), stack)) {
            return known;
        }
        let stack = if self.paths.len() < MAX_PATHS - RESERVED {
            stack
        } else {
            // One node for all of a root's that aren't told apart.
            self.cut = true;
            if let Some(&known) = self.known.get(&(key(holder), 0)) {
                return known;
            }
            0
        };
        let node = self.paths.len() as u32;
        self.paths.push(Path { holder, stack, blocks: 0, bytes: 0, inner_blocks: 0, inner_bytes: 0, offset });
        self.known.insert((key(holder), stack), node);
        node
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaks::blocks::Block;

    /// Blocks of 10 bytes by their stacks and holders.
    fn paths_of(blocks: &[(u32, u32)]) -> Vec<(Holder, u32, u64, u64)> {
        let live =
            (0..).zip(blocks).map(|(n, &(stack, _))| Block { address: 0x1000 + 0x20 * n, size: 10, stack });
        let live = Blocks::new(live.collect());
        let holders = blocks.iter().map(|&(_, holder)| holder).collect();
        let offsets = vec![0; blocks.len()];
        let scanned = Scanned { holders, offsets, roots: Vec::new(), root_bytes: 0, doubts: 0 };
        let (paths, cut) = paths(&live, &scanned, u64::from);
        assert!(!cut);
        let all: u64 = paths.iter().map(|path| path.bytes + path.inner_bytes).sum();
        assert_eq!(all, 10 * blocks.len() as u64);
        paths.iter().map(|path| (path.holder, path.stack, path.blocks, path.inner_blocks)).collect()
    }

    #[test]
    fn equal_paths_are_one_and_a_list_is_one_node() {
        const R: u32 = OF_ROOT;
        // Three blocks of one stack at a root, each with one of another; a list of four at another root, its head last.
        let blocks = [(1, R), (1, R), (1, R), (2, 0), (2, 1), (2, 2), (3, 7), (3, 8), (3, 9), (3, R | 1)];
        let (root, list) = (Holder::Root(0), Holder::Root(1));
        assert_eq!(paths_of(&blocks), [(root, 1, 3, 0), (Holder::Path(0), 2, 3, 0), (list, 3, 1, 3)]);
    }

    #[test]
    fn circles_of_types_go_back_to_where_they_began() {
        // 1 -> 2 -> 1 -> 2 -> 4
        let blocks = [(1, OF_ROOT), (2, 0), (1, 1), (2, 2), (4, 3)];
        let root = Holder::Root(0);
        assert_eq!(
            paths_of(&blocks),
            [(root, 1, 1, 1), (Holder::Path(0), 2, 2, 0), (Holder::Path(1), 4, 1, 0)]
        );
    }

    #[test]
    fn a_long_way_needs_no_stack_of_ours() {
        let count = 300_000;
        let blocks: Vec<(u32, u32)> =
            (0..count).map(|n| (7, if n + 1 == count { OF_ROOT } else { n + 1 })).collect();
        assert_eq!(paths_of(&blocks), [(Holder::Root(0), 7, 1, u64::from(count) - 1)]);
    }

    #[test]
    fn a_tree_that_a_recursion_built_is_cut_where_it_gets_large() {
        let count = 3 * MAX_PATHS as u32;
        let live = (0..count).map(|n| Block { address: 0x1000 + 0x20 * u64::from(n), size: 1, stack: n + 1 });
        let live = Blocks::new(live.collect());
        let holders = (0..count).map(|n| if n == 0 { OF_ROOT } else { (n - 1) / 2 }).collect();
        let scanned = Scanned {
            holders,
            offsets: vec![0; count as usize],
            roots: Vec::new(),
            root_bytes: 0,
            doubts: 0,
        };
        let sum = |paths: &[Path]| paths.iter().map(|path| path.blocks + path.inner_blocks).sum::<u64>();
        // All of one function, or each of another.
        for (same, most) in [(true, MANY), (false, MAX_PATHS)] {
            let (paths, cut) = paths(&live, &scanned, |stack| if same { 7 } else { u64::from(stack) });
            assert!(cut && paths.len() <= most && sum(&paths) == u64::from(count), "{}", paths.len());
            let direct = paths.iter().filter(|path| path.holder == Holder::Root(0)).map(|path| path.blocks);
            assert_eq!(direct.sum::<u64>(), 1, "what hangs on a block is not the root's");
        }
    }

    #[test]
    fn too_many_paths_are_put_together_by_roots() {
        let count = MAX_PATHS as u32 + 10;
        let live = (0..count).map(|n| Block { address: 0x1000 + 0x20 * u64::from(n), size: 1, stack: n + 1 });
        let live = Blocks::new(live.collect());
        let holders = vec![OF_ROOT; count as usize];
        let offsets = vec![0; count as usize];
        let scanned = Scanned { holders, offsets, roots: Vec::new(), root_bytes: 0, doubts: 0 };
        let (paths, cut) = paths(&live, &scanned, u64::from);
        assert!(cut && paths.len() <= MAX_PATHS);
        assert_eq!(paths.iter().map(|path| path.blocks).sum::<u64>(), u64::from(count));
    }
}
