//! From CFI to a rule.

use super::registers::{RBP, RSP};
use super::rule::{FrameRegister, RuleKind, UnwindRule};
use super::{call, signal};
use crate::cfi::{Cfa, CfiScratch, Facts, FrameRegisters, NoCfi, Said};
use crate::module::ModuleTable;

const NAMES: FrameRegisters = FrameRegisters { sp: RSP, fp: RBP };

/// The rule for the frame at `pc`, and the id of its module.
///
/// Off the hot path: parses CFI, may allocate, and asks the kernel whether a pc outside all modules is mapped.
pub(crate) fn rule(
    table: &ModuleTable,
    scratch: &mut CfiScratch,
    pc: u64,
    is_return_address: bool,
) -> (UnwindRule, u32) {
    // A handler's return address is no call's. What lies before it may be another function, with CFI.
    if signal::is_trampoline(table, pc) {
        return (UnwindRule::SIGNAL, table.module_at(pc).unwrap_or(0));
    }
    let compiled = table.with_row_at(scratch, pc, is_return_address, |module, row| {
        (compile(Facts::of(&row, NAMES)), module.id)
    });
    compiled.unwrap_or_else(|| match table.without_cfi(scratch, pc, is_return_address, call::returns_to) {
        NoCfi::MadeUp(module_id) => (UnwindRule::ROOT, module_id),
        NoCfi::FramePointer(module_id) => (UnwindRule::FRAME_POINTER, module_id),
        NoCfi::NotCode => (UnwindRule::NOT_CODE, 0),
    })
}

/// The same, or nothing where it isn't one of the commonest forms of CFI that says it.
///
/// Neither allocates nor locks, and asks nobody.
#[inline]
pub(crate) fn quick_rule(table: &ModuleTable, pc: u64, is_return_address: bool) -> Option<(UnwindRule, u32)> {
    if signal::is_trampoline_in(table, pc)? {
        return None;
    }
    let (facts, module_id) = table.quick_facts(pc, is_return_address, NAMES)?;
    Some((compile(Some(facts)), module_id))
}

fn compile(facts: Option<Facts>) -> UnwindRule {
    facts.and_then(|facts| fast(&facts)).unwrap_or(UnwindRule::FULL)
}

/// The fast rule that says the same as the row with these facts, if there is one.
fn fast(facts: &Facts) -> Option<UnwindRule> {
    match facts.return_address {
        Said::Nothing | Said::Undefined => return Some(UnwindRule::ROOT),
        Said::AtCfa(-8) => {}
        _ => return None,
    }
    let (kind, cfa_offset) = match facts.cfa {
        Cfa::Plus(RSP, offset) => (RuleKind::Sp, offset),
        Cfa::Plus(RBP, offset) => (RuleKind::Bp, offset),
        Cfa::AtFp(offset) => (RuleKind::BpDeref, offset),
        Cfa::Plus(..) | Cfa::Other => return None,
    };
    let (bp, bp_offset) = match facts.fp {
        Said::Nothing | Said::Undefined | Said::Same => (FrameRegister::Same, 0),
        Said::AtCfa(offset) => (FrameRegister::AtCfa, offset),
        Said::AtFp(offset) => (FrameRegister::AtBp, offset),
        Said::Other => return None,
    };
    Some(UnwindRule { kind, bp, bp_offset: bp_offset.try_into().ok()?, cfa_offset })
}
