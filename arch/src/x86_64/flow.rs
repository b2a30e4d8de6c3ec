//! How an instruction leaves.
//!
//! The default is distrust: an instruction that transfers control in a way not listed in [`Flow`] is
//! [`Flow::Unsupported`], never [`Flow::Next`].

use core::fmt;

use iced_x86::{Code, FlowControl, Instruction, Mnemonic};

use super::{Cond, Prefixes};
use crate::CodeAddr;

/// How an instruction leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// To the next instruction.
    Next,
    /// `jmp rel8` or `jmp rel32`.
    Jump {
        /// Where to.
        target: CodeAddr,
    },
    /// A Jcc with either field width.
    Cond {
        /// When it is taken.
        cond: Cond,
        /// Where to.
        target: CodeAddr,
    },
    /// A branch on the counter register, which has an 8-bit field only.
    Counter {
        /// Which one.
        kind: Counter,
        /// Where to.
        target: CodeAddr,
    },
    /// `call rel32`.
    Call {
        /// The callee.
        target: CodeAddr,
    },
    /// `xbegin rel32`.
    Xbegin {
        /// Where an abort goes.
        fallback: CodeAddr,
    },
    /// `jmp` through a register or memory.
    JumpIndirect,
    /// `call` through a register or memory.
    CallIndirect,
    /// A near return.
    Return,
    /// `syscall`, which leaves the address of the next instruction in RCX.
    Syscall,
    /// `ud0`, `ud1`, `ud2`: always an exception.
    Undefined,
    /// `int3` or `int1`.
    Breakpoint,
    /// A transfer of control, or a read of the program counter, that nobody here gives a meaning to.
    Unsupported(Unsupported),
}

impl Flow {
    /// The direct target of a branch, call or fallback.
    #[must_use]
    pub const fn target(self) -> Option<CodeAddr> {
        match self {
            Self::Jump { target }
            | Self::Cond { target, .. }
            | Self::Counter { target, .. }
            | Self::Call { target }
            | Self::Xbegin { fallback: target } => Some(target),
            _ => None,
        }
    }

    /// No execution goes on behind this instruction (a breakpoint's does).
    #[must_use]
    pub const fn is_exit(self) -> bool {
        matches!(self, Self::Jump { .. } | Self::JumpIndirect | Self::Return | Self::Undefined)
    }
}

/// The branches on RCX (or ECX under `67`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counter {
    /// `loopne`, opcode E0.
    LoopNe,
    /// `loope`, opcode E1.
    LoopE,
    /// `loop`, opcode E2.
    Loop,
    /// `jrcxz` and `jecxz`, opcode E3.
    Zero,
}

impl Counter {
    /// The opcode.
    #[must_use]
    pub const fn opcode(self) -> u8 {
        match self {
            Self::LoopNe => 0xe0,
            Self::LoopE => 0xe1,
            Self::Loop => 0xe2,
            Self::Zero => 0xe3,
        }
    }
}

/// Why an instruction has no [`Flow`] of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unsupported {
    /// A near branch or return under `66`: Intel ignores the prefix, AMD cuts RIP to 16 bits and shortens the field
    /// (APM 3, "Jcc").
    OperandSize,
    /// A direct branch under `F3`, or one on a counter under `F2`, which no manual gives a meaning to.
    RepeatedBranch,
    /// A far transfer: it loads or stores CS, or returns from an interrupt.
    Far,
    /// A system instruction that stores or derives the program counter (`sysenter`, `enclu`, `vmcall`, ...).
    System,
    /// A software interrupt other than `int 0x80`, whose handler may read the address it came from.
    Interrupt,
}

impl Unsupported {
    /// A stable name of the cause, for machines.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::OperandSize => "operand-size-branch",
            Self::RepeatedBranch => "repeated-branch",
            Self::Far => "far-transfer",
            Self::System => "system",
            Self::Interrupt => "interrupt",
        }
    }
}

impl core::error::Error for Unsupported {}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OperandSize => {
                "under the prefix 66 makers differ on the length and the target of a near branch"
            }
            Self::RepeatedBranch => "a repeat prefix has no defined meaning on this branch",
            Self::Far => "a far transfer depends on segments",
            Self::System => "a system instruction may use the address it runs at",
            Self::Interrupt => "the handler of a software interrupt may use the address it came from",
        })
    }
}

pub(super) fn flow(raw: &Instruction, prefixes: Prefixes, bytes: &[u8]) -> Flow {
    let target = CodeAddr(raw.near_branch_target());
    let direct = |flow| match prefixes {
        Prefixes { operand_size: true, .. } => Flow::Unsupported(Unsupported::OperandSize),
        Prefixes { rep: true, .. } => Flow::Unsupported(Unsupported::RepeatedBranch),
        _ => flow,
    };
    let counter = |kind| match prefixes {
        Prefixes { repne: true, .. } => Flow::Unsupported(Unsupported::RepeatedBranch),
        _ => direct(Flow::Counter { kind, target }),
    };
    let indirect = |flow| match prefixes {
        Prefixes { operand_size: true, .. } => Flow::Unsupported(Unsupported::OperandSize),
        _ => flow,
    };
    match (raw.flow_control(), raw.code()) {
        (FlowControl::UnconditionalBranch, Code::Jmp_rel8_64 | Code::Jmp_rel32_64) => {
            direct(Flow::Jump { target })
        }
        (FlowControl::ConditionalBranch, _) => match raw.mnemonic() {
            Mnemonic::Loopne => counter(Counter::LoopNe),
            Mnemonic::Loope => counter(Counter::LoopE),
            Mnemonic::Loop => counter(Counter::Loop),
            Mnemonic::Jrcxz | Mnemonic::Jecxz => counter(Counter::Zero),
            _ if raw.is_jcc_short_or_near() => direct(Flow::Cond { cond: cond(prefixes, bytes), target }),
            _ => direct(Flow::Unsupported(Unsupported::System)),
        },
        (FlowControl::Call, Code::Call_rel32_64) => direct(Flow::Call { target }),
        (FlowControl::Call, Code::Syscall) => Flow::Syscall,
        (FlowControl::IndirectBranch, Code::Jmp_rm64) => indirect(Flow::JumpIndirect),
        (FlowControl::IndirectCall, Code::Call_rm64) => indirect(Flow::CallIndirect),
        (FlowControl::Return, Code::Retnq | Code::Retnq_imm16) => indirect(Flow::Return),
        (FlowControl::XbeginXabortXend, Code::Xbegin_rel32) => direct(Flow::Xbegin { fallback: target }),
        (FlowControl::XbeginXabortXend, Code::Xabort_imm8 | Code::Xend) => Flow::Next,
        (FlowControl::Interrupt, Code::Int3 | Code::Int1) => Flow::Breakpoint,
        (FlowControl::Interrupt, Code::Int_imm8) if raw.immediate8() == 0x80 => Flow::Next,
        (FlowControl::Interrupt, _) => Flow::Unsupported(Unsupported::Interrupt),
        (FlowControl::Exception, _) => Flow::Undefined,
        (FlowControl::Next, _) if !uses_own_address(raw.mnemonic()) => Flow::Next,
        (FlowControl::Next, _) => Flow::Unsupported(Unsupported::System),
        (FlowControl::Call, _) => Flow::Unsupported(Unsupported::System),
        (FlowControl::XbeginXabortXend, _) => Flow::Unsupported(Unsupported::OperandSize),
        _ => Flow::Unsupported(far_or_narrow(raw)),
    }
}

/// The condition of a Jcc: the low bits of `7x`, or of the byte behind `0F`.
fn cond(prefixes: Prefixes, bytes: &[u8]) -> Cond {
    let opcode = &bytes[usize::from(prefixes.len)..];
    Cond::of_opcode(if opcode[0] == 0x0f { opcode[1] } else { opcode[0] })
}

/// What is left of branches and returns: far ones, and near ones cut to 16 bits.
fn far_or_narrow(raw: &Instruction) -> Unsupported {
    match raw.code() {
        Code::Jmp_rm16 | Code::Call_rm16 | Code::Retnw | Code::Retnw_imm16 => Unsupported::OperandSize,
        _ => Unsupported::Far,
    }
}

/// Instructions that go to the next one, and yet store or hand over the address they run at: enclave and virtual
/// machine entries, and the user interrupts' return.
fn uses_own_address(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Enclu
            | Mnemonic::Enclv
            | Mnemonic::Encls
            | Mnemonic::Getsec
            | Mnemonic::Rsm
            | Mnemonic::Vmlaunch
            | Mnemonic::Vmresume
            | Mnemonic::Vmcall
            | Mnemonic::Vmmcall
            | Mnemonic::Vmrun
            | Mnemonic::Vmfunc
            | Mnemonic::Tdcall
            | Mnemonic::Seamcall
            | Mnemonic::Seamops
            | Mnemonic::Seamret
            | Mnemonic::Uiret
            | Mnemonic::Skinit
            | Mnemonic::Llwpcb
            | Mnemonic::Lwpins
            | Mnemonic::Lwpval
    )
}
