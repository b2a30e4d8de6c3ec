//! What a recorded block stands for when only some are recorded, and how far off that makes the figures.
//!
//! A block of `s` bytes is recorded with probability `p = 1 - exp(-s / mean)`. Where it is, it stands for `1 / p` blocks
//! and `s / p` bytes: on average over all choices that could have been made, sums of these are the true ones, of every
//! stack and at every moment. A sum's variance is estimated from what was recorded, as the sum of `(1 - p) / p²`, for
//! bytes times `s²`; its root is the standard error. The maximum of a quantity that is estimated is a little too high on
//! average, the less so the more was recorded: peaks are such.
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
}

/// A figure of a sample as a whole number of what it counts.
pub(crate) fn whole(units: u64) -> u64 {
    (units as f64 / UNIT).round() as u64
}

/// Standard errors of estimated figures. All 0 where everything was recorded.
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

impl Errors {
    pub(crate) fn of(allocated: Variance, live: Variance, peak_bytes: f64) -> Self {
        Self {
            allocations: allocated.count.sqrt(),
            allocated_bytes: allocated.bytes.sqrt(),
            live_allocations: live.count.sqrt(),
            live_bytes: live.bytes.sqrt(),
            peak_bytes: peak_bytes.sqrt(),
        }
    }

    /// Those of a sum, whose parts were chosen independently.
    pub(crate) fn add(&mut self, other: &Self) {
        for (own, other) in [
            (&mut self.allocations, other.allocations),
            (&mut self.allocated_bytes, other.allocated_bytes),
            (&mut self.live_allocations, other.live_allocations),
            (&mut self.live_bytes, other.live_bytes),
            (&mut self.peak_bytes, other.peak_bytes),
        ] {
            *own = own.hypot(other);
        }
    }
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
