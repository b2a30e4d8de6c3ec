//! IT blocks: up to four instructions that the instruction IT makes conditional.

use exarmo_aarch32::ItState;

use crate::a32::Cond;

/// Where in an IT block an instruction stands: the eight bits of ITSTATE (DDI 0406, A2.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct It(u8);

impl It {
    /// In no block.
    pub const OUTSIDE: Self = Self(0);

    /// What an IT instruction, `BF xx`, makes of it. The fields of IT have the same places as in ITSTATE.
    #[must_use]
    pub const fn begun_by(halfword: u16) -> Self {
        Self(halfword as u8)
    }

    /// It is in a block.
    #[must_use]
    pub const fn is_inside(self) -> bool {
        self.0 & 0xf != 0
    }

    /// It is the last of its block.
    #[must_use]
    pub const fn is_last(self) -> bool {
        self.0 & 0xf == 8
    }

    /// The condition it runs under.
    #[must_use]
    pub const fn cond(self) -> Cond {
        match Cond::from_bits(self.0 >> 4) {
            Some(cond) if self.is_inside() => cond,
            _ => Cond::ALWAYS,
        }
    }

    /// What holds for the next instruction, if this one is no IT and does not jump (DDI 0406, `ITAdvance`).
    #[must_use]
    pub const fn advanced(self) -> Self {
        if self.0 & 7 == 0 { Self::OUTSIDE } else { Self(self.0 & 0xe0 | self.0 << 1 & 0x1f) }
    }

    pub(super) const fn state(self) -> ItState {
        ItState::from_bits(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_ends_where_its_mask_does() {
        // itet eq
        let mut it = It::begun_by(0xbf0a);
        let mut seen = Vec::new();
        while it.is_inside() {
            seen.push((it.cond().bits(), it.is_last()));
            it = it.advanced();
        }
        assert_eq!(seen, [(0, false), (1, false), (0, true)]);
        assert_eq!(it, It::OUTSIDE);
        assert!(it.cond().is_always());
    }
}
