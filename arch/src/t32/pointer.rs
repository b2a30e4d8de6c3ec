//! Operands that depend on the PC, and loads through a register in their place.

use super::{Inst, PC_AHEAD, flow::wrapped};
use crate::CodeAddr;

/// How an instruction that is no branch reads the PC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PcUse {
    /// Not at all.
    None,
    /// A register becomes an address: `adr`, `mov rd, pc`.
    Address {
        /// The register.
        register: u8,
        /// What it becomes.
        value: CodeAddr,
    },
    /// The PC is added to a register: `add rd, pc`.
    Add {
        /// The register.
        register: u8,
        /// What is added.
        value: CodeAddr,
    },
    /// A load, or a preload, from an address near the PC.
    Literal(Literal),
    /// Some other way.
    Unknown,
}

/// A load from an address near the PC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Literal {
    /// The address.
    pub target: CodeAddr,
    /// How many bytes are read; 0 by a preload.
    pub access: u8,
    /// What is loaded.
    pub form: LiteralForm,
}

/// What a load from an address near the PC loads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LiteralForm {
    /// `ldr`, `ldrb`, `ldrh`, `ldrsb`, `ldrsh` and `ldrd`: this register, which is all written, and is neither SP nor PC.
    Core {
        /// The register; of `ldrd` the first one that is not SP.
        register: u8,
    },
    /// `ldr sp`.
    Stack,
    /// `ldr pc`.
    Pc,
    /// `vldr`, `ldc`, `pld`, `pli`: no core register.
    Other,
}

/// The use of the PC by a 16-bit instruction that is no branch.
pub(super) fn narrow(addr: CodeAddr, h: u16) -> PcUse {
    let pc = wrapped(addr.add(PC_AHEAD));
    let aligned = CodeAddr(pc.0 & !3);
    let register = (h >> 4 & 8 | h & 7) as u8;
    let imm = u64::from(h & 0xff) << 2;
    match h >> 8 {
        0x44 if h & 0x78 == 0x78 && register != 15 => PcUse::Add { register, value: pc },
        0x46 if h & 0x78 == 0x78 && register != 15 => PcUse::Address { register, value: pc },
        0x48..=0x4f => PcUse::Literal(Literal {
            target: wrapped(aligned.add(imm)),
            access: 4,
            form: LiteralForm::Core { register: (h >> 8 & 7) as u8 },
        }),
        0xa0..=0xa7 => PcUse::Address { register: (h >> 8 & 7) as u8, value: wrapped(aligned.add(imm)) },
        _ => PcUse::None,
    }
}

/// The use of the PC by a 32-bit instruction.
pub(super) fn wide(addr: CodeAddr, first: u16, second: u16) -> PcUse {
    let aligned = CodeAddr(addr.add(PC_AHEAD).0 & !3);
    if first & 0xf != 15 {
        return PcUse::None;
    }
    let by = |imm: u64| {
        wrapped(if first >> 7 & 1 == 1 { aligned.add(imm) } else { aligned.offset(-(imm.cast_signed())) })
    };
    let imm12 = u64::from(second & 0xfff);
    let imm8 = u64::from(second & 0xff);
    let register = (second >> 12) as u8;
    let literal = |target, access, form| PcUse::Literal(Literal { target, access, form });
    let form = match register {
        13 => LiteralForm::Stack,
        15 => LiteralForm::Other,
        register => LiteralForm::Core { register },
    };
    match first & 0xff7f {
        0xf85f if register == 15 => literal(by(imm12), 4, LiteralForm::Pc),
        0xf85f => literal(by(imm12), 4, form),
        0xf83f | 0xf93f => literal(by(imm12), if register == 15 { 0 } else { 2 }, form),
        0xf81f | 0xf91f => literal(by(imm12), if register == 15 { 0 } else { 1 }, form),
        // ldrd without writeback. The pointer goes through the first register that is not SP; the two differ.
        0xe95f if register == 13 => {
            let register = (second >> 8 & 0xf) as u8;
            literal(by(imm8 << 2), 8, LiteralForm::Core { register })
        }
        0xe95f => literal(by(imm8 << 2), 8, form),
        _ => match first & 0xff3f {
            0xed1f => coprocessor(second, literal, by),
            _ => adr(first, second, aligned),
        },
    }
}

/// `vldr` and `ldc`, which have the same fields.
fn coprocessor(
    second: u16,
    literal: impl Fn(CodeAddr, u8, LiteralForm) -> PcUse,
    by: impl Fn(u64) -> CodeAddr,
) -> PcUse {
    let imm8 = u64::from(second & 0xff);
    match second >> 8 & 0xf {
        0x9 => literal(by(imm8 << 1), 2, LiteralForm::Other),
        0xa => literal(by(imm8 << 2), 4, LiteralForm::Other),
        0xb => literal(by(imm8 << 2), 8, LiteralForm::Other),
        // The one register that is left, p14's c5, takes a word.
        0xe => literal(by(imm8 << 2), 4, LiteralForm::Other),
        _ => PcUse::Unknown,
    }
}

/// The wide forms of `adr`: ADDW and SUBW with the PC as first operand.
fn adr(first: u16, second: u16, aligned: CodeAddr) -> PcUse {
    let imm = u64::from(first >> 10 & 1) << 11 | u64::from(second >> 12 & 7) << 8 | u64::from(second & 0xff);
    let register = (second >> 8 & 0xf) as u8;
    match first & 0xfbff {
        _ if second >> 15 == 1 => PcUse::None,
        0xf20f => PcUse::Address { register, value: wrapped(aligned.add(imm)) },
        0xf2af => PcUse::Address { register, value: wrapped(aligned.offset(-(imm.cast_signed()))) },
        _ => PcUse::None,
    }
}

/// The load or preload `inst`, one that [`Inst::pc_use`] calls [`PcUse::Literal`], from `[register]` instead, as
/// halfwords. It keeps its destination; the offset becomes 0.
#[must_use]
pub fn load_through(inst: &Inst, register: u8) -> [u16; 2] {
    let (first, second) = inst.halfwords();
    let base = u16::from(register);
    // U, bit 7: the offset is added.
    let first_through = first & 0xfff0 | 0x80 | base;
    match first >> 8 {
        // The 16-bit form becomes the 32-bit one; neither touches a flag.
        0x48..=0x4f => [0xf8d0 | base, (first & 0x700) << 4],
        0xe9 => [first_through, second & 0xff00],
        0xec..=0xef | 0xfc..=0xff => [first_through, second & 0xff00],
        _ => [first_through, second & 0xf000],
    }
}

/// Where in [`load_literal`]'s result the offset stands, and what it counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LiteralField {
    /// Bytes, in 12 bits.
    Imm12,
    /// Words, in 8 bits.
    Imm8By4,
    /// Halfwords, in 8 bits.
    Imm8By2,
}

impl LiteralField {
    /// The field's bits for a literal `offset` bytes behind the aligned PC, if it fits.
    #[must_use]
    pub const fn bits(self, offset: u32) -> Option<u16> {
        let (scale, limit) = match self {
            Self::Imm12 => (1, 0x1000),
            Self::Imm8By4 => (4, 0x400),
            Self::Imm8By2 => (2, 0x200),
        };
        if offset.is_multiple_of(scale) && offset < limit { Some((offset / scale) as u16) } else { None }
    }
}

/// The same from a literal forward of the PC, with 0 in the offset's field.
#[must_use]
pub fn load_literal(inst: &Inst) -> ([u16; 2], LiteralField) {
    const PC: u8 = 15;
    let [first, second] = load_through(inst, PC);
    let field = match (first >> 8, second >> 8 & 0xf) {
        (0xf8 | 0xf9, _) => LiteralField::Imm12,
        (0xed, 0x9) => LiteralField::Imm8By2,
        _ => LiteralField::Imm8By4,
    };
    ([first, second], field)
}
