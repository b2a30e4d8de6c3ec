//! Branches, named by the width of their displacement field, and the few other instructions that relocated code needs.
//! A displacement and an immediate that exist can be encoded. None of these instructions changes a flag.

use super::PC_AHEAD;
use crate::{CodeAddr, a32::Cond};

/// A displacement in halfwords, counted from the PC of the branch, in a field of `WIDTH` bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rel<const WIDTH: u32>(i32);

/// The displacement of `b<c>`, 16 bits long: 256 bytes either way.
pub type Rel8 = Rel<8>;
/// The displacement of `b`, 16 bits long: 2 KiB either way.
pub type Rel11 = Rel<11>;
/// The displacement of `b<c>.w`: 1 MiB either way.
pub type Rel20 = Rel<20>;
/// The displacement of `b.w` and `bl`: 16 MiB either way.
pub type Rel24 = Rel<24>;

impl<const WIDTH: u32> Rel<WIDTH> {
    /// What stands in a field that is filled in later.
    pub const ZERO: Self = Self(0);

    /// The displacement of a branch at `at` to `target`, if it fits. Targets are even.
    #[must_use]
    pub fn between(at: CodeAddr, target: CodeAddr) -> Option<Self> {
        let bytes = displacement(at, target);
        let limit = 1 << WIDTH;
        (bytes & 1 == 0 && (-limit..limit).contains(&bytes)).then_some(Self(bytes >> 1))
    }

    const fn bits(self) -> u32 {
        self.0.cast_unsigned() & ((1 << WIDTH) - 1)
    }
}

/// From the PC of a branch to its target; the PC has 32 bits.
const fn displacement(at: CodeAddr, target: CodeAddr) -> i32 {
    target.displacement_from(at.add(PC_AHEAD)) as i32
}

/// The displacement of `blx` to A32 code: whole words from the aligned PC, 16 MiB either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rel24By4(Rel24);

impl Rel24By4 {
    /// The displacement of a `blx` at `at` to `target`, if it fits. Targets are multiples of 4.
    #[must_use]
    pub fn between(at: CodeAddr, target: CodeAddr) -> Option<Self> {
        let aligned = CodeAddr(at.add(PC_AHEAD).0 & !3);
        let rel = Rel24::between(aligned.offset(-(PC_AHEAD.cast_signed())), target)?;
        (rel.0 & 1 == 0).then_some(Self(rel))
    }
}

/// The displacement of `cbz` and `cbnz`: 0 to 126 bytes forward from the PC, in halfwords.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rel6(u16);

impl Rel6 {
    /// The displacement of a branch at `at` to `target`, if it fits.
    #[must_use]
    pub fn between(at: CodeAddr, target: CodeAddr) -> Option<Self> {
        let bytes = displacement(at, target);
        (bytes & 1 == 0 && (0..128).contains(&bytes)).then_some(Self((bytes >> 1) as u16))
    }
}

/// `b`, 16 bits long.
#[must_use]
pub const fn b_rel11(rel: Rel11) -> [u16; 1] {
    [0xe000 | rel.bits() as u16]
}

/// `b<c>`, 16 bits long. The condition is not [`Cond::ALWAYS`].
#[must_use]
pub const fn b_rel8(cond: Cond, rel: Rel8) -> [u16; 1] {
    [0xd000 | (cond.bits() as u16) << 8 | rel.bits() as u16]
}

/// `b<c>.w`. The condition is not [`Cond::ALWAYS`].
#[must_use]
pub const fn b_rel20(cond: Cond, rel: Rel20) -> [u16; 2] {
    // S, J2, J1, imm6, imm11 (DDI 0406, A8.8.18, encoding T3).
    let bits = rel.bits();
    let (sign, j2, j1) = (bits >> 19 & 1, bits >> 18 & 1, bits >> 17 & 1);
    let first = 0xf000 | sign << 10 | (cond.bits() as u32) << 6 | bits >> 11 & 0x3f;
    let second = 0x8000 | j1 << 13 | j2 << 11 | bits & 0x7ff;
    [first as u16, second as u16]
}

/// `b.w`.
#[must_use]
pub const fn b_rel24(rel: Rel24) -> [u16; 2] {
    with_rel24(0x9000, rel)
}

/// `bl`.
#[must_use]
pub const fn bl_rel24(rel: Rel24) -> [u16; 2] {
    with_rel24(0xd000, rel)
}

/// `blx` to A32 code.
#[must_use]
pub const fn blx_rel24(rel: Rel24By4) -> [u16; 2] {
    with_rel24(0xc000, rel.0)
}

/// J1 = NOT(I1 EOR S), J2 = NOT(I2 EOR S) (DDI 0406, A8.8.18, encoding T4).
const fn with_rel24(opcode: u32, rel: Rel24) -> [u16; 2] {
    let bits = rel.bits();
    let (sign, i1, i2) = (bits >> 23 & 1, bits >> 22 & 1, bits >> 21 & 1);
    let first = 0xf000 | sign << 10 | bits >> 11 & 0x3ff;
    let second = opcode | (i1 ^ sign ^ 1) << 13 | (i2 ^ sign ^ 1) << 11 | bits & 0x7ff;
    [first as u16, second as u16]
}

/// `cbz`, or `cbnz`. `register` is below 8.
#[must_use]
pub const fn compare_zero(nonzero: bool, register: u8, rel: Rel6) -> [u16; 1] {
    let opcode = if nonzero { 0xb900 } else { 0xb100 };
    [opcode | (rel.0 >> 5) << 9 | (rel.0 & 0x1f) << 3 | register as u16]
}

/// `it <c>`: the condition of the next instruction alone.
#[must_use]
pub const fn it_of_one(cond: Cond) -> [u16; 1] {
    [0xbf08 | (cond.bits() as u16) << 4]
}

/// `ldr.w rt, [pc, #imm12]`, forward from the aligned PC.
#[must_use]
pub const fn ldr_literal(rt: u8, imm12: u16) -> [u16; 2] {
    assert!(imm12 < 0x1000);
    [0xf8df, (rt as u16) << 12 | imm12]
}

/// `blx rm`.
#[must_use]
pub const fn blx_register(rm: u8) -> [u16; 1] {
    [0x4780 | (rm as u16) << 3]
}

/// `bx rm`
#[must_use]
pub const fn bx_register(rm: u8) -> [u16; 1] {
    [0x4700 | (rm as u16) << 3]
}

/// `push` of registers below 8, by bit.
#[must_use]
pub const fn push(registers: u8) -> [u16; 1] {
    [0xb400 | registers as u16]
}

/// `pop` of registers below 8, by bit.
#[must_use]
pub const fn pop(registers: u8) -> [u16; 1] {
    [0xbc00 | registers as u16]
}

/// The same, and then the PC.
#[must_use]
pub const fn pop_pc(registers: u8) -> [u16; 1] {
    [0xbd00 | registers as u16]
}

/// `str rt, [sp, #words * 4]`. `rt` is below 8.
#[must_use]
pub const fn store_word_sp(rt: u8, words: u8) -> [u16; 1] {
    [0x9000 | (rt as u16) << 8 | words as u16]
}

/// `ldr rt, [rn]`. Both are below 8.
#[must_use]
pub const fn load_word(rt: u8, rn: u8) -> [u16; 1] {
    [0x6800 | (rn as u16) << 3 | rt as u16]
}

/// `ldrb.w rt, [rn, rm]`.
#[must_use]
pub const fn load_byte_at(rt: u8, rn: u8, rm: u8) -> [u16; 2] {
    [0xf810 | rn as u16, (rt as u16) << 12 | rm as u16]
}

/// `ldrh.w rt, [rn, rm, lsl #1]`.
#[must_use]
pub const fn load_half_at(rt: u8, rn: u8, rm: u8) -> [u16; 2] {
    [0xf830 | rn as u16, (rt as u16) << 12 | 1 << 4 | rm as u16]
}

/// `add rdn, rm`, the form that reaches all registers and sets no flag.
#[must_use]
pub const fn add_narrow(rdn: u8, rm: u8) -> [u16; 1] {
    let (rdn, rm) = (rdn as u16, rm as u16);
    [0x4400 | (rdn & 8) << 4 | rm << 3 | rdn & 7]
}

/// `add.w rdn, rdn, rm, lsl #1`.
#[must_use]
pub const fn add_twice(rdn: u8, rm: u8) -> [u16; 2] {
    [0xeb00 | rdn as u16, (rdn as u16) << 8 | 1 << 6 | rm as u16]
}

/// An immediate of a data-processing instruction (DDI 0406, A6.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Modified(u16);

impl Modified {
    /// 1.
    pub const ONE: Self = Self(1);

    /// The value, if one of up to eight bits in a row.
    #[must_use]
    pub const fn of(value: u32) -> Option<Self> {
        if value < 0x100 {
            return Some(Self(value as u16));
        }
        let highest = 31 - value.leading_zeros();
        let shift = highest - 7;
        if value & ((1 << shift) - 1) != 0 {
            return None;
        }
        // `1bcdefgh` rotated right by 8 to 31: its highest bit, bit 7, comes to stand at `highest`.
        Some(Self(((39 - highest) as u16) << 7 | (value >> shift & 0x7f) as u16))
    }

    /// Immediates, at most four, whose sum is `value`.
    pub fn summing_to(value: u32) -> impl Iterator<Item = Self> {
        let mut rest = value;
        core::iter::from_fn(move || {
            let part = rest & 0xff_u32.checked_shl(rest.trailing_zeros())?;
            rest &= !part;
            Self::of(part)
        })
    }

    /// The value in an instruction's fields; `None` for one that is repeated in several bytes.
    pub(super) const fn value_of(first: u16, second: u16) -> Option<u32> {
        let (i, imm3, imm8) = (first >> 10 & 1, second >> 12 & 7, second & 0xff);
        let imm12 = (i << 11 | imm3 << 8 | imm8) as u32;
        match imm12 >> 7 {
            0 | 1 => Some(imm12),
            2..=7 => None,
            rotation => Some((0x80 | imm12 & 0x7f).rotate_right(rotation)),
        }
    }

    /// The fields: `i`, for the first halfword, `imm3` and `imm8`, for the second.
    const fn fields(self) -> (u16, u16) {
        (self.0 >> 11 << 10, (self.0 >> 8 & 7) << 12 | self.0 & 0xff)
    }
}

/// `add.w rdn, rdn, #imm`.
#[must_use]
pub const fn add_modified(rdn: u8, imm: Modified) -> [u16; 2] {
    let (first, second) = imm.fields();
    [0xf100 | first | rdn as u16, second | (rdn as u16) << 8]
}

/// `orr.w rdn, rdn, #imm`.
#[must_use]
pub const fn orr_modified(rdn: u8, imm: Modified) -> [u16; 2] {
    let (first, second) = imm.fields();
    [0xf040 | first | rdn as u16, second | (rdn as u16) << 8]
}

/// `nop`.
#[must_use]
pub const fn nop() -> [u16; 1] {
    [0xbf00]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::t32::{Flow, decode, text};

    fn bytes(code: &[u16]) -> Vec<u8> {
        code.iter().flat_map(|halfword| halfword.to_le_bytes()).collect()
    }

    fn shown(code: &[u16]) -> String {
        text(CodeAddr(0x1000), &bytes(code)).replace(".w ", " ")
    }

    fn target(at: CodeAddr, code: &[u16]) -> Flow {
        decode(at, &bytes(code)).unwrap().flow()
    }

    #[test]
    fn branches_come_back_as_they_went_out_to_the_ends_of_their_fields() {
        let at = CodeAddr(0x1000_0002);
        let ends = |bits: u32| [-(1_i64 << bits), (1 << bits) - 2].map(|offset| at.add(4).offset(offset));
        let beyond = |bits: u32| [-(1_i64 << bits) - 2, 1 << bits].map(|offset| at.add(4).offset(offset));
        let cond = Cond::from_bits(3).unwrap();
        for to in ends(8) {
            let code = b_rel8(cond, Rel8::between(at, to).unwrap());
            assert_eq!(target(at, &code), Flow::Cond { cond, target: to });
        }
        for to in ends(11) {
            assert_eq!(target(at, &b_rel11(Rel11::between(at, to).unwrap())), Flow::Jump { target: to });
        }
        for to in ends(20) {
            let code = b_rel20(cond, Rel20::between(at, to).unwrap());
            assert_eq!(target(at, &code), Flow::Cond { cond, target: to });
        }
        for to in ends(24) {
            let rel = Rel24::between(at, to).unwrap();
            assert_eq!(target(at, &b_rel24(rel)), Flow::Jump { target: to });
            assert_eq!(target(at, &bl_rel24(rel)), Flow::Call { target: to });
        }
        for to in [-(1 << 24), (1 << 24) - 4].map(|offset| CodeAddr(0x1000_0004).offset(offset)) {
            assert_eq!(
                target(at, &blx_rel24(Rel24By4::between(at, to).unwrap())),
                Flow::CallA32 { target: to }
            );
        }
        for to in [0, 62, 64, 126].map(|offset| at.add(4 + offset)) {
            let code = compare_zero(true, 5, Rel6::between(at, to).unwrap());
            assert_eq!(target(at, &code), Flow::CompareZero { nonzero: true, register: 5, target: to });
        }
        assert!(beyond(8).iter().all(|&to| Rel8::between(at, to).is_none()));
        assert!(beyond(11).iter().all(|&to| Rel11::between(at, to).is_none()));
        assert!(beyond(20).iter().all(|&to| Rel20::between(at, to).is_none()));
        assert!(beyond(24).iter().all(|&to| Rel24::between(at, to).is_none()));
        assert!([2, 132].iter().all(|&ahead| Rel6::between(at, at.add(ahead)).is_none()));
        // An A32 target that is no multiple of 4.
        assert!(Rel24By4::between(at, at).is_none());
    }

    #[test]
    fn everything_else_is_the_manuals() {
        assert_eq!(shown(&ldr_literal(15, 4095)), "ldr pc, 0x2003");
        assert_eq!(shown(&blx_register(14)), "blx lr");
        assert_eq!(shown(&push(0x83)), "push {r0, r1, r7}");
        assert_eq!(shown(&pop_pc(3)), "pop {r0, r1, pc}");
        assert_eq!(shown(&store_word_sp(3, 2)), "str r3, [sp, #0x8]");
        assert_eq!(shown(&load_word(1, 2)), "ldr r1, [r2]");
        assert_eq!(shown(&load_byte_at(1, 2, 9)), "ldrb r1, [r2, r9]");
        assert_eq!(shown(&load_half_at(1, 2, 9)), "ldrh r1, [r2, r9, lsl #0x1]");
        assert_eq!(shown(&add_narrow(9, 3)), "add r9, r3");
        assert_eq!(shown(&add_twice(1, 2)), "add r1, r1, r2, lsl #0x1");
        assert_eq!(shown(&orr_modified(1, Modified::ONE)), "orr r1, r1, #0x1");
        assert_eq!(shown(&it_of_one(Cond::from_bits(1).unwrap())), "it ne");
        assert_eq!(shown(&nop()), "nop");
    }

    #[test]
    fn four_immediates_make_any_sum() {
        for value in [0, 1, 0xff, 0x100, 0x1ff, 0x8000_0000, u32::MAX, 0xaaaa_aaaa, 0x0001_0001, 0x7ffe_1234]
        {
            let parts: Vec<u32> = Modified::summing_to(value)
                .map(|part| {
                    let code = add_modified(7, part);
                    let text = shown(&code);
                    let digits = text.rsplit("#0x").next().unwrap();
                    assert!(text.starts_with("add") && text.contains(" r7, r7, #0x"), "{text}");
                    u32::from_str_radix(digits, 16).unwrap()
                })
                .collect();
            assert!(parts.len() <= 4 && parts.iter().sum::<u32>() == value, "{value:#x} {parts:x?}");
        }
        assert_eq!(Modified::of(0x1ff), None);
    }
}
