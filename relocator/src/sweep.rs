//! The sweep over a function that [`flow`](crate::flow) answers from. It is the same for every instruction set; what one
//! instruction does is told by [`Instruction`].
//!
//! First everything is followed that direct branches and known tables reach from the function's entries; then what lies
//! between, as it comes. Where data lies among the code, a sweep may take some of it for instructions before the load is
//! seen that reads it. What those seemed to do is forgotten then, and the sweep begins anew with what is known.
//!
//! Functions may be made to be hard. Whatever their bytes are, work and memory grow with their number and no faster: each
//! limit below is beyond what compilers were seen to make. At it a verdict is an assumption that could have been a proof,
//! but for [`LOOK_BACK`]: an address that two instructions make so far apart is not seen.

use alloc::{vec, vec::Vec};
use core::{marker::PhantomData, ops::Range};

use grapnel_arch::{CodeAddr, TableForm, TableJump};

use crate::{
    Culprit,
    flow::{Reason, Surroundings, Verdict},
    instruction::{Branch, Indirect, Instruction, Operand},
};

#[cfg(test)]
#[cfg(feature = "arm")]
mod tests;

/// A longer table is taken for a misread one.
const MAX_ENTRIES: u64 = 4096;

/// How many entries of all tables together are read, beyond one for each unit of the function.
const ALL_ENTRIES: u64 = 16 * MAX_ENTRIES;

/// How many instructions of a run are looked at: as many as any part of a known pattern may lie behind another.
const LOOK_BACK: usize = 64;

/// How many runs are kept at a time until it goes on at their branch's target. Others begin anew there.
const MAX_WAITING: usize = 256;

/// How many sweeps are made. Data that shows only when other data is known to be some is rare, and a chain of it rarer:
/// what compilers write takes two.
const MAX_SWEEPS: usize = 32;

/// [`check`] of one instruction set: the function's bytes, its address, the window as offsets in it, how much is looked at, and
/// what is around.
pub(crate) type Check = fn(&[u8], CodeAddr, Range<usize>, Scope, &Surroundings<'_>) -> Verdict;

/// How much of the bytes is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All of them: they are one function.
    Function,
    /// What jumps reach from the window's start: whose the others are isn't known.
    Reached,
}

pub(crate) fn check<I: Instruction>(
    bytes: &[u8],
    from: CodeAddr,
    window: Range<usize>,
    scope: Scope,
    around: &Surroundings<'_>,
) -> Verdict {
    let units = bytes.len() / I::UNIT;
    let mut sweep = Sweep {
        bytes: &bytes[..units * I::UNIT],
        from,
        window,
        scope,
        around,
        known: vec![0; units],
        entries_left: 0,
        misread: None,
        reason: None,
        refused: None,
        of: PhantomData::<I>,
    };
    sweep.all();
    for _ in 1..MAX_SWEEPS {
        if sweep.misread.is_none() {
            break;
        }
        sweep.forget();
        sweep.all();
    }
    if let Some(at) = sweep.misread {
        sweep.assume(Reason::Undecodable(at));
    }
    match (sweep.refused, sweep.reason) {
        (Some(culprit), _) => Verdict::Refused(culprit),
        (None, Some(reason)) => Verdict::Assumed(reason),
        (None, None) => Verdict::Proven,
    }
}

/// It was taken for a part of an instruction.
const SEEN: u8 = 1;

/// A load names it, or it is part of a table.
const DATA: u8 = 2;

struct Sweep<'a, I> {
    /// Whole units.
    bytes: &'a [u8],
    from: CodeAddr,
    /// Offsets from the function's start.
    window: Range<usize>,
    scope: Scope,
    around: &'a Surroundings<'a>,
    /// What is known of each unit.
    known: Vec<u8>,
    /// How many entries of tables may still be read.
    entries_left: u64,
    /// The first that was taken for an instruction before it was known to be data.
    misread: Option<CodeAddr>,
    /// The first thing that could not be seen.
    reason: Option<Reason>,
    /// The first thing that leads into the window.
    refused: Option<Culprit>,
    of: PhantomData<I>,
}

/// Where to go on: units, the last one first.
struct Pending<I> {
    units: Vec<usize>,
    /// What was executed before some of the units: the number of the unit among them, and the run, in the same order.
    runs: Vec<(usize, Vec<I>)>,
}

impl<I: Instruction> Pending<I> {
    const fn new() -> Self {
        Self { units: Vec::new(), runs: Vec::new() }
    }

    fn push(&mut self, unit: usize) {
        self.units.push(unit);
    }

    fn push_behind(&mut self, unit: usize, run: &[I]) {
        if self.runs.len() < MAX_WAITING {
            self.runs.push((self.units.len(), run.to_vec()));
        }
        self.push(unit);
    }

    fn pop(&mut self) -> Option<(usize, Vec<I>)> {
        let unit = self.units.pop()?;
        let run = self.runs.pop_if(|(number, _)| *number == self.units.len());
        Some((unit, run.map_or_else(Vec::new, |(_, run)| run)))
    }
}

/// The last of a run.
fn latest<I>(run: &[I]) -> &[I] {
    &run[run.len().saturating_sub(LOOK_BACK)..]
}

impl<I: Instruction> Sweep<'_, I> {
    fn all(&mut self) {
        self.entries_left = ALL_ENTRIES + self.known.len() as u64;
        if self.scope == Scope::Reached {
            return self.reach(self.window.start / I::UNIT);
        }
        self.reach(0);
        for &entry in self.around.entries {
            let Some(offset) = self.offset(entry) else { continue };
            if self.is_inner(offset) {
                self.refuse(I::culprit_behind(&[], entry, &self.bytes[offset..]));
            }
            self.reach(offset / I::UNIT);
        }
        let mut unit = 0;
        while unit < self.known.len() && !self.is_settled() {
            if self.known[unit] != 0 {
                unit += 1;
                continue;
            }
            match I::decode_behind(&[], self.at(unit), &self.bytes[unit * I::UNIT..]) {
                Ok(inst) if inst.is_padding() => unit += inst.len() / I::UNIT,
                _ => {
                    self.assume(Reason::Unreached(self.at(unit)));
                    self.reach(unit);
                    unit += 1;
                }
            }
        }
    }

    /// Only what turned out to be data is kept.
    fn forget(&mut self) {
        for known in &mut self.known {
            *known &= DATA;
        }
        self.misread = None;
        self.reason = None;
        self.refused = None;
    }

    fn at(&self, unit: usize) -> CodeAddr {
        self.from.add((unit * I::UNIT) as u64)
    }

    /// The offset in the function.
    fn offset(&self, addr: CodeAddr) -> Option<usize> {
        addr.offset_within(self.from, self.bytes.len() as u64).map(|offset| offset as usize)
    }

    /// An offset at which nothing may arrive from outside the window. Its first instruction is where the patch begins.
    fn is_inner(&self, offset: usize) -> bool {
        self.window.start < offset && offset < self.window.end
    }

    fn assume(&mut self, reason: Reason) {
        self.reason.get_or_insert(reason);
    }

    fn refuse(&mut self, culprit: Culprit) {
        self.refused.get_or_insert(culprit);
    }

    /// Nothing that is still to be seen can change the verdict.
    fn is_settled(&self) -> bool {
        !I::MIXED && self.refused.is_some()
    }

    fn mark_data(&mut self, start: CodeAddr, len: usize) {
        let start = start.displacement_from(self.from);
        let within = |offset: i64| offset.clamp(0, self.bytes.len() as i64) as usize;
        let units = within(start) / I::UNIT..within(start.saturating_add(len as i64)).div_ceil(I::UNIT);
        for unit in units {
            if I::MIXED && self.known[unit] == SEEN && self.misread.is_none() {
                self.misread = Some(self.at(unit));
            }
            self.known[unit] |= DATA;
        }
    }

    /// It is to be decoded yet.
    fn is_open(&self, unit: usize) -> bool {
        // What a load reads is no code: the call before it does not return.
        let ends = if I::MIXED { SEEN | DATA } else { SEEN };
        self.known.get(unit).is_some_and(|known| known & ends == 0)
    }

    /// The unit of the function at an address, if it is to be decoded yet.
    fn open(&self, addr: CodeAddr) -> Option<usize> {
        self.offset(addr).map(|offset| offset / I::UNIT).filter(|&unit| self.is_open(unit))
    }

    /// Follows the code from `start` along its direct branches.
    fn reach(&mut self, start: usize) {
        let mut pending: Pending<I> = Pending::new();
        pending.push(start);
        while let Some((mut unit, mut run)) = pending.pop() {
            while self.is_open(unit) {
                self.known[unit] |= SEEN;
                let bytes = &self.bytes[unit * I::UNIT..];
                let Ok(inst) = I::decode_behind(&run, self.at(unit), bytes) else {
                    self.assume(Reason::Undecodable(self.at(unit)));
                    break;
                };
                if run.len() == 2 * LOOK_BACK {
                    run.drain(..=LOOK_BACK);
                }
                run.push(inst);
                let run = latest(&run);
                let end = unit + inst.len() / I::UNIT;
                for known in &mut self.known[unit..end] {
                    *known |= SEEN;
                }
                self.judge(unit * I::UNIT, run, &inst);
                self.indirect(run, &inst, &mut pending);
                if self.is_settled() {
                    return;
                }
                if let Some(constants) = I::constants(run) {
                    self.mark_data(constants.target, constants.access);
                }
                if let Some(to) = inst.branch().and_then(|to| self.followed(to)).and_then(|to| self.open(to))
                {
                    match inst.branches_into_switch() {
                        true => pending.push_behind(to, run),
                        false => pending.push(to),
                    }
                }
                if let Some(to) = inst.return_address().and_then(|to| self.open(to)) {
                    pending.push(to);
                }
                if inst.is_exit() {
                    break;
                }
                unit = end;
            }
        }
    }

    /// Where the function goes on behind a branch. What it calls is its own only if all of it is looked at.
    fn followed(&self, branch: Branch) -> Option<CodeAddr> {
        match branch {
            Branch::Call(_) if self.scope == Scope::Reached => None,
            _ => branch.target(),
        }
    }

    /// Branches of the window itself are relocated with it; all others must keep out of it. `run` ends with `inst`.
    fn judge(&mut self, at: usize, run: &[I], inst: &I) {
        if self.window.contains(&at) {
            return;
        }
        let window = self.from.add(self.window.start as u64);
        let runs_in = at < self.window.start && at + inst.whole_len(&self.bytes[at..]) > self.window.start;
        if runs_in || I::operand(run).is_some_and(|operand| operand.touches(window, self.window.len())) {
            return self.refuse(inst.culprit());
        }
        let inside = |target: CodeAddr| target.offset_within(window, self.window.len() as u64);
        match inst.branch() {
            Some(Branch::Foreign(target)) if inside(target).is_some() => self.refuse(inst.culprit()),
            Some(Branch::Jump(target)) if inside(target) == Some(0) => {
                self.assume(Reason::LoopsToStart(inst.culprit()));
            }
            // A recursive call is a call like any other.
            Some(Branch::Jump(target) | Branch::Call(target)) if inside(target).is_some_and(|at| at > 0) => {
                self.refuse(inst.culprit());
            }
            _ => {}
        }
    }

    /// An indirect jump at the end of a run of instructions: follows its table, if that is one.
    fn indirect(&mut self, run: &[I], jump: &I, pending: &mut Pending<I>) {
        let table = match I::indirect(run) {
            Indirect::None => return,
            Indirect::Unknown => None,
            Indirect::Table(table) => Some(table),
        };
        let Some((table, targets)) = table.and_then(|table| Some((table, self.targets(table)?))) else {
            return self.assume(Reason::IndirectJump(jump.culprit()));
        };
        if table.entries.is_none() {
            self.assume(Reason::IndirectJump(jump.culprit()));
        }
        if !matches!(table.form, TableForm::Instruction { .. }) {
            let operand = Operand { target: table.table, access: targets.len() * table.form.size() };
            if operand.touches(self.from.add(self.window.start as u64), self.window.len()) {
                self.refuse(jump.culprit());
            }
            self.mark_data(operand.target, operand.access);
        }
        for target in targets {
            let Some(offset) = self.offset(target) else { continue };
            if self.is_inner(offset) {
                self.refuse(jump.culprit());
                continue;
            }
            if offset == self.window.start {
                self.assume(Reason::LoopsToStart(jump.culprit()));
            }
            if self.is_open(offset / I::UNIT) {
                pending.push(offset / I::UNIT);
            }
        }
    }

    /// Where a table leads, if all of it can be read.
    ///
    /// A table behind its jump whose length is not known is taken to end where the first place begins that it leads to.
    fn targets(&mut self, jump: TableJump) -> Option<Vec<CodeAddr>> {
        let size = jump.form.size();
        let target = |at: CodeAddr, entry: &[u8]| match jump.form.target(entry) {
            Some(target) => CodeAddr(target.0 & I::ADDRESS),
            None => at,
        };
        let mut targets = Vec::new();
        if let Some(entries) = jump.entries {
            if entries > MAX_ENTRIES.min(self.entries_left) {
                return None;
            }
            self.entries_left -= entries;
            let mut bytes = vec![0; entries as usize * size];
            if !self.read(jump.table, &mut bytes) {
                return None;
            }
            let places = (0..entries).map(|number| jump.table.add(number * size as u64));
            targets.extend(places.zip(bytes.chunks_exact(size)).map(|(at, entry)| target(at, entry)));
            return Some(targets);
        }
        let (mut at, mut end) = (jump.table, CodeAddr(u64::MAX));
        while at < end {
            let mut entry = [0; 8];
            let entry = entry.get_mut(..size)?;
            if targets.len() as u64 >= MAX_ENTRIES || self.entries_left == 0 || !self.read(at, entry) {
                return None;
            }
            self.entries_left -= 1;
            let target = target(at, entry);
            end = end.min(target);
            targets.push(target);
            at = at.add(size as u64);
        }
        Some(targets)
    }

    /// Reads a table: where data lies among the code, it is mostly in the function itself.
    fn read(&self, at: CodeAddr, out: &mut [u8]) -> bool {
        match self.offset(at).and_then(|offset| self.bytes.get(offset..offset + out.len())) {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                true
            }
            None => self.around.read.is_some_and(|read| read(at, out)),
        }
    }
}
