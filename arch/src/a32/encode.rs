//! Instructions that relocated code is made of. A displacement that exists can be encoded.

use super::{
    Cond,
    pointer::{field, pc},
    registers::PC,
};
use crate::CodeAddr;

/// A displacement that fits a branch's 24-bit field: a multiple of 4 within 32 MiB of the PC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Branch24(u32);

impl Branch24 {
    /// What stands in a field that is filled in later.
    pub const ZERO: Self = Self(0);
    /// The lowest displacement from the PC.
    pub const MIN: i64 = -(1 << 25);
    /// The highest displacement from the PC, to A32 code.
    pub const MAX: i64 = (1 << 25) - 4;

    /// The displacement of a branch at `at` to `target`, if it fits.
    #[must_use]
    pub fn between(at: CodeAddr, target: CodeAddr) -> Option<Self> {
        let displacement = target.displacement_from(pc(at));
        let fits = displacement % 4 == 0 && (Self::MIN..=Self::MAX).contains(&displacement);
        fits.then_some(Self((displacement >> 2) as u32 & 0x00ff_ffff))
    }
}

/// An offset that fits a load's 12-bit field, up or down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offset12(u32);

impl Offset12 {
    /// None: also what stands in a field that is filled in later.
    pub const ZERO: Self = Self(1 << 23);

    /// The offset `value`, if it fits.
    #[must_use]
    pub const fn new(value: i64) -> Option<Self> {
        match value {
            0..4096 => Some(Self(1 << 23 | value as u32)),
            -4095..0 => Some(Self(value.unsigned_abs() as u32)),
            _ => None,
        }
    }

    /// The offset from the PC of an instruction at `at` to `target`, if it fits.
    #[must_use]
    pub const fn between(at: CodeAddr, target: CodeAddr) -> Option<Self> {
        Self::new(target.displacement_from(pc(at)))
    }
}

/// A constant that data processing can hold: 8 bits at an even place of the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Modified(u32);

impl Modified {
    /// 0.
    pub const ZERO: Self = Self(0);

    /// The constant, if it can be held.
    #[must_use]
    pub fn new(value: u32) -> Option<Self> {
        (0..16)
            .map(|turns| (turns, value.rotate_left(turns * 2)))
            .find_map(|(turns, byte)| if byte < 0x100 { Some(Self(turns << 8 | byte)) } else { None })
    }
}

const fn conditional(cond: Cond, word: u32) -> u32 {
    (cond.bits() as u32) << 28 | word
}

/// `b<c> target`
#[must_use]
pub const fn b(cond: Cond, displacement: Branch24) -> u32 {
    conditional(cond, 0x0a00_0000 | displacement.0)
}

/// The branch with another displacement.
#[must_use]
pub const fn with_displacement(branch: u32, displacement: Branch24) -> u32 {
    branch & 0xff00_0000 | displacement.0
}

/// The load with another offset.
#[must_use]
pub const fn with_offset(load: u32, offset: Offset12) -> u32 {
    load & !(1 << 23 | 0xfff) | offset.0
}

/// `bl<c> target`
#[must_use]
pub const fn bl(cond: Cond, displacement: Branch24) -> u32 {
    conditional(cond, 0x0b00_0000 | displacement.0)
}

/// `blx target`, to T32 code at the displacement's place, or 2 bytes behind.
#[must_use]
pub const fn blx(displacement: Branch24, halfword: bool) -> u32 {
    0xfa00_0000 | (halfword as u32) << 24 | displacement.0
}

/// `blx<c> register`
#[must_use]
pub const fn blx_register(cond: Cond, register: u8) -> u32 {
    conditional(cond, 0x012f_ff30 | register as u32)
}

/// `bx<c> rm`
#[must_use]
pub const fn bx_register(cond: Cond, register: u8) -> u32 {
    conditional(cond, 0x012f_ff10 | register as u32)
}

/// `ldr<c> rt, [pc, #offset]`
#[must_use]
pub const fn ldr_literal(cond: Cond, rt: u8, offset: Offset12) -> u32 {
    ldr(cond, rt, PC, offset)
}

/// `ldr<c> rt, [rn, #offset]`
#[must_use]
pub const fn ldr(cond: Cond, rt: u8, rn: u8, offset: Offset12) -> u32 {
    field(field(conditional(cond, 0x0510_0000 | offset.0), 12, rt), 16, rn)
}

/// `str<c> rt, [rn, #offset]`
#[must_use]
pub const fn str(cond: Cond, rt: u8, rn: u8, offset: Offset12) -> u32 {
    field(field(conditional(cond, 0x0500_0000 | offset.0), 12, rt), 16, rn)
}

/// `push<c> {rt}`, in the form for one register.
#[must_use]
pub const fn push_one(cond: Cond, rt: u8) -> u32 {
    field(conditional(cond, 0x052d_0004), 12, rt)
}

/// `pop<c> {rt}`, in the form for one register.
#[must_use]
pub const fn pop_one(cond: Cond, rt: u8) -> u32 {
    field(conditional(cond, 0x049d_0004), 12, rt)
}

/// `push<c> {list}`, for two registers or more.
#[must_use]
pub const fn push(cond: Cond, list: u16) -> u32 {
    conditional(cond, 0x092d_0000 | list as u32)
}

/// `pop<c> {list}`, for two registers or more.
#[must_use]
pub const fn pop(cond: Cond, list: u16) -> u32 {
    conditional(cond, 0x08bd_0000 | list as u32)
}

/// `stmia<c> rn, {list}`, or `stmib`, without writing the base.
#[must_use]
pub const fn stm_up(cond: Cond, rn: u8, list: u16, before: bool) -> u32 {
    field(conditional(cond, 0x0880_0000 | (before as u32) << 24 | list as u32), 16, rn)
}

/// `add<c> rd, rn, #value`
#[must_use]
pub const fn add(cond: Cond, rd: u8, rn: u8, value: Modified) -> u32 {
    data(cond, 4, rd, rn, value)
}

/// `sub<c> rd, rn, #value`
#[must_use]
pub const fn sub(cond: Cond, rd: u8, rn: u8, value: Modified) -> u32 {
    data(cond, 2, rd, rn, value)
}

/// `rsb<c> rd, rn, #value`
#[must_use]
pub const fn rsb(cond: Cond, rd: u8, rn: u8, value: Modified) -> u32 {
    data(cond, 3, rd, rn, value)
}

const fn data(cond: Cond, opcode: u32, rd: u8, rn: u8, value: Modified) -> u32 {
    field(field(conditional(cond, 0x0200_0000 | opcode << 21 | value.0), 12, rd), 16, rn)
}

/// `mov<c> rd, rm`, shifted as bits 11 to 4 of `shift` say.
#[must_use]
pub const fn mov_shifted(cond: Cond, rd: u8, rm: u8, shift: u32) -> u32 {
    field(conditional(cond, 0x01a0_0000 | shift & 0xff0 | rm as u32), 12, rd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_reach_32_mib_from_the_program_counter() {
        let at = CodeAddr(0x1000_0000);
        let pc = at.add(8);
        assert_eq!(Branch24::between(at, pc.offset(Branch24::MIN)), Some(Branch24(0x80_0000)));
        assert_eq!(Branch24::between(at, pc.offset(Branch24::MAX)), Some(Branch24(0x7f_ffff)));
        assert_eq!(Branch24::between(at, pc.offset(Branch24::MIN - 4)), None);
        assert_eq!(Branch24::between(at, pc.offset(Branch24::MAX + 4)), None);
        assert_eq!(Branch24::between(at, at.add(2)), None);
    }

    #[test]
    fn constants_are_a_byte_at_an_even_place() {
        for (value, field) in
            [(0, Some(0)), (0xff, Some(0xff)), (0x3fc, Some(0xfff)), (0xf000_000f, Some(0x2ff))]
        {
            assert_eq!(Modified::new(value).map(|found| found.0), field, "{value:#x}");
        }
        assert_eq!((Modified::new(0x101), Modified::new(0x1fe)), (None, None));
    }
}
