//! One instruction, and what a relocator must know of it.

use super::{Flow, INST_LEN, PcOperand, flow::flow, pointer::operand};
use crate::{CodeAddr, DecodeError};

/// An instruction with its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inst {
    addr: CodeAddr,
    word: u32,
    flow: Flow,
    operand: Option<PcOperand>,
}

/// What an instruction has to do with exclusive accesses (DDI 0487, B2.12).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exclusive {
    /// It begins a sequence.
    Load,
    /// It ends one.
    Store,
}

/// The part of a memory copy or set that an instruction is. The three parts stand in a row: when an exception interrupts
/// one, the system may go back to the first by counting from the address of that one (DDI 0487, C6.2 "CPYP, CPYM, CPYE").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copying {
    /// The first of the three.
    Prologue,
    /// The second.
    Main,
    /// The last.
    Epilogue,
}

/// Decodes the instruction that `bytes` begin with.
///
/// # Errors
///
/// If there is none.
pub fn decode(addr: CodeAddr, bytes: &[u8]) -> Result<Inst, DecodeError> {
    if !addr.0.is_multiple_of(INST_LEN as u64) {
        return Err(DecodeError::Misaligned);
    }
    let Some(&word) = bytes.first_chunk() else { return Err(DecodeError::Truncated) };
    let word = u32::from_le_bytes(word);
    let decoded = exarmo_aarch64::decode_word(word).map_err(|_| DecodeError::Undefined)?;
    Ok(Inst { addr, word, flow: flow(addr, word, &decoded), operand: operand(addr, word) })
}

impl Inst {
    /// Where it is.
    #[must_use]
    pub const fn addr(&self) -> CodeAddr {
        self.addr
    }

    /// Its 32 bits.
    #[must_use]
    pub const fn word(&self) -> u32 {
        self.word
    }

    /// Its bytes. Instructions are little-endian whatever the data are (DDI 0487, B2.6.2).
    #[must_use]
    pub const fn bytes(&self) -> [u8; INST_LEN] {
        self.word.to_le_bytes()
    }

    /// The address behind it.
    #[must_use]
    pub const fn next(&self) -> CodeAddr {
        self.addr.add(INST_LEN as u64)
    }

    /// How it leaves.
    #[must_use]
    pub const fn flow(&self) -> Flow {
        self.flow
    }

    /// The address that it computes from its own, other than a branch's target.
    #[must_use]
    pub const fn operand(&self) -> Option<PcOperand> {
        self.operand
    }

    /// What stands between functions: `nop`, and the zeros that linkers fill with (`udf #0`).
    #[must_use]
    pub const fn is_padding(&self) -> bool {
        self.word == super::NOP || self.word == 0
    }

    /// Its part in a sequence of exclusive accesses. The bits are those of "Load/store exclusive register" and
    /// "exclusive pair" (DDI 0487, C4.1), with and without the unprivileged forms.
    #[must_use]
    pub const fn exclusive(&self) -> Option<Exclusive> {
        // size 00100u 0 L o1 Rs o0 Rt2 Rn Rt: u is set in the unprivileged ones; o1 means a pair, or with a size of 0x CASP.
        let registers = self.word & 0x3ea0_0000 == 0x0800_0000;
        let pairs = self.word & 0xbfa0_0000 == 0x8820_0000;
        if !registers && !pairs {
            return None;
        }
        // Without o2 (bit 23): LDXR, LDAXR, STXR, STLXR and their pairs. L is bit 22.
        Some(if self.word >> 22 & 1 == 1 { Exclusive::Load } else { Exclusive::Store })
    }

    /// Its part in a memory copy or set.
    #[must_use]
    pub const fn copying(&self) -> Option<Copying> {
        // 00 011 o0 01 op1 0 Rs op2 01 Rn Rd
        if self.word & 0xfb20_0c00 != 0x1900_0400 {
            return None;
        }
        let part = match self.word >> 22 & 3 {
            3 => self.word >> 14 & 3,
            part => part,
        };
        match part {
            0 => Some(Copying::Prologue),
            1 => Some(Copying::Main),
            2 => Some(Copying::Epilogue),
            _ => None,
        }
    }
}
