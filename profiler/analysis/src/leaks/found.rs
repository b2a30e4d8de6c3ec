//! What a trace's last scan says, put into order for reports.

use crate::hash::FoldHash;
use crate::stacks::Stacks;
use grapnel_trace::leaks::{Holder, LeakScan, Path, Root, RootKind};
use std::collections::HashMap;

/// How a block is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Nothing leads to it.
    Direct,
    /// Only lost blocks lead to it.
    Indirect,
    /// Only pointers lead to it that the policy doesn't count.
    Possible,
    /// A root leads to it.
    Reachable,
}

impl Kind {
    /// All of them, the worst first.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Indirect, Self::Possible, Self::Reachable];

    /// How blocks are held that hang on others of this kind.
    fn inner(self) -> Self {
        if self == Self::Direct { Self::Indirect } else { self }
    }

    /// Whether it is a leak without a doubt.
    pub fn is_lost(self) -> bool {
        matches!(self, Self::Direct | Self::Indirect)
    }
}

/// Blocks and their bytes.
#[derive(serde::Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, blocks: u64, bytes: u64) {
        self.blocks = self.blocks.saturating_add(blocks);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(crate) fn plus(&mut self, other: Self) {
        self.add(other.blocks, other.bytes);
    }

    /// Whether there is nothing.
    pub fn is_empty(self) -> bool {
        self.blocks == 0
    }
}

/// The live blocks of one stack that are held in one kind of way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakSite {
    /// How.
    pub kind: Kind,
    /// The stack's node.
    pub stack: u32,
    /// These blocks.
    pub own: Count,
    /// What else hangs on them: of directly lost blocks all that is lost with them; of others what their paths lead on to.
    pub holds: Count,
    /// The nodes of their paths, the one with most bytes first.
    pub paths: Vec<u32>,
}

/// A scan, by sites.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The scan. Stacks are the first of equal ones.
    pub scan: LeakScan,
    /// Figures of each [`Kind`], in the order of [`Kind::ALL`].
    pub totals: [Count; 4],
    /// The worst kind first; within a kind those with most bytes, what hangs on them included, first.
    pub sites: Vec<LeakSite>,
}

impl Found {
    /// Puts a scan into order. `canonical`: the first of equal stacks for each. `None` for one that names stacks which the
    /// trace does not have.
    pub(crate) fn new(mut scan: LeakScan, stacks: &Stacks, canonical: &[u32]) -> Option<Self> {
        for path in &mut scan.paths {
            if path.stack as usize > stacks.len() {
                return None;
            }
            path.stack = canonical.get(path.stack as usize).copied().unwrap_or(path.stack);
        }
        Some(Self::of_scan(scan))
    }

    fn of_scan(scan: LeakScan) -> Self {
        let kinds = kinds(&scan);
        let holds = holds(&scan.paths);
        let totals = totals(&scan);
        let mut place: HashMap<(Kind, u32), usize, FoldHash> = HashMap::default();
        let mut sites: Vec<LeakSite> = Vec::new();
        for (node, path) in (0..).zip(&scan.paths) {
            let kind = kinds[node as usize];
            for (kind, blocks, bytes) in
                [(kind, path.blocks, path.bytes), (kind.inner(), path.inner_blocks, path.inner_bytes)]
            {
                if blocks == 0 {
                    continue;
                }
                let at = *place.entry((kind, path.stack)).or_insert(sites.len());
                if at == sites.len() {
                    let (own, holds) = (Count::default(), Count::default());
                    sites.push(LeakSite { kind, stack: path.stack, own, holds, paths: Vec::new() });
                }
                let site = &mut sites[at];
                site.own.add(blocks, bytes);
                if site.paths.last() != Some(&node) {
                    site.paths.push(node);
                    site.holds.plus(holds[node as usize]);
                }
                if kind == Kind::Direct {
                    site.holds.add(path.inner_blocks, path.inner_bytes);
                }
            }
        }
        for site in &mut sites {
            site.paths.sort_by_key(|&node| {
                let path = &scan.paths[node as usize];
                std::cmp::Reverse(path.bytes.saturating_add(path.inner_bytes))
            });
        }
        let weight = |site: &LeakSite| site.own.bytes.saturating_add(site.holds.bytes);
        sites.sort_by(|a, b| {
            let by_weight = weight(b).cmp(&weight(a)).then(b.own.blocks.cmp(&a.own.blocks));
            a.kind.cmp(&b.kind).then(by_weight).then(a.stack.cmp(&b.stack))
        });
        Self { scan, totals, sites }
    }

    /// The same without the lost blocks, certain or possible, of which `is_known` says so by their stacks, and without what
    /// hangs on them. It is told of how many blocks and bytes of a stack it is asked.
    pub fn without(&self, mut is_known: impl FnMut(u32, Count) -> bool) -> Self {
        let mut scan = self.scan.clone();
        let kinds = kinds(&scan);
        let mut gone: Vec<bool> = Vec::with_capacity(kinds.len());
        for (kind, path) in kinds.into_iter().zip(&mut scan.paths) {
            let held = matches!(path.holder, Holder::Path(before) if gone[before as usize]);
            let mut count = Count::default();
            count.add(path.blocks, path.bytes);
            count.add(path.inner_blocks, path.inner_bytes);
            let is_gone = kind != Kind::Reachable && (held || is_known(path.stack, count));
            if is_gone {
                (path.blocks, path.bytes, path.inner_blocks, path.inner_bytes) = (0, 0, 0, 0);
            }
            gone.push(is_gone);
        }
        Self::of_scan(scan)
    }

    /// The figures of a kind.
    pub fn total(&self, kind: Kind) -> Count {
        self.totals[kind as usize]
    }

    /// What is lost, directly or not.
    pub fn lost(&self) -> Count {
        let mut lost = self.total(Kind::Direct);
        lost.plus(self.total(Kind::Indirect));
        lost
    }

    /// The sites of a kind.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &LeakSite> {
        self.sites.iter().filter(move |site| site.kind == kind)
    }

    /// A path: its root, and its nodes from there on.
    pub fn way(&self, node: u32) -> Option<(&Root, Vec<&Path>)> {
        let mut nodes = Vec::new();
        let mut holder = Holder::Path(node);
        loop {
            match holder {
                Holder::Path(node) => {
                    // Each lies before the one that it holds, so this ends.
                    let path = self.scan.paths.get(node as usize)?;
                    nodes.push(path);
                    holder = path.holder;
                }
                Holder::Root(root) => {
                    nodes.reverse();
                    return Some((self.scan.roots.get(root as usize)?, nodes));
                }
            }
        }
    }
}

/// Figures of each [`Kind`], in the order of [`Kind::ALL`].
pub fn totals(scan: &LeakScan) -> [Count; 4] {
    let mut totals = [Count::default(); 4];
    for (kind, path) in kinds(scan).into_iter().zip(&scan.paths) {
        totals[kind as usize].add(path.blocks, path.bytes);
        totals[kind.inner() as usize].add(path.inner_blocks, path.inner_bytes);
    }
    totals
}

/// How the blocks of each path's node are held.
fn kinds(scan: &LeakScan) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::with_capacity(scan.paths.len());
    for path in &scan.paths {
        kinds.push(match path.holder {
            Holder::Root(root) => match scan.roots.get(root as usize).map(|root| root.kind) {
                Some(RootKind::Lost) => Kind::Direct,
                Some(RootKind::Possible) => Kind::Possible,
                _ => Kind::Reachable,
            },
            Holder::Path(before) => kinds[before as usize].inner(),
        });
    }
    kinds
}

/// What the paths of each node lead on to, its own blocks left out.
fn holds(paths: &[Path]) -> Vec<Count> {
    let mut holds = vec![Count::default(); paths.len()];
    for (node, path) in paths.iter().enumerate().rev() {
        if let Holder::Path(before) = path.holder {
            let mut all = holds[node];
            all.add(path.blocks, path.bytes);
            all.add(path.inner_blocks, path.inner_bytes);
            holds[before as usize].plus(all);
        }
    }
    holds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(holder: Holder, stack: u32, blocks: u64, inner_blocks: u64) -> Path {
        Path {
            holder,
            stack,
            blocks,
            bytes: 10 * blocks,
            inner_blocks,
            inner_bytes: 10 * inner_blocks,
            offset: 0,
        }
    }

    #[test]
    fn figures_are_by_kind_and_stack() {
        let root = |kind| Root { kind, thread: 0, module: 0, address: 0, name: Vec::new() };
        let roots =
            [RootKind::Global, RootKind::Lost, RootKind::Possible, RootKind::Stack].map(root).to_vec();
        let paths = vec![
            path(Holder::Root(0), 1, 2, 5),
            path(Holder::Path(0), 2, 3, 0),
            path(Holder::Root(1), 1, 1, 9),
            path(Holder::Path(2), 3, 4, 0),
            path(Holder::Root(2), 3, 1, 0),
            path(Holder::Root(3), 1, 50, 0),
        ];
        let mut stacks = Stacks::default();
        for id in 1..=4_u64 {
            stacks.push_whole(&crate::stacks::Node { parent: 0, module: 0, pc: id, flags: 0 }).unwrap();
        }
        let scan = LeakScan { roots, paths, ..LeakScan::default() };
        // Stack 3 is 4 by another name.
        let found = Found::new(scan.clone(), &stacks, &[0, 1, 2, 4, 4]).unwrap();
        let count = |blocks: u64| Count { blocks, bytes: 10 * blocks };
        assert_eq!(found.totals, [count(1), count(13), count(1), count(60)]);
        let sites: Vec<_> = found
            .sites
            .iter()
            .map(|site| (site.kind, site.stack, site.own.blocks, site.holds.blocks))
            .collect();
        assert_eq!(
            sites,
            [
                (Kind::Direct, 1, 1, 13),
                (Kind::Indirect, 1, 9, 4),
                (Kind::Indirect, 4, 4, 0),
                (Kind::Possible, 4, 1, 0),
                (Kind::Reachable, 1, 57, 3),
                (Kind::Reachable, 2, 3, 0),
            ]
        );
        assert_eq!(found.sites[4].paths, [5, 0]);
        let (root, way) = found.way(1).unwrap();
        assert_eq!((root.kind, way.len(), way[0].stack), (RootKind::Global, 2, 1));
        let unknown = LeakScan { paths: vec![path(Holder::Root(0), 9, 1, 0)], ..scan };
        assert_eq!(Found::new(unknown, &stacks, &[0, 1, 2, 4, 4]), None);
    }
}
