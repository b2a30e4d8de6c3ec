//! Instructions as words. A field that holds a displacement is named by its width.

use super::{Literal, ZERO_OR_SP};
use crate::CodeAddr;

/// A field that counts instructions from its own to another place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// Of B and BL: 128 MiB either way.
    Branch26,
    /// Of B.cond, BC.cond, CBZ, CBNZ and the loads of literals: 1 MiB either way.
    Branch19,
    /// Of TBZ and TBNZ: 32 KiB either way.
    Branch14,
    /// Of the branches that compare (FEAT_CMPBR): 1 KiB either way.
    Branch9,
}

impl Field {
    const fn width(self) -> u32 {
        match self {
            Self::Branch26 => 26,
            Self::Branch19 => 19,
            Self::Branch14 => 14,
            Self::Branch9 => 9,
        }
    }

    const fn shift(self) -> u32 {
        match self {
            Self::Branch26 => 0,
            Self::Branch19 | Self::Branch14 | Self::Branch9 => 5,
        }
    }

    const fn mask(self) -> u32 {
        (1 << self.width()) - 1
    }

    /// How far it reaches backwards, in bytes. Forwards it is one instruction less.
    #[must_use]
    pub const fn range(self) -> u64 {
        1 << (self.width() + 1)
    }

    /// The displacement in bytes that a word has in this field.
    #[must_use]
    pub const fn get(self, word: u32) -> i64 {
        sign_extended(word >> self.shift() & self.mask(), self.width()) * 4
    }

    /// The word with another displacement in this field, if it fits.
    #[must_use]
    pub const fn set(self, word: u32, displacement: i64) -> Option<u32> {
        let range = self.range() as i64;
        if displacement % 4 != 0 || displacement < -range || displacement >= range {
            return None;
        }
        let field = (displacement >> 2) as u32 & self.mask();
        Some(word & !(self.mask() << self.shift()) | field << self.shift())
    }
}

/// A field's value as a number.
pub(super) const fn sign_extended(field: u32, width: u32) -> i64 {
    ((field << (32 - width)).cast_signed() >> (32 - width)) as i64
}

/// The displacement of ADR: 1 MiB either way, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rel21(i32);

impl Rel21 {
    /// From `here`, the instruction's address, to `target`, if it fits.
    #[must_use]
    pub const fn between(here: CodeAddr, target: CodeAddr) -> Option<Self> {
        fits21(target.displacement_from(here))
    }
}

/// The displacement of ADRP, in pages of 4 KiB: 4 GiB either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page21(Rel21);

impl Page21 {
    /// From the page of `here`, the instruction's address, to that of `target`, if it fits.
    #[must_use]
    pub const fn between(here: CodeAddr, target: CodeAddr) -> Option<Self> {
        let pages = CodeAddr(target.0 & !0xfff).displacement_from(CodeAddr(here.0 & !0xfff)) >> 12;
        match fits21(pages) {
            Some(pages) => Some(Self(pages)),
            None => None,
        }
    }
}

const fn fits21(displacement: i64) -> Option<Rel21> {
    if displacement >= -(1 << 20) && displacement < 1 << 20 { Some(Rel21(displacement as i32)) } else { None }
}

/// The lowest 12 bits of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Low12(u32);

impl Low12 {
    /// Nothing is to be added.
    pub const ZERO: Self = Self(0);

    /// Those of `address`.
    #[must_use]
    pub const fn of(address: CodeAddr) -> Self {
        Self(address.0 as u32 & 0xfff)
    }

    /// There is nothing to add.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

/// `nop`.
pub const NOP: u32 = 0xd503_201f;

/// `b` to itself: the displacement is set later.
#[must_use]
pub const fn b() -> u32 {
    0x1400_0000
}

/// `bl` to itself: the displacement is set later.
#[must_use]
pub const fn bl() -> u32 {
    0x9400_0000
}

/// `br xn`.
#[must_use]
pub const fn br(register: u8) -> u32 {
    0xd61f_0000 | (register as u32) << 5
}

/// `blr xn`.
#[must_use]
pub const fn blr(register: u8) -> u32 {
    0xd63f_0000 | (register as u32) << 5
}

/// `adr xd`.
#[must_use]
pub const fn adr(register: u8, displacement: Rel21) -> u32 {
    let field = displacement.0.cast_unsigned() & 0x1f_ffff;
    0x1000_0000 | (field & 3) << 29 | field >> 2 << 5 | register as u32
}

/// `adrp xd`.
#[must_use]
pub const fn adrp(register: u8, displacement: Page21) -> u32 {
    1 << 31 | adr(register, displacement.0)
}

/// `add xd, xd, #low`.
#[must_use]
pub const fn add_low12(register: u8, low: Low12) -> u32 {
    0x9100_0000 | low.0 << 10 | (register as u32) << 5 | register as u32
}

/// `ldr xt` of a literal: the displacement is set later.
#[must_use]
pub const fn ldr_literal(register: u8) -> u32 {
    0x5800_0000 | register as u32
}

/// The load of a literal into the same register, but of `[base, #low]`, if the field for that counts in units that
/// `low` is a multiple of.
#[must_use]
pub const fn load_through(literal: Literal, register: u8, base: u8, low: Low12) -> Option<u32> {
    let (opcode, unit): (u32, u32) = match literal {
        Literal::W => (0xb940_0000, 4),
        Literal::X => (0xf940_0000, 8),
        Literal::SignedW => (0xb980_0000, 4),
        Literal::S => (0xbd40_0000, 4),
        Literal::D => (0xfd40_0000, 8),
        Literal::Q => (0x3dc0_0000, 16),
        Literal::Prefetch => (0xf980_0000, 8),
    };
    if low.0.is_multiple_of(unit) {
        Some(opcode | (low.0 / unit) << 10 | (base as u32) << 5 | register as u32)
    } else {
        None
    }
}

/// `str xt, [sp, #-16]!`: SP stays a multiple of 16, and nothing is written below it. What was below it is no one's
/// (AAPCS64, 6.4.5); Apple's platforms, where leaf functions own 128 bytes there, differ.
#[must_use]
pub const fn push(register: u8) -> u32 {
    0xf81f_0c00 | (ZERO_OR_SP as u32) << 5 | register as u32
}

/// `ldr xt, [sp], #16`.
#[must_use]
pub const fn pop(register: u8) -> u32 {
    0xf841_0400 | (ZERO_OR_SP as u32) << 5 | register as u32
}

/// The conditional branch that is taken exactly when this one is not, if there is one.
#[must_use]
pub const fn inverted(branch: u32) -> Option<u32> {
    // B.cond and BC.cond: the lowest bit of the condition, which is neither AL nor NV.
    if branch & 0xff00_0000 == 0x5400_0000 && branch & 0xe != 0xe {
        return Some(branch ^ 1);
    }
    // CBZ and CBNZ, TBZ and TBNZ: bit 24.
    if branch & 0x7c00_0000 == 0x3400_0000 {
        return Some(branch ^ 1 << 24);
    }
    None
}
