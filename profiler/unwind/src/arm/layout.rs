//! How a frame is laid out: where its CFA is, and where it keeps its caller's registers.

use super::registers::{R7, R11, SP};
use super::rule::{RuleKind, UnwindRule};

/// The layout of a frame. Places are offsets from the register that the CFA is found by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Which register: one of the kinds `Sp`, `R7` and `R11`.
    pub(super) kind: RuleKind,
    pub(super) cfa: i32,
    pub(super) saved: [Option<i32>; 16],
}

impl Layout {
    /// Nothing saved, and the CFA where `kind` says.
    pub(super) const fn new(kind: RuleKind) -> Self {
        Layout { kind, cfa: 0, saved: [None; 16] }
    }

    /// Where the return address is. `None`: in lr still.
    pub(super) fn pc(&self) -> Option<i32> {
        let [.., lr, pc] = self.saved;
        pc.or(lr)
    }

    /// The register by which the CFA is found.
    pub(super) fn base(&self) -> usize {
        match self.kind {
            RuleKind::R7 | RuleKind::GuessedR7 => R7,
            RuleKind::R11 | RuleKind::GuessedR11 => R11,
            _ => SP,
        }
    }

    /// Takes the registers of the mask as saved from `place` up, and answers what lies above them.
    pub(super) fn take(&mut self, mask: u16, mut place: i32) -> Option<i32> {
        for (register, saved) in self.saved.iter_mut().enumerate() {
            if mask & (1 << register) != 0 {
                *saved = Some(place);
                place = place.checked_add(4)?;
            }
        }
        Some(place)
    }

    /// The fast rule that says the same, if there is one.
    ///
    /// A leaf has its return address in the register, and none of its frames but that which a signal stopped can be on a
    /// stack: such a one has no fast rule.
    pub(super) fn rule(&self) -> Option<UnwindRule> {
        let [.., saved_sp, _, _] = self.saved;
        if saved_sp.is_some() {
            return None;
        }
        let below = |place: Option<i32>| match place {
            Some(place) => {
                let below = self.cfa.checked_sub(place).filter(|n| *n > 0 && n % 4 == 0)?;
                u8::try_from(below / 4).ok()
            }
            None => Some(0),
        };
        let [_, _, _, _, _, _, _, r7, _, _, _, r11, ..] = self.saved;
        Some(UnwindRule {
            kind: self.kind,
            pc: below(Some(self.pc()?))?,
            r7: below(r7)?,
            r11: below(r11)?,
            cfa_offset: self.cfa,
        })
    }

    /// The same as a guess.
    pub(super) fn guessed(&self) -> Option<UnwindRule> {
        let rule = self.rule()?;
        let kind = match rule.kind {
            RuleKind::Sp => RuleKind::GuessedSp,
            RuleKind::R7 => RuleKind::GuessedR7,
            RuleKind::R11 => RuleKind::GuessedR11,
            _ => return None,
        };
        Some(UnwindRule { kind, ..rule })
    }
}
