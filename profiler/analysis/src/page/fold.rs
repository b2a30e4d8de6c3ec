//! Which stacks a page tells by themselves, so that its size is bounded.
//!
//! Each node of the tree of stacks has a *share*: the largest part that the stacks through it have in any figure of the
//! recording. What lies below a threshold is folded into the nearest caller that doesn't. So what is folded never held,
//! allocated or left behind more than that part, at any moment and in any range.

use crate::Analysis;
use crate::history::{Bucket, History};

/// Sites that are shown as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    /// The node of the tree that they are at, or below.
    pub(super) node: u32,
    /// Whether they are below it, and folded.
    pub(super) is_folded: bool,
}

/// The parts of the whole's figures that nodes have.
pub(super) struct Shares<'a> {
    history: &'a History,
    parents: Vec<u32>,
    of_node: Vec<f32>,
}

/// Which group each of the history's sites is in, and the groups.
pub(super) struct Folding {
    pub(super) groups: Vec<Group>,
    /// The group of each site, at the site's number.
    pub(super) of_site: Vec<u32>,
    /// Of the nodes, those that are shown.
    pub(super) is_shown: Vec<bool>,
    /// How many stacks were folded.
    pub(super) folded: u64,
}

impl<'a> Shares<'a> {
    pub(super) fn new(analysis: &Analysis, history: &'a History) -> Self {
        const FIGURES: usize = 5;
        let sum = |figure: fn(&Bucket) -> u64| {
            history.buckets.iter().fold(0_u64, |sum, bucket| sum.saturating_add(figure(bucket)))
        };
        let peak = history.all().map(|bucket| bucket.peak_bytes).max().unwrap_or(0);
        let live = analysis.totals.live_bytes;
        let wholes: [u64; FIGURES] = [
            peak,
            sum(|bucket| bucket.allocated_bytes),
            sum(|bucket| bucket.allocations),
            sum(|bucket| bucket.temporary),
            live,
        ];
        let parents: Vec<u32> = core::iter::once(0)
            .chain(analysis.stacks.iter().map(|node| history.canonical[node.parent as usize]))
            .collect();
        let mut sums = vec![[0.0_f32; FIGURES]; parents.len()];
        let mut add = |stack: u32, figures: [u64; FIGURES]| {
            for ((sum, figure), whole) in sums[stack as usize].iter_mut().zip(figures).zip(wholes) {
                *sum += (figure as f64 / whole.max(1) as f64) as f32;
            }
        };
        for cell in history.buckets.iter().flat_map(|bucket| bucket.cells.iter()) {
            let stack = history.stacks[cell.site as usize];
            add(stack, [0, cell.allocated_bytes, cell.allocations, cell.temporary.into(), 0]);
        }
        analysis.sites.iter().for_each(|site| add(site.stack, [0, 0, 0, 0, site.live_bytes]));
        // Sites hold their most at different moments, so these are no less than what they held together.
        for (&stack, &most) in history.stacks.iter().zip(&history.most_bytes) {
            add(stack, [most, 0, 0, 0, 0]);
        }
        // Parents come before their children.
        for node in (1..parents.len()).rev() {
            let below = sums[node];
            for (sum, below) in sums[parents[node] as usize].iter_mut().zip(below) {
                *sum += below;
            }
        }
        let of_node = sums.into_iter().map(|sum| sum.into_iter().fold(0.0, f32::max)).collect();
        Self { history, parents, of_node }
    }

    /// Folds what has less than `threshold` of everything. What has nothing is never shown.
    pub(super) fn fold(&self, threshold: f32) -> Folding {
        let mut is_shown: Vec<bool> =
            self.of_node.iter().map(|&share| share > 0.0 && share >= threshold).collect();
        // The root of all, the empty stack.
        is_shown[0] = true;
        let mut place: Vec<Group> = Vec::with_capacity(is_shown.len());
        let mut groups: Vec<Group> = Vec::new();
        for (node, &shown) in is_shown.iter().enumerate() {
            // What is shown has parents that are shown.
            place.push(if shown {
                Group { node: node as u32, is_folded: false }
            } else {
                Group { is_folded: true, ..place[self.parents[node] as usize] }
            });
        }
        let mut stacks: Vec<u32> = self.history.stacks.clone();
        stacks.sort_unstable();
        stacks.dedup();
        // Those that did nothing in the window are not missed.
        let is_missed = |stack: u32| place[stack as usize].is_folded && self.of_node[stack as usize] > 0.0;
        let folded = stacks.iter().filter(|&&stack| is_missed(stack)).count() as u64;
        groups.extend(stacks.iter().map(|&stack| place[stack as usize]));
        groups.sort_unstable();
        groups.dedup();
        let number = |group| groups.partition_point(|other| *other < group) as u32;
        let of_site = self.history.stacks.iter().map(|&stack| number(place[stack as usize])).collect();
        Folding { groups, of_site, is_shown, folded }
    }
}
