//! The control flow of one function.

use alloc::{vec, vec::Vec};
use core::ops::Range;

use grapnel_arch::{
    CodeAddr,
    x86_64::{Flow, Inst, TableForm, TableJump, decode, table_jump},
};

use super::{culprit, culprit_at, plan::uses_window};
use crate::{
    Culprit,
    flow::{Reason, Surroundings, Verdict},
};

/// A longer table is taken for a misread one.
const MAX_ENTRIES: u64 = 4096;

pub(crate) fn check(
    bytes: &[u8],
    from: CodeAddr,
    window: Range<usize>,
    around: &Surroundings<'_>,
) -> Verdict {
    let mut sweep = Sweep { bytes, from, window, around, seen: vec![false; bytes.len()], reason: None };
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
    /// Offsets from the function's start.
    window: Range<usize>,
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
            if self.is_inner(offset) {
                return Err(culprit_at(entry, &self.bytes[offset as usize..]));
            }
            self.reach(offset as usize)?;
        }
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
            let mut run = Vec::new();
            while at < self.bytes.len() && !self.seen[at] {
                let Ok(inst) = decode(self.from.add(at as u64), &self.bytes[at..]) else {
                    self.assume(Reason::Undecodable(self.from.add(at as u64)));
                    break;
                };
                run.push(inst);
                self.judge(at, &inst)?;
                self.table(&run, &mut pending)?;
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

    /// An offset at which nothing may arrive from outside the window. Its first instruction is where the patch begins.
    fn is_inner(&self, offset: u64) -> bool {
        (self.window.start as u64 + 1..self.window.end as u64).contains(&offset)
    }

    /// Branches of the window itself are relocated with it; all others must keep out of it.
    fn judge(&mut self, at: usize, inst: &Inst) -> Result<(), Culprit> {
        if self.window.contains(&at) {
            return Ok(());
        }
        let window = self.from.add(self.window.start as u64);
        let runs_in = at < self.window.start && at + inst.bytes().len() > self.window.start;
        if runs_in
            || inst.rip_operand().is_some_and(|operand| uses_window(window, self.window.len(), operand))
        {
            return Err(culprit(inst));
        }
        let Some(target) = inst.flow().target() else { return Ok(()) };
        match target.offset_within(window, self.window.len() as u64) {
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

    /// An indirect jump at the end of a run of instructions: follows its table, if that is one.
    fn table(&mut self, run: &[Inst], pending: &mut Vec<usize>) -> Result<(), Culprit> {
        // A jump through a fixed place in memory leaves for another function; a table's has a register in it.
        let Some(jump) =
            run.last().filter(|jump| jump.flow() == Flow::JumpIndirect && jump.rip_operand().is_none())
        else {
            return Ok(());
        };
        let Some(targets) = table_jump(run).and_then(|table| self.targets(table)) else {
            self.assume(Reason::IndirectJump(culprit(jump)));
            return Ok(());
        };
        for target in targets {
            match target.offset_within(self.from, self.bytes.len() as u64) {
                Some(offset) if self.is_inner(offset) => return Err(culprit(jump)),
                Some(offset) if offset == self.window.start as u64 => {
                    self.assume(Reason::LoopsToStart(culprit(jump)));
                    pending.push(offset as usize);
                }
                Some(offset) => pending.push(offset as usize),
                None => {}
            }
        }
        Ok(())
    }

    /// The entries of a table, if all of it can be read.
    fn targets(&self, jump: TableJump) -> Option<Vec<CodeAddr>> {
        let read = self.around.read?;
        let size = jump.form.size();
        let mut bytes = vec![0; usize::try_from(jump.entries.min(MAX_ENTRIES + 1)).ok()? * size];
        if jump.entries > MAX_ENTRIES || !read(jump.table, &mut bytes) {
            return None;
        }
        let target = |entry: &[u8]| match jump.form {
            TableForm::Offset32 => {
                jump.table.offset(i64::from(i32::from_le_bytes(entry.try_into().unwrap_or_default())))
            }
            TableForm::Address64 => CodeAddr(u64::from_le_bytes(entry.try_into().unwrap_or_default())),
        };
        Some(bytes.chunks_exact(size).map(target).collect())
    }
}
