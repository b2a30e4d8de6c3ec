//! Which of the lost blocks lead the others.
//!
//! Blocks that lead to each other are one group, and groups lead to groups without a circle. A group that no other leads to
//! has one leader; all else hangs on leaders. Kosaraju's observation finds them without groups being made: of all blocks,
//! the one that a walk by depth leaves last belongs to a group that no other leads to, and so does the last of those that
//! can't be reached from it. (If a group led to the second's, the walk would have left that group later.) Then floods from
//! the leaders by breadth give each block the shortest path.

use std::collections::VecDeque;

/// Pointers of lost blocks to lost blocks.
#[derive(Debug)]
pub(super) struct Links<'l> {
    /// The blocks' numbers, rising.
    blocks: &'l [u32],
    /// For each block so far, where its pointers begin.
    starts: Vec<usize>,
    /// The place in `blocks` of what each pointer leads to, and where it lies in its block.
    links: Vec<(u32, u32)>,
}

/// What holds a block, and where in it; `None` for a leader.
pub(super) type Held = Option<(u32, u32)>;

impl<'l> Links<'l> {
    pub(super) fn of(blocks: &'l [u32]) -> Self {
        Self { blocks, starts: Vec::with_capacity(blocks.len() + 1), links: Vec::new() }
    }

    /// The pointers that follow are the next block's.
    pub(super) fn begin(&mut self) {
        self.starts.push(self.links.len());
    }

    /// A pointer to a block, which may be one that isn't lost: those lie above none.
    pub(super) fn push(&mut self, block: u32, offset: u32) {
        let Ok(place) = self.blocks.binary_search(&block) else { return };
        let start = self.starts.last().copied().unwrap_or(0);
        // One after another to the same block tell nothing new.
        if self.links[start..].last().is_none_or(|last| last.0 != place as u32) {
            self.links.push((place as u32, offset));
        }
    }

    fn links_of(&self, place: u32) -> &[(u32, u32)] {
        let start = self.starts.get(place as usize).copied().unwrap_or(self.links.len());
        let end = self.starts.get(place as usize + 1).copied().unwrap_or(self.links.len());
        &self.links[start..end]
    }

    /// The places of all blocks in the order in which a walk by depth leaves them.
    fn left(&self) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.blocks.len());
        let mut seen = vec![false; self.blocks.len()];
        // A block and how many of its pointers have been followed.
        let mut way: Vec<(u32, usize)> = Vec::new();
        for first in 0..self.blocks.len() as u32 {
            if std::mem::replace(&mut seen[first as usize], true) {
                continue;
            }
            way.push((first, 0));
            while let Some((place, followed)) = way.last_mut() {
                let Some(&(to, _)) = self.links_of(*place).get(*followed) else {
                    order.push(*place);
                    way.pop();
                    continue;
                };
                *followed += 1;
                if !std::mem::replace(&mut seen[to as usize], true) {
                    way.push((to, 0));
                }
            }
        }
        order
    }

    /// Each block by its number, and what holds it.
    pub(super) fn holders(&self) -> Vec<(u32, Held)> {
        let mut holders: Vec<(u32, Held)> = self.blocks.iter().map(|&block| (block, None)).collect();
        let mut seen = vec![false; self.blocks.len()];
        let mut queue = VecDeque::new();
        for leader in self.left().into_iter().rev() {
            if std::mem::replace(&mut seen[leader as usize], true) {
                continue;
            }
            queue.push_back(leader);
            while let Some(from) = queue.pop_front() {
                for &(to, offset) in self.links_of(from) {
                    if !std::mem::replace(&mut seen[to as usize], true) {
                        holders[to as usize].1 = Some((self.blocks[from as usize], offset));
                        queue.push_back(to);
                    }
                }
            }
        }
        holders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether one block leads to another, by trying all ways.
    fn leads(edges: &[Vec<u32>], from: u32, to: u32) -> bool {
        let mut seen = vec![false; edges.len()];
        let mut way = vec![from];
        while let Some(at) = way.pop() {
            if std::mem::replace(&mut seen[at as usize], true) {
                continue;
            }
            way.extend(&edges[at as usize]);
        }
        seen[to as usize]
    }

    #[test]
    fn leaders_are_as_few_as_can_be_and_lead_all() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % below
        };
        for _ in 0..400 {
            let count = 1 + random(12);
            let edges: Vec<Vec<u32>> = (0..count)
                .map(|_| (0..random(4) * random(2)).map(|_| random(count) as u32).collect())
                .collect();
            // The numbers of lost blocks have others between them.
            let blocks: Vec<u32> = (0..count as u32).map(|n| 3 * n + 1).collect();
            let mut links = Links::of(&blocks);
            for edges in &edges {
                links.begin();
                edges.iter().for_each(|&to| links.push(3 * to + 1, to));
                links.push(3, 99);
            }
            let holders = links.holders();
            let leaders: Vec<u32> =
                (0..).zip(&holders).filter(|(_, (_, held))| held.is_none()).map(|(n, _)| n).collect();
            for n in 0..count as u32 {
                assert!(leaders.iter().any(|&leader| leads(&edges, leader, n)), "{edges:?}");
                // A leader is led by nobody but those that it leads itself.
                let is_led = (0..count as u32).any(|m| leads(&edges, m, n) && !leads(&edges, n, m));
                assert!(!is_led || !leaders.contains(&n), "{edges:?}");
            }
            for &a in &leaders {
                assert!(leaders.iter().all(|&b| a == b || !leads(&edges, a, b)), "{edges:?}");
            }
            for (n, (block, held)) in (0..).zip(&holders) {
                assert_eq!(*block, 3 * n + 1);
                let Some((holder, offset)) = *held else { continue };
                assert!(edges[(holder / 3) as usize].contains(&n) && offset == n);
            }
        }
    }
}
