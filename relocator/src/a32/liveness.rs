//! Which registers the code ahead may still read.
//!
//! `live before = reads + (live behind - writes)`, over the window and the words behind it that were given. A register
//! is overwritten only by an instruction without a condition. Where the code leaves for somewhere unseen, every
//! register is live.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    a32::{Flow, INST_LEN, Inst, decode},
};

use super::{Insts, Item, MAX_WORDS, SIGHT};

const MAX_SEEN: usize = MAX_WORDS + SIGHT;
const ALL: u16 = u16::MAX;
/// R12 is the scratch register of linkers between a call and the callee's first instruction, and holds nothing when a
/// function returns (AAPCS32, 6.1.1).
pub(super) const IP: u8 = 12;

/// What counts as dead beyond what is overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rules {
    /// Nothing.
    Code,
    /// R12 where a call or a return is passed.
    Boundaries,
    /// And where nothing more is seen: at an entry it came in with nothing.
    Entry,
}

/// The code in sight, as far as it can be decoded.
pub(super) struct Sight {
    from: CodeAddr,
    items: ArrayVec<Option<Inst>, MAX_SEEN>,
}

impl Sight {
    pub(super) fn new(from: CodeAddr, insts: &Insts) -> Self {
        let mut items: ArrayVec<_, MAX_SEEN> = insts.items.iter().map(|item| item.code().copied()).collect();
        for word in &insts.ahead {
            let at = from.add((items.len() * INST_LEN) as u64);
            items.push(decode(at, &word.to_le_bytes()).ok());
        }
        Self { from, items }
    }

    /// The registers that may be read behind each word of the window before they are overwritten.
    pub(super) fn live_behind(&self, rules: Rules) -> ArrayVec<u16, MAX_SEEN> {
        let ip = 1 << IP;
        let beyond = if rules == Rules::Entry { ALL & !ip } else { ALL };
        let boundary = if rules == Rules::Code { ALL } else { ALL & !ip };
        let mut behind: ArrayVec<u16, MAX_SEEN> = self.items.iter().map(|_| 0).collect();
        let before = |behind: &[u16], number: usize| -> u16 {
            match self.items.get(number) {
                None => beyond,
                // No instruction that is known: a constant, or something to stay away from.
                Some(None) => ALL,
                Some(Some(inst)) => {
                    let uses = inst.uses();
                    let written = if inst.cond().is_always() { uses.writes } else { 0 };
                    uses.reads | behind[number] & !written
                }
            }
        };
        // It only grows, by at least a register in a round.
        loop {
            let mut changed = false;
            for (number, item) in self.items.iter().enumerate().rev() {
                let Some(inst) = item else { continue };
                let next = before(&behind, number + 1);
                let jump = |target: CodeAddr| {
                    let offset = target.offset_within(self.from, (self.items.len() * INST_LEN) as u64);
                    offset.map_or(beyond, |offset| before(&behind, offset as usize / INST_LEN))
                };
                let taken = match inst.flow() {
                    Flow::Next => next,
                    Flow::Jump { target, thumb: false } => jump(target),
                    // A call reads arguments, and what it keeps is live if it is behind it.
                    Flow::Call { .. } | Flow::CallIndirect | Flow::Return => boundary,
                    // A tail call, or a jump through a table.
                    Flow::Jump { .. } | Flow::JumpIndirect => beyond,
                    Flow::Undefined | Flow::Breakpoint | Flow::Unsupported(_) => ALL,
                };
                let live = if inst.cond().is_always() { taken } else { taken | next };
                changed |= behind[number] != live;
                behind[number] = live;
            }
            if !changed {
                return behind;
            }
        }
    }

    /// An exclusive store comes next, and no exclusive load before it: a reservation may be held behind this word.
    pub(super) fn may_be_reserved(&self, number: usize) -> bool {
        use grapnel_arch::a32::Exclusive;
        let made = |item: &Option<Inst>| item.and_then(|inst| inst.exclusive());
        let before = self.items[..number].iter().rev().find_map(made);
        let behind = self.items[number + 1..].iter().find_map(made);
        before == Some(Exclusive::Load) || behind == Some(Exclusive::Store)
    }
}

/// The instruction at a place of the window may write R12, so that it holds something from there on. Of what is surely
/// overwritten `writes` tells alone: of an exclusive load, say, R12 is but an operand.
pub(super) fn may_write_ip(item: &Item) -> bool {
    item.code().is_some_and(|inst| inst.uses().all() >> IP & 1 == 1)
}
