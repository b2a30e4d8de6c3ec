//! How each instruction of a window is rewritten.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    a32::{Cond, LR},
    t32::{Exclusive, Flow, Inst, It, Literal, LiteralForm, PcUse, Unsupported, decode_within, len},
};

use super::{Insts, MAX_INSTS, culprit};
use crate::{Error, Reach, Window, instruction::Operand, plan::Callee, window::Offsets};

/// Where a branch goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dest {
    /// To an instruction of the window, by its number.
    Inside(usize),
    /// Elsewhere.
    Outside(CodeAddr),
}

/// The bytes of a literal that lies in the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Copied {
    pub(super) words: [u32; 2],
    pub(super) count: usize,
}

/// What an instruction becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lowering {
    /// Itself. Nothing in it depends on its address.
    Copy,
    /// Nothing: the IT of a block whose members have their conditions each by itself.
    Split,
    /// `adr`, `mov rd, pc`: the value as a literal.
    Address(u8, CodeAddr),
    /// `add rd, pc`: the value in up to four immediates, since flags and all other registers stay.
    Add(u8, CodeAddr),
    /// A load from an address near the PC: through a register.
    Load(Literal),
    /// The same from the window itself, whose bytes a patch changes: from a copy.
    LoadCopied(Copied),
    Jump(Dest),
    Cond(Cond, Dest),
    CompareZero(bool, u8, Dest),
    Call(CodeAddr),
    CallA32(CodeAddr),
    /// A call at the window's end, from which the callee returns to what follows the window.
    LastCall(Callee, CodeAddr),
    /// `bl` to the next instruction asks for its own address only: LR becomes the original one.
    LinkNext(CodeAddr),
    /// `bx pc`.
    JumpA32(CodeAddr),
    Table {
        half: bool,
        base: u8,
        index: u8,
        pc: CodeAddr,
    },
    AddToPc(u8, CodeAddr),
}

/// What an instruction's condition becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Guard {
    /// None is needed: there is none, or the IT block is copied whole, or the branch has it.
    None,
    /// An IT for this instruction alone.
    It(Cond),
    /// A branch over it under the inverse condition.
    Over(Cond),
}

impl Lowering {
    /// The most bytes of code and of literals it takes.
    pub(super) fn max_len(&self, inst: &Inst) -> usize {
        match self {
            Self::Copy => inst.bytes().len(),
            Self::Split => 0,
            // ldr.w rd, literal
            Self::Address(..) | Self::LinkNext(_) => 4 + 4,
            Self::Add(..) => 4 * 4,
            // ldr.w rt, literal; ldr.w rt, [rt]
            Self::Load(Literal { form: LiteralForm::Core { .. }, .. }) => 4 + 4 + 4,
            // push; ldr.w rs, literal; ldr rs, [rs]; str rs, [sp, #4]; pop
            Self::Load(Literal { form: LiteralForm::Pc, .. }) => 2 + 4 + 2 + 2 + 2 + 4,
            // push; ldr.w rs, literal; the load; pop
            Self::Load(_) => 2 + 4 + 4 + 2 + 4,
            Self::LoadCopied(copied) => 4 + 4 * copied.count,
            // ldr.w pc, literal
            Self::Jump(_) | Self::JumpA32(_) => 4 + 4,
            // b<!c> over; ldr.w pc, literal; over:
            Self::Cond(..) | Self::CompareZero(..) => 2 + 4 + 4,
            // ldr.w lr, literal; blx lr
            Self::Call(_) | Self::CallA32(_) => 4 + 2 + 4,
            // ldr.w lr, literal; bx rm
            Self::LastCall(Callee::Register(_), _) => 4 + 2 + 4,
            // ldr.w lr, literal; ldr.w pc, literal
            Self::LastCall(..) => 4 + 4 + 4 + 4,
            // push; ldr.w ra, literal; ldrb.w rb, [ra, rm]; ldr.w ra, literal; add.w; str; pop
            Self::Table { .. } => 2 + 4 + 4 + 4 + 4 + 2 + 2 + 8,
            // push; ldr.w ra, literal; add; orr.w; str; pop
            Self::AddToPc(..) => 2 + 4 + 2 + 4 + 2 + 2 + 4,
        }
    }

    /// What it must reach, if it is near.
    const fn near_target(&self) -> Option<CodeAddr> {
        match self {
            Self::Call(target)
            | Self::CallA32(target)
            | Self::LastCall(Callee::T32(target), _)
            | Self::Jump(Dest::Outside(target))
            | Self::Cond(_, Dest::Outside(target))
            | Self::CompareZero(_, _, Dest::Outside(target)) => Some(*target),
            _ => None,
        }
    }

    /// It keeps a register on the stack meanwhile.
    const fn spills(&self) -> bool {
        match self {
            Self::Load(literal) => !matches!(literal.form, LiteralForm::Core { .. }),
            Self::Table { .. } | Self::AddToPc(..) => true,
            _ => false,
        }
    }
}

/// An instruction and what becomes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Item {
    pub(super) inst: Inst,
    pub(super) lowering: Lowering,
    pub(super) guard: Guard,
    /// Execution can enter here: it is no member of an IT block that was split.
    pub(super) mapped: bool,
}

impl Item {
    fn max_len(&self) -> usize {
        let guard = if self.guard == Guard::None { 0 } else { 2 };
        guard + self.lowering.max_len(&self.inst)
    }
}

/// The jump back, at its longest: `ldr.w pc, literal`.
const JUMP_BACK: usize = 4 + 4;

/// Literals lie at multiples of 4, which `ldr pc` asks for.
pub(super) const LITERAL_ALIGN: u64 = 4;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(super) from: CodeAddr,
    pub(super) window_len: usize,
    pub(super) items: ArrayVec<Item, MAX_INSTS>,
    /// Where the window goes on, if execution falls out of its end.
    pub(super) resume: Option<CodeAddr>,
    max_len: usize,
}

pub(crate) fn plan(window: &Window, insts: &Insts) -> Result<Plan, Error> {
    let mut items = ArrayVec::<Item, MAX_INSTS>::new();
    for (number, inst) in insts.code.iter().enumerate() {
        let lowering = lower(window, insts, inst)?;
        // A store between the two may make the second one fail for ever (DDI 0406, A3.4.5).
        if lowering.spills() && may_be_reserved(window, insts, number) {
            let reason = Unsupported::Exclusive.into();
            return Err(Error::Unsupported { culprit: culprit(inst), reason });
        }
        items.push(Item { inst: *inst, lowering, guard: Guard::None, mapped: true });
    }
    if let Some(last) = items.last_mut() {
        last.lowering = last_call(window, last).unwrap_or(last.lowering);
    }
    guard(&mut items);
    let resume = insts.code.last().filter(|last| !last.is_exit()).map(Inst::next);
    let max_len = items.iter().map(Item::max_len).sum::<usize>()
        + resume.map_or(0, |_| JUMP_BACK)
        + (LITERAL_ALIGN - 2) as usize;
    Ok(Plan { from: window.from, window_len: window.len, items, resume, max_len })
}

/// A call at the window's end. Its return address is no byte of the patch's, and so it may be the original's: the callee
/// returns there, and whoever unwinds finds the function's own tables. BLX through LR reads what it writes.
fn last_call(window: &Window, Item { inst, lowering, .. }: &Item) -> Option<Lowering> {
    let link = Some(inst.next()).filter(|next| *next == window.from.add(window.len as u64))?;
    let callee = match *lowering {
        Lowering::Call(target) => Callee::T32(target),
        Lowering::CallA32(target) => Callee::A32(target),
        Lowering::Copy => Callee::Register(inst.callee().filter(|&register| register != LR)?),
        _ => return None,
    };
    Some(Lowering::LastCall(callee, link))
}

/// An exclusive load comes before it, and no end of the sequence; or such an end comes next, in the window or behind it.
fn may_be_reserved(window: &Window, insts: &Insts, number: usize) -> bool {
    let told = |inst: &Inst| Some(inst.exclusive()).filter(|&exclusive| exclusive != Exclusive::None);
    let before = insts.code[..number].iter().rev().find_map(told);
    let behind = || insts.code[number + 1..].iter().find_map(told).or_else(|| told_ahead(window, insts));
    before == Some(Exclusive::Begins) || behind() == Some(Exclusive::Ends)
}

/// What the first instruction behind the window does that has to do with the exclusive monitor. No window ends in an IT
/// block.
fn told_ahead(window: &Window, insts: &Insts) -> Option<Exclusive> {
    let (mut offset, mut it) = (0, It::OUTSIDE);
    while let Some(&[low, high, ..]) = insts.ahead.get(offset..) {
        let at = window.from.add((window.len + offset) as u64);
        it = match decode_within(at, &insts.ahead[offset..], it) {
            Ok(inst) if inst.exclusive() != Exclusive::None => return Some(inst.exclusive()),
            Ok(inst) => inst.next_it(),
            Err(_) => It::OUTSIDE,
        };
        offset += len(u16::from_le_bytes([low, high]));
    }
    None
}

/// Gives the members of IT blocks their conditions. A block whose members are all copied stays as it is.
///
/// Each member of a block runs under its condition as the flags are at that moment, so conditions taken one by one mean
/// the same. A copied member keeps an IT: without one, 16-bit arithmetic would set flags.
fn guard(items: &mut [Item]) {
    let mut at = 0;
    while at < items.len() {
        let members = items[at + 1..].iter().take_while(|item| item.inst.it().is_inside()).count();
        let (block, end) = (&mut items[at..=at + members], at + 1 + members);
        if block[0].inst.begins_it() && block[1..].iter().any(|item| item.lowering != Lowering::Copy) {
            block[0].lowering = Lowering::Split;
            for item in &mut block[1..] {
                item.mapped = false;
                let cond = item.inst.cond();
                match item.lowering {
                    Lowering::Copy => item.guard = Guard::It(cond),
                    _ if cond.is_always() => {}
                    Lowering::Jump(dest) => item.lowering = Lowering::Cond(cond, dest),
                    _ => item.guard = Guard::Over(cond),
                }
            }
        }
        at = end;
    }
}

fn lower(window: &Window, insts: &Insts, inst: &Inst) -> Result<Lowering, Error> {
    let dest = |target: CodeAddr| dest(window, insts, inst, target);
    let refuse = |reason: Unsupported| Error::Unsupported { culprit: culprit(inst), reason: reason.into() };
    let into_window = |target: CodeAddr| target.offset_within(window.from, window.len as u64);
    let pc = inst.addr().add(grapnel_arch::t32::PC_AHEAD);
    match inst.flow() {
        Flow::Next | Flow::CallIndirect | Flow::JumpIndirect | Flow::Return | Flow::Undefined => {
            use_of_pc(window, insts, inst)
        }
        Flow::Jump { target } => Ok(Lowering::Jump(dest(target)?)),
        Flow::Cond { cond, target } => Ok(Lowering::Cond(cond, dest(target)?)),
        Flow::CompareZero { nonzero, register, target } => {
            Ok(Lowering::CompareZero(nonzero, register, dest(target)?))
        }
        // It only asks for its address. One under the patch has no use but to be read or jumped to.
        Flow::Call { target } if target == inst.next() => match into_window(target) {
            None => Ok(Lowering::LinkNext(target)),
            Some(_) => Err(Error::UsesWindow { culprit: culprit(inst), target }),
        },
        Flow::Call { target } => match into_window(target) {
            // A recursive call: it goes where every other caller's goes.
            None | Some(0) => Ok(Lowering::Call(target)),
            Some(_) => Err(Error::CallIntoWindow { culprit: culprit(inst), target }),
        },
        Flow::CallA32 { target } => match into_window(target) {
            None => Ok(Lowering::CallA32(target)),
            Some(_) => Err(Error::CallIntoWindow { culprit: culprit(inst), target }),
        },
        Flow::JumpA32 { target } => match into_window(target) {
            None => Ok(Lowering::JumpA32(target)),
            Some(_) => Err(Error::TargetInsideInstruction { culprit: culprit(inst), target }),
        },
        // The nearest code that it can lead to, or of `tbb [pc]` the table, which has an entry at least.
        Flow::Table { .. } | Flow::AddToPc { .. } if into_window(pc).is_some() => {
            Err(Error::UsesWindow { culprit: culprit(inst), target: pc })
        }
        Flow::Table { half, base, index } => Ok(Lowering::Table { half, base, index, pc }),
        Flow::AddToPc { register } => Ok(Lowering::AddToPc(register, pc)),
        Flow::Breakpoint => Err(Error::Breakpoint { culprit: culprit(inst) }),
        Flow::Unsupported(reason) => Err(refuse(reason)),
    }
}

const SP: u8 = 13;

fn use_of_pc(window: &Window, insts: &Insts, inst: &Inst) -> Result<Lowering, Error> {
    let refuse = |reason: Unsupported| Error::Unsupported { culprit: culprit(inst), reason: reason.into() };
    match inst.pc_use() {
        PcUse::None => Ok(Lowering::Copy),
        PcUse::Unknown => Err(refuse(Unsupported::UsesPc)),
        PcUse::Address { register: SP, .. } | PcUse::Add { register: SP, .. } => {
            Err(refuse(Unsupported::PcAndStack))
        }
        // A place inside the window has no use but to be jumped to or read.
        PcUse::Address { value, .. } if inside(window, value) => {
            Err(Error::UsesWindow { culprit: culprit(inst), target: value })
        }
        PcUse::Address { register, value } => Ok(Lowering::Address(register, value)),
        PcUse::Add { register, value } => Ok(Lowering::Add(register, value)),
        PcUse::Literal(literal) => {
            if literal.access == 0 || !Operand::from(literal).touches(window.from, window.len) {
                return match literal.form {
                    LiteralForm::Stack => Err(Error::NoScratch { culprit: culprit(inst) }),
                    _ => Ok(Lowering::Load(literal)),
                };
            }
            let at = usize::try_from(literal.target.displacement_from(window.from)).ok();
            match at.and_then(|at| insts.bytes.get(at..at + usize::from(literal.access))) {
                Some(read) => Ok(Lowering::LoadCopied(copied(read))),
                None => Err(Error::UsesWindow { culprit: culprit(inst), target: literal.target }),
            }
        }
    }
}

impl From<Literal> for Operand {
    fn from(literal: Literal) -> Self {
        Self { target: literal.target, access: usize::from(literal.access) }
    }
}

/// The address lies in the window, and is not its start, which is the function's address for everyone.
fn inside(window: &Window, addr: CodeAddr) -> bool {
    addr.offset_within(window.from, window.len as u64).is_some_and(|offset| offset > 0)
}

fn copied(bytes: &[u8]) -> Copied {
    let mut copied = Copied { words: [0; 2], count: bytes.len().div_ceil(4) };
    for (word, bytes) in copied.words.iter_mut().zip(bytes.chunks(4)) {
        *word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
    }
    copied
}

fn dest(window: &Window, insts: &Insts, inst: &Inst, target: CodeAddr) -> Result<Dest, Error> {
    if target.offset_within(window.from, window.len as u64).is_none() {
        return Ok(Dest::Outside(target));
    }
    // A branch into an IT block would run its members without their conditions.
    match insts.code.iter().position(|other| other.addr() == target && !other.it().is_inside()) {
        Some(number) => Ok(Dest::Inside(number)),
        None => Err(Error::TargetInsideInstruction { culprit: culprit(inst), target }),
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
        let targets = self.items.iter().filter_map(|item| item.lowering.near_target()).chain(self.resume);
        targets.map(|target| self.near(target, 24)).fold(self.required_reach(), Reach::intersection)
    }

    /// Where there is memory.
    pub(crate) fn required_reach(&self) -> Reach {
        Reach { lo: CodeAddr(0), hi: CodeAddr((1 << 32) - self.max_len as u64) }
    }

    pub(crate) fn returns_past(&self) -> bool {
        matches!(self.items.last(), Some(Item { lowering: Lowering::LastCall(..), .. }))
    }

    pub(crate) fn calls(&self) -> Offsets {
        let calls = self.items.iter().filter(|item| {
            matches!(item.lowering, Lowering::Call(_) | Lowering::CallA32(_))
                || item.inst.flow() == Flow::CallIndirect && item.lowering == Lowering::Copy
        });
        calls.map(|item| item.inst.addr().displacement_from(self.from) as u16).collect()
    }

    /// Destinations `to` with `-2^width <= target - (at + 4) <= 2^width - 4` for every `at` in `to ..= to + max_len`: a
    /// branch's field holds that, and so does the one of `blx`, which counts from the PC aligned down.
    ///
    /// The bounds stop at the ends of the address space instead of wrapping: no code reaches around them.
    pub(super) fn near(&self, target: CodeAddr, width: u32) -> Reach {
        let lo = target.0.saturating_sub(1 << width);
        let hi = (target.0 + (1 << width)).saturating_sub(4 + self.max_len as u64);
        Reach { lo: CodeAddr(lo), hi: CodeAddr(hi) }
    }
}
