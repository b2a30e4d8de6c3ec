//! The control flow of one function.

use alloc::{vec, vec::Vec};

use grapnel_arch::{
    CodeAddr,
    a32::{Flow, INST_LEN, Inst, LR, TableForm, TableJump, decode, literal_through_register, table_jump},
};

use super::{culprit, culprit_at, plan::overlaps};
use crate::{
    Culprit,
    flow::{Reason, Surroundings, Verdict},
};

/// A longer table is taken for a misread one.
const MAX_ENTRIES: u64 = 4096;

pub(crate) fn check(bytes: &[u8], from: CodeAddr, window_len: usize, around: &Surroundings<'_>) -> Verdict {
    let words = bytes.len() / INST_LEN;
    let mut sweep = Sweep {
        bytes: &bytes[..words * INST_LEN],
        from,
        window_len,
        around,
        seen: vec![false; words],
        data: vec![false; words],
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
        // words to learn of.
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
    /// Whole words.
    bytes: &'a [u8],
    from: CodeAddr,
    window_len: usize,
    around: &'a Surroundings<'a>,
    /// Words that were taken for instructions.
    seen: Vec<bool>,
    /// Words that a load names, or that are entries of a table.
    data: Vec<bool>,
    /// A word was taken for an instruction before it was known to be data.
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
                self.refuse(culprit_at(entry, &self.bytes[offset..]));
            }
            self.reach(offset / INST_LEN);
        }
        for word in 0..self.seen.len() {
            if self.seen[word] || self.data[word] {
                continue;
            }
            match self.decode(word) {
                Some(inst) if inst.is_padding() => {}
                _ => {
                    self.assume(Reason::Unreached(self.at(word)));
                    self.reach(word);
                }
            }
        }
    }

    fn at(&self, word: usize) -> CodeAddr {
        self.from.add((word * INST_LEN) as u64)
    }

    fn decode(&self, word: usize) -> Option<Inst> {
        decode(self.at(word), self.bytes.get(word * INST_LEN..)?).ok()
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
        for at in (0..len.next_multiple_of(INST_LEN as u64)).step_by(INST_LEN) {
            if let Some(offset) = self.offset(start.add(at)) {
                let word = offset / INST_LEN;
                self.misread |= self.seen[word] && !self.data[word];
                self.data[word] = true;
            }
        }
    }

    /// Follows the code from `start` along its direct branches.
    fn reach(&mut self, start: usize) {
        let mut pending = vec![start];
        while let Some(mut word) = pending.pop() {
            let mut run = Vec::new();
            while word < self.seen.len() && !self.seen[word] {
                // What a load reads is no code: the call before it does not return.
                if self.data[word] {
                    break;
                }
                self.seen[word] = true;
                let Some(inst) = self.decode(word) else {
                    self.assume(Reason::Undecodable(self.at(word)));
                    break;
                };
                run.push(inst);
                self.judge(word * INST_LEN, &inst);
                self.indirect(&run, &mut pending);
                if let Some(literal) = inst.literal().or_else(|| literal_through_register(&run)) {
                    self.mark_data(literal.target, u64::from(literal.access));
                }
                if let Some(offset) = inst.flow().target().and_then(|target| self.offset(target)) {
                    pending.push(offset / INST_LEN);
                }
                // A callee returns to what `mov lr, pc` leaves in LR.
                if let Some(address) = inst.address().filter(|address| address.register == LR) {
                    pending.extend(self.offset(address.value).map(|offset| offset / INST_LEN));
                }
                if inst.is_exit() {
                    break;
                }
                word += 1;
            }
        }
    }

    /// Branches of the window itself are relocated with it; all others must keep out of it.
    fn judge(&mut self, at: usize, inst: &Inst) {
        if at < self.window_len {
            return;
        }
        let inside = |addr: CodeAddr| addr.offset_within(self.from, self.window_len as u64);
        let reads = inst.literal().is_some_and(|literal| overlaps(self.from, self.window_len, literal));
        let points =
            inst.address().and_then(|address| inside(address.value)).is_some_and(|offset| offset > 0);
        if reads || points {
            return self.refuse(culprit(inst));
        }
        match (inst.flow().target().and_then(inside), inst.flow()) {
            // A recursive call is a call like any other.
            (None, _) | (Some(0), Flow::Call { thumb: false, .. }) => {}
            (Some(0), Flow::Jump { thumb: false, .. }) => self.assume(Reason::LoopsToStart(culprit(inst))),
            (Some(_), _) => self.refuse(culprit(inst)),
        }
    }

    /// An indirect jump at the end of a run of instructions: follows its table, if that is one.
    fn indirect(&mut self, run: &[Inst], pending: &mut Vec<usize>) {
        let Some((jump, before)) = run.split_last().filter(|(jump, _)| jump.flow() == Flow::JumpIndirect)
        else {
            return;
        };
        // A jump through a fixed place in memory leaves for another function; a table's has a register in it. And one that
        // leaves its return address in LR before is a call.
        let calls = before
            .last()
            .and_then(Inst::address)
            .is_some_and(|address| address.register == LR && address.value == jump.next());
        if jump.literal().is_some() || calls {
            return;
        }
        let Some((table, targets)) = table_jump(run).and_then(|table| Some((table, self.targets(table)?)))
        else {
            return self.assume(Reason::IndirectJump(culprit(jump)));
        };
        if table.form != TableForm::Instructions {
            self.mark_data(table.table, table.entries * INST_LEN as u64);
        }
        for target in targets {
            match self.offset(target) {
                Some(offset) if offset > 0 && offset < self.window_len => self.refuse(culprit(jump)),
                Some(0) => self.assume(Reason::LoopsToStart(culprit(jump))),
                Some(offset) => pending.push(offset / INST_LEN),
                None => {}
            }
        }
    }

    /// Where a table leads, if all of it can be read: it mostly lies in the function itself.
    fn targets(&self, jump: TableJump) -> Option<Vec<CodeAddr>> {
        if jump.entries > MAX_ENTRIES {
            return None;
        }
        let len = jump.entries as usize * INST_LEN;
        if jump.form == TableForm::Instructions {
            return Some((0..len).step_by(INST_LEN).map(|at| jump.table.add(at as u64)).collect());
        }
        let mut bytes = vec![0; len];
        match self.offset(jump.table).and_then(|offset| self.bytes.get(offset..offset + len)) {
            Some(table) => bytes.copy_from_slice(table),
            None if self.around.read.is_some_and(|read| read(jump.table, &mut bytes)) => {}
            None => return None,
        }
        let target = |entry: &[u8; INST_LEN]| {
            let entry = u32::from_le_bytes(*entry);
            match jump.form {
                TableForm::Offset32 => CodeAddr(u64::from(entry.wrapping_add(jump.table.0 as u32))),
                _ => CodeAddr(u64::from(entry)),
            }
        };
        Some(bytes.as_chunks::<INST_LEN>().0.iter().map(target).collect())
    }
}
