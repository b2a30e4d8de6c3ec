//! The control flow of one function.

use alloc::{vec, vec::Vec};
use core::ops::Range;

use grapnel_arch::{
    CodeAddr,
    aarch64::{Flow, INST_LEN, Inst, PcUse, TableJump, decode, table_jump},
};

use super::{
    culprit, culprit_at,
    plan::{added_address, uses_window},
};
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
    let none = || vec![false; bytes.len()];
    let mut sweep = Sweep { bytes, from, window, around, seen: none(), constants: none(), reason: None };
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
    /// Bytes that a load of a literal reads.
    constants: Vec<bool>,
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
        for at in (0..self.bytes.len()).step_by(INST_LEN) {
            if self.seen[at] || self.constants[at] {
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

    /// An offset at which nothing may arrive from outside the window. Its first instruction is where the patch begins.
    fn is_inner(&self, offset: u64) -> bool {
        (self.window.start as u64 + 1..self.window.end as u64).contains(&offset)
    }

    /// Follows the code from `start` along its direct branches.
    fn reach(&mut self, start: usize) -> Result<(), Culprit> {
        let mut pending = vec![(start, Vec::new())];
        while let Some((mut at, mut run)) = pending.pop() {
            while at < self.bytes.len() && !self.seen[at] {
                let Ok(inst) = decode(self.from.add(at as u64), &self.bytes[at..]) else {
                    self.assume(Reason::Undecodable(self.from.add(at as u64)));
                    break;
                };
                run.push(inst);
                self.judge(at, &run, &inst)?;
                self.constant(&inst);
                self.table(&run, &mut pending)?;
                self.seen[at..at + INST_LEN].fill(true);
                if let Some(target) = inst.flow().target()
                    && let Some(offset) = target.offset_within(self.from, self.bytes.len() as u64)
                {
                    // Where `b.ls` leads, what was compared before it counts.
                    let into_switch = inst.word() & 0xff00_001f == 0x5400_0009;
                    pending.push((offset as usize, if into_switch { run.clone() } else { Vec::new() }));
                }
                if inst.flow().is_exit() {
                    break;
                }
                at += INST_LEN;
            }
        }
        Ok(())
    }

    /// Branches of the window itself are relocated with it; all others must keep out of it. `run` ends with `inst`.
    fn judge(&mut self, at: usize, run: &[Inst], inst: &Inst) -> Result<(), Culprit> {
        if self.window.contains(&at) {
            return Ok(());
        }
        let window = self.window_at();
        let uses = |operand| uses_window(window, self.window.len(), operand);
        if inst.operand().is_some_and(uses) || self.computes_place_in_window(run, inst) {
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

    fn window_at(&self) -> CodeAddr {
        self.from.add(self.window.start as u64)
    }

    /// It is the ADD to an ADRP, and the sum lies inside the window.
    fn computes_place_in_window(&self, run: &[Inst], inst: &Inst) -> bool {
        added_address(run, inst)
            .and_then(|place| place.offset_within(self.window_at(), self.window.len() as u64))
            .is_some_and(|offset| offset > 0)
    }

    /// A constant of the function that a load of it reads is no code that was not reached.
    fn constant(&mut self, inst: &Inst) {
        let Some(operand) = inst.operand().filter(|operand| matches!(operand.kind, PcUse::Literal(_))) else {
            return;
        };
        if let Some(offset) = operand.target.offset_within(self.from, self.bytes.len() as u64) {
            let end = self.bytes.len().min(offset as usize + operand.access());
            // What is also executed stays what it is: it was seen before, or is when it is reached.
            self.constants[offset as usize..end].fill(true);
        }
    }

    /// An indirect jump at the end of a run of instructions: follows its table, if that is one.
    fn table(&mut self, run: &[Inst], pending: &mut Vec<(usize, Vec<Inst>)>) -> Result<(), Culprit> {
        let Some(jump) = run.last().filter(|jump| jump.flow() == Flow::JumpIndirect) else { return Ok(()) };
        let Some(targets) = table_jump(run).and_then(|table| self.targets(table)) else {
            self.assume(Reason::IndirectJump(culprit(jump)));
            return Ok(());
        };
        for target in targets {
            match target.offset_within(self.from, self.bytes.len() as u64) {
                Some(offset) if self.is_inner(offset) => return Err(culprit(jump)),
                Some(offset) if offset == self.window.start as u64 => {
                    self.assume(Reason::LoopsToStart(culprit(jump)));
                }
                Some(offset) => pending.push((offset as usize, Vec::new())),
                None => {}
            }
        }
        Ok(())
    }

    /// The entries of a table, if all of it can be read.
    fn targets(&self, jump: TableJump) -> Option<Vec<CodeAddr>> {
        let read = self.around.read?;
        let size = jump.form.size;
        let mut bytes = vec![0; usize::try_from(jump.entries.min(MAX_ENTRIES + 1)).ok()? * size];
        if jump.entries > MAX_ENTRIES || !read(jump.table, &mut bytes) {
            return None;
        }
        Some(bytes.chunks_exact(size).map(|entry| jump.form.target(jump.base, entry)).collect())
    }
}
