//! Addresses that an instruction computes from its own: ADR, ADRP and the loads of literals.

use super::encode::{Field, sign_extended};
use crate::CodeAddr;

/// An address that an instruction computes from its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PcOperand {
    /// What the address is for.
    pub kind: PcUse,
    /// The field Rd or Rt: a general register or the zero register, a SIMD&FP register, or what a prefetch is for.
    pub register: u8,
    /// The address; for ADRP that of the page.
    pub target: CodeAddr,
}

/// What an address is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PcUse {
    /// `adr`: it goes into a register.
    Address,
    /// `adrp`: the address of a page of 4 KiB goes into a register.
    Page,
    /// Memory there is read.
    Literal(Literal),
}

/// A load of a literal, by what it loads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Literal {
    /// `ldr wt`.
    W,
    /// `ldr xt`.
    X,
    /// `ldrsw xt`.
    SignedW,
    /// `ldr st`.
    S,
    /// `ldr dt`.
    D,
    /// `ldr qt`.
    Q,
    /// `prfm`.
    Prefetch,
}

impl Literal {
    /// The bytes that it reads. A prefetch reads none that anyone could tell.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::W | Self::SignedW | Self::S => 4,
            Self::X | Self::D => 8,
            Self::Q => 16,
            Self::Prefetch => 0,
        }
    }

    /// Its register is one of the general ones.
    #[must_use]
    pub const fn is_general(self) -> bool {
        matches!(self, Self::W | Self::X | Self::SignedW)
    }
}

impl PcOperand {
    /// How many bytes are accessed; 0 if the instruction only computes the address.
    #[must_use]
    pub const fn access(&self) -> usize {
        match self.kind {
            PcUse::Literal(literal) => literal.size(),
            PcUse::Address | PcUse::Page => 0,
        }
    }
}

pub(super) fn operand(addr: CodeAddr, word: u32) -> Option<PcOperand> {
    let register = (word & 0x1f) as u8;
    // op immlo 10000 immhi Rd
    if word & 0x1f00_0000 == 0x1000_0000 {
        let displacement = sign_extended(word >> 3 & 0x1f_fffc | word >> 29 & 3, 21);
        return Some(if word >> 31 == 0 {
            PcOperand { kind: PcUse::Address, register, target: addr.offset(displacement) }
        } else {
            let page = CodeAddr(addr.0 & !0xfff);
            PcOperand { kind: PcUse::Page, register, target: page.offset(displacement << 12) }
        });
    }
    // opc 011 V 00 imm19 Rt
    if word & 0x3b00_0000 == 0x1800_0000 {
        let literal = match (word >> 30, word >> 26 & 1) {
            (0, 0) => Literal::W,
            (1, 0) => Literal::X,
            (2, 0) => Literal::SignedW,
            (3, 0) => Literal::Prefetch,
            (0, _) => Literal::S,
            (1, _) => Literal::D,
            (2, _) => Literal::Q,
            _ => return None,
        };
        let target = addr.offset(Field::Branch19.get(word));
        return Some(PcOperand { kind: PcUse::Literal(literal), register, target });
    }
    None
}
