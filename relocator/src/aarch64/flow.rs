//! The control flow of one function.

use alloc::{vec, vec::Vec};

use grapnel_arch::{
    CodeAddr,
    aarch64::{Flow, INST_LEN, Inst, decode},
};

use super::{culprit, culprit_at, plan::uses_window};
use crate::{
    Culprit,
    flow::{Reason, Surroundings, Verdict},
};

pub(crate) fn check(bytes: &[u8], from: CodeAddr, window_len: usize, around: &Surroundings<'_>) -> Verdict {
    let mut sweep = Sweep { bytes, from, window_len, around, seen: vec![false; bytes.len()], reason: None };
    match sweep.all() {
        Err(branch) => Verdict::Refused(branch),
        Ok(()) => match sweep.reason {
            Some(reason) => Verdict::Assumed(reason),
            None => Verdict::Proven,
        },
    }
}

struct Sweep<'a> {
    bytes: &'a [u8],
    from: CodeAddr,
    window_len: usize,
    around: &'a Surroundings<'a>,
    /// Bytes that belong to an instruction that was seen.
    seen: Vec<bool>,
    /// The first thing that could not be seen.
    reason: Option<Reason>,
}

impl Sweep<'_> {
    /// First everything that direct branches reach, then what lies between, as it comes.
    fn all(&mut self) -> Result<(), Culprit> {
        self.reach(0)?;
        for &entry in self.around.entries {
            let Some(offset) = entry.offset_within(self.from, self.bytes.len() as u64) else { continue };
            if offset > 0 && offset < self.window_len as u64 {
                return Err(culprit_at(entry, &self.bytes[offset as usize..]));
            }
            self.reach(offset as usize)?;
        }
        for at in (0..self.bytes.len()).step_by(INST_LEN) {
            if self.seen[at] {
                continue;
            }
            let padding =
                decode(self.from.add(at as u64), &self.bytes[at..]).is_ok_and(|inst| inst.is_padding());
            if !padding {
                self.assume(Reason::Unreached(self.from.add(at as u64)));
                self.reach(at)?;
            }
        }
        Ok(())
    }

    fn assume(&mut self, reason: Reason) {
        self.reason.get_or_insert(reason);
    }

    /// Follows the code from `start` along its direct branches.
    fn reach(&mut self, start: usize) -> Result<(), Culprit> {
        let mut pending = vec![start];
        while let Some(mut at) = pending.pop() {
            while at < self.bytes.len() && !self.seen[at] {
                let Ok(inst) = decode(self.from.add(at as u64), &self.bytes[at..]) else {
                    self.assume(Reason::Undecodable(self.from.add(at as u64)));
                    break;
                };
                self.judge(at, &inst)?;
                if inst.flow() == Flow::JumpIndirect {
                    self.assume(Reason::IndirectJump(culprit(&inst)));
                }
                self.seen[at..at + INST_LEN].fill(true);
                if let Some(target) = inst.flow().target()
                    && let Some(offset) = target.offset_within(self.from, self.bytes.len() as u64)
                {
                    pending.push(offset as usize);
                }
                if inst.flow().is_exit() {
                    break;
                }
                at += INST_LEN;
            }
        }
        Ok(())
    }

    /// Branches of the window itself are relocated with it; all others must keep out of it.
    fn judge(&mut self, at: usize, inst: &Inst) -> Result<(), Culprit> {
        if at < self.window_len {
            return Ok(());
        }
        if inst.operand().is_some_and(|operand| uses_window(self.from, self.window_len, operand)) {
            return Err(culprit(inst));
        }
        let Some(target) = inst.flow().target() else { return Ok(()) };
        match target.offset_within(self.from, self.window_len as u64) {
            None => Ok(()),
            // A recursive call is a call like any other.
            Some(0) if matches!(inst.flow(), Flow::Call { .. }) => Ok(()),
            Some(0) => {
                self.assume(Reason::LoopsToStart(culprit(inst)));
                Ok(())
            }
            Some(_) => Err(culprit(inst)),
        }
    }
}
