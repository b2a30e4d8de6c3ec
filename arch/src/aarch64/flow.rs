//! How an instruction leaves.
//!
//! The default is distrust: an instruction that transfers control or reads the program counter in a way not listed in
//! [`Flow`] is [`Flow::Unsupported`], never [`Flow::Next`].

use core::fmt;

use exarmo_aarch64::{BranchKind, Instruction};

use super::Field;
use crate::CodeAddr;

/// How an instruction leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// To the next instruction.
    Next,
    /// `b`, and the conditional branches under AL and NV, which are both always taken (DDI 0487, C1.2.4).
    Jump {
        /// Where to.
        target: CodeAddr,
    },
    /// B.cond, BC.cond, CBZ, CBNZ, TBZ, TBNZ and the branches that compare.
    Cond {
        /// The field that holds the displacement.
        field: Field,
        /// Where to.
        target: CodeAddr,
    },
    /// `bl`.
    Call {
        /// The callee.
        target: CodeAddr,
    },
    /// `br` and its authenticating forms.
    JumpIndirect,
    /// `blr` and its authenticating forms.
    CallIndirect,
    /// `ret` and its authenticating forms.
    Return,
    /// `svc`: on to the next instruction.
    Syscall,
    /// `udf`, and the `brk` that compilers write for a trap: always an exception.
    Undefined,
    /// A `brk` that a debugger plants, or that one goes on behind.
    Breakpoint,
    /// A transfer of control, or a read of the program counter, that nobody here gives a meaning to.
    Unsupported(Unsupported),
}

impl Flow {
    /// The direct target of a branch or call.
    #[must_use]
    pub const fn target(self) -> Option<CodeAddr> {
        match self {
            Self::Jump { target } | Self::Cond { target, .. } | Self::Call { target } => Some(target),
            _ => None,
        }
    }

    /// No execution goes on behind this instruction (a breakpoint's does).
    #[must_use]
    pub const fn is_exit(self) -> bool {
        matches!(self, Self::Jump { .. } | Self::JumpIndirect | Self::Return | Self::Undefined)
    }
}

/// Why an instruction has no [`Flow`] of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Unsupported {
    /// The manual lets processors differ on what the word does (CONSTRAINED UNPREDICTABLE).
    Unpredictable,
    /// It returns from an exception, or enters another state of the system.
    ExceptionReturn,
    /// A call of a hypervisor or of firmware, or an entry into debug state.
    System,
    /// The program counter is part of what is signed or authenticated (FEAT_PAuth_LR).
    SignsPc,
    /// The three parts of a memory copy or set are taken apart: the system finds the first by its distance from the others.
    SplitCopy,
    /// A hint or a system instruction that has no meaning yet, or one of the implementation's own.
    Unallocated,
}

impl Unsupported {
    /// A stable name of the cause, for machines.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Unpredictable => "unpredictable",
            Self::ExceptionReturn => "exception-return",
            Self::System => "system",
            Self::SignsPc => "signs-pc",
            Self::SplitCopy => "split-copy",
            Self::Unallocated => "unallocated",
        }
    }
}

impl core::error::Error for Unsupported {}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unpredictable => "processors may differ on what this encoding does",
            Self::ExceptionReturn => "a return from an exception depends on the state of the system",
            Self::System => {
                "a call of the hypervisor, the firmware or a debugger may use the address it came from"
            }
            Self::SignsPc => "the address of the instruction is part of what is signed",
            Self::SplitCopy => {
                "the parts of a memory copy or set must stay in a row, and the window takes them apart"
            }
            Self::Unallocated => "this encoding has no meaning yet, or one of the processor's own",
        })
    }
}

/// The immediates of `brk` that debuggers plant (0) or that `__builtin_debugtrap` means (0xf000); execution goes on behind
/// both. Others are traps: gcc's `__builtin_trap` is 1000, clang's 1, and each check of a sanitizer has its own.
const BREAKPOINTS: [u32; 2] = [0, 0xf000];

pub(super) fn flow(addr: CodeAddr, word: u32, decoded: &Instruction) -> Flow {
    if decoded.unpredictable() {
        return Flow::Unsupported(Unsupported::Unpredictable);
    }
    if let Some(flow) = direct(addr, word) {
        return flow;
    }
    if signs_pc(decoded) {
        return Flow::Unsupported(Unsupported::SignsPc);
    }
    match decoded.branch().kind {
        BranchKind::None => match decoded {
            Instruction::HintHmHints { .. }
            | Instruction::HinteExtendedhint { .. }
            | Instruction::SysCrSysteminstrs { .. }
            | Instruction::SyslRcSysteminstrs { .. }
            | Instruction::SyspCrSyspairinstrs { .. } => Flow::Unsupported(Unsupported::Unallocated),
            Instruction::Dcps1DcException { .. }
            | Instruction::Dcps2DcException { .. }
            | Instruction::Dcps3DcException { .. } => Flow::Unsupported(Unsupported::System),
            _ => Flow::Next,
        },
        BranchKind::Indirect => Flow::JumpIndirect,
        BranchKind::IndirectCall => Flow::CallIndirect,
        BranchKind::Return => Flow::Return,
        BranchKind::ExceptionReturn => Flow::Unsupported(Unsupported::ExceptionReturn),
        BranchKind::SystemCall if matches!(decoded, Instruction::SvcExException { .. }) => Flow::Syscall,
        BranchKind::Exception if word >> 21 == 0xd420_0000 >> 21 => {
            let immediate = word >> 5 & 0xffff;
            if BREAKPOINTS.contains(&immediate) { Flow::Breakpoint } else { Flow::Undefined }
        }
        BranchKind::Exception => Flow::Undefined,
        _ => Flow::Unsupported(Unsupported::System),
    }
}

/// The branches with a displacement (DDI 0487, C4.1 "Branches, Exception Generating and System instructions").
fn direct(addr: CodeAddr, word: u32) -> Option<Flow> {
    let to = |field: Field| addr.offset(field.get(word));
    let cond = |field: Field| Some(Flow::Cond { field, target: to(field) });
    if word & 0x7c00_0000 == 0x1400_0000 {
        let target = to(Field::Branch26);
        return Some(if word >> 31 == 0 { Flow::Jump { target } } else { Flow::Call { target } });
    }
    if word & 0xff00_0000 == 0x5400_0000 {
        // Inverted, AL would be NV, which is always taken too.
        let always = word & 0xe == 0xe;
        let target = to(Field::Branch19);
        return if always { Some(Flow::Jump { target }) } else { cond(Field::Branch19) };
    }
    match word & 0x7e00_0000 {
        0x3400_0000 => cond(Field::Branch19),
        0x3600_0000 => cond(Field::Branch14),
        // The branches that compare registers, their low bytes and halfwords, and those with a constant.
        0x7400_0000 => cond(Field::Branch9),
        _ => None,
    }
}

/// PACIASPPC and its kin, and PACM, which makes the next PACIASP one of them.
fn signs_pc(decoded: &Instruction) -> bool {
    matches!(
        decoded,
        Instruction::PacmHiHints
            | Instruction::Paciasppc64lrDp1src
            | Instruction::Pacibsppc64lrDp1src
            | Instruction::Pacnbiasppc64lrDp1src
            | Instruction::Pacnbibsppc64lrDp1src
            | Instruction::AutiasppcOnlyDp1srcImm { .. }
            | Instruction::AutibsppcOnlyDp1srcImm { .. }
            | Instruction::RetaasppcOnlyMiscbranch { .. }
            | Instruction::RetabsppcOnlyMiscbranch { .. }
    )
}
