//! How an instruction leaves.
//!
//! The default is distrust: an instruction that writes the PC in a way not listed in [`Flow`] is [`Flow::Unsupported`],
//! never [`Flow::Next`].

use core::fmt;

use super::PC_AHEAD;
use crate::{CodeAddr, a32::Cond};

/// How an instruction leaves, if it is executed: in an IT block it may not be, and then goes to the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// To the next instruction.
    Next,
    /// `b` with either field width; `mov pc, pc`.
    Jump {
        /// Where to.
        target: CodeAddr,
    },
    /// `b<c>`, whose condition is its own and not an IT block's.
    Cond {
        /// When it is taken.
        cond: Cond,
        /// Where to.
        target: CodeAddr,
    },
    /// `cbz` and `cbnz`.
    CompareZero {
        /// It is `cbnz`.
        nonzero: bool,
        /// The register, below 8.
        register: u8,
        /// Where to.
        target: CodeAddr,
    },
    /// `bl`.
    Call {
        /// The callee.
        target: CodeAddr,
    },
    /// `blx` to A32 code.
    CallA32 {
        /// The callee.
        target: CodeAddr,
    },
    /// `blx` through a register.
    CallIndirect,
    /// `bx pc`, which goes to A32 code right behind it.
    JumpA32 {
        /// Where to.
        target: CodeAddr,
    },
    /// `tbb` and `tbh`: forward from the PC by twice an entry of a table.
    Table {
        /// It is `tbh`: an entry has two bytes.
        half: bool,
        /// The table's address; the PC's number if the table follows the instruction.
        base: u8,
        /// Which entry.
        index: u8,
    },
    /// `add pc, rm`: forward or backward from the PC by a register.
    AddToPc {
        /// The register.
        register: u8,
    },
    /// A jump through a register or memory.
    JumpIndirect,
    /// The same by a form that returns: `bx lr`, or the PC from the stack.
    Return,
    /// `udf`: always an exception.
    Undefined,
    /// `bkpt`, and the `udf` that debuggers plant on Linux.
    Breakpoint,
    /// A transfer of control, or a use of the PC, that nobody here gives a meaning to.
    Unsupported(Unsupported),
}

impl Flow {
    /// The direct target of a branch or call, if that is T32 code.
    #[must_use]
    pub const fn target(self) -> Option<CodeAddr> {
        match self {
            Self::Jump { target }
            | Self::Cond { target, .. }
            | Self::CompareZero { target, .. }
            | Self::Call { target } => Some(target),
            _ => None,
        }
    }

    /// If it is executed, no execution goes on behind it.
    #[must_use]
    pub const fn is_exit(self) -> bool {
        matches!(
            self,
            Self::Jump { .. }
                | Self::JumpA32 { .. }
                | Self::Table { .. }
                | Self::AddToPc { .. }
                | Self::JumpIndirect
                | Self::Return
                | Self::Undefined
        )
    }
}

/// Why an instruction has no [`Flow`] of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unsupported {
    /// The manual lets the processor choose what it does (CONSTRAINED UNPREDICTABLE).
    Unpredictable,
    /// It returns from an exception (`eret`, `rfe`, `subs pc, lr`).
    ExceptionReturn,
    /// `bxj`, which may enter Jazelle state.
    Jazelle,
    /// `setend`: the literals of the relocated code are little-endian.
    ByteOrder,
    /// An instruction whose handler may use the address it came from (`hvc`, `smc`, `hlt`, `dcps`), or one that only
    /// an exception's handler has a use for (`srs`).
    System,
    /// The PC is an operand in a way that is not known.
    UsesPc,
    /// It uses the PC and the stack pointer at once.
    PcAndStack,
    /// A register would have to be spilled between an exclusive load and its store, which could then fail for ever.
    Exclusive,
}

impl Unsupported {
    /// A stable name of the cause, for machines.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Unpredictable => "unpredictable",
            Self::ExceptionReturn => "exception-return",
            Self::Jazelle => "jazelle",
            Self::ByteOrder => "byte-order",
            Self::System => "system",
            Self::UsesPc => "uses-pc",
            Self::PcAndStack => "pc-and-stack",
            Self::Exclusive => "exclusive",
        }
    }
}

impl core::error::Error for Unsupported {}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unpredictable => "the manual leaves open what the processor does here",
            Self::ExceptionReturn => "a return from an exception depends on the processor's mode",
            Self::Jazelle => "the jump may enter another state of the processor",
            Self::ByteOrder => "it changes the order of bytes in memory, for literals too",
            Self::System => "a system instruction may use the address it runs at",
            Self::UsesPc => "the PC is an operand of this instruction, with no known meaning",
            Self::PcAndStack => "it uses the PC and the stack pointer at once",
            Self::Exclusive => {
                "a register would be spilled between an exclusive load and its store, which could then fail for ever"
            }
        })
    }
}

/// The PC has 32 bits: a branch over either end of memory comes out at the other.
pub(super) const fn wrapped(target: CodeAddr) -> CodeAddr {
    CodeAddr(target.0 & 0xffff_ffff)
}

/// The flow of a 16-bit instruction at `addr`.
pub(super) fn narrow(addr: CodeAddr, h: u16) -> Flow {
    let pc = wrapped(addr.add(PC_AHEAD));
    let (low, high) = (h & 0xff, h >> 8);
    let rm = (h >> 3 & 0xf) as u8;
    match high {
        0x44 if h & 0x87 == 0x87 => match rm {
            13 => Flow::Unsupported(Unsupported::PcAndStack),
            15 => Flow::Unsupported(Unsupported::Unpredictable),
            register => Flow::AddToPc { register },
        },
        0x46 if h & 0x87 == 0x87 => match rm {
            // BranchWritePC, which ignores bit 0.
            15 => Flow::Jump { target: pc },
            14 => Flow::Return,
            _ => Flow::JumpIndirect,
        },
        0x47 => match (low >> 7, rm) {
            (0, 14) => Flow::Return,
            // BXWritePC with bits 1:0 of the target `10` is unpredictable.
            (0, 15) if addr.0.is_multiple_of(4) => Flow::JumpA32 { target: pc },
            (_, 15) => Flow::Unsupported(Unsupported::Unpredictable),
            (0, _) => Flow::JumpIndirect,
            _ => Flow::CallIndirect,
        },
        // pop {.., pc}
        0xbd => Flow::Return,
        0xb6 if h & 0xfff7 == 0xb650 => Flow::Unsupported(Unsupported::ByteOrder),
        0xba if low & 0xc0 == 0x80 => Flow::Unsupported(Unsupported::System),
        0xbe => Flow::Breakpoint,
        0xb1 | 0xb3 | 0xb9 | 0xbb => Flow::CompareZero {
            nonzero: h >> 11 & 1 == 1,
            register: (h & 7) as u8,
            target: wrapped(pc.add(u64::from(h >> 9 & 1) << 6 | u64::from(h >> 3 & 0x1f) << 1)),
        },
        // What GDB plants on Linux (its arm-linux-tdep.c), and what kprobes do (the kernel's asm/probes.h).
        0xde if low == 1 || low == 0x18 => Flow::Breakpoint,
        0xde => Flow::Undefined,
        0xd0..0xde => match Cond::from_bits((high & 0xf) as u8) {
            Some(cond) => Flow::Cond { cond, target: pc.offset(i64::from((low as u8).cast_signed()) << 1) },
            None => Flow::Unsupported(Unsupported::UsesPc),
        },
        0xe0..=0xe7 => Flow::Jump { target: wrapped(pc.offset(i64::from((h << 5).cast_signed() >> 4))) },
        _ => Flow::Next,
    }
}

/// The flow of a 32-bit instruction at `addr`, whose halfwords are these.
pub(super) fn wide(addr: CodeAddr, first: u16, second: u16) -> Flow {
    let pc = wrapped(addr.add(PC_AHEAD));
    let rn = (first & 0xf) as u8;
    if first >> 11 == 0b11110 && second >> 15 == 1 {
        return branch(pc, first, second);
    }
    let loads_list = matches!(first & 0xffd0, 0xe890 | 0xe910);
    match first {
        _ if first & 0xfff0 == 0xe8d0 && second & 0xffe0 == 0xf000 => {
            let (half, index) = (second >> 4 & 1 == 1, (second & 0xf) as u8);
            match (rn, index) {
                (_, 15) => Flow::Unsupported(Unsupported::Unpredictable),
                (13, _) | (_, 13) => Flow::Unsupported(Unsupported::PcAndStack),
                _ => Flow::Table { half, base: rn, index },
            }
        }
        _ if loads_list && second >> 15 == 1 => {
            if rn == 13 {
                Flow::Return
            } else {
                Flow::JumpIndirect
            }
        }
        // rfe and srs
        _ if matches!(first & 0xffd0, 0xe810 | 0xe990) => Flow::Unsupported(Unsupported::ExceptionReturn),
        _ if matches!(first & 0xffd0, 0xe800 | 0xe980) => Flow::Unsupported(Unsupported::System),
        // ldr pc: a word, so neither PLD nor PLI
        _ if first & 0xff70 == 0xf850 && second >> 12 == 15 => {
            if (first, second) == (0xf85d, 0xfb04) {
                Flow::Return
            } else {
                Flow::JumpIndirect
            }
        }
        _ => Flow::Next,
    }
}

/// Branches and miscellaneous control (DDI 0406, A6.3.4).
fn branch(pc: CodeAddr, first: u16, second: u16) -> Flow {
    let sign = u32::from(first >> 10 & 1);
    let (j1, j2) = (u32::from(second >> 13 & 1), u32::from(second >> 11 & 1));
    let low = u32::from(second & 0x7ff) << 1;
    // I1 = NOT(J1 EOR S), I2 = NOT(J2 EOR S), imm10, imm11, 0: 25 bits.
    let imm25 =
        sign << 24 | (j1 ^ sign ^ 1) << 23 | (j2 ^ sign ^ 1) << 22 | u32::from(first & 0x3ff) << 12 | low;
    let offset = i64::from((imm25 << 7).cast_signed() >> 7);
    match second & 0xd000 {
        0x9000 => Flow::Jump { target: wrapped(pc.offset(offset)) },
        0xd000 => Flow::Call { target: wrapped(pc.offset(offset)) },
        0xc000 => Flow::CallA32 { target: wrapped(CodeAddr(pc.0 & !3).offset(offset & !3)) },
        _ => match Cond::from_bits((first >> 6 & 0xf) as u8).filter(|cond| !cond.is_always()) {
            Some(cond) => {
                // S, J2, J1, imm6, imm11, 0: 21 bits.
                let imm21 = sign << 20 | j2 << 19 | j1 << 18 | u32::from(first & 0x3f) << 12 | low;
                let offset = i64::from((imm21 << 11).cast_signed() >> 11);
                Flow::Cond { cond, target: wrapped(pc.offset(offset)) }
            }
            None => control(first, second),
        },
    }
}

fn control(first: u16, second: u16) -> Flow {
    match first & 0xfff0 {
        0xf3c0 if second & 0xd000 == 0x8000 => Flow::Unsupported(Unsupported::Jazelle),
        0xf3d0 => Flow::Unsupported(Unsupported::ExceptionReturn),
        // DCPS; HVC; SMC, and the permanently undefined
        0xf780 => Flow::Unsupported(Unsupported::System),
        0xf7e0 => Flow::Unsupported(Unsupported::System),
        0xf7f0 if first == 0xf7f0 && matches!(second, 0xa000 | 0xa018) => Flow::Breakpoint,
        0xf7f0 if second >> 12 == 0xa => Flow::Undefined,
        0xf7f0 => Flow::Unsupported(Unsupported::System),
        _ => Flow::Next,
    }
}
