//! The program counter as an operand (DDI 0406, A2.3: it reads as the instruction's address plus 8).

use super::{
    Inst,
    form::{Extra, Form, Opcode, bit, nibble},
    registers::{PC, writes_back},
};
use crate::CodeAddr;

/// What the PC reads as in the instruction at `addr`. Every A32 instruction is at a multiple of 4, so the forms that
/// align it down first read the same.
#[must_use]
pub const fn pc(addr: CodeAddr) -> CodeAddr {
    CodeAddr(addr.0.wrapping_add(8) as u32 as u64)
}

/// The value of a modified immediate: 8 bits, rotated right by twice the 4 bits above (DDI 0406, A5.2.4).
#[must_use]
pub const fn modified_immediate(word: u32) -> u32 {
    (word & 0xff).rotate_right((word >> 8 & 15) * 2)
}

/// The register fields of an instruction that are read and hold 15, so that its result depends on where it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PcReads {
    /// Bits 19 to 16: the first operand of data processing, the base of a load or store.
    pub rn: bool,
    /// Bits 15 to 12: the register that is stored.
    pub rt: bool,
    /// Bits 3 to 0: the second operand of data processing.
    pub rm: bool,
    /// It is in the list of registers that are stored.
    pub list: bool,
}

impl PcReads {
    /// It is read as an operand.
    #[must_use]
    pub const fn any(self) -> bool {
        self.rn || self.rt || self.rm || self.list
    }

    /// The instruction with another register in the fields.
    #[must_use]
    pub const fn replaced(self, word: u32, register: u8) -> u32 {
        let mut word = word;
        if self.rn {
            word = field(word, 16, register);
        }
        if self.rt {
            word = field(word, 12, register);
        }
        if self.rm {
            word = field(word, 0, register);
        }
        word
    }
}

/// The word with another register in the field at bit `at`.
#[must_use]
pub const fn field(word: u32, at: u32, register: u8) -> u32 {
    word & !(15 << at) | (register as u32) << at
}

/// Memory at a constant distance from the PC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Literal {
    /// Its address.
    pub target: CodeAddr,
    /// How many bytes are accessed; 0 for a hint that accesses none.
    pub access: u16,
    /// It is written.
    pub store: bool,
}

/// A value that depends on nothing but where the instruction runs, and the register that gets it: `adr`, `mov rd, pc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The destination.
    pub register: u8,
    /// The value.
    pub value: CodeAddr,
}

impl Inst {
    /// Which of its fields read the PC.
    #[must_use]
    pub const fn pc_reads(&self) -> PcReads {
        let word = self.word();
        let (rn, rt, rm) = (nibble(word, 16) == PC, nibble(word, 12) == PC, nibble(word, 0) == PC);
        let none = PcReads { rn: false, rt: false, rm: false, list: false };
        match self.form() {
            Form::DataImmediate => PcReads { rn: rn && !Opcode::of(word).is_move(), ..none },
            Form::DataRegister => PcReads { rn: rn && !Opcode::of(word).is_move(), rm, ..none },
            Form::Word | Form::WordRegister => PcReads { rn, rt: rt && !bit(word, 20), ..none },
            Form::Block => PcReads { list: bit(word, 15) && !bit(word, 20), ..none },
            Form::Extra | Form::ExtraRegister | Form::Coprocessor | Form::Preload | Form::PreloadRegister => {
                PcReads { rn, ..none }
            }
            // A register that shifts, or is shifted by one, is never the PC: that is unpredictable. A branch to the PC
            // is a jump to a constant address.
            _ => none,
        }
    }

    /// Its operand in memory, if that is at a constant distance from the PC.
    #[must_use]
    pub fn literal(&self) -> Option<Literal> {
        self.operand_from(PC, pc(self.addr()))
    }

    /// Its operand in memory, if that is at a constant distance from what the register holds.
    pub(super) fn operand_from(&self, register: u8, value: CodeAddr) -> Option<Literal> {
        let word = self.word();
        if nibble(word, 16) != register {
            return None;
        }
        let (imm12, imm8) = (i64::from(word & 0xfff), i64::from(word & 0xff));
        let (offset, access, store) = match self.form() {
            Form::Word => (imm12, if bit(word, 22) { 1 } else { 4 }, !bit(word, 20)),
            Form::Extra => {
                let extra = Extra::of(word);
                (i64::from(word >> 4 & 0xf0 | word & 0xf), extra.size(), !extra.loads())
            }
            // Without P it is a run of registers from the base upwards: VLDM.
            Form::Coprocessor if !bit(word, 24) => {
                return Some(Literal { target: value, access: (imm8 * 4) as u16, store: !bit(word, 20) });
            }
            Form::Coprocessor => {
                // The coprocessor's number says the size: half, single and double precision.
                let (scale, access) = match nibble(word, 8) {
                    9 => (1, 2),
                    11 => (2, 8),
                    _ => (2, 4),
                };
                (imm8 << scale, access, !bit(word, 20))
            }
            Form::Preload => (imm12, 0, false),
            _ => return None,
        };
        let offset = match (self.form().is_single() && !bit(word, 24), bit(word, 23)) {
            // Post-indexed: the access is at the base.
            (true, _) => 0,
            (false, true) => offset,
            (false, false) => -offset,
        };
        let target = CodeAddr(u64::from(value.offset(offset).0 as u32));
        Some(Literal { target, access, store })
    }

    /// The value that it computes, if that depends on its address alone, sets no flags, and does not go to the PC.
    #[must_use]
    pub fn address(&self) -> Option<Address> {
        let word = self.word();
        let register = nibble(word, 12);
        if bit(word, 20) || register == PC {
            return None;
        }
        let here = pc(self.addr()).0 as u32;
        let value = match (self.form(), Opcode::of(word)) {
            (Form::DataImmediate, Opcode::ADD) if nibble(word, 16) == PC => {
                here.wrapping_add(modified_immediate(word))
            }
            (Form::DataImmediate, Opcode::SUB) if nibble(word, 16) == PC => {
                here.wrapping_sub(modified_immediate(word))
            }
            (Form::DataRegister, Opcode::MOV) if word & 0xfff == 15 => here,
            _ => return None,
        };
        Some(Address { register, value: CodeAddr(u64::from(value)) })
    }

    /// It changes its base register.
    #[must_use]
    pub const fn writes_back(&self) -> bool {
        match self.form() {
            Form::Block | Form::Coprocessor => bit(self.word(), 21),
            form => form.is_single() && writes_back(self.word()),
        }
    }
}
