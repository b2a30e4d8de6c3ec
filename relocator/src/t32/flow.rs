//! The control flow of one function.

use alloc::{vec, vec::Vec};

use grapnel_arch::{
    CodeAddr,
    t32::{Flow, Inst, It, PcUse, TableForm, TableJump, decode, decode_within, table_jump},
};

use super::{culprit, culprit_at, plan::overlaps};
use crate::{
    Culprit,
    flow::{Reason, Surroundings, Verdict},
};

/// A longer table is taken for a misread one.
const MAX_ENTRIES: u64 = 4096;

/// Places are counted in halfwords.
const HALFWORD: usize = 2;

pub(crate) fn check(bytes: &[u8], from: CodeAddr, window_len: usize, around: &Surroundings<'_>) -> Verdict {
    let halfwords = bytes.len() / HALFWORD;
    let mut sweep = Sweep {
        bytes: &bytes[..halfwords * HALFWORD],
        from,
        window_len,
        around,
        seen: vec![false; halfwords],
        data: vec![false; halfwords],
        misread: false,
        reason: None,
        refused: None,
    };
    loop {
        sweep.seen.fill(false);
        sweep.misread = false;
        sweep.reason = None;
        sweep.refused = None;
        sweep.all();
        // What was taken for code turned out to be a constant: once more, with what is known now. There are only so many
        // halfwords to learn of.
        if sweep.misread {
            continue;
        }
        return match (sweep.refused, sweep.reason) {
            (Some(culprit), _) => Verdict::Refused(culprit),
            (None, Some(reason)) => Verdict::Assumed(reason),
            (None, None) => Verdict::Proven,
        };
    }
}

struct Sweep<'a> {
    /// Whole halfwords.
    bytes: &'a [u8],
    from: CodeAddr,
    window_len: usize,
    around: &'a Surroundings<'a>,
    /// Halfwords of instructions that were seen.
    seen: Vec<bool>,
    /// Halfwords that a load names, or that are entries of a table.
    data: Vec<bool>,
    /// A halfword was seen as an instruction before it was known to be data.
    misread: bool,
    /// The first thing that could not be seen.
    reason: Option<Reason>,
    /// The first thing that leads into the window. The sweep goes on, for it may turn out to be a constant.
    refused: Option<Culprit>,
}

impl Sweep<'_> {
    /// First everything that direct branches reach, then what lies between, as it comes.
    fn all(&mut self) {
        self.reach(0);
        for &entry in self.around.entries {
            let Some(offset) = self.offset(entry) else { continue };
            if offset > 0 && offset < self.window_len {
                self.refuse(culprit_at(entry, &self.bytes[offset..], It::OUTSIDE));
            }
            self.reach(offset / HALFWORD);
        }
        let mut place = 0;
        while place < self.seen.len() {
            if self.seen[place] || self.data[place] {
                place += 1;
                continue;
            }
            match decode(self.at(place), &self.bytes[place * HALFWORD..]) {
                Ok(inst) if inst.is_padding() => place += inst.bytes().len() / HALFWORD,
                _ => {
                    self.assume(Reason::Unreached(self.at(place)));
                    self.reach(place);
                    place += 1;
                }
            }
        }
    }

    fn at(&self, place: usize) -> CodeAddr {
        self.from.add((place * HALFWORD) as u64)
    }

    /// The offset in the function.
    fn offset(&self, addr: CodeAddr) -> Option<usize> {
        addr.offset_within(self.from, self.bytes.len() as u64).map(|offset| offset as usize)
    }

    fn assume(&mut self, reason: Reason) {
        self.reason.get_or_insert(reason);
    }

    fn refuse(&mut self, culprit: Culprit) {
        self.refused.get_or_insert(culprit);
    }

    fn mark_data(&mut self, start: CodeAddr, len: u64) {
        for at in (0..len.next_multiple_of(HALFWORD as u64)).step_by(HALFWORD) {
            if let Some(offset) = self.offset(start.add(at)) {
                let place = offset / HALFWORD;
                self.misread |= self.seen[place] && !self.data[place];
                self.data[place] = true;
            }
        }
    }

    /// Follows the code from `start`, which is in no IT block, along its direct branches.
    fn reach(&mut self, start: usize) {
        let mut pending = vec![start];
        while let Some(mut place) = pending.pop() {
            let mut run = Vec::new();
            let mut it = It::OUTSIDE;
            // What a load reads is no code: the call before it does not return.
            while place < self.seen.len() && !self.seen[place] && !self.data[place] {
                self.seen[place] = true;
                let Ok(inst) = decode_within(self.at(place), &self.bytes[place * HALFWORD..], it) else {
                    self.assume(Reason::Undecodable(self.at(place)));
                    break;
                };
                run.push(inst);
                let end = place + inst.bytes().len() / HALFWORD;
                self.seen[place..end].fill(true);
                self.judge(place * HALFWORD, &inst);
                self.indirect(&run, &mut pending);
                if let PcUse::Literal(literal) = inst.pc_use() {
                    self.mark_data(literal.target, u64::from(literal.access));
                }
                if let Some(offset) = inst.flow().target().and_then(|target| self.offset(target)) {
                    pending.push(offset / HALFWORD);
                }
                if inst.is_exit() {
                    break;
                }
                (place, it) = (end, inst.next_it());
            }
        }
    }

    /// Branches of the window itself are relocated with it; all others must keep out of it.
    fn judge(&mut self, at: usize, inst: &Inst) {
        if at < self.window_len {
            return;
        }
        let inside = |addr: CodeAddr| addr.offset_within(self.from, self.window_len as u64);
        let uses = match inst.pc_use() {
            PcUse::Literal(literal) => overlaps(self.from, self.window_len, literal),
            PcUse::Address { value, .. } => inside(value).is_some_and(|offset| offset > 0),
            _ => false,
        };
        let target = match inst.flow() {
            Flow::CallA32 { target } | Flow::JumpA32 { target } => inside(target).map(|_| usize::MAX as u64),
            flow => flow.target().and_then(inside),
        };
        match (target, inst.flow()) {
            _ if uses => self.refuse(culprit(inst)),
            // A recursive call is a call like any other.
            (None, _) | (Some(0), Flow::Call { .. }) => {}
            (Some(0), _) => self.assume(Reason::LoopsToStart(culprit(inst))),
            (Some(_), _) => self.refuse(culprit(inst)),
        }
    }

    /// An indirect jump at the end of a run of instructions: follows its table, if that is one.
    fn indirect(&mut self, run: &[Inst], pending: &mut Vec<usize>) {
        let Some(jump) = run.last() else { return };
        match jump.flow() {
            Flow::Table { .. } | Flow::AddToPc { .. } => {}
            // A jump through a fixed place in memory leaves for another function; a table's has a register in it.
            Flow::JumpIndirect if !matches!(jump.pc_use(), PcUse::Literal(_)) => {}
            _ => return,
        }
        let Some((table, targets)) = table_jump(run).and_then(|table| Some((table, self.targets(table)?)))
        else {
            return self.assume(Reason::IndirectJump(culprit(jump)));
        };
        if table.entries.is_none() {
            self.assume(Reason::IndirectJump(culprit(jump)));
        }
        if table.form != TableForm::Instructions {
            self.mark_data(table.table, (targets.len() * table.form.size()) as u64);
        }
        for target in targets {
            match self.offset(target) {
                Some(offset) if offset > 0 && offset < self.window_len => self.refuse(culprit(jump)),
                Some(0) => self.assume(Reason::LoopsToStart(culprit(jump))),
                Some(offset) => pending.push(offset / HALFWORD),
                None => {}
            }
        }
    }

    /// Where a table leads, if all of it can be read: it mostly lies in the function itself.
    ///
    /// A table behind its jump whose length is not known is taken to end where the first place begins that it leads to.
    fn targets(&self, jump: TableJump) -> Option<Vec<CodeAddr>> {
        let size = jump.form.size();
        let mut targets = Vec::new();
        let mut end = CodeAddr(u64::MAX);
        for number in 0..jump.entries.unwrap_or(MAX_ENTRIES) {
            let at = jump.table.add(number * size as u64);
            if jump.entries.is_none() && at >= end {
                break;
            }
            if number >= MAX_ENTRIES {
                return None;
            }
            let mut entry = [0; 4];
            self.read(at, &mut entry[..size])?;
            let target = jump.form.target(jump.table, &entry[..size]).unwrap_or(at);
            end = end.min(target);
            targets.push(target);
        }
        Some(targets)
    }

    fn read(&self, at: CodeAddr, out: &mut [u8]) -> Option<()> {
        match self.offset(at).and_then(|offset| self.bytes.get(offset..offset + out.len())) {
            Some(bytes) => out.copy_from_slice(bytes),
            None if self.around.read.is_some_and(|read| read(at, out)) => {}
            None => return None,
        }
        Some(())
    }
}
