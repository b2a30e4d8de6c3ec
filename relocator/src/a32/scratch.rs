//! The register that stands in for the PC.
//!
//! In this order: the instruction's own destination, if it is no source; a register that the code in sight overwrites
//! before it is read; one that is kept on the stack meanwhile; R12, where nothing but the ABI says that it is free.

use grapnel_arch::a32::{Form, Inst, LR, PC, SP, Unsupported};

use super::{
    Insts, culprit,
    liveness::{IP, Rules, Sight, may_write_ip},
};
use crate::Error;

/// A register, and how it comes to be free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Scratch {
    pub(super) register: u8,
    pub(super) way: Way,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// The instruction overwrites it.
    Own,
    /// It holds nothing that is read later, and is changed for good.
    Free,
    /// It is pushed before and popped behind.
    Spill,
    /// The same for an instruction that leaves: what it would load into the PC is stored above the register, and both
    /// are popped together.
    SpillAndLeave,
}

/// Registers in the order in which they are taken when they are free.
const FREE: [u8; 14] = [IP, 3, 2, 1, 0, LR, 11, 10, 9, 8, 7, 6, 5, 4];

/// The register for the instruction at a place of the window. `spill` says whether it may be kept on the stack.
pub(super) fn choose(
    insts: &Insts,
    sight: &Sight,
    number: usize,
    inst: &Inst,
    spill: bool,
) -> Result<Scratch, Error> {
    if let Some(register) = own(inst) {
        return Ok(Scratch { register, way: Way::Own });
    }
    if let Some(register) = free(sight, Rules::Code, number, inst, &FREE) {
        return Ok(Scratch { register, way: Way::Free });
    }
    let reserved = sight.may_be_reserved(number);
    let used = inst.uses().all();
    if spill && !reserved && used >> SP & 1 == 0 {
        let leaves = used_to_leave(inst);
        // A second register is pushed above it; only its place is needed.
        let candidates = if leaves { 0..12 } else { 0..13 };
        if let Some(register) = candidates.into_iter().find(|register| used >> register & 1 == 0) {
            return Ok(Scratch { register, way: if leaves { Way::SpillAndLeave } else { Way::Spill } });
        }
    }
    // Also by what comes later: there may be a way back.
    let written = insts.items.iter().any(may_write_ip);
    let rules = if insts.entry && !written { Rules::Entry } else { Rules::Boundaries };
    match free(sight, rules, number, inst, &[IP]) {
        Some(register) => Ok(Scratch { register, way: Way::Free }),
        None if reserved => {
            Err(Error::Unsupported { culprit: culprit(inst), reason: Unsupported::Exclusive.into() })
        }
        None => Err(Error::NoScratch { culprit: culprit(inst) }),
    }
}

/// A register that the instruction overwrites whole and does not read. SP is none: between the two steps a signal's frame
/// would be written where it points.
fn own(inst: &Inst) -> Option<u8> {
    let uses = inst.uses();
    let candidates = uses.writes & !uses.reads & !(1 << SP | 1 << PC);
    let whole = !matches!(inst.form(), Form::Block | Form::Other);
    (whole && candidates != 0).then(|| candidates.trailing_zeros() as u8)
}

fn free(sight: &Sight, rules: Rules, number: usize, inst: &Inst, from: &[u8]) -> Option<u8> {
    let taken = sight.live_behind(rules).get(number).copied().unwrap_or(u16::MAX) | inst.uses().all();
    from.iter().copied().find(|register| taken >> register & 1 == 0)
}

/// It writes the PC.
pub(super) fn used_to_leave(inst: &Inst) -> bool {
    inst.uses().writes >> PC & 1 == 1
}
