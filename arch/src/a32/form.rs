//! What kind of instruction a word is, as far as core registers are concerned (DDI 0406, A5).

/// The classes of instructions whose operands are read from the word itself. The word must be a defined and predictable
/// instruction; which it is, is asked of the decoder before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Data processing with an immediate.
    DataImmediate,
    /// Data processing with a register, shifted by a constant.
    DataRegister,
    /// Data processing with a register, shifted by a register.
    DataShifted,
    /// LDR, STR, LDRB and STRB with an immediate.
    Word,
    /// The same with a register, shifted by a constant.
    WordRegister,
    /// Loads and stores of halfwords, doublewords and signed bytes, with an immediate.
    Extra,
    /// The same with a register.
    ExtraRegister,
    /// LDM and STM.
    Block,
    /// Loads and stores of floating-point and other coprocessors' registers.
    Coprocessor,
    /// PLD, PLDW and PLI with an immediate.
    Preload,
    /// The same with a register, shifted by a constant.
    PreloadRegister,
    /// B and BL, and BLX to a label.
    Branch,
    /// BX, BXJ and BLX to a register.
    BranchRegister,
    /// SVC.
    Supervisor,
    /// Everything else.
    Other,
}

/// The four bits at `at`: a register's number, in most cases.
pub(super) const fn nibble(word: u32, at: u32) -> u8 {
    (word >> at & 15) as u8
}

/// The bit at `at` is set.
pub(super) const fn bit(word: u32, at: u32) -> bool {
    word >> at & 1 == 1
}

impl Form {
    pub(super) const fn of(word: u32) -> Self {
        if word >> 28 == 15 {
            return Self::unconditional(word);
        }
        match word >> 25 & 7 {
            0b000 if bit(word, 7) && bit(word, 4) => match word >> 5 & 3 {
                0 => Self::Other,
                _ if bit(word, 22) => Self::Extra,
                _ => Self::ExtraRegister,
            },
            // The comparisons without S are other instructions.
            0b000 if word & 0x0190_0000 == 0x0100_0000 => match word & 0x0fff_fff0 {
                0x012f_ff10 | 0x012f_ff20 | 0x012f_ff30 => Self::BranchRegister,
                _ => Self::Other,
            },
            0b000 if bit(word, 4) => Self::DataShifted,
            0b000 => Self::DataRegister,
            0b001 if word & 0x0190_0000 == 0x0100_0000 => Self::Other,
            0b001 => Self::DataImmediate,
            0b010 => Self::Word,
            0b011 if bit(word, 4) => Self::Other,
            0b011 => Self::WordRegister,
            0b100 => Self::Block,
            0b101 => Self::Branch,
            // MCRR, MRRC and the moves of two core registers are no transfers.
            0b110 if word & 0x01e0_0000 == 0x0040_0000 => Self::Other,
            0b110 => Self::Coprocessor,
            _ if bit(word, 24) => Self::Supervisor,
            _ => Self::Other,
        }
    }

    const fn unconditional(word: u32) -> Self {
        match word >> 25 & 7 {
            0b101 => Self::Branch,
            // The others of these columns are barriers, and loads and stores of SIMD structures.
            0b010 if word & 0x0030_0000 == 0x0010_0000 => Self::Preload,
            0b011 if word & 0x0030_0010 == 0x0010_0000 => Self::PreloadRegister,
            _ => Self::Other,
        }
    }

    /// Data processing.
    #[must_use]
    pub const fn is_data(self) -> bool {
        matches!(self, Self::DataImmediate | Self::DataRegister | Self::DataShifted)
    }

    pub(super) const fn is_extra(self) -> bool {
        matches!(self, Self::Extra | Self::ExtraRegister)
    }

    /// A load or store of one core register, or two.
    pub(super) const fn is_single(self) -> bool {
        matches!(self, Self::Word | Self::WordRegister) || self.is_extra()
    }
}

/// The operations of data processing that are told apart here, by their number in bits 24 to 21.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opcode(u8);

impl Opcode {
    /// `Rn - operand`.
    pub const SUB: Self = Self(2);
    /// `operand - Rn`.
    pub const RSB: Self = Self(3);
    /// `Rn + operand`.
    pub const ADD: Self = Self(4);
    /// `operand`.
    pub const MOV: Self = Self(13);

    /// The operation of an instruction of data processing.
    #[must_use]
    pub const fn of(word: u32) -> Self {
        Self(nibble(word, 21))
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// TST, TEQ, CMP, CMN: it has no destination.
    #[must_use]
    pub const fn only_compares(self) -> bool {
        self.0 >> 2 == 0b10
    }

    /// MOV, MVN: it has no first operand.
    #[must_use]
    pub const fn is_move(self) -> bool {
        self.0 & 0b1101 == 0b1101
    }
}

/// An extra load or store, by its bits 20, 6 and 5.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extra {
    Half { load: bool },
    SignedByte,
    SignedHalf,
    Double { load: bool },
}

impl Extra {
    pub(super) const fn of(word: u32) -> Self {
        match (bit(word, 20), word >> 5 & 3) {
            (load, 1) => Self::Half { load },
            (true, 2) => Self::SignedByte,
            (true, _) => Self::SignedHalf,
            (false, 2) => Self::Double { load: true },
            (false, _) => Self::Double { load: false },
        }
    }

    pub(super) const fn loads(self) -> bool {
        match self {
            Self::Half { load } | Self::Double { load } => load,
            Self::SignedByte | Self::SignedHalf => true,
        }
    }

    pub(super) const fn size(self) -> u16 {
        match self {
            Self::SignedByte => 1,
            Self::Half { .. } | Self::SignedHalf => 2,
            Self::Double { .. } => 8,
        }
    }
}
