//! How each instruction of a window is rewritten.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    x86_64::{Cond, Counter, Flow, Inst, Pointer, RipOperand},
};

use super::{Code, Insts, culprit, far::Far};
use crate::{
    Error, Reach, Window,
    instruction::Operand,
    window::{MAX_INSTS, Offsets},
};

/// Where a branch goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dest {
    /// To an instruction of the window, by its number.
    Inside(usize),
    /// Elsewhere.
    Outside(CodeAddr),
}

/// What a call at the window's end goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Callee {
    At(CodeAddr),
    Register,
    Rip(RipOperand, Far),
}

/// What an instruction becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lowering {
    /// Itself. Nothing in it depends on its address.
    Copy,
    /// Itself, with another displacement in its RIP-relative operand; or beyond 2 GiB the operand's address in a register,
    /// and itself through that.
    Rip(RipOperand, Far),
    /// `lea`: itself with another displacement, or beyond 2 GiB a move of the address.
    Pointer(Pointer, CodeAddr),
    Jump(Dest),
    Cond(Cond, Dest),
    Counter(Counter, Dest),
    Call(CodeAddr),
    /// A call at the window's end, from which the callee returns to what follows the window.
    ///
    /// It is a call here too, so that the processor foresees the callers' returns, if not this one:
    /// `jmp over; callee: mov [rsp], link; jmp target; over: call callee`. Nothing below the return address is written to, and
    /// no flag or register changes.
    LastCall(Callee),
    /// `call` to the next instruction: `push [literal]`, the original return address. It makes the one access that
    /// the call makes, and neither of them changes a shadow stack (SDM volume 1, 17.2.1: a call with displacement 0).
    PushNext,
    Xbegin(Dest),
    /// `syscall`, and then RCX as it would be behind the original.
    Syscall,
}

impl Lowering {
    /// The most bytes of code and of literals it takes.
    pub(super) fn max_len(&self, inst: &Inst) -> usize {
        match self {
            Self::Copy => inst.bytes().len(),
            Self::Rip(_, far) => inst.bytes().len().max(far.max_len(inst)),
            // mov r64, imm64
            Self::Pointer(..) => 10,
            // [F2] jmp [literal]
            Self::Jump(Dest::Outside(_)) => 7 + 8,
            Self::Jump(Dest::Inside(_)) => 6,
            // [F2] jncc over; [F2] jmp [literal]; over:
            Self::Cond(_, Dest::Outside(_)) => 3 + 7 + 8,
            Self::Cond(_, Dest::Inside(_)) => 7,
            // [67] loop taken; jmp over; taken: jmp [literal]; over:
            Self::Counter(_, Dest::Outside(_)) => 3 + 2 + 6 + 8,
            Self::Counter(_, Dest::Inside(_)) => 3 + 2 + 5,
            // [F2] call [literal]
            Self::Call(_) => 7 + 8,
            Self::LastCall(callee) => LAST_CALL + callee.max_len(inst),
            Self::PushNext => 6 + 8,
            // xbegin aborted; jmp over; aborted: jmp [literal]; over:
            Self::Xbegin(Dest::Outside(_)) => 6 + 2 + 6 + 8,
            Self::Xbegin(Dest::Inside(_)) => 6,
            // syscall with its prefixes; mov rcx, imm64
            Self::Syscall => inst.bytes().len() + 10,
        }
    }

    /// What it must reach, if it is near.
    fn near_target(&self) -> Option<CodeAddr> {
        match self {
            Self::Rip(RipOperand { target, wraps: false, .. }, _)
            | Self::Pointer(_, target)
            | Self::Call(target)
            | Self::LastCall(Callee::At(target) | Callee::Rip(RipOperand { target, wraps: false, .. }, _))
            | Self::Jump(Dest::Outside(target))
            | Self::Cond(_, Dest::Outside(target))
            | Self::Counter(_, Dest::Outside(target))
            | Self::Xbegin(Dest::Outside(target)) => Some(*target),
            _ => None,
        }
    }
}

impl Callee {
    /// The most bytes that the jump takes.
    fn max_len(&self, call: &Inst) -> usize {
        match self {
            // jmp [literal]
            Self::At(_) => 6 + 8,
            Self::Register => call.bytes().len(),
            Self::Rip(_, far) => call.bytes().len().max(far.max_len(call)),
        }
    }
}

/// What a call at the window's end takes but for the jump to its callee: `jmp rel8`, two `mov`, and `call rel32`.
const LAST_CALL: usize = 2 + 15 + 5;

/// Where literals lie: reading one must not fault under EFLAGS.AC.
pub(super) const LITERAL_ALIGN: u64 = 8;

/// The jump back, at its longest: `jmp [literal]`.
const JUMP_BACK: usize = 6 + 8;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(super) from: CodeAddr,
    pub(super) window_len: usize,
    pub(super) items: ArrayVec<(Inst, Lowering), MAX_INSTS>,
    /// The original code, past the window's end.
    pub(super) code: Code,
    /// Where the window goes on, if execution falls out of its end.
    pub(super) resume: Option<CodeAddr>,
    max_len: usize,
}

pub(crate) fn plan(window: &Window, insts: &Insts) -> Result<Plan, Error> {
    let mut items = ArrayVec::new();
    let mut x87_moved = loops(window, &insts.list) && insts.list.iter().any(Inst::sets_fip);
    for inst in &insts.list {
        if inst.stores_fip() && x87_moved {
            return Err(Error::StoresFip { culprit: culprit(inst) });
        }
        x87_moved |= inst.sets_fip();
        items.push((*inst, lower(window, insts, inst)?));
    }
    if let Some(last) = items.last_mut().filter(|_| !insts.shadow_stack) {
        last.1 = last_call(window, insts, last).unwrap_or(last.1);
    }
    let resume = insts.list.last().filter(|last| !last.flow().is_exit()).map(|last| last.next());
    let max_len =
        items.iter().map(|(inst, lowering): &(Inst, Lowering)| lowering.max_len(inst)).sum::<usize>()
            + resume.map_or(0, |_| JUMP_BACK)
            + (LITERAL_ALIGN - 1) as usize;
    let code = insts.code.clone();
    Ok(Plan { from: window.from, window_len: window.len, items, code, resume, max_len })
}

/// A call at the window's end. Its return address is no byte of the patch's, and so it may be the original's: the callee
/// returns there, and whoever unwinds finds the function's own tables. Under BND it stays as it is: other branches would clear
/// the bounds.
fn last_call(window: &Window, insts: &Insts, (inst, lowering): &(Inst, Lowering)) -> Option<Lowering> {
    if inst.next() != window.from.add(window.len as u64) || inst.prefixes().repne {
        return None;
    }
    if let Lowering::Call(target) = *lowering {
        return Some(Lowering::LastCall(Callee::At(target)));
    }
    let callee = match inst.jump_to_callee()?.rip_operand() {
        None => Callee::Register,
        Some(operand) => Callee::Rip(operand, Far::of(window.from, insts, inst)),
    };
    Some(Lowering::LastCall(callee))
}

/// A branch of the window leads back in it, so an instruction can come after one that stands behind it.
fn loops(window: &Window, insts: &[Inst]) -> bool {
    insts
        .iter()
        .any(|inst| inst.flow().target().is_some_and(|target| window.from <= target && target <= inst.addr()))
}

fn lower(window: &Window, insts: &Insts, inst: &Inst) -> Result<Lowering, Error> {
    let dest = |target: CodeAddr| dest(window, &insts.list, inst, target);
    match inst.flow() {
        Flow::Next | Flow::JumpIndirect | Flow::CallIndirect | Flow::Return | Flow::Undefined => {
            match inst.rip_operand() {
                None => Ok(Lowering::Copy),
                Some(operand) if Operand::from(operand).touches(window.from, window.len) => {
                    Err(Error::UsesWindow { culprit: culprit(inst), target: operand.target })
                }
                Some(operand) => Ok(match inst.pointer() {
                    Some(pointer) => Lowering::Pointer(pointer, operand.target),
                    None => Lowering::Rip(operand, Far::of(window.from, insts, inst)),
                }),
            }
        }
        Flow::Jump { target } => Ok(Lowering::Jump(dest(target)?)),
        Flow::Cond { cond, target } => Ok(Lowering::Cond(cond, dest(target)?)),
        Flow::Counter { kind, target } => Ok(Lowering::Counter(kind, dest(target)?)),
        Flow::Xbegin { fallback } => Ok(Lowering::Xbegin(dest(fallback)?)),
        // It only asks for its address. One under the patch has no use but to be read or jumped to.
        Flow::Call { target } if target == inst.next() => {
            match target.offset_within(window.from, window.len as u64) {
                None => Ok(Lowering::PushNext),
                Some(_) => Err(Error::UsesWindow { culprit: culprit(inst), target }),
            }
        }
        Flow::Call { target } => match target.offset_within(window.from, window.len as u64) {
            // A recursive call: it goes where every other caller's goes.
            None | Some(0) => Ok(Lowering::Call(target)),
            Some(_) => Err(Error::CallIntoWindow { culprit: culprit(inst), target }),
        },
        Flow::Syscall => Ok(Lowering::Syscall),
        Flow::Breakpoint => Err(Error::Breakpoint { culprit: culprit(inst) }),
        Flow::Unsupported(reason) => {
            Err(Error::Unsupported { culprit: culprit(inst), reason: reason.into() })
        }
    }
}

fn dest(window: &Window, insts: &[Inst], inst: &Inst, target: CodeAddr) -> Result<Dest, Error> {
    if target.offset_within(window.from, window.len as u64).is_none() {
        return Ok(Dest::Outside(target));
    }
    match insts.iter().position(|other| other.addr() == target) {
        Some(number) => Ok(Dest::Inside(number)),
        None => Err(Error::TargetInsideInstruction { culprit: culprit(inst), target }),
    }
}

impl From<RipOperand> for Operand {
    fn from(operand: RipOperand) -> Self {
        Self { target: operand.target, access: usize::from(operand.access) }
    }
}

impl Plan {
    pub(crate) fn max_len(&self) -> usize {
        self.max_len
    }

    pub(crate) fn resumes(&self) -> bool {
        self.resume.is_some()
    }

    pub(crate) fn reach(&self) -> Reach {
        let targets = self.items.iter().filter_map(|(_, lowering)| lowering.near_target());
        targets.chain(self.resume).map(|target| self.near(target)).fold(Reach::ALL, Reach::intersection)
    }

    pub(crate) fn required_reach(&self) -> Reach {
        let required = self.items.iter().filter(|(_, lowering)| {
            matches!(lowering, Lowering::Rip(_, Far::None) | Lowering::LastCall(Callee::Rip(_, Far::None)))
        });
        let targets = required.filter_map(|(_, lowering)| lowering.near_target());
        targets.map(|target| self.near(target)).fold(Reach::ALL, Reach::intersection)
    }

    pub(crate) fn calls(&self) -> Offsets {
        let calls = self.items.iter().filter(|(inst, lowering)| {
            let indirect = inst.flow() == Flow::CallIndirect && !matches!(lowering, Lowering::LastCall(_));
            indirect || matches!(lowering, Lowering::Call(_))
        });
        calls.map(|(inst, _)| inst.addr().displacement_from(self.from) as u16).collect()
    }

    pub(crate) fn returns_past(&self) -> bool {
        matches!(self.items.last(), Some((_, Lowering::LastCall(_))))
    }

    /// Destinations `to` with `i32::MIN <= target - next <= i32::MAX` for every `next` in `to ..= to + max_len`.
    ///
    /// The bounds stop at the ends of the address space instead of wrapping: no code reaches around them.
    pub(super) fn near(&self, target: CodeAddr) -> Reach {
        let lo = target.0.saturating_sub(i32::MAX as u64);
        let hi = target.0.saturating_add(1 << 31).saturating_sub(self.max_len as u64);
        Reach { lo: CodeAddr(lo), hi: CodeAddr(hi) }
    }
}
