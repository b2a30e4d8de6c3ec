//! One instruction, and what a relocator must know of it.
//!
//! The default is distrust: an instruction that transfers control in a way not listed in [`Flow`] is
//! [`Flow::Unsupported`], never [`Flow::Next`].

use core::fmt;

use iced_x86::{Code, Decoder, DecoderError, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

use super::{Cond, MAX_INST_LEN, Pointer, pointer::pointer};
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

/// Which legacy prefixes stand before the opcode (SDM 2.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prefixes {
    /// `66`.
    pub operand_size: bool,
    /// `67`.
    pub address_size: bool,
    /// `F2`: BND on a branch.
    pub repne: bool,
    /// `F3`.
    pub rep: bool,
    /// How many bytes the legacy prefixes and a REX take.
    pub len: u8,
}

impl Prefixes {
    fn scan(bytes: &[u8]) -> Self {
        let mut found = Self::default();
        for &byte in bytes {
            match byte {
                0x66 => found.operand_size = true,
                0x67 => found.address_size = true,
                0xf2 => found.repne = true,
                0xf3 => found.rep = true,
                0xf0 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 => {}
                0x40..=0x4f => {
                    // A REX counts only right before the opcode. A legacy prefix behind it cancels it, and goes on.
                }
                _ => break,
            }
            found.len += 1;
        }
        found
    }
}

/// A memory operand relative to RIP, or to EIP under `67`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RipOperand {
    /// The address without a segment's base.
    pub target: CodeAddr,
    /// Where the 32-bit displacement lies in the instruction.
    pub field: u8,
    /// The base is EIP: the sum wraps at 4 GiB.
    pub wraps: bool,
    /// How many bytes may be accessed; 0 if the instruction only computes the address or ignores it.
    pub access: u16,
}

/// An instruction with its address and its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inst {
    addr: CodeAddr,
    bytes: [u8; MAX_INST_LEN],
    len: u8,
    prefixes: Prefixes,
    flow: Flow,
    rip: Option<RipOperand>,
    padding: bool,
    x87: bool,
    stores_fip: bool,
}

impl Inst {
    /// The address it runs at.
    #[must_use]
    pub const fn addr(&self) -> CodeAddr {
        self.addr
    }

    /// The address behind it: what RIP-relative displacements count from.
    #[must_use]
    pub const fn next(&self) -> CodeAddr {
        self.addr.add(self.len as u64)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Its legacy prefixes.
    #[must_use]
    pub const fn prefixes(&self) -> Prefixes {
        self.prefixes
    }

    /// How it leaves.
    #[must_use]
    pub const fn flow(&self) -> Flow {
        self.flow
    }

    /// Its RIP-relative operand.
    #[must_use]
    pub const fn rip_operand(&self) -> Option<RipOperand> {
        self.rip
    }

    /// What it does with its RIP-relative operand, if its destination can hold the operand's address.
    #[must_use]
    pub fn pointer(&self) -> Option<Pointer> {
        self.rip.and_then(|_| pointer(self.bytes()))
    }

    /// A `nop` of any length or an `int3`: what compilers and linkers put between functions.
    #[must_use]
    pub const fn is_padding(&self) -> bool {
        self.padding
    }

    /// An x87 instruction: it may set FIP, the address of the last x87 instruction (SDM volume 1, 8.1.8).
    #[must_use]
    pub const fn is_x87(&self) -> bool {
        self.x87
    }

    /// It stores FIP to memory (`fnstenv`, `fnsave`, `fxsave`, `xsave` and their kin).
    #[must_use]
    pub const fn stores_fip(&self) -> bool {
        self.stores_fip
    }
}

/// Why bytes are no instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end inside the instruction.
    #[error("the bytes end inside an instruction")]
    Truncated,
    /// The manual defines no instruction with these bytes.
    #[error("the bytes are not an instruction")]
    Undefined,
}

/// Decodes the first instruction of `bytes`, which runs at `addr`.
///
/// The first call in a process builds the decoder's tables, which allocates; later calls do not.
///
/// # Errors
///
/// [`DecodeError`] if there is no whole, defined instruction.
pub fn decode(addr: CodeAddr, bytes: &[u8]) -> Result<Inst, DecodeError> {
    let bytes = &bytes[..bytes.len().min(MAX_INST_LEN)];
    let mut decoder = Decoder::with_ip(64, bytes, addr.0, DecoderOptions::NONE);
    let raw = decoder.decode();
    if raw.is_invalid() {
        return Err(match decoder.last_error() {
            DecoderError::NoMoreBytes if bytes.len() < MAX_INST_LEN => DecodeError::Truncated,
            _ => DecodeError::Undefined,
        });
    }
    let prefixes = Prefixes::scan(bytes);
    let mut inst = Inst {
        addr,
        bytes: [0; MAX_INST_LEN],
        len: raw.len() as u8,
        prefixes,
        flow: flow(&raw, prefixes, bytes),
        rip: None,
        padding: matches!(raw.mnemonic(), Mnemonic::Nop | Mnemonic::Int3),
        x87: matches!(bytes.get(usize::from(prefixes.len)), Some(0xd8..=0xdf)),
        stores_fip: stores_fip(raw.mnemonic()),
    };
    inst.bytes[..raw.len()].copy_from_slice(&bytes[..raw.len()]);
    if raw.is_ip_rel_memory_operand() {
        inst.rip = Some(RipOperand {
            target: CodeAddr(raw.ip_rel_memory_address()),
            field: decoder.get_constant_offsets(&raw).displacement_offset() as u8,
            wraps: raw.memory_base() == Register::EIP,
            access: access(&raw),
        });
    }
    Ok(inst)
}

fn flow(raw: &Instruction, prefixes: Prefixes, bytes: &[u8]) -> Flow {
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

fn stores_fip(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Fnstenv
            | Mnemonic::Fstenv
            | Mnemonic::Fnsave
            | Mnemonic::Fsave
            | Mnemonic::Fxsave
            | Mnemonic::Fxsave64
            | Mnemonic::Xsave
            | Mnemonic::Xsave64
            | Mnemonic::Xsavec
            | Mnemonic::Xsavec64
            | Mnemonic::Xsaveopt
            | Mnemonic::Xsaveopt64
            | Mnemonic::Xsaves
            | Mnemonic::Xsaves64
    )
}

/// The extent of an XSAVE area is known to the processor only; this is above every one that exists.
const XSAVE_AREA: u16 = 16 * 1024;

fn access(raw: &Instruction) -> u16 {
    match raw.mnemonic() {
        Mnemonic::Lea | Mnemonic::Nop | Mnemonic::Reservednop => 0,
        _ => match raw.memory_size().size() {
            0 => XSAVE_AREA,
            size => size as u16,
        },
    }
}
