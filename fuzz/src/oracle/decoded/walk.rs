//! A walk along relocated code with what is known of the registers, shared by Arm's instruction sets.
//!
//! The code of one instruction is followed from its first word, once with the original's condition holding and once with
//! it failing, to where it leaves. Addresses are built by few instructions, which are evaluated; all others have to be
//! the original itself.

use grapnel_relocator::{CodeAddr, Registers};

use crate::oracle::{Subject, Verdict};

/// What an instruction does to the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// On to the next, this many bytes on.
    Next(u64),
    /// A branch that is taken under the condition at hand.
    Jump(CodeAddr),
    /// A call, and how long the instruction is.
    Call(CodeAddr, u64),
    /// Away to where only the original's registers and memory tell.
    Away,
}

/// Where a way ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Exit {
    /// At the code of the window's instruction at this offset, or at the jump back.
    At(usize),
    /// Outside the code.
    Outside(CodeAddr),
    /// Where only the original's registers and memory tell.
    Away,
    /// In the literals, in a circle, or in what can't be followed.
    Lost,
}

/// A way along the code of one instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Way {
    pub(super) exit: Exit,
    pub(super) calls: Vec<CodeAddr>,
}

/// An instruction set's evaluation of single instructions.
pub(super) trait Machine {
    /// Evaluates the instruction at an address, whose bytes begin `code`. `None` if it can't.
    fn step(&mut self, at: CodeAddr, code: &[u8]) -> Option<Effect>;
}

/// Why a window is not judged one of whose targets lies where the relocated code is put.
pub(super) const COVERED: &str = "a target lies where the relocated code is";

/// Where things are.
pub(super) struct Code<'a> {
    subject: &'a Subject<'a>,
    /// Offsets in the window and in the code, ascending.
    places: Vec<(usize, usize)>,
}

impl<'a> Code<'a> {
    pub(super) fn of(subject: &'a Subject<'a>) -> Self {
        Self { subject, places: subject.relocated.map().iter().collect() }
    }

    /// Every instruction of the window: its offset, and that of its code.
    pub(super) fn instructions(&self) -> impl Iterator<Item = (usize, usize)> {
        let end = self.subject.window.code_len();
        self.places.iter().copied().filter(move |&(from, _)| from < end)
    }

    /// The same, and the jump back.
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        self.places.iter().copied()
    }

    /// An address lies where the relocated code is.
    pub(super) fn covers(&self, addr: CodeAddr) -> bool {
        addr.offset_within(self.subject.case.to, self.subject.relocated.bytes().len() as u64).is_some()
    }

    /// Execution has arrived behind the code's end: where a call returns to that is not expected to.
    pub(super) fn ended(&self, exit: Exit) -> bool {
        let end = self.subject.case.to.add(self.subject.relocated.map().code_len() as u64);
        !self.subject.relocated.resumes() && exit == Exit::Outside(end)
    }

    /// Execution has arrived where the original goes to an address. What follows the window is there, or at the jump back.
    pub(super) fn arrived(&self, exit: Exit, target: CodeAddr) -> Result<(), String> {
        let offset = target.displacement_from(self.subject.case.from);
        let inside = match usize::try_from(offset) {
            Ok(offset) => self.places.iter().find(|&&(from, _)| from == offset),
            Err(_) => None,
        };
        let right = match exit {
            Exit::At(offset) => inside.is_some_and(|&(from, _)| from == offset),
            Exit::Outside(there) => {
                there == target && inside.is_none_or(|&(from, _)| from == self.subject.window.len())
            }
            Exit::Away | Exit::Lost => false,
        };
        if right { Ok(()) } else { Err(format!("it arrives at {exit:x?} and not at {target}")) }
    }

    /// The relocated bytes at an address, if all of them are there.
    pub(super) fn bytes(&self, at: CodeAddr, len: usize) -> Option<&'a [u8]> {
        let all = self.subject.relocated.bytes();
        let start = at.offset_within(self.subject.case.to, all.len() as u64)? as usize;
        all.get(start..start + len)
    }

    /// The value of a word among the literals.
    pub(super) fn word(&self, at: CodeAddr) -> Option<u32> {
        self.literals(at)?.first_chunk().map(|&value| u32::from_le_bytes(value))
    }

    /// The value of a doubleword among the literals.
    pub(super) fn doubleword(&self, at: CodeAddr) -> Option<u64> {
        self.literals(at)?.first_chunk().map(|&value| u64::from_le_bytes(value))
    }

    /// The literals from an address on.
    fn literals(&self, at: CodeAddr) -> Option<&'a [u8]> {
        let literals = self.subject.relocated.literals();
        let start = self.subject.relocated.bytes().len() - literals.len();
        let first = self.subject.case.to.add(start as u64);
        let at = at.offset_within(first, literals.len() as u64)? as usize;
        literals.get(at..)
    }

    /// What is declared to be changed.
    pub(super) const fn clobbers(&self) -> Registers {
        self.subject.relocated.clobbers()
    }

    /// Follows the code from an offset.
    pub(super) fn follow(&self, start: usize, machine: &mut impl Machine) -> Way {
        let mut way = Way { exit: Exit::Lost, calls: Vec::new() };
        let code = &self.subject.relocated.bytes()[..self.subject.relocated.map().code_len()];
        let mut at = start;
        for steps in 0..64 {
            if steps > 0
                && let Some(&(from, _)) = self.places.iter().find(|&&(_, to)| to == at)
            {
                way.exit = Exit::At(from);
                return way;
            }
            let Some(bytes) = code.get(at..).filter(|bytes| !bytes.is_empty()) else { return way };
            let here = self.subject.case.to.add(at as u64);
            let there = match machine.step(here, bytes) {
                None => return way,
                Some(Effect::Away) => {
                    way.exit = Exit::Away;
                    return way;
                }
                Some(Effect::Next(len)) => here.add(len),
                Some(Effect::Jump(target)) => target,
                Some(Effect::Call(target, len)) => {
                    way.calls.push(target);
                    here.add(len)
                }
            };
            match there.offset_within(self.subject.case.to, code.len() as u64) {
                Some(offset) => at = offset as usize,
                None => {
                    way.exit = Exit::Outside(there);
                    return way;
                }
            }
        }
        way
    }

    /// The jump back goes to what follows the window.
    pub(super) fn judge_resumption(&self, machine: &mut impl Machine) -> Verdict {
        if !self.subject.relocated.resumes() {
            return Verdict::Same;
        }
        let len = self.subject.window.len();
        let Some(&(_, at)) = self.places.iter().find(|&&(from, _)| from == len) else {
            return Verdict::Mismatch("there is no jump back in the map".to_owned());
        };
        let way = self.follow(at, machine);
        let next = self.subject.case.from.add(len as u64);
        if way.exit == Exit::Outside(next) && way.calls.is_empty() {
            Verdict::Same
        } else {
            Verdict::Mismatch(format!("the jump back goes to {:?} and not to {next}", way.exit))
        }
    }
}
