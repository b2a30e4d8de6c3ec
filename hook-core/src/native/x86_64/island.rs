//! Addresses for an island such that the redirect to it is a trap at chosen bytes.
//!
//! The redirect is an opcode and a little-endian displacement of four bytes, counted from its end. Fixing a byte of the
//! displacement fixes one byte of the island's distance.

use grapnel_relocator::Isa;

use super::{TRAP, UNDEFINED};

/// The places from which a redirect at a site gets its traps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// The redirect's end, which its displacement counts from.
    end: u64,
    /// The displacement, highest byte first, with an offset of 2^31 that makes it ascend; `None` where it is free.
    bytes: [Option<u8>; 4],
}

impl Pattern {
    /// Traps at each position behind the first at which a thread may come. `None` if there is no such position.
    pub(crate) fn of(_: Isa, site: u64, ways: &[u64]) -> Option<Self> {
        let mut bytes = [None; 4];
        for (byte, way) in bytes.iter_mut().rev().zip(ways.iter().skip(1)) {
            *byte = (*way != 0).then_some(TRAP);
        }
        if bytes == [None; 4] {
            return None;
        }
        // The offset of 2^31 turns the sign bit over.
        if let Some(highest) = &mut bytes[0] {
            *highest ^= 0x80;
        }
        Some(Self { end: site.wrapping_add(5), bytes })
    }

    /// The same with instructions that are undefined for the highest byte, where that is one of the positions. Each leads
    /// above, from 1.5 GiB down to 0.1 GiB.
    pub(crate) fn undefined(isa: Isa, site: u64, ways: &[u64]) -> impl Iterator<Item = Self> + use<> {
        let usual = Self::of(isa, site, ways).filter(|pattern| pattern.bytes[0].is_some());
        usual.into_iter().flat_map(|Self { end, bytes: [_, rest @ ..] }| {
            UNDEFINED.iter().map(move |highest| {
                let [third, second, first] = rest;
                Self { end, bytes: [Some(highest ^ 0x80), third, second, first] }
            })
        })
    }

    /// The lowest place from `from` on.
    pub(crate) fn next_from(&self, from: u64) -> Option<u64> {
        let base = i128::from(self.end) - (1 << 31);
        let offset = (i128::from(from) - base).max(0);
        let offset = self.next_offset(u32::try_from(offset).ok()?)?;
        u64::try_from(base + i128::from(offset)).ok().or_else(|| {
            // Below address 0: go on from there.
            let zero = u32::try_from(-base).ok()?;
            u64::try_from(base + i128::from(self.next_offset(zero)?)).ok()
        })
    }

    /// The smallest number from `from` on that has the fixed bytes.
    fn next_offset(&self, from: u32) -> Option<u32> {
        let from = from.to_be_bytes();
        let fits = |i: usize| self.bytes[i].is_none_or(|fixed| fixed == from[i]);
        if (0..4).all(fits) {
            return Some(u32::from_be_bytes(from));
        }
        // The longest prefix that can stay, one byte that grows, and the smallest rest.
        (0..4).rev().filter(|&i| (0..i).all(fits)).find_map(|i| {
            let grown = match self.bytes[i] {
                Some(fixed) => Some(fixed).filter(|&fixed| fixed > from[i]),
                None => from[i].checked_add(1),
            }?;
            let mut out = from;
            out[i] = grown;
            for (slot, fixed) in out.iter_mut().zip(self.bytes).skip(i + 1) {
                *slot = fixed.unwrap_or(0);
            }
            Some(u32::from_be_bytes(out))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn displacement(site: u64, to: u64) -> [u8; 4] {
        i32::try_from(to.cast_signed() - site.cast_signed() - 5).unwrap().to_le_bytes()
    }

    #[test]
    fn every_combination_of_positions_gets_its_traps() {
        let site = 0x7f00_1234_5678;
        for mask in 1..16u64 {
            let mut ways = [1, 0, 0, 0, 0];
            for (i, way) in ways.iter_mut().enumerate().skip(1) {
                *way = mask >> (i - 1) & 1;
            }
            let pattern = Pattern::of(Isa::X86_64, site, &ways).unwrap();
            let mut at = site - (1 << 31);
            for _ in 0..100 {
                let Some(next) = pattern.next_from(at) else { break };
                assert!(next >= at);
                for (byte, way) in displacement(site, next).iter().zip(&ways[1..]) {
                    assert!(*way == 0 || *byte == TRAP);
                }
                at = next + 1;
            }
            assert!(at > site - (1 << 31));
        }
        assert_eq!(Pattern::of(Isa::X86_64, site, &[1, 0, 0, 0, 0]), None);
    }

    #[test]
    fn the_next_place_is_the_lowest() {
        let pattern = Pattern::of(Isa::X86_64, 0x10_0000, &[1, 1, 0, 0, 0]).unwrap();
        let first = pattern.next_from(0x20_0000).unwrap();
        assert_eq!(displacement(0x10_0000, first)[0], TRAP);
        assert!(first - 0x20_0000 < 256);
        assert_eq!(pattern.next_from(first), Some(first));
        assert_eq!(pattern.next_from(first + 1), Some(first + 256));
    }

    #[test]
    fn undefined_instructions_lead_above() {
        let site = 0x40_1000;
        let patterns: Vec<_> = Pattern::undefined(Isa::X86_64, site, &[1, 1, 0, 0, 1]).collect();
        assert_eq!(patterns.len(), UNDEFINED.len());
        for (pattern, undefined) in patterns.iter().zip(UNDEFINED) {
            let at = pattern.next_from(0).unwrap();
            let [lowest, _, _, highest] = displacement(site, at);
            assert_eq!((lowest, highest), (TRAP, *undefined));
            assert!(at > site + (96 << 20));
        }
        assert_eq!(Pattern::undefined(Isa::X86_64, site, &[1, 1, 0, 0, 0]).count(), 0);
    }

    #[test]
    fn low_addresses_have_no_place_far_below() {
        // The highest byte as a trap means 0.8 GiB below.
        let pattern = Pattern::of(Isa::X86_64, 0x40_1000, &[1, 0, 0, 0, 1]).unwrap();
        assert_eq!(pattern.next_from(0), None);
        let pattern = Pattern::of(Isa::X86_64, 0x40_1000, &[1, 1, 0, 0, 0]).unwrap();
        assert!(pattern.next_from(0).is_some());
    }
}
