//! How an instruction leaves.
//!
//! The default is distrust: an instruction that may write the PC, or use it in a way not listed here, is
//! [`Flow::Unsupported`], never [`Flow::Next`].

use core::fmt;

use exarmo_aarch32::{Instruction, Mnemonic};

use super::{
    form::{Form, Opcode, bit, nibble},
    pointer::{modified_immediate, pc},
    registers::{LR, PC, SP, operands},
};
use crate::CodeAddr;

/// How an instruction leaves, if its condition holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// To the next instruction.
    Next,
    /// To a constant address: `b`, `bx pc`, `add pc, pc, #n`.
    Jump {
        /// Where to, without the bit that selects the instruction set.
        target: CodeAddr,
        /// To T32 code.
        thumb: bool,
    },
    /// `bl`, and `blx` to a label.
    Call {
        /// The callee, without the bit that selects the instruction set.
        target: CodeAddr,
        /// It is T32 code.
        thumb: bool,
    },
    /// The PC is written with a value from a register or from memory.
    JumpIndirect,
    /// `blx` to a register.
    CallIndirect,
    /// The forms that functions return with: `bx lr`, `mov pc, lr`, a load of the PC from the stack.
    Return,
    /// `udf`: always an exception.
    Undefined,
    /// `bkpt`, and the undefined instructions and system calls that Linux and debuggers plant instead.
    Breakpoint,
    /// A transfer of control, or a use of the PC, that nobody here gives a meaning to.
    Unsupported(Unsupported),
}

impl Flow {
    /// The direct target of a branch or call.
    #[must_use]
    pub const fn target(self) -> Option<CodeAddr> {
        match self {
            Self::Jump { target, .. } | Self::Call { target, .. } => Some(target),
            _ => None,
        }
    }
}

/// Why an instruction has no relocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unsupported {
    /// The manual leaves open what the word does.
    Unpredictable,
    /// A return from an exception: it loads the PC and the processor's mode together.
    ExceptionReturn,
    /// It changes the mode, enters another one, or uses the registers of another one.
    System,
    /// It changes the byte order of data, and so of literals.
    ByteOrder,
    /// It names the PC, and the way it uses it is not known.
    UsesPc,
    /// A register would have to be spilled between an exclusive load and its store, which could then fail for ever.
    Exclusive,
    /// It stores its own base together with the PC, downwards, and not as the lowest, or by STMDA.
    StoresBase,
}

impl Unsupported {
    /// A stable name of the cause, for machines.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Unpredictable => "unpredictable",
            Self::ExceptionReturn => "exception-return",
            Self::System => "system",
            Self::ByteOrder => "byte-order",
            Self::UsesPc => "uses-pc",
            Self::Exclusive => "exclusive",
            Self::StoresBase => "stores-base",
        }
    }
}

impl core::error::Error for Unsupported {}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unpredictable => "the manual leaves open what this instruction does",
            Self::ExceptionReturn => "a return from an exception depends on the processor's mode",
            Self::System => "a system instruction may change the mode that the code runs in",
            Self::ByteOrder => "it changes the byte order in which literals are read",
            Self::UsesPc => "it uses the program counter in a way that is not known",
            Self::Exclusive => {
                "it needs a register that is spilled, which is a store between an exclusive load and its store"
            }
            Self::StoresBase => "it stores its own base register together with the program counter",
        })
    }
}

/// What Linux and debuggers plant in A32 code: GDB and LLDB `udf #16` (`e7f001f0`), kprobes and uprobes `udf #24` and
/// `udf #25`, GDB on systems of the old ABI a system call.
const PLANTED: [u32; 4] = [0x07f0_01f0, 0x07f0_01f8, 0x07f0_01f9, 0x0f9f_0001];

pub(super) fn flow(addr: CodeAddr, form: Form, word: u32, raw: &Instruction) -> Flow {
    if word >> 28 != 15 && PLANTED.contains(&(word & 0x0fff_ffff)) {
        return Flow::Breakpoint;
    }
    let (rn, rd, rm) = (nibble(word, 16), nibble(word, 12), nibble(word, 0));
    match form {
        Form::DataImmediate | Form::DataRegister | Form::DataShifted => data(addr, form, word),
        Form::Word | Form::WordRegister if rd == PC && bit(word, 20) => {
            let pops = form == Form::Word && rn == SP && !bit(word, 24);
            if pops { Flow::Return } else { Flow::JumpIndirect }
        }
        Form::Block => block(word),
        Form::Branch => branch(addr, word),
        Form::BranchRegister => match (word >> 4 & 15, rm) {
            (3, _) => Flow::CallIndirect,
            (1, LR) => Flow::Return,
            // The PC's lowest bits are clear, so this stays in A32.
            (1, PC) => Flow::Jump { target: pc(addr), thumb: false },
            _ => Flow::JumpIndirect,
        },
        Form::Other => other(word, raw),
        _ => Flow::Next,
    }
}

fn data(addr: CodeAddr, form: Form, word: u32) -> Flow {
    let (opcode, rn, rd, rm) = (Opcode::of(word), nibble(word, 16), nibble(word, 12), nibble(word, 0));
    if rd != PC || opcode.only_compares() {
        return Flow::Next;
    }
    if bit(word, 20) {
        return Flow::Unsupported(Unsupported::ExceptionReturn);
    }
    let here = pc(addr).0 as u32;
    let is_plain_move = opcode == Opcode::MOV && form == Form::DataRegister && word & 0xff0 == 0;
    let target = match (opcode, form) {
        (Opcode::ADD, Form::DataImmediate) if rn == PC => here.wrapping_add(modified_immediate(word)),
        (Opcode::SUB, Form::DataImmediate) if rn == PC => here.wrapping_sub(modified_immediate(word)),
        _ if is_plain_move && rm == PC => here,
        _ if is_plain_move && rm == LR => return Flow::Return,
        _ => return Flow::JumpIndirect,
    };
    // Bit 0 selects the instruction set (DDI 0406, A2.3.1, ALUWritePC); bit 1 alone has no meaning.
    match target & 3 {
        2 => Flow::Unsupported(Unsupported::Unpredictable),
        bits => Flow::Jump { target: CodeAddr(u64::from(target & !1)), thumb: bits & 1 == 1 },
    }
}

fn block(word: u32) -> Flow {
    let (loads, other_mode, writes_pc) = (bit(word, 20), bit(word, 22), bit(word, 15));
    match (loads, other_mode, writes_pc) {
        (true, true, true) => Flow::Unsupported(Unsupported::ExceptionReturn),
        (_, true, _) => Flow::Unsupported(Unsupported::System),
        // With the stack pointer among the list it takes down a frame.
        (true, false, true) if nibble(word, 16) == SP || bit(word, u32::from(SP)) => Flow::Return,
        (true, false, true) => Flow::JumpIndirect,
        _ => Flow::Next,
    }
}

fn branch(addr: CodeAddr, word: u32) -> Flow {
    let displacement = i64::from((word << 8).cast_signed() >> 6);
    let halfword = u64::from(word >> 24 & 1) << 1;
    let to = |extra: u64| CodeAddr(u64::from(pc(addr).offset(displacement).add(extra).0 as u32));
    match (word >> 28, bit(word, 24)) {
        (15, _) => Flow::Call { target: to(halfword), thumb: true },
        (_, true) => Flow::Call { target: to(0), thumb: false },
        (_, false) => Flow::Jump { target: to(0), thumb: false },
    }
}

fn other(word: u32, raw: &Instruction) -> Flow {
    match raw.mnemonic() {
        Mnemonic::Udf => return Flow::Undefined,
        Mnemonic::Bkpt => return Flow::Breakpoint,
        Mnemonic::Eret | Mnemonic::Rfeda | Mnemonic::Rfedb | Mnemonic::Rfe | Mnemonic::Rfeib => {
            return Flow::Unsupported(Unsupported::ExceptionReturn);
        }
        Mnemonic::Setend => return Flow::Unsupported(Unsupported::ByteOrder),
        Mnemonic::Srsda
        | Mnemonic::Srsdb
        | Mnemonic::Srs
        | Mnemonic::Srsib
        | Mnemonic::Hlt
        | Mnemonic::Hvc
        | Mnemonic::Smc
        | Mnemonic::Cps
        | Mnemonic::Cpsid
        | Mnemonic::Cpsie => {
            return Flow::Unsupported(Unsupported::System);
        }
        // The control and extension bits: the mode, the masks of interrupts and the byte order.
        Mnemonic::Msr if word & 0x0003_0000 != 0 => return Flow::Unsupported(Unsupported::System),
        _ => {}
    }
    // MRC and VMRS write the flags if the register's number is 15.
    let writes_flags = word & 0x0f10_f010 == 0x0e10_f010;
    if operands(raw) >> PC & 1 == 1 && !writes_flags {
        return Flow::Unsupported(Unsupported::UsesPc);
    }
    Flow::Next
}
