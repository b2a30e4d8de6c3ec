//! Jumps through tables. Each instruction set has its own patterns, and what they say of a table is the same.

use crate::CodeAddr;

/// A jump through a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableJump {
    /// The table's address.
    pub table: CodeAddr,
    /// How many entries it has, if a comparison before the jump says it. Only a pattern in which the table's place is sure
    /// without it (T32's `tbb` and `tbh`) is known without its length.
    pub entries: Option<u64>,
    /// What an entry is.
    pub form: TableForm,
}

/// What an entry of a table is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableForm {
    /// The address of the code.
    Address {
        /// The bytes of an entry.
        size: usize,
    },
    /// The distance of the code from a base.
    Offset {
        /// What entries are counted from.
        base: CodeAddr,
        /// The bytes of an entry.
        size: usize,
        /// Its highest bit is its sign.
        signed: bool,
        /// How many bytes it counts as one.
        scale: u8,
    },
    /// An instruction, which the jump goes to: mostly a branch.
    Instruction {
        /// The bytes of an entry.
        size: usize,
    },
}

impl TableForm {
    /// The bytes of an entry.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Address { size } | Self::Offset { size, .. } | Self::Instruction { size } => size,
        }
    }

    /// Where an entry leads to, from its bytes; `None` for an instruction, which is where itself leads.
    #[must_use]
    pub fn target(self, entry: &[u8]) -> Option<CodeAddr> {
        let value = entry.iter().rev().fold(0_u64, |value, &byte| value << 8 | u64::from(byte));
        match self {
            Self::Address { .. } => Some(CodeAddr(value)),
            Self::Offset { base, size, signed, scale } => {
                let unused = 64 - 8 * size as u32;
                let distance =
                    if signed { (value << unused).cast_signed() >> unused } else { value.cast_signed() };
                Some(base.offset(distance.wrapping_mul(i64::from(scale))))
            }
            Self::Instruction { .. } => None,
        }
    }
}
