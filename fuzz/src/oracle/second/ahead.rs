//! Whether the code ahead of a window of Arm's may read a register that the relocated code has changed, by Capstone's
//! account of what instructions read and write.

use std::collections::HashSet;

use capstone::Capstone;
use grapnel_relocator::{CodeAddr, Isa};

use super::{
    Second,
    step::{Goes, Set, Step},
};
use crate::{
    case::Case,
    oracle::{Subject, Verdict, decoded},
};

/// X16 and X17, which veneers may change on the way to a function (AAPCS64, 6.1.1), and R12 (AAPCS32, 6.1.1).
const fn veneers(isa: Isa) -> Set {
    match isa {
        Isa::Aarch64 => 0x3_0000,
        _ => 1 << 12,
    }
}

/// X9 to X17, or R12: what holds nothing where a function is entered or left.
const fn temporary(isa: Isa) -> Set {
    match isa {
        Isa::Aarch64 => 0x3_fe00,
        _ => 1 << 12,
    }
}

/// What becomes of a register ahead of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// Every path overwrites it, or passes a call or return that it holds nothing at.
    Dead,
    /// No path in sight reads it, and the instruction there leaves for where nothing is seen.
    Unread(CodeAddr),
    /// The same, and there is an instruction that Capstone does not know.
    Unknown,
    /// The instruction there reads it.
    Read(CodeAddr),
}

impl Second {
    /// What relocated code says that it changes is read by nobody.
    #[must_use]
    pub fn judge_changed(&self, subject: &Subject<'_>) -> Verdict {
        let (case, isa) = (subject.case, subject.case.isa);
        let capstone = match isa {
            Isa::X86_64 => return Verdict::Same,
            Isa::T32 if subject.relocated.clobbers().is_empty() => return Verdict::Same,
            Isa::T32 => return Verdict::Mismatch("no T32 code needs a register for itself".to_owned()),
            Isa::Aarch64 => &self.aarch64,
            Isa::A32 => &self.a32,
        };
        let ahead = Ahead { capstone, case };
        let mut unknown = false;
        // That no other is changed is for those to judge who compare what both codes do.
        let declared = |changed: &decoded::Changed| subject.relocated.clobbers().contains(changed.register);
        for changed in decoded::changed(subject).into_iter().filter(declared) {
            let fate = changed.at.map_or(Fate::Unread(case.from), |at| ahead.fate(at, changed.register));
            let bit = 1 << changed.register;
            let holds_nothing = || {
                let window = subject.window.offsets();
                let steps = window.filter_map(|offset| ahead.step(case.from.add(offset as u64)));
                let written = steps.fold(0, |all, step| all | step.changes);
                case.options.entry && temporary(isa) & bit & !written != 0
            };
            let (at, how) = match fate {
                Fate::Dead => continue,
                Fate::Unread(_) | Fate::Unknown if holds_nothing() => continue,
                Fate::Unknown => {
                    unknown = true;
                    continue;
                }
                Fate::Unread(at) => (at, "nothing is seen behind"),
                Fate::Read(at) => (at, "it is read by"),
            };
            let text = ahead.word(at).map(|word| grapnel_arch::listing(isa, at, word).remove(0).text);
            let (text, number) = (text.unwrap_or_default(), changed.register);
            return Verdict::Mismatch(format!("register {number} is changed, and {how} {text} at {at}"));
        }
        if unknown {
            Verdict::Unjudged("the other decoder does not know the code ahead")
        } else {
            Verdict::Same
        }
    }
}

/// The code from a window's start on.
struct Ahead<'a> {
    capstone: &'a Capstone,
    case: &'a Case,
}

impl Ahead<'_> {
    /// What becomes of a register from here on.
    fn fate(&self, at: CodeAddr, register: u8) -> Fate {
        let isa = self.case.isa;
        let bit = 1 << register;
        let (mut seen, mut pending, mut fate) = (HashSet::new(), vec![at], Fate::Dead);
        while let Some(at) = pending.pop() {
            if !seen.insert(at) {
                continue;
            }
            let unread = match self.step(at) {
                Some(step) if step.reads & bit != 0 => return Fate::Read(at),
                Some(step) if step.writes & bit != 0 => false,
                Some(step) => {
                    // The number, on Darwin: a function that has put nothing there does not ask for anything by it.
                    if step.asks && isa == Isa::Aarch64 && register == 16 {
                        fate = Fate::Unread(at);
                    }
                    if step.conditional {
                        pending.push(self.next(at));
                    }
                    match step.goes {
                        Goes::Next => {
                            pending.push(self.next(at));
                            false
                        }
                        Goes::Jump(target) | Goes::Branch(target) => {
                            if matches!(step.goes, Goes::Branch(_)) {
                                pending.push(self.next(at));
                            }
                            let inside = self.sees(target);
                            pending.extend(inside.then_some(target));
                            let passed = isa == Isa::Aarch64
                                && matches!(step.goes, Goes::Jump(_))
                                && self.leaves(target)
                                && veneers(isa) & bit != 0;
                            !inside && !passed
                        }
                        Goes::Call(Some(target)) if isa == Isa::Aarch64 => {
                            let own = self.sees(target)
                                || self.case.options.extent.is_some() && !self.leaves(target);
                            own || veneers(isa) & bit == 0
                        }
                        Goes::Call(_) => isa == Isa::Aarch64 || veneers(isa) & bit == 0,
                        Goes::Return => temporary(isa) & bit == 0,
                        Goes::Elsewhere => true,
                    }
                }
                None if self.word(at).is_some() => {
                    if fate == Fate::Dead {
                        fate = Fate::Unknown;
                    }
                    continue;
                }
                None => !(self.case.isa == Isa::Aarch64 && self.leaves(at) && veneers(isa) & bit != 0),
            };
            if unread {
                fate = Fate::Unread(at);
            }
        }
        fate
    }

    fn next(&self, at: CodeAddr) -> CodeAddr {
        at.add(4)
    }

    fn end(&self) -> usize {
        self.case.source.len().min(self.case.options.extent.unwrap_or(usize::MAX))
    }

    fn sees(&self, at: CodeAddr) -> bool {
        at.offset_within(self.case.from, self.end() as u64).is_some()
    }

    /// The address is in another function.
    fn leaves(&self, target: CodeAddr) -> bool {
        self.case.options.extent.is_some_and(|extent| match target < self.case.from {
            true => self.case.options.entry,
            false => target.offset_within(self.case.from, extent as u64).is_none(),
        })
    }

    /// The bytes of the instruction at an address, if it is in sight.
    fn word(&self, at: CodeAddr) -> Option<&[u8]> {
        let offset = at.offset_within(self.case.from, self.end() as u64)? as usize;
        self.case.source[..self.end()].get(offset..offset + 4)
    }

    fn step(&self, at: CodeAddr) -> Option<Step> {
        Step::of(self.capstone, self.case.isa, at, self.word(at)?)
    }
}
