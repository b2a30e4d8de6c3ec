//! What a recorded block stands for when only some are recorded, and how far off that makes the figures.
//!
//! A block of `s` bytes is recorded with probability `p = 1 - exp(-s / mean)`. Where it is, it stands for `1 / p` blocks
//! and `s / p` bytes: on average over all choices that could have been made, sums of these are the true ones, of every
//! stack and at every moment. A sum's variance is estimated from what was recorded, as the sum of `(1 - p) / p²`, for
//! bytes times `s²`; its root is the standard error. The maximum of a quantity that is estimated is a little too high on
//! average, the less so the more was recorded: peaks are such.
//!
//! Only what was recorded adds to that variance. Of small blocks that are `mean` bytes together none is recorded in one case
//! out of three, and then both their estimate and its variance are 0. As one recorded small block stands for `mean` bytes
//! and adds about `mean²` to the variance of bytes, an error of bytes is never less than a mean, and one of a count never
//! less than the blocks that make up a mean: `Small` says which mean that is, and which blocks, and what of figures
//! of sites, which may be exact.
//!
//! While they are added up, figures of a sample are whole numbers of 65,536ths.

use crate::live::Block;

/// The parts of one that figures of a sample are kept in.
pub(crate) const UNIT: f64 = 65536.0;

/// What a block adds to figures: for itself, or, of a sample, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

/// What a block adds to the variances of figures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Variance {
    pub(crate) count: f64,
    pub(crate) bytes: f64,
}

impl Block {
    /// The probability by which it was recorded.
    fn probability(&self) -> f64 {
        // Where the exponent is tiny this keeps its digits, and a block of no bytes counts as one of a byte: the agent never
        // records those, a hostile trace may.
        -(-(self.size.max(1) as f64) / self.mean as f64).exp_m1()
    }

    /// What it adds.
    #[inline]
    pub(crate) fn weight(&self) -> Weight {
        if self.mean == 0 {
            return Weight { count: 1, bytes: self.size };
        }
        let count = UNIT / self.probability();
        Weight { count: count.round() as u64, bytes: (self.size as f64 * count).round() as u64 }
    }

    /// What it adds to the variances; nothing where all are recorded.
    #[inline]
    pub(crate) fn variance(&self) -> Variance {
        if self.mean == 0 {
            return Variance::default();
        }
        let p = self.probability();
        let count = (1.0 - p) / (p * p);
        Variance { count, bytes: count * (self.size as f64).powi(2) }
    }
}

impl Variance {
    pub(crate) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }

    pub(crate) fn take(&mut self, other: Self) {
        // What is taken was added before, but for rounding.
        self.count = (self.count - other.count).max(0.0);
        self.bytes = (self.bytes - other.bytes).max(0.0);
    }

    fn at_least(self, least: Self) -> Self {
        Self { count: self.count.max(least.count), bytes: self.bytes.max(least.bytes) }
    }
}

/// The size that missed blocks are taken to have where no small one was recorded to go by: the smallest that allocators
/// give out.
const SMALLEST: f64 = 16.0;

/// The small blocks that were recorded, those of fewer bytes than their mean: what they are like tells what was missed.
///
/// A block that is no smaller is recorded in 63 cases out of 100, or more often, and no error is right much more often than
/// that. So a site that has only such, as far as is known, has no least error: its figures are exact, or their variance is
/// enough. One that has a small block may hold others that were missed, up to a mean of them.
///
/// Totals always have a least error, since there may be sites of which nothing was recorded.
///
/// Where there were several means, as with a budget, the largest counts: of a site, that of its small blocks, and for totals,
/// that of any block. What was missed while the mean was large is no better known when it has become smaller, and may well
/// be what is still live.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Small {
    /// The largest mean that one of them was recorded by; 0 where there is none.
    mean: u64,
    /// Estimates of how many were given out, and of their bytes.
    count: f64,
    bytes: f64,
}

impl Small {
    /// Takes note of a block that was given out.
    pub(crate) fn see(&mut self, block: &Block) {
        if block.size < block.mean {
            let count = 1.0 / block.probability();
            self.mean = self.mean.max(block.mean);
            self.count += count;
            self.bytes += count * block.size.max(1) as f64;
        }
    }

    fn add(&mut self, other: &Self) {
        self.mean = self.mean.max(other.mean);
        self.count += other.count;
        self.bytes += other.bytes;
    }

    /// The least variances, with this as the mean: those of a mean in blocks of the small ones' average size. None where
    /// there is no mean.
    fn least(&self, mean: u64) -> Variance {
        if mean == 0 {
            return Variance::default();
        }
        let mean = mean as f64;
        let size = if self.mean == 0 { SMALLEST } else { self.bytes / self.count };
        Variance { count: (mean / size).max(1.0).powi(2), bytes: mean.powi(2) }
    }
}

/// What the errors of a site or of totals are made from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Doubt {
    pub(crate) allocated: Variance,
    pub(crate) live: Variance,
    /// The variance of the bytes at the peak.
    pub(crate) peak_bytes: f64,
    pub(crate) small: Small,
}

impl Doubt {
    /// Adds another part's, whose blocks were chosen independently.
    pub(crate) fn add(&mut self, other: &Self) {
        self.allocated.add(other.allocated);
        self.live.add(other.live);
        self.peak_bytes += other.peak_bytes;
        self.small.add(&other.small);
    }

    /// The errors of a site.
    pub(crate) fn of_site(&self) -> Errors {
        self.errors(self.small.mean)
    }

    /// The errors of totals, where this is the largest mean.
    pub(crate) fn of_totals(&self, mean: u64) -> Errors {
        self.errors(mean)
    }

    fn errors(&self, mean: u64) -> Errors {
        let least = self.small.least(mean);
        let (allocated, live) = (self.allocated.at_least(least), self.live.at_least(least));
        Errors {
            allocations: allocated.count.sqrt(),
            allocated_bytes: allocated.bytes.sqrt(),
            live_allocations: live.count.sqrt(),
            live_bytes: live.bytes.sqrt(),
            peak_bytes: self.peak_bytes.max(least.bytes).sqrt(),
        }
    }
}

/// A figure of a sample as a whole number of what it counts.
pub(crate) fn whole(units: u64) -> u64 {
    (units as f64 / UNIT).round() as u64
}

/// Standard errors of estimated figures, no smaller than what may have been missed altogether. All 0 where everything was
/// recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Of the number of allocations, and of a process also of reallocations, together.
    pub allocations: f64,
    /// Of their bytes.
    pub allocated_bytes: f64,
    /// Of the number of live blocks.
    pub live_allocations: f64,
    /// Of their bytes.
    pub live_bytes: f64,
    /// Of the bytes at the peak.
    pub peak_bytes: f64,
}

/// What a trace of which only some allocations were recorded says of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// The mean of the bytes between two that were recorded; with a budget the last one that a thread had.
    pub mean: u64,
    /// Allocations and reallocations that were recorded.
    pub recorded: u64,
    /// Standard errors of the totals.
    pub errors: Errors,
}

#[cfg(test)]
mod tests {
    use super::*;
    use grapnel_trace::{Alignment, Source};

    fn doubt(blocks: &[(u64, u64)]) -> Doubt {
        let mut doubt = Doubt::default();
        for &(size, mean) in blocks {
            let (source, alignment) = (Source::Malloc, Alignment::NONE);
            let block = Block { size, stack: 0, thread: 0, source, alignment, mean };
            doubt.allocated.add(block.variance());
            doubt.small.see(&block);
        }
        doubt
    }

    /// How far apart they are, in parts of the second.
    fn apart(found: f64, expected: f64) -> f64 {
        (found / expected - 1.0).abs()
    }

    #[test]
    fn the_least_error_is_a_mean_of_what_a_site_is_known_to_have() {
        let found = doubt(&[(100, 1 << 20)]).of_site();
        assert_eq!((found.live_bytes, found.peak_bytes), (1048576.0, 1048576.0));
        assert!(apart(found.live_allocations, 10485.76) < 1e-3, "{found:?}");
        // By itself it adds as much.
        assert!(apart(found.allocated_bytes, 1048576.0) < 1e-3, "{found:?}");
        // Two add more.
        let found = doubt(&[(100, 1 << 20), (100, 1 << 20)]).of_site();
        assert!(apart(found.allocated_bytes, 1048576.0 * 2f64.sqrt()) < 1e-3, "{found:?}");
        // Equally many bytes in small blocks and in smaller ones: three of four are smaller.
        let found = doubt(&[(300, 1 << 20), (100, 1 << 20)]).of_site();
        assert!(apart(found.live_allocations, 1048576.0 / 150.0) < 1e-3, "{found:?}");
        // Blocks of no bytes, which only a made-up trace has, count as one of a byte.
        assert!(apart(doubt(&[(0, 1000)]).of_site().live_allocations, 1000.0) < 1e-3);
    }

    #[test]
    fn what_is_exact_has_no_least_error_but_in_totals() {
        let exact = doubt(&[(1 << 30, 1 << 20), (1 << 30, 1 << 20)]);
        assert_eq!(exact.of_site(), Errors::default());
        // Nothing is known of what may have been missed: it is taken for as many as may be.
        let found = exact.of_totals(1 << 20);
        assert_eq!((found.live_bytes, found.live_allocations), (1048576.0, 65536.0));
        assert_eq!((found.allocated_bytes, found.peak_bytes), (1048576.0, 1048576.0));
        // Large blocks beside small ones don't change what the small ones are like.
        let mixed = doubt(&[(1 << 30, 1 << 20), (100, 1 << 20)]);
        assert!(apart(mixed.of_site().live_allocations, 10485.76) < 1e-3);
        // No fewer than one block.
        assert_eq!(doubt(&[]).of_totals(3).live_allocations, 1.0);
        assert_eq!(doubt(&[(50, 0)]).of_totals(0), Errors::default());
    }

    #[test]
    fn the_largest_mean_counts() {
        let found = doubt(&[(100, 1 << 20), (100, 1 << 12), (1 << 30, 1 << 24)]);
        assert_eq!(found.of_site().live_bytes, 1048576.0);
        assert_eq!(found.of_totals(1 << 24).live_bytes, 16777216.0);
        let mut sum = doubt(&[(100, 1 << 12)]);
        sum.add(&doubt(&[(100, 1 << 20)]));
        assert_eq!(sum.of_site().live_bytes, 1048576.0);
    }
}
