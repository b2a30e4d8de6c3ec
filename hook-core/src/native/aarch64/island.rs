//! Places for islands. A redirect is one instruction here, so no thread can be inside, and an island may be anywhere.

use grapnel_relocator::Isa;

/// There is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {}

impl Pattern {
    pub(crate) fn of(_: Isa, _: u64, _: &[u64]) -> Option<Self> {
        None
    }

    pub(crate) fn undefined(_: Isa, _: u64, _: &[u64]) -> impl Iterator<Item = Self> + use<> {
        core::iter::empty()
    }

    pub(crate) fn next_from(&self, _: u64) -> Option<u64> {
        match *self {}
    }
}
