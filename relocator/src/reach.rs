//! Which destinations are near enough.

use grapnel_arch::CodeAddr;

/// Destinations from which everything that a plan must reach is reached: `lo ..= hi`, for the start of the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reach {
    /// The lowest destination.
    pub lo: CodeAddr,
    /// The highest destination.
    pub hi: CodeAddr,
}

impl Reach {
    /// Every address.
    pub const ALL: Self = Self { lo: CodeAddr(0), hi: CodeAddr(u64::MAX) };

    /// No destination is near to everything: the targets are too far apart.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.lo.0 > self.hi.0
    }

    /// `to` is near enough.
    #[must_use]
    pub const fn contains(&self, to: CodeAddr) -> bool {
        self.lo.0 <= to.0 && to.0 <= self.hi.0
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self { lo: self.lo.max(other.lo), hi: self.hi.min(other.hi) }
    }
}
