//! How each instruction of a window is rewritten.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr, Isa,
    a32::{Flow, Form, INST_LEN, Inst, LR, Literal, PC, Unsupported, encode::Branch24, pc},
};

use super::{
    Insts, Item, MAX_WORDS, culprit,
    liveness::Sight,
    scratch::{Scratch, Way, choose, used_to_leave},
    store::{MAX_STORE_LIST, MAX_STORE_TO_STACK, StoreList, StoreToStack},
    sum::{MAX_SUM, Sum},
};
use crate::{Error, Reach, Registers, Window, instruction::Operand, plan::Callee, window::Offsets};

/// Where a branch goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dest {
    /// To a word of the window, by its number.
    Inside(usize),
    /// Elsewhere.
    Outside(CodeAddr),
}

/// What stands in for the PC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Base {
    /// The value that the PC has at the original place.
    Pc,
    /// The value for which the operand is the copy of the constant that is at this offset in the window.
    Copy { offset: usize },
}

/// What an instruction becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lowering {
    /// Itself. Nothing in it depends on its address.
    Copy,
    /// A constant, which nothing executes. It is copied to the literals if something reads it.
    Data,
    Jump(Dest),
    /// A jump to T32 code, through a literal with bit 0 set.
    JumpThumb(CodeAddr),
    Call {
        target: CodeAddr,
        thumb: bool,
    },
    /// A call at the window's end, from which the callee returns to what follows the window.
    LastCall(Callee, CodeAddr),
    /// A literal in a register: `adr`, `mov rd, pc`, `bl` to the next instruction.
    Value {
        register: u8,
        value: CodeAddr,
    },
    Sum(Sum),
    /// LDR of a constant in the window, from its copy.
    Load {
        register: u8,
        offset: usize,
    },
    /// Itself, with a register instead of the PC.
    Replace(Base, Scratch),
    StoreList(StoreList),
    StoreToStack(StoreToStack),
}

impl Lowering {
    /// The most bytes of code and of literals that it takes.
    pub(super) fn max_len(&self) -> usize {
        let words = match self {
            Self::Data => 0,
            Self::Copy | Self::Jump(Dest::Inside(_)) | Self::Load { .. } => 1,
            // ldr pc, literal; ldr rd, literal
            Self::Jump(Dest::Outside(_)) | Self::JumpThumb(_) | Self::Value { .. } => 1 + 1,
            // ldr lr, literal; blx lr
            Self::Call { .. } => 2 + 1,
            // ldr lr, literal; bx rm
            Self::LastCall(Callee::Register(_), _) => 2 + 1,
            // ldr lr, literal; ldr pc, literal
            Self::LastCall(..) => 2 + 2,
            Self::Sum(_) => MAX_SUM,
            Self::Replace(_, Scratch { way: Way::Own | Way::Free, .. }) => 2 + 1,
            // b over; push; ldr; the instruction; pop; over:
            // push; ldr; the instruction; str; pop
            Self::Replace(..) => 5 + 1,
            Self::StoreList(_) => MAX_STORE_LIST + 1,
            Self::StoreToStack(_) => MAX_STORE_TO_STACK + 1,
        };
        words * INST_LEN
    }

    /// What it must reach, if it is near.
    fn near_target(&self) -> Option<CodeAddr> {
        match self {
            Self::Jump(Dest::Outside(target)) | Self::LastCall(Callee::A32(target), _) => Some(*target),
            // The field counts words; BLX has a bit of its own for the halfword.
            Self::Call { target, .. } => Some(CodeAddr(target.0 & !3)),
            _ => None,
        }
    }

    /// The register that it changes for good.
    pub(super) fn clobbers(&self) -> Registers {
        let scratch = match self {
            Self::Replace(_, scratch) => Some(*scratch),
            Self::StoreList(store) => store.scratch(),
            _ => None,
        };
        match scratch {
            Some(Scratch { register, way: Way::Free }) => Registers::one(Isa::A32, register),
            _ => Registers::none(Isa::A32),
        }
    }
}

/// The jump back, at its longest: `ldr pc, literal`.
const JUMP_BACK: usize = 2 * INST_LEN;

/// Constants of the window, copied to the literals with what lies between them, at the same place in 8 bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Copies {
    /// Where they are in the window.
    pub(super) offset: usize,
    pub(super) bytes: ArrayVec<u8, { MAX_WORDS * INST_LEN }>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(super) from: CodeAddr,
    pub(super) window_len: usize,
    pub(super) items: ArrayVec<(Item, Lowering), MAX_WORDS>,
    pub(super) copies: Copies,
    /// Where the window goes on, if execution falls out of its end.
    pub(super) resume: Option<CodeAddr>,
    max_len: usize,
}

pub(crate) fn plan(window: &Window, insts: &Insts) -> Result<Plan, Error> {
    let mut planner = Planner { window, insts, sight: None };
    let mut items = ArrayVec::new();
    for (number, item) in insts.items.iter().enumerate() {
        let lowering = match item {
            Item::Code(inst) => planner.lower(number, inst)?,
            Item::Data { .. } => Lowering::Data,
        };
        items.push((*item, lowering));
    }
    if let Some((Item::Code(last), lowering)) = items.last_mut() {
        *lowering = last_call(window, last, lowering).unwrap_or(*lowering);
    }
    let copies = copies(window, &items);
    let resume = match insts.items.last() {
        Some(Item::Code(last)) if !last.is_exit() => Some(last.next()),
        _ => None,
    };
    let lowered: usize = items.iter().map(|(_, lowering): &(Item, Lowering)| lowering.max_len()).sum();
    // The copies may need a word before them.
    let copied = if copies.bytes.is_empty() { 0 } else { INST_LEN + copies.bytes.len() };
    let max_len = lowered + copied + resume.map_or(0, |_| JUMP_BACK);
    Ok(Plan { from: window.from, window_len: window.len, items, copies, resume, max_len })
}

/// A call at the window's end. Its return address is no byte of the patch's, and so it may be the original's: the callee
/// returns there, and whoever unwinds finds the function's own tables. BLX through LR reads what it writes.
fn last_call(window: &Window, inst: &Inst, lowering: &Lowering) -> Option<Lowering> {
    let link = Some(inst.next()).filter(|next| *next == window.from.add(window.len as u64))?;
    let callee = match *lowering {
        Lowering::Call { target, thumb: false } => Callee::A32(target),
        Lowering::Call { target, thumb: true } => Callee::T32(target),
        Lowering::Copy => Callee::Register(inst.callee().filter(|&register| register != LR)?),
        _ => return None,
    };
    Some(Lowering::LastCall(callee, link))
}

fn copies(window: &Window, items: &[(Item, Lowering)]) -> Copies {
    let read = items.iter().any(|(_, lowering)| {
        matches!(lowering, Lowering::Load { .. } | Lowering::Replace(Base::Copy { .. }, _))
    });
    let is_data = |(item, _): &(Item, Lowering)| item.code().is_none();
    let (Some(first), Some(last)) = (items.iter().position(is_data), items.iter().rposition(is_data)) else {
        return Copies::default();
    };
    if !read {
        return Copies::default();
    }
    let offset = items[first].0.at().displacement_from(window.from) as usize;
    Copies { offset, bytes: items[first..=last].iter().flat_map(|(item, _)| item.bytes()).collect() }
}

struct Planner<'a> {
    window: &'a Window,
    insts: &'a Insts,
    /// Decoded when it is first asked for.
    sight: Option<Sight>,
}

impl Planner<'_> {
    fn lower(&mut self, number: usize, inst: &Inst) -> Result<Lowering, Error> {
        match inst.flow() {
            Flow::Breakpoint => Err(Error::Breakpoint { culprit: culprit(inst) }),
            Flow::Unsupported(reason) => {
                Err(Error::Unsupported { culprit: culprit(inst), reason: reason.into() })
            }
            Flow::Jump { target, thumb: false } => Ok(Lowering::Jump(self.dest(inst, target)?)),
            Flow::Jump { target, thumb: true } => match self.inside(target) {
                None => Ok(Lowering::JumpThumb(target)),
                Some(_) => Err(Error::TargetInsideInstruction { culprit: culprit(inst), target }),
            },
            Flow::Call { target, thumb } => self.call(inst, target, thumb),
            Flow::Next | Flow::JumpIndirect | Flow::CallIndirect | Flow::Return | Flow::Undefined => {
                self.operands(number, inst)
            }
        }
    }

    fn inside(&self, addr: CodeAddr) -> Option<u64> {
        addr.offset_within(self.window.from, self.window.len as u64)
    }

    /// The address is inside the window, and not its start: that is the function's, and is what everyone else takes it
    /// for.
    fn is_interior(&self, addr: CodeAddr) -> bool {
        self.inside(addr).is_some_and(|offset| offset > 0)
    }

    fn dest(&self, inst: &Inst, target: CodeAddr) -> Result<Dest, Error> {
        if self.inside(target).is_none() {
            return Ok(Dest::Outside(target));
        }
        let is_target = |item: &Item| item.code().is_some_and(|other| other.addr() == target);
        match self.insts.items.iter().position(is_target) {
            Some(number) => Ok(Dest::Inside(number)),
            None => Err(Error::TargetInsideInstruction { culprit: culprit(inst), target }),
        }
    }

    fn call(&self, inst: &Inst, target: CodeAddr, thumb: bool) -> Result<Lowering, Error> {
        // A call to the next instruction only asks for its address, unless the window goes there by it.
        // It only asks for its address. One under the patch has no use but to be read or jumped to.
        if !thumb && target == inst.next() {
            return match self.is_interior(target) {
                false => Ok(Lowering::Value { register: LR, value: target }),
                true => Err(Error::UsesWindow { culprit: culprit(inst), target }),
            };
        }
        match self.inside(target) {
            None => Ok(Lowering::Call { target, thumb }),
            // A recursive call: it goes where every other caller's goes.
            Some(0) if !thumb => Ok(Lowering::Call { target, thumb }),
            Some(_) => Err(Error::CallIntoWindow { culprit: culprit(inst), target }),
        }
    }

    fn goes_indirectly(&self) -> bool {
        let goes =
            |inst: &Inst| matches!(inst.flow(), Flow::Return | Flow::JumpIndirect | Flow::CallIndirect);
        self.insts.code().any(goes)
    }

    fn operands(&mut self, number: usize, inst: &Inst) -> Result<Lowering, Error> {
        let reads = inst.pc_reads();
        if !reads.any() {
            return Ok(Lowering::Copy);
        }
        if let Some(address) = inst.address() {
            return match (self.is_interior(address.value), address.register) {
                (false, register) => Ok(Lowering::Value { register, value: address.value }),
                // What is in LR is where a callee returns to.
                (true, LR) => Err(Error::CallIntoWindow { culprit: culprit(inst), target: address.value }),
                (true, _) => Err(Error::UsesWindow { culprit: culprit(inst), target: address.value }),
            };
        }
        if let Some(literal) = inst.literal()
            && literal.access > 0
            && Operand::from(literal).touches(self.window.from, self.window.len)
        {
            return self.constant(number, inst, literal);
        }
        // It goes by its own address alone, and not by a sum: to a constant place, which may lie in the window.
        if used_to_leave(inst) && inst.form().is_data() && inst.uses().reads == 1 << PC {
            let reason = Unsupported::UsesPc.into();
            return Err(Error::Unsupported { culprit: culprit(inst), reason });
        }
        if self.reads_table(inst) && self.is_interior(pc(inst.addr())) {
            return Err(Error::UsesWindow { culprit: culprit(inst), target: pc(inst.addr()) });
        }
        if self.may_go_to_value(inst) && self.is_interior(pc(inst.addr())) {
            return Err(Error::UsesWindow { culprit: culprit(inst), target: pc(inst.addr()) });
        }
        if let Some(sum) = Sum::of(inst) {
            return Ok(Lowering::Sum(sum));
        }
        if reads.list {
            let sight = sight(&mut self.sight, self.window, self.insts);
            return Ok(match StoreList::plan(self.insts, sight, number, inst)? {
                Some(store) => Lowering::StoreList(store),
                None => match StoreToStack::push() {
                    Some(store) => Lowering::StoreToStack(store),
                    None => return Err(Error::NoScratch { culprit: culprit(inst) }),
                },
            });
        }
        match (self.scratch(number, inst), reads.rt) {
            (Ok(scratch), _) => Ok(Lowering::Replace(Base::Pc, scratch)),
            (Err(error), true) => StoreToStack::of(inst).map(Lowering::StoreToStack).ok_or(error),
            (Err(error), false) => Err(error),
        }
    }

    fn scratch(&mut self, number: usize, inst: &Inst) -> Result<Scratch, Error> {
        let sight = sight(&mut self.sight, self.window, self.insts);
        choose(self.insts, sight, number, inst, true)
    }

    /// An operand in the window: a constant behind an exit goes along, all else is refused.
    fn constant(&mut self, number: usize, inst: &Inst, literal: Literal) -> Result<Lowering, Error> {
        let start = literal.target.displacement_from(self.window.from);
        let end = start + i64::from(literal.access);
        let is_data = |at: i64| {
            let item = usize::try_from(at).ok().and_then(|at| self.insts.items.get(at / INST_LEN));
            item.is_some_and(|item| item.code().is_none())
        };
        if literal.store || !(start..end).all(is_data) {
            return Err(Error::UsesWindow { culprit: culprit(inst), target: literal.target });
        }
        let offset = start as usize;
        if inst.form() == Form::Word && literal.access == 4 {
            return Ok(Lowering::Load { register: (inst.word() >> 12 & 15) as u8, offset });
        }
        Ok(Lowering::Replace(Base::Copy { offset }, self.scratch(number, inst)?))
    }

    /// The PC's value, or a sum with it, is left where the window may take it as an address to go to.
    fn may_go_to_value(&self, inst: &Inst) -> bool {
        let reads = inst.pc_reads();
        let goes = |inst: &Inst| matches!(inst.flow(), Flow::JumpIndirect | Flow::CallIndirect);
        if reads.rt || reads.list || inst.uses().writes >> LR & 1 == 1 {
            self.goes_indirectly()
        } else {
            inst.form().is_data() && self.insts.code().any(goes)
        }
    }

    /// It reads, or jumps into, a table that begins at the PC. A single word at a distance in a register is none: that is
    /// how position-independent code reads the global offset table.
    fn reads_table(&self, inst: &Inst) -> bool {
        let reads = inst.pc_reads();
        match inst.form() {
            Form::DataRegister | Form::DataImmediate => used_to_leave(inst),
            Form::WordRegister => {
                let is_shifted_or_byte = inst.word() & 0xff0 != 0 || inst.word() >> 22 & 1 == 1;
                reads.rn && (used_to_leave(inst) || is_shifted_or_byte)
            }
            Form::ExtraRegister => reads.rn,
            _ => false,
        }
    }
}

impl From<Literal> for Operand {
    fn from(literal: Literal) -> Self {
        Self { target: literal.target, access: usize::from(literal.access) }
    }
}

fn sight<'s>(sight: &'s mut Option<Sight>, window: &Window, insts: &Insts) -> &'s Sight {
    sight.get_or_insert_with(|| Sight::new(window.from, insts))
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
        let near = targets.chain(self.resume).map(|target| self.near(target));
        near.fold(self.required_reach(), Reach::intersection)
    }

    /// Literals reach everything; the code itself must be within 4 GiB.
    pub(crate) fn required_reach(&self) -> Reach {
        Reach { lo: CodeAddr(0), hi: CodeAddr((1 << 32) - self.max_len as u64) }
    }

    pub(crate) fn returns_past(&self) -> bool {
        matches!(self.items.last(), Some((_, Lowering::LastCall(..))))
    }

    pub(crate) fn calls(&self) -> Offsets {
        let calls = self.items.iter().filter(|(item, lowering)| {
            matches!(lowering, Lowering::Call { .. })
                || *lowering == Lowering::Copy
                    && item.code().is_some_and(|inst| inst.flow() == Flow::CallIndirect)
        });
        calls.map(|(item, _)| item.at().displacement_from(self.from) as u16).collect()
    }

    /// Destinations `to` from which a branch at any place in `to ..= to + max_len` reaches the target. The bounds stop at
    /// the ends of the address space instead of wrapping.
    pub(super) fn near(&self, target: CodeAddr) -> Reach {
        let lo = target.0.saturating_sub(8 + Branch24::MAX as u64);
        let hi = (target.0 + Branch24::MIN.unsigned_abs()).saturating_sub(8 + self.max_len as u64);
        Reach { lo: CodeAddr(lo.next_multiple_of(INST_LEN as u64)), hi: CodeAddr(hi & !3) }
    }
}
