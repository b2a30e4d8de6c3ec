//! The control flow of one function.

use alloc::{vec, vec::Vec};

use grapnel_arch::{
    CodeAddr,
    x86_64::{Flow, Inst, decode},
};

use super::culprit;
use crate::{
    Culprit,
    flow::{Reason, Verdict},
};

pub(crate) fn check(bytes: &[u8], from: CodeAddr, window_len: usize) -> Verdict {
    let mut sweep = Sweep { bytes, from, window_len, seen: vec![false; bytes.len()], reason: None };
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
    /// Bytes that belong to an instruction that was seen.
    seen: Vec<bool>,
    /// The first thing that could not be seen.
    reason: Option<Reason>,
}

impl Sweep<'_> {
    /// First everything that direct branches reach, then what lies between, as it comes.
    fn all(&mut self) -> Result<(), Culprit> {
        self.reach(0)?;
        let mut at = 0;
        while at < self.bytes.len() {
            if self.seen[at] {
                at += 1;
                continue;
            }
            match decode(self.from.add(at as u64), &self.bytes[at..]) {
                Ok(inst) if inst.is_padding() => at += inst.bytes().len(),
                _ => {
                    self.assume(Reason::Unreached(self.from.add(at as u64)));
                    self.reach(at)?;
                    at += 1;
                }
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
                let end = at + inst.bytes().len();
                self.seen[at..end].fill(true);
                if let Some(target) = inst.flow().target()
                    && let Some(offset) = target.offset_within(self.from, self.bytes.len() as u64)
                {
                    pending.push(offset as usize);
                }
                if inst.flow().is_exit() {
                    break;
                }
                at = end;
            }
        }
        Ok(())
    }

    /// Branches of the window itself are relocated with it; all others must keep out of it.
    fn judge(&mut self, at: usize, inst: &Inst) -> Result<(), Culprit> {
        // A jump through a fixed place in memory leaves for another function; a table's has a register in it.
        if inst.flow() == Flow::JumpIndirect && inst.rip_operand().is_none() {
            self.assume(Reason::IndirectJump(culprit(inst)));
        }
        if at < self.window_len {
            return Ok(());
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
