//! RIP-relative operands that are beyond 2 GiB from the destination.
//!
//! The operand's address goes into a register, and the instruction reaches its operand through that:
//! `mov r, imm64; op [r]`. No flag is touched. What that register is, in the order of preference:
//!
//! | register | costs |
//! |---|---|
//! | the one that the instruction overwrites itself | nothing |
//! | R11, at a call or a jump through memory in the window of a function's entry | a clobber |
//! | one that the code ahead overwrites before it reads it | a clobber |
//! | any that the instruction leaves alone, kept on the stack meanwhile | time |
//!
//! **R11** belongs to the linker between functions: PLT entries and the dynamic linker's resolver change it (System V
//! ABI for AMD64, 3.2.1), so neither a callee that is called through memory nor the caller behind it counts on its
//! value. It is not taken if the window has put something there, and only at a function's entry: elsewhere `jmp [rip]` may as
//! well be a computed goto, and code before the window may have put an argument there for a callee with a convention of
//! its own (GCC's `__morestack`). For no other instruction is R11 free at an entry: a caller that
//! knows its callee's code may keep values in registers which that leaves alone (GCC's `-fipa-ra`).
//!
//! **The stack** is written to only beyond the 128 bytes below RSP that a leaf function may use without moving it (the
//! red zone, 3.2.2), and RSP moves first, so that a signal handler's frame goes below:
//!
//! ```text
//! lea rsp, [rsp - 128]; push r; mov r, imm64; op [r]; pop r; lea rsp, [rsp + 128]
//! ```
//!
//! `push` and `pop` of the operand go over the stack's top meanwhile: `push [r]; pop [rsp + 128]`, or
//! `push [rsp + 136]; pop [r]`, and RSP ends 8 bytes from where it was. An instruction that uses RSP otherwise can't be
//! put between. If `op` faults, RSP and `r` are not the original's, and the map says that the instruction is under way.

use grapnel_arch::{
    CodeAddr, Isa,
    x86_64::{
        Flow, Inst, Mask, RipOperand, StackUse, THROUGH_GROWS, effects, lea_rsp_disp8, lea_rsp_disp32,
        mov_imm64, pop, pop_rsp_disp32, push, push_rsp_disp32, through,
    },
};

use super::{Insts, culprit, emit::Emitter, liveness::dead_at};
use crate::{Error, Registers};

/// How an operand is reached that is beyond 2 GiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Far {
    /// Through this register, which the instruction overwrites.
    Own(u8),
    /// Through this register, which is dead behind the instruction.
    Dead(u8),
    /// Through a dead register, or else one that is kept on the stack meanwhile.
    Kept,
    /// The same for `push`.
    KeptPush,
    /// The same for `pop`.
    KeptPop,
    /// Not at all: no register is known to be dead, and the stack can't be used.
    None,
}

const R11: u8 = 11;

/// Registers that take no byte more as a base: not RSP and R12, RBP and R13.
const SHORT_BASES: Mask = 0b1100_1111_1100_1111;

/// How far RSP moves before anything is kept: the length of the red zone.
const RED_ZONE: i8 = -128;

impl Far {
    /// `inst` has an operand relative to RIP.
    pub(super) fn of(from: CodeAddr, insts: &Insts, inst: &Inst) -> Self {
        let Some(bases) = inst.bases() else { return Self::None };
        if let Some(own) = lowest(bases.own) {
            return Self::Own(own);
        }
        let to_function = match inst.flow() {
            Flow::CallIndirect | Flow::JumpIndirect => insts.entry,
            _ => false,
        };
        if to_function && !insts.list.iter().any(|other| other.addr() != inst.addr() && touches_r11(other)) {
            return Self::Dead(R11);
        }
        if bases.free == 0 {
            return Self::None;
        }
        match (bases.stack, inst.flow()) {
            (StackUse::None, Flow::Next) => Self::Kept,
            (StackUse::Push, Flow::Next) => Self::KeptPush,
            (StackUse::Pop, Flow::Next) => Self::KeptPop,
            (_, Flow::Next) => {
                lowest(dead_at(from, &insts.code, inst.next()) & bases.free).map_or(Self::None, Self::Dead)
            }
            _ => Self::None,
        }
    }

    /// The most bytes that it takes.
    pub(super) fn max_len(self, inst: &Inst) -> usize {
        let through = 10 + inst.bytes().len().saturating_add_signed(THROUGH_GROWS);
        let kept = 5 + 2 + through + 2;
        match self {
            Self::Own(_) | Self::Dead(_) => through,
            Self::Kept => kept + 8,
            Self::KeptPush => kept + 7 + 5,
            Self::KeptPop => kept + 7 + 8,
            Self::None => 0,
        }
    }
}

/// The lowest register of a set. Those that take no byte more come first.
fn lowest(set: Mask) -> Option<u8> {
    let short = set & SHORT_BASES;
    let set = if short == 0 { set } else { short };
    (set != 0).then(|| set.trailing_zeros() as u8)
}

/// Without the REX, where it says nothing.
fn short(with_rex: &[u8], register: u8) -> &[u8] {
    &with_rex[usize::from(register < 8)..]
}

fn touches_r11(inst: &Inst) -> bool {
    let effects = effects(inst);
    (effects.uses | effects.overwrites) >> R11 & 1 == 1
}

impl Emitter<'_> {
    pub(super) fn far(&mut self, inst: &Inst, operand: RipOperand, far: Far) -> Result<(), Error> {
        let no_scratch = || Error::NoScratch { culprit: culprit(inst) };
        let free = inst.bases().map_or(0, |bases| bases.free);
        let dead = match far {
            Far::Own(register) => return self.through(inst, operand, register),
            Far::Dead(register) => Some(register),
            Far::None => None,
            _ => lowest(dead_at(self.plan.from, &self.plan.code, inst.next()) & free),
        };
        if let Some(register) = dead {
            self.clobbers = self.clobbers.union(Registers::one(Isa::X86_64, register));
            return self.through(inst, operand, register);
        }
        let register = lowest(free).ok_or_else(no_scratch)?;
        self.bytes(&lea_rsp_disp8(RED_ZONE));
        self.bytes(short(&push(register), register));
        match far {
            Far::Kept => {
                self.through(inst, operand, register)?;
                self.bytes(short(&pop(register), register));
                self.bytes(&lea_rsp_disp32(128));
            }
            Far::KeptPush => {
                self.through(inst, operand, register)?;
                self.bytes(&pop_rsp_disp32(128));
                self.bytes(short(&pop(register), register));
                self.bytes(&lea_rsp_disp8(120));
            }
            Far::KeptPop => {
                self.bytes(&mov_imm64(register, operand.target.0));
                self.bytes(&push_rsp_disp32(136));
                self.operation(inst, register)?;
                self.bytes(short(&pop(register), register));
                self.bytes(&lea_rsp_disp32(136));
            }
            _ => return Err(no_scratch()),
        }
        Ok(())
    }

    /// `mov register, imm64; op [register]`.
    fn through(&mut self, inst: &Inst, operand: RipOperand, register: u8) -> Result<(), Error> {
        self.bytes(&mov_imm64(register, operand.target.0));
        self.operation(inst, register)
    }

    fn operation(&mut self, inst: &Inst, register: u8) -> Result<(), Error> {
        let (bytes, len) =
            through(inst, register).ok_or_else(|| Error::NoScratch { culprit: culprit(inst) })?;
        self.bytes(&bytes[..len]);
        Ok(())
    }
}
