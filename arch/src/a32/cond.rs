//! Conditions, which A32 has in nearly every instruction, and T32 in branches and IT blocks.

use core::fmt;

/// A condition by its number in instructions, 0 to 14 (DDI 0406, A8.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cond(u8);

impl Cond {
    /// It always holds.
    pub const ALWAYS: Self = Self(14);

    /// The condition in a field's four bits; `None` for 15, which is none.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits < 15 { Some(Self(bits)) } else { None }
    }

    /// The field's four bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The condition that holds exactly when this one does not. `None` for [`Cond::ALWAYS`].
    #[must_use]
    pub const fn inverted(self) -> Option<Self> {
        if self.is_always() { None } else { Some(Self(self.0 ^ 1)) }
    }

    /// It always holds.
    #[must_use]
    pub const fn is_always(self) -> bool {
        self.0 == Self::ALWAYS.0
    }
}

impl fmt::Display for Cond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 15] =
            ["eq", "ne", "cs", "cc", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le", "al"];
        f.write_str(NAMES[usize::from(self.0)])
    }
}

#[cfg(test)]
mod tests {
    use super::Cond;

    #[test]
    fn conditions_come_in_pairs_but_for_the_last() {
        for bits in 0..14 {
            let cond = Cond::from_bits(bits).unwrap();
            let inverted = cond.inverted().unwrap();
            assert_eq!((inverted.bits(), inverted.inverted()), (bits ^ 1, Some(cond)));
        }
        assert_eq!(Cond::from_bits(14), Some(Cond::ALWAYS));
        assert_eq!((Cond::ALWAYS.inverted(), Cond::from_bits(15)), (None, None));
    }
}
