//! How each instruction of a window is rewritten.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    aarch64::{
        Copying, Field, Flow, INST_LEN, Inst, LINK, Literal, PcOperand, PcUse, Unsupported, ZERO_OR_SP,
        added, address,
    },
};

use super::{
    Insts, MAX_WORDS, culprit,
    liveness::{Ahead, Free},
};
use crate::{Error, Reach, Window, instruction::Operand, window::Offsets};

/// Where a branch goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dest {
    /// To an instruction of the window, by its number.
    Inside(usize),
    /// Elsewhere.
    Outside(CodeAddr),
}

/// What holds the address of a literal whose own register can't.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Base {
    /// A register that holds nothing there.
    Free(u8),
    /// A register that is kept on the stack meanwhile.
    Spilled(u8),
    /// Nothing: the literal must be within reach of the load itself.
    Missing,
}

/// What an instruction becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lowering {
    /// Itself. Nothing in it depends on its address.
    Copy,
    /// `nop`: an address that goes into the zero register.
    Nothing,
    /// An address in a register: `adr`, and `bl` to the next instruction.
    Address {
        register: u8,
        target: CodeAddr,
    },
    /// The address of a page in a register.
    Page {
        register: u8,
        target: CodeAddr,
    },
    /// A load of a literal outside the window, through `base`.
    Load {
        literal: Literal,
        register: u8,
        base: Base,
        target: CodeAddr,
    },
    /// A load of a constant of the window, by its number, which goes with the relocated code.
    Carried(usize),
    Jump(Dest),
    Cond(Field, Dest),
    Call(CodeAddr),
}

/// The bytes of a literal that is an address.
const ADDRESS: usize = 8;

impl Lowering {
    /// The most bytes of code and of literals it takes.
    fn max_len(&self) -> usize {
        match self {
            Self::Copy | Self::Nothing | Self::Jump(Dest::Inside(_)) | Self::Cond(_, Dest::Inside(_)) => {
                INST_LEN
            }
            // ldr xd, literal
            Self::Address { .. } | Self::Page { .. } => INST_LEN + ADDRESS,
            // [str xs, [sp, #-16]!;] ldr xs, literal; ldr rt, [xs][; ldr xs, [sp], #16]
            Self::Load { base: Base::Free(_), .. } => 2 * INST_LEN + ADDRESS,
            Self::Load { .. } => 4 * INST_LEN + ADDRESS,
            // ldr rt, literal
            Self::Carried(_) => INST_LEN + 16,
            // ldr xs, literal; br xs
            Self::Jump(Dest::Outside(..)) | Self::Call(_) => 2 * INST_LEN + ADDRESS,
            // branch taken; b over; taken: ldr xs, literal; br xs; over:
            Self::Cond(..) => 4 * INST_LEN + ADDRESS,
        }
    }

    /// The destinations from which all that it needs is near.
    fn reach(&self, plan: &Plan) -> Reach {
        match *self {
            Self::Jump(Dest::Outside(target)) | Self::Cond(_, Dest::Outside(target)) | Self::Call(target) => {
                plan.near(target, Field::Branch26.range())
            }
            Self::Load { base: Base::Missing, target, .. } => plan.near(target, Field::Branch19.range()),
            Self::Address { target, .. } | Self::Page { target, .. } | Self::Load { target, .. } => {
                plan.near(target, PAGES)
            }
            Self::Copy
            | Self::Nothing
            | Self::Carried(_)
            | Self::Jump(Dest::Inside(_))
            | Self::Cond(_, Dest::Inside(_)) => Reach::ALL,
        }
    }

    /// It goes elsewhere, which takes a register if that is far.
    fn leaves(&self) -> bool {
        matches!(self, Self::Jump(Dest::Outside(_)) | Self::Cond(_, Dest::Outside(_)))
    }
}

/// How far `adrp` reaches from any place in a page to any place in another.
const PAGES: u64 = (1 << 32) - 0x2000;

/// Where literals lie, so that one load reads all of an address at once.
pub(super) const LITERAL_ALIGN: u64 = 8;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(super) from: CodeAddr,
    pub(super) window_len: usize,
    pub(super) items: ArrayVec<(Inst, Lowering), MAX_WORDS>,
    /// The constants that loads of the window read, by number.
    pub(super) constants: ArrayVec<ArrayVec<u8, 16>, MAX_WORDS>,
    /// Where the window goes on, if execution falls out of its end.
    pub(super) resume: Option<CodeAddr>,
    ahead: Ahead,
    /// The registers that hold nothing, if a literal had to be given one. Jumps find theirs when it is known that they
    /// need one.
    free: Option<Free>,
    max_len: usize,
}

pub(crate) fn plan(window: &Window, insts: &Insts) -> Result<Plan, Error> {
    let mut plan = Plan {
        from: window.from,
        window_len: window.len,
        items: ArrayVec::new(),
        constants: ArrayVec::new(),
        resume: None,
        ahead: insts.ahead.clone(),
        free: None,
        max_len: 0,
    };
    for (number, inst) in insts.code.iter().enumerate() {
        copying_whole(&insts.code, number)?;
        let lowering = plan.lower(window, insts, number)?;
        plan.items.push((*inst, lowering));
    }
    let last = insts.code.last().filter(|last| !last.flow().is_exit());
    plan.resume = last.map(Inst::next);
    plan.max_len = plan.items.iter().map(|(_, lowering)| lowering.max_len()).sum::<usize>()
        + plan.resume.map_or(0, |_| 2 * INST_LEN + ADDRESS)
        + LITERAL_ALIGN as usize
        - INST_LEN;
    Ok(plan)
}

/// The three parts of a memory copy or set are in the window together, or this is none of them.
fn copying_whole(code: &[Inst], number: usize) -> Result<(), Error> {
    let part = |number: usize| code.get(number).and_then(Inst::copying);
    let before = number.checked_sub(1).and_then(part);
    let whole = match part(number) {
        None => true,
        Some(Copying::Prologue) => part(number + 1) == Some(Copying::Main),
        Some(Copying::Main) => {
            before == Some(Copying::Prologue) && part(number + 1) == Some(Copying::Epilogue)
        }
        Some(Copying::Epilogue) => before == Some(Copying::Main),
    };
    let split =
        || Error::Unsupported { culprit: culprit(&code[number]), reason: Unsupported::SplitCopy.into() };
    whole.then_some(()).ok_or_else(split)
}

impl Plan {
    fn lower(&mut self, window: &Window, insts: &Insts, number: usize) -> Result<Lowering, Error> {
        let inst = &insts.code[number];
        let dest = |target| dest(window, insts, inst, target);
        match inst.flow() {
            Flow::Next
            | Flow::JumpIndirect
            | Flow::CallIndirect
            | Flow::Return
            | Flow::Syscall
            | Flow::Undefined => match inst.operand() {
                None => copy(window, &insts.code[..=number], inst),
                Some(operand) => self.operand(window, insts, number, operand),
            },
            Flow::Jump { target } => Ok(Lowering::Jump(dest(target)?)),
            Flow::Cond { field, target } => Ok(Lowering::Cond(field, dest(target)?)),
            // It only asks for its address. One under the patch has no use but to be read or jumped to.
            Flow::Call { target } if target == inst.next() => {
                match target.offset_within(window.from, window.len as u64) {
                    None => Ok(Lowering::Address { register: LINK, target }),
                    Some(_) => Err(Error::UsesWindow { culprit: culprit(inst), target }),
                }
            }
            Flow::Call { target } => match target.offset_within(window.from, window.len as u64) {
                // A recursive call: it goes where every other caller's goes.
                None | Some(0) => Ok(Lowering::Call(target)),
                Some(_) => Err(Error::CallIntoWindow { culprit: culprit(inst), target }),
            },
            Flow::Breakpoint => Err(Error::Breakpoint { culprit: culprit(inst) }),
            Flow::Unsupported(reason) => {
                Err(Error::Unsupported { culprit: culprit(inst), reason: reason.into() })
            }
        }
    }

    fn operand(
        &mut self,
        window: &Window,
        insts: &Insts,
        number: usize,
        operand: PcOperand,
    ) -> Result<Lowering, Error> {
        let PcOperand { kind, register, target } = operand;
        if let Some(constant) = insts.constant(operand) {
            self.constants.push(constant);
            return Ok(Lowering::Carried(self.constants.len() - 1));
        }
        if Operand::from(operand).touches(window.from, window.len) {
            return Err(Error::UsesWindow { culprit: culprit(&insts.code[number]), target });
        }
        Ok(match kind {
            PcUse::Address | PcUse::Page if register == ZERO_OR_SP => Lowering::Nothing,
            PcUse::Address => Lowering::Address { register, target },
            PcUse::Page => Lowering::Page { register, target },
            PcUse::Literal(literal) => {
                let base = match literal.is_general() && register != ZERO_OR_SP {
                    true => Base::Free(register),
                    false => {
                        let find = || Free::find(&insts.code, window.from, window.len, &insts.ahead);
                        self.free.get_or_insert_with(find).base(number)
                    }
                };
                Lowering::Load { literal, register, base, target }
            }
        })
    }

    pub(crate) fn max_len(&self) -> usize {
        self.max_len
    }

    pub(crate) fn resumes(&self) -> bool {
        self.resume.is_some()
    }

    /// The registers that hold nothing. It takes long to find them.
    pub(super) fn free(&self) -> Free {
        let code: ArrayVec<Inst, MAX_WORDS> = self.items.iter().map(|&(inst, _)| inst).collect();
        let find = || Free::find(&code, self.from, self.window_len, &self.ahead);
        self.free.clone().unwrap_or_else(find)
    }

    pub(crate) fn reach(&self) -> Reach {
        let lowerings = self.items.iter().map(|&(_, lowering)| lowering).chain(self.back());
        lowerings.map(|lowering| lowering.reach(self)).fold(Reach::ALL, Reach::intersection)
    }

    /// That of what has no form for a destination outside its reach: for want of a register.
    pub(crate) fn required_reach(&self) -> Reach {
        let loads = |&&(_, lowering): &&(Inst, Lowering)| {
            matches!(lowering, Lowering::Load { base: Base::Missing, .. })
        };
        let loads = self.items.iter().filter(loads).map(|(_, load)| load.reach(self));
        let loads = loads.fold(Reach::ALL, Reach::intersection);
        if self.resume.is_none() && !self.items.iter().any(|(_, lowering)| lowering.leaves()) {
            return loads;
        }
        let free = self.free();
        let stuck = |&(number, &(_, lowering)): &(usize, &(Inst, Lowering))| {
            lowering.leaves() && free.at_target(number).is_none()
        };
        let stuck = self.items.iter().enumerate().filter(stuck).map(|(_, &(_, lowering))| lowering);
        let back = self.back().filter(|_| free.for_resume().is_none());
        stuck.chain(back).map(|lowering| lowering.reach(self)).fold(loads, Reach::intersection)
    }

    fn back(&self) -> Option<Lowering> {
        self.resume.map(|target| Lowering::Jump(Dest::Outside(target)))
    }

    pub(crate) fn returns_past(&self) -> bool {
        false
    }

    pub(crate) fn calls(&self) -> Offsets {
        let calls = self.items.iter().filter(|(inst, lowering)| {
            matches!(lowering, Lowering::Call(_)) || inst.flow() == Flow::CallIndirect
        });
        calls.map(|(inst, _)| inst.addr().displacement_from(self.from) as u16).collect()
    }

    /// Destinations `to` with `-range <= target - here < range` for every `here` in `to ..= to + max_len`.
    ///
    /// The bounds stop at the ends of the address space instead of wrapping: no code reaches around them.
    fn near(&self, target: CodeAddr, range: u64) -> Reach {
        let lo = target.0.saturating_sub(range - INST_LEN as u64);
        let hi = target.0.saturating_add(range).saturating_sub(self.max_len as u64);
        Reach { lo: CodeAddr(lo), hi: CodeAddr(hi & !(INST_LEN as u64 - 1)) }
    }
}

/// An instruction that stays what it is. An ADD to an ADRP may be the other half of an address inside the window.
fn copy(window: &Window, run: &[Inst], inst: &Inst) -> Result<Lowering, Error> {
    let inside = |target: &CodeAddr| {
        target.offset_within(window.from, window.len as u64).is_some_and(|offset| offset > 0)
    };
    match added_address(run, inst).filter(inside) {
        Some(target) => Err(Error::UsesWindow { culprit: culprit(inst), target }),
        None => Ok(Lowering::Copy),
    }
}

/// The address that an ADD, the last of `run`, makes out of one that ADR or ADRP made.
pub(super) fn added_address(run: &[Inst], add: &Inst) -> Option<CodeAddr> {
    added(add)?;
    address(run, (add.word() & 0x1f) as u8)
}

fn dest(window: &Window, insts: &Insts, inst: &Inst, target: CodeAddr) -> Result<Dest, Error> {
    if target.offset_within(window.from, window.len as u64).is_none() {
        return Ok(Dest::Outside(target));
    }
    match insts.code.iter().position(|other| other.addr() == target) {
        Some(number) => Ok(Dest::Inside(number)),
        None => Err(Error::TargetInsideInstruction { culprit: culprit(inst), target }),
    }
}

impl From<PcOperand> for Operand {
    fn from(operand: PcOperand) -> Self {
        Self { target: operand.target, access: operand.access() }
    }
}
