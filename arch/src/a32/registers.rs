//! Which core registers an instruction reads and writes.

use exarmo_aarch32::{Instruction, ListFile, Offset, Operand, Reg};

use super::form::{Extra, Form, Opcode, bit, nibble};

/// The stack pointer's number.
pub const SP: u8 = 13;
/// The link register's number.
pub const LR: u8 = 14;
/// The program counter's number.
pub const PC: u8 = 15;

/// Core registers that an instruction reads and writes, as masks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Uses {
    /// Those whose value it may use.
    pub reads: u16,
    /// Those that it surely overwrites whole, if its condition holds. One that may or may not be overwritten counts as
    /// read.
    pub writes: u16,
}

impl Uses {
    /// Nothing is known: every register may be used.
    const ALL: Self = Self { reads: u16::MAX, writes: 0 };

    /// Every register that occurs.
    #[must_use]
    pub const fn all(self) -> u16 {
        self.reads | self.writes
    }

    const fn reading(mut self, register: u8) -> Self {
        self.reads |= 1 << register;
        self
    }

    const fn writing(mut self, register: u8) -> Self {
        self.writes |= 1 << register;
        self
    }

    pub(super) fn of(form: Form, word: u32, raw: &Instruction) -> Self {
        let none = Self::default();
        let (rn, rd, rs, rm) = (nibble(word, 16), nibble(word, 12), nibble(word, 8), nibble(word, 0));
        match form {
            Form::DataImmediate | Form::DataRegister | Form::DataShifted => {
                let opcode = Opcode::of(word);
                let mut uses = if opcode.is_move() { none } else { none.reading(rn) };
                if !opcode.only_compares() {
                    uses = uses.writing(rd);
                }
                match form {
                    Form::DataRegister => uses.reading(rm),
                    Form::DataShifted => uses.reading(rm).reading(rs),
                    _ => uses,
                }
            }
            Form::Word | Form::WordRegister => {
                single(none, word, bit(word, 20)).reading_if(form == Form::WordRegister, rm)
            }
            Form::Extra | Form::ExtraRegister => {
                let extra = Extra::of(word);
                let uses = single(none, word, extra.loads());
                // The second register of a pair is the next one.
                let uses = match extra {
                    Extra::Double { load: true } => uses.writing(rd | 1),
                    Extra::Double { load: false } => uses.reading(rd | 1),
                    _ => uses,
                };
                uses.reading_if(form == Form::ExtraRegister, rm)
            }
            Form::Block => {
                let (list, base) = (word as u16, none.reading(rn));
                let uses = if bit(word, 20) {
                    Self { writes: list, ..base }
                } else {
                    Self { reads: base.reads | list, ..base }
                };
                uses.writing_if(bit(word, 21), rn)
            }
            Form::Coprocessor => none.reading(rn).writing_if(bit(word, 21), rn),
            Form::Preload => none.reading(rn),
            Form::PreloadRegister => none.reading(rn).reading(rm),
            Form::Branch => none.writing_if(word >> 28 == 15 || bit(word, 24), LR),
            Form::BranchRegister => none.reading(rm).writing_if(word >> 4 & 15 == 3, LR),
            Form::Supervisor => Self::ALL,
            Form::Other => Self { reads: operands(raw), writes: 0 },
        }
    }

    const fn reading_if(self, condition: bool, register: u8) -> Self {
        if condition { self.reading(register) } else { self }
    }

    const fn writing_if(self, condition: bool, register: u8) -> Self {
        if condition { self.writing(register) } else { self }
    }
}

/// The base and the transferred register of a load or store.
const fn single(uses: Uses, word: u32, load: bool) -> Uses {
    let (rn, rt) = (nibble(word, 16), nibble(word, 12));
    let uses = uses.reading(rn).writing_if(writes_back(word), rn);
    if load { uses.writing(rt) } else { uses.reading(rt) }
}

/// A load or store with an immediate or a register changes its base: it is post-indexed, or W is set.
pub(super) const fn writes_back(word: u32) -> bool {
    !bit(word, 24) || bit(word, 21)
}

/// Every core register that the decoder names as an operand; all, if it leaves one undescribed.
pub(super) fn operands(raw: &Instruction) -> u16 {
    let core = |reg: Reg| match reg {
        Reg::Core(register) => 1 << register.num(),
        _ => 0,
    };
    let mut mask = 0;
    for operand in raw.operands().as_slice() {
        mask |= match operand {
            Operand::Reg(operand) => {
                let by = operand.modifier.and_then(|modifier| modifier.by);
                core(operand.reg) | by.map_or(0, |by| core(Reg::Core(by)))
            }
            Operand::Mem(memory) => {
                let offset = match memory.offset {
                    Offset::Reg { reg, modifier, .. } => {
                        let by = modifier.and_then(|modifier| modifier.by);
                        core(reg) | by.map_or(0, |by| core(Reg::Core(by)))
                    }
                    _ => 0,
                };
                core(memory.base) | offset
            }
            Operand::List(list) if list.file == ListFile::Core => list.mask as u16,
            Operand::Modifier(modifier) => modifier.by.map_or(0, |by| core(Reg::Core(by))),
            Operand::Label { .. } => 1 << PC,
            Operand::Other => u16::MAX,
            _ => 0,
        };
    }
    mask
}
