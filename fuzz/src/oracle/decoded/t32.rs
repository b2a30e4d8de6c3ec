//! T32.
//!
//! What computes with the PC by more than an address, a literal or a branch is left to the judge that runs it: a jump
//! through a table, a sum with a register, a load of the PC or of the stack pointer.

use grapnel_arch::{
    a32::Cond,
    t32::{Flow, Inst, It, LiteralForm, PcUse, decode_within},
};
use grapnel_relocator::CodeAddr;

use super::{
    events::{Event, Expected, Trace, compare, of_other},
    walk::{COVERED, Code, Effect, Machine},
};
use crate::oracle::{Subject, Verdict};

const LR: u8 = 14;
const PC: u8 = 15;

pub(super) fn judge(subject: &Subject<'_>) -> Verdict {
    let code = Code::of(subject);
    let insts = match decoded(subject) {
        Ok(insts) => insts,
        Err(at) => return Verdict::Mismatch(format!("no instruction at {at} in the window")),
    };
    if insts.iter().filter_map(|inst| inst.flow().target()).any(|target| code.covers(target)) {
        return Verdict::Unjudged(COVERED);
    }
    let places: Vec<_> = code.instructions().collect();
    for (number, &(from, to)) in places.iter().enumerate() {
        let end = places.get(number + 1).map_or(subject.window.code_len(), |&(next, _)| next);
        // An IT block that was taken apart is one unit.
        let unit: Vec<_> = insts.iter().filter(|inst| (from..end).contains(&offset(subject, inst))).collect();
        if let Err(how) = judge_unit(&code, subject, &unit, to) {
            return Verdict::Mismatch(format!("for {}: {how}", subject.case.from.add(from as u64)));
        }
    }
    code.judge_resumption(&mut Walker::new(&code, &[], true))
}

fn offset(subject: &Subject<'_>, inst: &Inst) -> usize {
    inst.addr().displacement_from(subject.case.from) as usize
}

/// The window's instructions, or where there is none. What stands behind an exit, and is not reached, is not among them.
fn decoded(subject: &Subject<'_>) -> Result<Vec<Inst>, CodeAddr> {
    let mut insts: Vec<Inst> = Vec::new();
    for at in subject.window.offsets() {
        let addr = subject.case.from.add(at as u64);
        let it = insts.last().filter(|last| last.next() == addr).map_or(It::OUTSIDE, Inst::next_it);
        insts.push(decode_within(addr, &subject.case.source[at..], it).map_err(|_| addr)?);
    }
    Ok(insts)
}

fn judge_unit(code: &Code<'_>, subject: &Subject<'_>, unit: &[&Inst], to: usize) -> Result<(), String> {
    let is_conditional = condition(unit) != Test::Cond(Cond::ALWAYS);
    let outcomes: &[bool] = if is_conditional { &[true, false] } else { &[true] };
    for &holds in outcomes {
        // What uses a constant may be the original's next instruction, or a step on the way to it.
        judge_way(code, subject, (unit, to), holds, Through::Any)
            .or_else(|_| judge_way(code, subject, (unit, to), holds, Through::ButOriginals))
            .map_err(|how| format!("the condition holding: {holds}: {how}"))?;
    }
    // An IT alone has its members behind it, as in the original.
    match unit {
        [it] if it.begins_it() => {
            let copy = code.bytes(subject.case.to.add(to as u64), 2);
            if copy == Some(it.bytes()) { Ok(()) } else { Err("the IT is another one".to_owned()) }
        }
        _ => Ok(()),
    }
}

/// Which loads and calls through a register that just got a constant are steps on the way to something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Through {
    Any,
    /// Those that the original doesn't have.
    ButOriginals,
}

fn judge_way(
    code: &Code<'_>,
    subject: &Subject<'_>,
    (unit, to): (&[&Inst], usize),
    holds: bool,
    through: Through,
) -> Result<(), String> {
    let mut walker = Walker { through, ..Walker::new(code, unit, holds) };
    let way = code.follow(to, &mut walker);
    let Some(expected) = expected(unit, holds, way.calls.is_empty()) else { return Ok(()) };
    if !walker.kept.is_empty() {
        return Err(format!("it leaves {:?} on the stack", walker.kept));
    }
    compare(code, subject, (&way, &walker.trace.finish()), &expected)
}

/// What a unit's ways part by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Test {
    Cond(Cond),
    /// The register is not zero.
    NonZero(u8),
}

impl Test {
    /// Whether what stands under another test is executed, if this one has an outcome.
    fn outcome(self, holds: bool, other: Self) -> Option<bool> {
        match (self, other) {
            (_, Self::Cond(cond)) if cond.is_always() => Some(true),
            (Self::Cond(this), Self::Cond(cond)) if this == cond => Some(holds),
            (Self::Cond(this), Self::Cond(cond)) if this.inverted() == Some(cond) => Some(!holds),
            (Self::NonZero(this), Self::NonZero(register)) if this == register => Some(holds),
            _ => None,
        }
    }
}

/// The condition of a unit: of its IT, of its first member if the IT is not in it, or of its branch.
fn condition(unit: &[&Inst]) -> Test {
    let Some(first) = unit.first() else { return Test::Cond(Cond::ALWAYS) };
    match first.flow() {
        Flow::Cond { cond, .. } => Test::Cond(cond),
        Flow::CompareZero { register, .. } => Test::NonZero(register),
        _ if first.begins_it() => Test::Cond(first.next_it().cond()),
        _ => Test::Cond(first.cond()),
    }
}

/// What the original comes down to; `None` if it is not judged here. A call to the next instruction may be turned to what
/// it does to LR.
fn expected(unit: &[&Inst], holds: bool, calls_nothing: bool) -> Option<Expected> {
    let test = condition(unit);
    let mut expected = Expected { to: unit.last().map(|last| last.next()), ..Expected::default() };
    for inst in unit.iter().filter(|inst| !inst.begins_it()) {
        if !test.outcome(holds, Test::Cond(inst.cond()))? {
            continue;
        }
        match inst.flow() {
            Flow::Jump { target } => expected.to = Some(target),
            Flow::JumpA32 { target } => expected.to = Some(of_other(target)),
            Flow::Cond { target, .. } if holds => expected.to = Some(target),
            Flow::CompareZero { nonzero, target, .. } if nonzero == holds => expected.to = Some(target),
            Flow::Cond { .. } | Flow::CompareZero { .. } => {}
            Flow::Call { target } if target == inst.next() && calls_nothing => {
                expected.events.push(Event::Set { register: LR, value: target.0 as u32 | 1 });
            }
            Flow::Call { target } => expected.calls = Some(target),
            Flow::CallA32 { target } => expected.calls = Some(of_other(target)),
            Flow::Table { .. } | Flow::AddToPc { .. } | Flow::Unsupported(_) => return None,
            flow => {
                expected.events.push(event(inst)?);
                if matches!(flow, Flow::JumpIndirect | Flow::Return | Flow::Undefined) {
                    expected.to = None;
                    break;
                }
            }
        }
    }
    Some(expected)
}

fn event(inst: &Inst) -> Option<Event> {
    match inst.pc_use() {
        PcUse::None => Some(itself(inst)),
        PcUse::Address { register, value } => Some(Event::Set { register, value: value.0 as u32 }),
        PcUse::Literal(literal) if matches!(literal.form, LiteralForm::Core { .. } | LiteralForm::Other) => {
            let (form, _, _) = access(inst)?;
            let size = usize::from(literal.access);
            Some(Event::Access { form, addr: literal.target, size, loads: loads_word(form) })
        }
        _ => None,
    }
}

/// Narrow data processing sets flags outside an IT block only.
fn itself(inst: &Inst) -> Event {
    let (first, second) = inst.halfwords();
    let flags = first < 0x4400;
    Event::Itself {
        bits: u32::from(first) << 16 | u32::from(second),
        in_block: flags && inst.it().is_inside(),
    }
}

/// A load with an immediate offset: its bits without base and offset, those of the wide form; the base; the offset.
fn access(inst: &Inst) -> Option<(u32, u8, i64)> {
    let (first, second) = inst.halfwords();
    let [first, second] = [first, second].map(u32::from);
    let narrow = |opcode: u32, scale: u32| {
        let offset = i64::from((first >> 6 & 31) << scale);
        Some((opcode << 16 | (first & 7) << 12, (first >> 3 & 7) as u8, offset))
    };
    let up = |offset: u32| if first >> 7 & 1 == 1 { i64::from(offset) } else { -i64::from(offset) };
    let base = (first & 15) as u8;
    match first {
        _ if first >> 11 == 0b01001 => {
            Some((0xf850_0000 | (first >> 8 & 7) << 12, PC, i64::from((first & 0xff) << 2)))
        }
        _ if first >> 11 == 0b01101 => narrow(0xf850, 2),
        _ if first >> 11 == 0b01111 => narrow(0xf810, 0),
        _ if first >> 11 == 0b10001 => narrow(0xf830, 1),
        _ if first & 0xfe10 == 0xf810 && (base == PC || first >> 7 & 1 == 1) => {
            Some(((first & 0xff70) << 16 | second & 0xf000, base, up(second & 0xfff)))
        }
        _ if first & 0xff70 == 0xe950 => {
            Some(((first & 0xff70) << 16 | second & 0xff00, base, up((second & 0xff) << 2)))
        }
        _ if first & 0xff30 == 0xed10 => {
            let scale = if second >> 8 & 15 == 9 { 1 } else { 2 };
            Some(((first & 0xff70) << 16 | second & 0xff00, base, up((second & 0xff) << scale)))
        }
        _ => None,
    }
}

/// The register that a word is loaded to, by the bits of [`access`].
const fn loads_word(form: u32) -> Option<u8> {
    if form >> 16 == 0xf850 { Some((form >> 12 & 15) as u8) } else { None }
}

struct Walker<'a> {
    code: &'a Code<'a>,
    unit: Vec<u32>,
    test: Test,
    holds: bool,
    through: Through,
    it: It,
    /// The unit's instructions are in an IT block, or begin one.
    blocked: bool,
    trace: Trace,
    /// Lists of registers that are on the stack meanwhile.
    kept: Vec<u16>,
}

impl<'a> Walker<'a> {
    fn new(code: &'a Code<'a>, unit: &[&Inst], holds: bool) -> Self {
        let halfwords = |inst: &&Inst| u32::from(inst.halfwords().0) << 16 | u32::from(inst.halfwords().1);
        Self {
            code,
            unit: unit.iter().map(halfwords).collect(),
            test: condition(unit),
            holds,
            through: Through::Any,
            // A member of a block that stayed whole is under the block's IT.
            it: unit.first().map_or(It::OUTSIDE, |first| first.it()),
            blocked: unit.iter().any(|inst| inst.begins_it() || inst.it() != It::OUTSIDE),
            trace: Trace::default(),
            kept: Vec::new(),
        }
    }

    /// The constant in a register that this instruction may use on the way to something else.
    fn constant(&self, inst: &Inst, register: u8) -> Option<u32> {
        let (first, second) = inst.halfwords();
        let original = self.unit.contains(&(u32::from(first) << 16 | u32::from(second)));
        self.trace.constant(register).filter(|_| self.through == Through::Any || !original)
    }

    /// It keeps low registers on the stack, or brings the last ones back. What does so in place of a member of an IT block
    /// is jumped over, and in no block itself.
    fn keeps(&mut self, inst: &Inst) -> bool {
        let (first, _) = inst.halfwords();
        let list = first & 0xff;
        let in_block = inst.it() != It::OUTSIDE;
        match first >> 8 {
            _ if self.unit.contains(&(u32::from(first) << 16)) && in_block == self.blocked => false,
            0xb4 => {
                self.kept.push(list);
                true
            }
            0xbc => self.kept.pop_if(|kept| *kept == list).is_some(),
            _ => false,
        }
    }
}

impl Machine for Walker<'_> {
    fn step(&mut self, at: CodeAddr, bytes: &[u8]) -> Option<Effect> {
        let inst = decode_within(at, bytes, self.it).ok()?;
        let len = inst.bytes().len() as u64;
        self.it = inst.next_it();
        if inst.begins_it() || !self.test.outcome(self.holds, Test::Cond(inst.cond()))? {
            return Some(Effect::Next(len));
        }
        match inst.flow() {
            Flow::Jump { target } => return Some(Effect::Jump(target)),
            Flow::JumpA32 { target } => return Some(Effect::Jump(of_other(target))),
            Flow::Cond { cond, target } => {
                let taken = self.test.outcome(self.holds, Test::Cond(cond))?;
                return Some(if taken { Effect::Jump(target) } else { Effect::Next(len) });
            }
            Flow::CompareZero { nonzero, register, target } => {
                let not_zero = self.test.outcome(self.holds, Test::NonZero(register))?;
                return Some(if nonzero == not_zero { Effect::Jump(target) } else { Effect::Next(len) });
            }
            Flow::Call { target } => return Some(Effect::Call(target, len)),
            Flow::CallA32 { target } => return Some(Effect::Call(of_other(target), len)),
            Flow::CallIndirect
                if let Some(target) = self.constant(&inst, (inst.halfwords().0 >> 3 & 15) as u8) =>
            {
                self.trace.used();
                return Some(Effect::Call(loaded(target), len));
            }
            _ => {}
        }
        if let PcUse::Literal(literal) = inst.pc_use()
            && let Some((form, _, _)) = access(&inst)
            && let Some(register) = loads_word(form)
            && let Some(value) = self.code.word(literal.target)
        {
            if register == PC {
                return Some(Effect::Jump(loaded(value)));
            }
            self.trace.set(register, value);
            return Some(Effect::Next(len));
        }
        if self.keeps(&inst) {
            return Some(Effect::Next(len));
        }
        let of = access(&inst).and_then(|(form, base, offset)| {
            let aligned = (at.0 as u32).wrapping_add(4) & !3;
            let (through, base) =
                if base == PC { (false, aligned) } else { (true, self.constant(&inst, base)?) };
            Some((form, CodeAddr(u64::from(base.wrapping_add_signed(offset as i32))), through))
        });
        match of {
            Some((form, addr, through)) if inst.flow() == Flow::Next => {
                if through {
                    self.trace.used();
                }
                self.trace.add(Event::Access { form, addr, size: 0, loads: loads_word(form) });
            }
            _ => self.trace.add(itself(&inst)),
        }
        Some(match inst.flow() {
            Flow::JumpIndirect | Flow::Return | Flow::Undefined => Effect::Away,
            _ => Effect::Next(len),
        })
    }
}

/// The address that a loaded PC or a register means: without bit 0 it is A32.
const fn loaded(value: u32) -> CodeAddr {
    let target = CodeAddr((value & !1) as u64);
    if value & 1 == 1 { target } else { of_other(target) }
}
