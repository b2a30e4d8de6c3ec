//! What A32 and T32 code does, as a list of events, in which relocated code is held against the original.

use grapnel_relocator::{CodeAddr, Isa};

use super::walk::{Code, Exit, Way};
use crate::oracle::Subject;

/// Something that an instruction does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// An instruction that doesn't know where it is: its bits, and whether it is in an IT block.
    Itself { bits: u32, in_block: bool },
    /// A register gets a constant.
    Set { register: u8, value: u32 },
    /// A load or store at a constant address: its bits without base and offset, which tell the size as well, and the
    /// register if it loads a word. The size is known of the original only.
    Access { form: u32, addr: CodeAddr, size: usize, loads: Option<u8> },
}

/// What an instruction of the original comes down to, under one outcome of its condition.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Expected {
    pub(super) events: Vec<Event>,
    /// Where it goes to, with the bit that selects the instruction set; nothing if only the registers tell.
    pub(super) to: Option<CodeAddr>,
    /// What it calls before, likewise.
    pub(super) calls: Option<CodeAddr>,
}

/// Holds a way and its events against what is expected.
pub(super) fn compare(
    code: &Code<'_>,
    subject: &Subject<'_>,
    (way, events): (&Way, &[Event]),
    expected: &Expected,
) -> Result<(), String> {
    if let Some((way, events)) = last_call(subject, way, events, expected) {
        return judge(code, subject, (&way, &events), expected);
    }
    judge(code, subject, (way, events), expected)
}

/// A call at the window's end may be a jump, when LR has the address of what follows the window. The call that this comes to.
fn last_call(
    subject: &Subject<'_>,
    way: &Way,
    events: &[Event],
    expected: &Expected,
) -> Option<(Way, Vec<Event>)> {
    const LR: u8 = 14;
    let end = subject.case.from.add(subject.window.len() as u64);
    let link = end.0 as u32 | u32::from(subject.case.isa == Isa::T32);
    let link = Event::Set { register: LR, value: link };
    let returning = |calls| Way { exit: Exit::Outside(end), calls };
    match (events, expected.events.last(), way.exit) {
        ([before @ .., last], _, Exit::Outside(target)) if *last == link && expected.calls.is_some() => {
            Some((returning(vec![target]), before.to_vec()))
        }
        // bx and blx of one register
        (
            [before @ .., set, Event::Itself { bits, .. }],
            Some(&Event::Itself { bits: call, in_block }),
            Exit::Away,
        ) if *set == link && call ^ bits == through(subject.case.isa) => {
            let call = Event::Itself { bits: call, in_block };
            Some((returning(Vec::new()), before.iter().copied().chain([call]).collect()))
        }
        _ => None,
    }
}

/// The bit by which BLX through a register differs from BX.
const fn through(isa: Isa) -> u32 {
    match isa {
        Isa::T32 => 0x80 << 16,
        _ => 0x20,
    }
}

fn judge(
    code: &Code<'_>,
    subject: &Subject<'_>,
    (way, events): (&Way, &[Event]),
    expected: &Expected,
) -> Result<(), String> {
    let mut events = events.iter();
    for expected in &expected.events {
        let Some(event) = events.next() else { return Err(format!("{expected:x?} is missing")) };
        let same = match (event, expected) {
            (Event::Access { form, addr, .. }, Event::Access { form: same, addr: target, .. }) => {
                form == same && addr == target
            }
            _ => event == expected,
        };
        let same = same || is_copied(code, subject, event, expected);
        if !same {
            return Err(format!("it does {event:x?} and not {expected:x?}"));
        }
    }
    if let Some(event) = events.next() {
        return Err(format!("it also does {event:x?}"));
    }
    if way.calls != expected.calls.as_slice() {
        return Err(format!("it calls {:x?} and not {:x?}", way.calls, expected.calls));
    }
    match expected.to {
        None => Ok(()),
        // The last call of a function need not return.
        Some(_) if expected.calls.is_some() && code.ended(way.exit) => Ok(()),
        Some(target) => code.arrived(way.exit, target),
    }
}

/// A literal that lies in the window is read from a copy.
fn is_copied(code: &Code<'_>, subject: &Subject<'_>, event: &Event, expected: &Event) -> bool {
    let &Event::Access { form, addr: target, size, loads } = expected else { return false };
    let Some(offset) = target.offset_within(subject.case.from, subject.window.len() as u64) else {
        return false;
    };
    let source = subject.case.source.get(offset as usize..);
    let Some(original) = source.and_then(|bytes| bytes.get(..size)) else { return false };
    match *event {
        Event::Access { form: same, addr, .. } => form == same && code.bytes(addr, size) == Some(original),
        Event::Set { register, value } => loads == Some(register) && original == value.to_le_bytes(),
        Event::Itself { .. } => false,
    }
}

/// Registers with constants, and the events that come of them.
#[derive(Default)]
pub(super) struct Trace {
    events: Vec<Event>,
    /// A constant that the next instruction may use up.
    pending: Option<(u8, u32)>,
}

impl Trace {
    /// A register gets a constant.
    pub(super) fn set(&mut self, register: u8, value: u32) {
        self.flush();
        self.pending = Some((register, value));
    }

    /// The constant in a register, if the instruction before put it there.
    pub(super) fn constant(&self, register: u8) -> Option<u32> {
        self.pending.filter(|&(holder, _)| holder == register).map(|(_, value)| value)
    }

    /// The constant was what a load, a jump or a call needed.
    pub(super) fn used(&mut self) {
        self.pending = None;
    }

    pub(super) fn add(&mut self, event: Event) {
        self.flush();
        self.events.push(event);
    }

    fn flush(&mut self) {
        if let Some((register, value)) = self.pending.take() {
            self.events.push(Event::Set { register, value });
        }
    }

    pub(super) fn finish(mut self) -> Vec<Event> {
        self.flush();
        self.events
    }
}

/// The address of code of the other one of Arm's 32-bit instruction sets: no address of memory.
pub(super) const fn of_other(addr: CodeAddr) -> CodeAddr {
    CodeAddr(addr.0 | 1 << 40)
}
