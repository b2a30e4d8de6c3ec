//! Addresses for an island such that the redirect to it traps in its middle.
//!
//! A wide `b` of T32 is two halfwords, and a thread may be in front of the second one of a window. That halfword is
//! `1 0 J1 1 J2 imm11`, and `bkpt` is `1 0 1 1 1 1 1 0 imm8`. So it is a `bkpt` if J1 and J2 are set, as they are for
//! displacements of less than 4 MiB either way, and the displacement's bits 11 to 9 are 1 1 0 (DDI 0406, A8.8.18 and
//! A8.8.24). In A32 a redirect is one instruction.

use grapnel_relocator::Isa;

/// The places from which a redirect at a site traps in its second halfword.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// What its displacement counts from.
    base: i64,
}

const REACH: i64 = 1 << 22;

impl Pattern {
    /// `None` if no thread can be in front of the second halfword.
    pub(crate) fn of(isa: Isa, site: u64, ways: &[u64]) -> Option<Self> {
        let inside = isa == Isa::T32 && ways.get(2).is_some_and(|&way| way != 0);
        inside.then(|| Self { base: site.wrapping_add(4).cast_signed() })
    }

    /// There is no other.
    pub(crate) fn undefined(_: Isa, _: u64, _: &[u64]) -> impl Iterator<Item = Self> + use<> {
        core::iter::empty()
    }

    /// The lowest place from `from` on.
    pub(crate) fn next_from(&self, from: u64) -> Option<u64> {
        const FIELD: i64 = 0xe00;
        const TRAPS: i64 = 0xc00;
        let from = i64::try_from(from).ok()?;
        let mut displacement = (from - self.base).max(-REACH).max(-self.base);
        displacement += displacement & 1;
        if displacement & FIELD != TRAPS {
            // To the start of the next place.
            let start = (displacement & !0xfff) + TRAPS;
            displacement = if start < displacement { start + 0x1000 } else { start };
        }
        (displacement < REACH).then(|| (self.base + displacement).cast_unsigned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grapnel_relocator::{CodeAddr, redirect};

    #[test]
    fn redirects_trap_in_the_middle() {
        for site in [0x40_1000_u64, 0x40_1002, 0x1000] {
            let pattern = Pattern::of(Isa::T32, site, &[1, 0, 1, 0, 0]).unwrap();
            let mut at = 0;
            for _ in 0..10_000 {
                let Some(next) = pattern.next_from(at) else { break };
                assert!(next >= at);
                let code = redirect::near(Isa::T32, CodeAddr(site), CodeAddr(next)).unwrap();
                assert!(crate::native::is_trap(Isa::T32, &code[2..]), "{next:#x} {code:x?}");
                at = next + 100;
            }
            assert!(at > site);
        }
        assert_eq!(Pattern::of(Isa::T32, 0x1000, &[1, 0, 0, 0, 0]), None);
        assert_eq!(Pattern::of(Isa::A32, 0x1000, &[1, 0, 1, 0, 0]), None);
    }
}
