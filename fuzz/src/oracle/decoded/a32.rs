//! A32.
//!
//! What computes with the PC by more than an address, a literal or a branch is left to the judge that runs it: a sum
//! with a register, a store of the PC, a load of it.

use grapnel_arch::a32::{Cond, Flow, Form, Inst, decode, pc};
use grapnel_relocator::CodeAddr;

use super::{
    Changed,
    events::{Event, Expected, Trace, compare, of_other},
    walk::{COVERED, Code, Effect, Machine},
};
use crate::oracle::{Subject, Verdict};

const LR: u8 = 14;
const PC: u8 = 15;

pub(super) fn judge(subject: &Subject<'_>) -> Verdict {
    let code = Code::of(subject);
    for (from, to) in code.instructions() {
        let at = subject.case.from.add(from as u64);
        let Ok(inst) = decode(at, &subject.original()[from..]) else {
            return Verdict::Mismatch(format!("no instruction at {at} in the window"));
        };
        if inst.flow().target().is_some_and(|target| code.covers(target)) {
            return Verdict::Unjudged(COVERED);
        }
        let outcomes: &[bool] = if inst.cond().is_always() { &[true] } else { &[true, false] };
        for &holds in outcomes {
            let mut walker = Walker::new(&code, &inst, holds);
            let way = code.follow(to, &mut walker);
            let Some(expected) = expected(&inst, holds, way.calls.is_empty()) else { continue };
            if !walker.kept.is_empty() {
                return Verdict::Mismatch(format!("for {at}: it leaves {:?} on the stack", walker.kept));
            }
            let events = walker.trace.finish();
            if let Err(how) = compare(&code, subject, (&way, &events), &expected) {
                return Verdict::Mismatch(format!("for {at}, the condition holding: {holds}: {how}"));
            }
        }
    }
    let (cond, trace) = (Cond::ALWAYS, Trace::default());
    code.judge_resumption(&mut Walker {
        code: &code,
        original: 0,
        cond,
        holds: true,
        trace,
        kept: Vec::new(),
    })
}

/// What ADD or SUB of an immediate adds to a register, if that is its operand too (DDI 0406, A8.8.5 and A8.8.222).
const fn moved(word: u32) -> Option<(u8, i64)> {
    let (register, operand) = (word >> 12 & 15, word >> 16 & 15);
    let by = (word & 0xff).rotate_right(word >> 7 & 30) as i64;
    match word & 0x0ff0_0000 {
        0x0280_0000 if register == operand => Some((register as u8, by)),
        0x0240_0000 if register == operand => Some((register as u8, -by)),
        _ => None,
    }
}

/// The registers that the code of an instruction writes, and the instruction itself does not, but for those that are
/// kept in memory meanwhile, and those that are moved and moved back.
pub(super) fn changed(subject: &Subject<'_>) -> Vec<Changed> {
    let code = Code::of(subject);
    let places: Vec<_> = code.instructions().collect();
    let mut all = Vec::new();
    for (number, &(from, to)) in places.iter().enumerate() {
        let at = subject.case.from.add(from as u64);
        let Ok(inst) = decode(at, &subject.original()[from..]) else { continue };
        let end = places.get(number + 1).map_or(subject.relocated.map().code_len(), |&(_, end)| end);
        let (mut written, mut kept, mut stored, mut moves) = (0, 0, None, [0; 16]);
        for offset in (to..end).step_by(4) {
            let there = subject.case.to.add(offset as u64);
            let Some(Ok(step)) = code.bytes(there, 4).map(|bytes| decode(there, bytes)) else { continue };
            match moved(step.word()) {
                Some((register, by)) => moves[usize::from(register)] += by,
                None => written |= step.uses().writes,
            }
            let word = step.word() & 0x0fff_ffff;
            let (base, register) = (word >> 16 & 15, word >> 12 & 15);
            match word {
                // push {rt}; stm rn, with or without a new base
                _ if word & 0x0fff_0fff == 0x052d_0004 => kept |= 1 << register,
                _ if word >> 16 == 0x092d => kept |= word as u16,
                _ if word >> 20 == 0x088 => stored = Some((base, word as u16)),
                // ldr rt, [rn]: what has just been stored there
                _ if word & 0x0ff0_0fff == 0x0590_0000
                    && stored.is_some_and(|(to, list)| to == base && list >> register & 1 == 1) =>
                {
                    kept |= 1 << register;
                }
                _ => {}
            }
        }
        let away = (0..PC).filter(|&register| moves[usize::from(register)] != 0);
        written = away.fold(written, |written, register| written | 1 << register);
        let left = written & !inst.uses().writes & !kept & !(1 << PC);
        let leaves = inst.uses().writes >> PC & 1 == 1;
        let next = (!leaves || !inst.cond().is_always()).then_some(Some(inst.next()));
        let ways: Vec<_> = next.into_iter().chain(leaves.then_some(inst.flow().target())).collect();
        for register in (0..PC).filter(|register| left >> register & 1 == 1) {
            all.extend(ways.iter().map(|&at| Changed { register, at }));
        }
    }
    all
}

/// What the original comes down to; `None` if it is not judged here. A call to the next instruction may be turned to what
/// it does to LR.
fn expected(inst: &Inst, holds: bool, calls_nothing: bool) -> Option<Expected> {
    let next = Expected { to: Some(inst.next()), ..Expected::default() };
    if !holds {
        return Some(next);
    }
    let only = |event| Some(Expected { events: vec![event], ..next.clone() });
    match inst.flow() {
        Flow::Jump { target, thumb } => Some(Expected { to: Some(mode(target, thumb)), ..next }),
        Flow::Call { target, thumb: false } if target == inst.next() && calls_nothing => {
            only(Event::Set { register: LR, value: target.0 as u32 })
        }
        Flow::Call { target, thumb } => Some(Expected { calls: Some(mode(target, thumb)), ..next }),
        flow => {
            if let Some(address) = inst.address() {
                return only(Event::Set { register: address.register, value: address.value.0 as u32 });
            }
            let (reads, literal) = (inst.pc_reads(), inst.literal());
            if !reads.any() {
                let itself = Event::Itself { bits: bits(inst.word()), in_block: false };
                let leaves = matches!(flow, Flow::JumpIndirect | Flow::Return | Flow::Undefined);
                let to = if leaves { None } else { next.to };
                return Some(Expected { events: vec![itself], to, ..next });
            }
            let literal = literal.filter(|_| flow == Flow::Next && !reads.rt && !reads.list)?;
            let (form, _) = access(inst)?;
            let size = usize::from(literal.access);
            only(Event::Access { form, addr: literal.target, size, loads: loads_word(inst) })
        }
    }
}

/// The address, told apart by the instruction set of its code.
const fn mode(target: CodeAddr, thumb: bool) -> CodeAddr {
    if thumb { of_other(target) } else { target }
}

/// A word without its condition.
const fn bits(word: u32) -> u32 {
    if word >> 28 == 15 { word } else { word & 0x0fff_ffff }
}

/// A load or store with an immediate offset: its bits without condition, base and offset; and the offset.
fn access(inst: &Inst) -> Option<(u32, i64)> {
    let word = inst.word();
    let (imm8, imm12) = (i64::from(word & 0xff), i64::from(word & 0xfff));
    let (mask, offset) = match inst.form() {
        Form::Word => (0x0f70_f000, imm12),
        Form::Preload => (0xff70_f000, imm12),
        Form::Extra => (0x0f70_f0f0, i64::from(word >> 4 & 0xf0 | word & 0xf)),
        // A run of registers from the base up.
        Form::Coprocessor if word >> 24 & 1 == 0 => return Some((word & 0x0ff0_ffff, 0)),
        Form::Coprocessor => (0x0f70_ff00, imm8 << if word >> 8 & 15 == 9 { 1 } else { 2 }),
        _ => return None,
    };
    Some((word & mask, if word >> 23 & 1 == 1 { offset } else { -offset }))
}

/// The register that a word is loaded to.
fn loads_word(inst: &Inst) -> Option<u8> {
    let is_word_load = inst.form() == Form::Word && inst.word() & 0x0050_0000 == 0x0010_0000;
    is_word_load.then_some((inst.word() >> 12 & 15) as u8)
}

struct Walker<'a> {
    code: &'a Code<'a>,
    original: u32,
    /// The original's condition, and whether it holds.
    cond: Cond,
    holds: bool,
    trace: Trace,
    /// Registers that are on the stack meanwhile.
    kept: Vec<u8>,
}

impl<'a> Walker<'a> {
    fn new(code: &'a Code<'a>, inst: &Inst, holds: bool) -> Self {
        let (cond, trace) = (inst.cond(), Trace::default());
        Self { code, original: bits(inst.word()), cond, holds, trace, kept: Vec::new() }
    }

    /// It keeps a register on the stack, or brings back the last one.
    fn keeps(&mut self, word: u32) -> bool {
        let register = (word >> 12 & 15) as u8;
        match word & 0x0fff_0fff {
            _ if bits(word) == self.original => false,
            0x052d_0004 => {
                self.kept.push(register);
                true
            }
            0x049d_0004 => self.kept.pop_if(|kept| *kept == register).is_some(),
            _ => false,
        }
    }
}

impl Machine for Walker<'_> {
    fn step(&mut self, at: CodeAddr, bytes: &[u8]) -> Option<Effect> {
        let inst = decode(at, bytes).ok()?;
        let executed = match inst.cond() {
            cond if cond.is_always() => true,
            cond if cond == self.cond => self.holds,
            cond if Some(cond) == self.cond.inverted() => !self.holds,
            _ => return None,
        };
        if !executed {
            return Some(Effect::Next(4));
        }
        let word = inst.word();
        let register = |shift: u32| (word >> shift & 15) as u8;
        match inst.flow() {
            Flow::Jump { target, thumb } => return Some(Effect::Jump(mode(target, thumb))),
            Flow::Call { target, thumb } => return Some(Effect::Call(mode(target, thumb), 4)),
            Flow::CallIndirect if let Some(target) = self.trace.constant(register(0)) => {
                self.trace.used();
                return Some(Effect::Call(loaded(target), 4));
            }
            _ => {}
        }
        // A word of the literals, to where the code goes on or what the next instruction uses.
        if let Some(literal) = inst.literal()
            && let Some(loads) = loads_word(&inst)
            && let Some(value) = self.code.word(literal.target)
        {
            if loads == PC {
                return Some(Effect::Jump(loaded(value)));
            }
            self.trace.set(loads, value);
            return Some(Effect::Next(4));
        }
        if self.keeps(word) {
            return Some(Effect::Next(4));
        }
        let base = if register(16) == PC { Some(pc(at).0 as u32) } else { self.trace.constant(register(16)) };
        match (access(&inst), base) {
            (Some((form, offset)), Some(base)) if inst.flow() == Flow::Next => {
                if register(16) != PC {
                    self.trace.used();
                }
                let addr = CodeAddr(u64::from(base.wrapping_add_signed(offset as i32)));
                self.trace.add(Event::Access { form, addr, size: 0, loads: loads_word(&inst) });
            }
            _ => self.trace.add(Event::Itself { bits: bits(word), in_block: false }),
        }
        Some(match inst.flow() {
            Flow::JumpIndirect | Flow::Return | Flow::Undefined => Effect::Away,
            _ => Effect::Next(4),
        })
    }
}

/// The address that a loaded PC or a register means: bit 0 selects T32.
const fn loaded(value: u32) -> CodeAddr {
    mode(CodeAddr((value & !1) as u64), value & 1 == 1)
}
