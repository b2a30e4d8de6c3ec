//! AArch64.

use grapnel_arch::aarch64::{Flow, Inst, Literal, PcUse, decode};
use grapnel_relocator::CodeAddr;

use super::{
    Changed,
    walk::{COVERED, Code, Effect, Exit, Machine},
};
use crate::oracle::{Subject, Verdict};

const NOP: u32 = 0xd503_201f;
/// The number of the link register.
const LINK: u8 = 30;

pub(super) fn judge(subject: &Subject<'_>) -> Verdict {
    let code = Code::of(subject);
    for (from, to) in code.instructions() {
        let at = subject.case.from.add(from as u64);
        let Ok(inst) = decode(at, &subject.original()[from..]) else {
            return Verdict::Mismatch(format!("no instruction at {at} in the window"));
        };
        let literal = inst.operand().map(|operand| operand.target);
        if inst.flow().target().or(literal).is_some_and(|target| code.covers(target)) {
            return Verdict::Unjudged(COVERED);
        }
        if let Err(how) = instruction(&code, subject, &inst, to) {
            return Verdict::Mismatch(format!("for {at}: {how}"));
        }
    }
    code.judge_resumption(&mut Walker::new(&code, NOP, false, false))
}

/// The registers that hold what the original has not put there, where each way leaves the code of an instruction.
pub(super) fn changed(subject: &Subject<'_>) -> Vec<Changed> {
    let code = Code::of(subject);
    let from = subject.case.from;
    let mut all = Vec::new();
    for (offset, to) in code.places() {
        let inst =
            subject.original().get(offset..).and_then(|bytes| decode(from.add(offset as u64), bytes).ok());
        let inst = inst.as_ref();
        let carries = inst.is_some_and(|inst| carries(subject, inst));
        for holds in [true, false] {
            let mut walker = Walker::new(&code, inst.map_or(NOP, Inst::word), carries, holds);
            let way = code.follow(to, &mut walker);
            let at = match way.exit {
                Exit::At(offset) => Some(from.add(offset as u64)),
                Exit::Outside(there) => Some(there),
                Exit::Away | Exit::Lost => None,
            };
            let own = inst.and_then(Inst::operand).map(|operand| operand.register);
            let left = walker.left().filter(|&register| Some(register) != own);
            all.extend(left.map(|register| Changed { register, at }));
        }
    }
    all
}

/// It reads a doubleword of the window, whose bytes are copied.
fn carries(subject: &Subject<'_>, inst: &Inst) -> bool {
    inst.operand().is_some_and(|operand| {
        operand.kind == PcUse::Literal(Literal::X)
            && operand.target.offset_within(subject.case.from, subject.window.len() as u64).is_some()
    })
}

/// The code of one instruction does what the original does.
fn instruction(code: &Code<'_>, subject: &Subject<'_>, inst: &Inst, to: usize) -> Result<(), String> {
    let carries = carries(subject, inst);
    let run = |holds| {
        let mut walker = Walker::new(code, inst.word(), carries, holds);
        let way = code.follow(to, &mut walker);
        (way, walker)
    };
    let (way, walker) = run(true);
    match inst.flow() {
        Flow::Jump { target } => {
            walker.only_address(&[])?;
            code.arrived(way.exit, target)
        }
        Flow::Cond { target, .. } => {
            walker.only_address(&[])?;
            code.arrived(way.exit, target)?;
            let (way, walker) = run(false);
            walker.only_address(&[])?;
            code.arrived(way.exit, inst.next())
        }
        Flow::Call { target } => {
            walker.only_address(&[])?;
            // A call to the next instruction only asks for its address.
            let asks = target == inst.next() && walker.value(LINK) == Some(target.0) && way.calls.is_empty();
            if way.calls != [target] && !asks {
                return Err(format!("it calls {:x?} and not {target}", way.calls));
            }
            if code.ended(way.exit) {
                return Ok(());
            }
            code.arrived(way.exit, inst.next())
        }
        _ => {
            if !way.calls.is_empty() {
                return Err(format!("it calls {:x?}", way.calls));
            }
            match inst.operand() {
                None => {
                    if walker.words != [inst.word()] || !walker.reads.is_empty() {
                        return Err(format!("it is {:08x?} and not {:08x}", walker.words, inst.word()));
                    }
                    match inst.flow() {
                        Flow::Next | Flow::Syscall => code.arrived(way.exit, inst.next()),
                        _ => Ok(()),
                    }
                }
                Some(operand) => {
                    code.arrived(way.exit, inst.next())?;
                    let register = operand.register;
                    match operand.kind {
                        PcUse::Address | PcUse::Page => {
                            walker.only_address(&[register])?;
                            match walker.value(register) {
                                _ if register == 31 => Ok(()),
                                Some(value) if value == operand.target.0 => Ok(()),
                                value => Err(format!("x{register} is {value:x?} and not {}", operand.target)),
                            }
                        }
                        PcUse::Literal(literal) => {
                            walker.reads_literal(subject, literal, register, operand.target)
                        }
                    }
                }
            }
        }
    }
}

/// A load, by the instruction that it is with another address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Read {
    literal: Literal,
    register: u8,
    addr: CodeAddr,
}

struct Walker<'a> {
    code: &'a Code<'a>,
    original: u32,
    /// The original reads a literal in the window, whose bytes are copied.
    carries: bool,
    /// Whether the original's condition holds.
    holds: bool,
    values: [Option<u64>; 31],
    /// Registers that were given addresses, in order.
    written: Vec<u8>,
    reads: Vec<Read>,
    /// Registers that were saved on the stack, and brought back.
    saved: Vec<u8>,
    restored: Vec<u8>,
    /// What else there is.
    words: Vec<u32>,
}

impl<'a> Walker<'a> {
    const fn new(code: &'a Code<'a>, original: u32, carries: bool, holds: bool) -> Self {
        Self {
            code,
            original,
            carries,
            holds,
            values: [None; 31],
            written: Vec::new(),
            reads: Vec::new(),
            saved: Vec::new(),
            restored: Vec::new(),
            words: Vec::new(),
        }
    }

    fn value(&self, register: u8) -> Option<u64> {
        self.values.get(usize::from(register)).copied().flatten()
    }

    fn set(&mut self, register: u8, value: u64) {
        if let Some(place) = self.values.get_mut(usize::from(register)) {
            *place = Some(value);
        }
        self.written.push(register);
    }

    /// Nothing but addresses was made. A register that holds one in the end is among `kept`, or is declared as changed, or
    /// was brought back; the link register is what a call changes.
    fn only_address(&self, kept: &[u8]) -> Result<(), String> {
        let stray = self.words.iter().any(|&word| word != NOP);
        if stray || !self.reads.is_empty() {
            return Err(format!("there is more to it: {:08x?} {:x?}", self.words, self.reads));
        }
        self.declared(kept)
    }

    /// The registers that hold addresses in the end.
    fn left(&self) -> impl Iterator<Item = u8> {
        let call = self.original >> 26 == 0b100101;
        self.written.iter().copied().filter(move |register| {
            let restored = self.saved.contains(register) && self.restored.contains(register);
            !(restored || call && *register == LINK)
        })
    }

    fn declared(&self, kept: &[u8]) -> Result<(), String> {
        let clobbers = self.code.clobbers();
        let stray = self.left().find(|register| !(kept.contains(register) || clobbers.contains(*register)));
        if self.saved != self.restored {
            return Err(format!("it saves {:?} and restores {:?}", self.saved, self.restored));
        }
        stray.map_or(Ok(()), |register| Err(format!("x{register} is changed, and not declared")))
    }

    /// The same literal is loaded to the same register: from its place, or from a copy if it lies in the window.
    fn reads_literal(
        &self,
        subject: &Subject<'_>,
        literal: Literal,
        register: u8,
        target: CodeAddr,
    ) -> Result<(), String> {
        let stray = self.words.iter().any(|&word| word != NOP);
        if stray {
            return Err(format!("there is more to it: {:08x?}", self.words));
        }
        self.declared(if literal.is_general() { std::slice::from_ref(&register) } else { &[] })?;
        match *self.reads.as_slice() {
            // Nobody sees whether anything was fetched ahead, or read for the zero register.
            [] if literal == Literal::Prefetch => Ok(()),
            [read] if (read.literal, read.register) == (literal, register) => {
                let copied = || {
                    let offset = target.offset_within(subject.case.from, subject.case.source.len() as u64)?;
                    let inside = (offset as usize) < subject.window.len();
                    let original = subject.case.source.get(offset as usize..)?.get(..literal.size())?;
                    Some(inside && self.code.bytes(read.addr, literal.size())? == original)
                };
                if read.addr == target || copied() == Some(true) {
                    Ok(())
                } else {
                    Err(format!("it reads {} and not {target}", read.addr))
                }
            }
            ref reads => Err(format!("it reads {reads:x?}, and not {literal:?} of {target} to {register}")),
        }
    }

    /// Whether a conditional branch is taken: it is the original or its inverse, but for the displacement.
    fn taken(&self, word: u32) -> Option<bool> {
        let (mask, inverse) = match word >> 24 {
            // B.cond, and BC.cond, which is a hint besides: the condition's lowest bit, unless it means always.
            0x54 if word & 0xe == 0xe => return Some(true),
            0x54 => (0x0000_000f, 1),
            // CBZ, CBNZ
            0x34 | 0x35 | 0xb4 | 0xb5 => (0x8000_001f, 1 << 24),
            // TBZ, TBNZ
            0x36 | 0x37 | 0xb6 | 0xb7 => (0x80f8_001f, 1 << 24),
            // CB and its kin: the conditions of registers are GT, GE, HI, HS, -, -, EQ, NE; of immediates GT, LT, HI, LO.
            0x74 | 0x75 | 0xf4 | 0xf5 => (0x80ff_c01f | 0x0100_0000, 1 << 21),
            _ => return None,
        };
        let kind = 0x7e00_0000 | mask;
        let differing = (word ^ self.original) & kind | (word ^ self.original) & inverse;
        match differing {
            0 => Some(self.holds),
            // The comparisons of registers have no inverse by one bit but EQ and NE.
            bit if bit == inverse
                && (word >> 25 & 0x3f != 0x3a || word >> 22 & 3 == 3 && word >> 24 & 1 == 0) =>
            {
                Some(!self.holds)
            }
            _ => None,
        }
    }
}

impl Machine for Walker<'_> {
    fn step(&mut self, at: CodeAddr, bytes: &[u8]) -> Option<Effect> {
        let inst = decode(at, bytes).ok()?;
        let word = inst.word();
        let (rd, rn) = ((word & 31) as u8, (word >> 5 & 31) as u8);
        match inst.flow() {
            Flow::Jump { target } => return Some(Effect::Jump(target)),
            Flow::Call { target } => return Some(Effect::Call(target, 4)),
            Flow::Cond { target, .. } => {
                return Some(if self.taken(word)? { Effect::Jump(target) } else { Effect::Next(4) });
            }
            // br, blr
            Flow::JumpIndirect if word & 0xffff_fc1f == 0xd61f_0000 => {
                if let Some(target) = self.value(rn) {
                    return Some(Effect::Jump(CodeAddr(target)));
                }
            }
            Flow::CallIndirect if word & 0xffff_fc1f == 0xd63f_0000 => {
                if let Some(target) = self.value(rn) {
                    return Some(Effect::Call(CodeAddr(target), 4));
                }
            }
            _ => {}
        }
        if let Some(operand) = inst.operand() {
            match operand.kind {
                PcUse::Address | PcUse::Page => self.set(rd, operand.target.0),
                PcUse::Literal(Literal::X)
                    if let Some(value) = self.code.doubleword(operand.target)
                        && !self.carries =>
                {
                    self.set(rd, value);
                }
                PcUse::Literal(literal) => self.read(literal, rd, operand.target),
            }
            return Some(Effect::Next(4));
        }
        let base = self.value(rn);
        match (word, base) {
            // add xd, xn, #imm
            _ if word & 0xff80_0000 == 0x9100_0000 && base.is_some() => {
                let shift = if word >> 22 & 1 == 1 { 12 } else { 0 };
                let value = base?.wrapping_add(u64::from(word >> 10 & 0xfff) << shift);
                self.set(rd, value);
            }
            // str xt, [sp, #-16]! and ldr xt, [sp], #16
            _ if word & 0xffff_ffe0 == 0xf81f_0fe0 && word != self.original => self.saved.push(rd),
            _ if word & 0xffff_ffe0 == 0xf841_07e0 && word != self.original => self.restored.push(rd),
            (_, Some(base)) if let Some((literal, unit)) = load(word) => {
                let addr = CodeAddr(base.wrapping_add(u64::from(word >> 10 & 0xfff) * unit));
                self.read(literal, rd, addr);
            }
            _ => self.words.push(word),
        }
        Some(match inst.flow() {
            Flow::JumpIndirect | Flow::Return | Flow::Undefined => Effect::Away,
            _ => Effect::Next(4),
        })
    }
}

impl Walker<'_> {
    fn read(&mut self, literal: Literal, register: u8, addr: CodeAddr) {
        self.reads.push(Read { literal, register, addr });
        if literal.is_general()
            && let Some(place) = self.values.get_mut(usize::from(register))
        {
            *place = None;
        }
    }
}

/// The loads with an unsigned offset, and its unit in bytes.
const fn load(word: u32) -> Option<(Literal, u64)> {
    Some(match word >> 22 {
        0x2e5 => (Literal::W, 4),
        0x3e5 => (Literal::X, 8),
        0x2e6 => (Literal::SignedW, 4),
        0x2f5 => (Literal::S, 4),
        0x3f5 => (Literal::D, 8),
        0x0f7 => (Literal::Q, 16),
        0x3e6 => (Literal::Prefetch, 8),
        _ => return None,
    })
}
