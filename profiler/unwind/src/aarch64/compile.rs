//! From CFI to a rule.

use super::registers::{SP, X29};
use super::rule::{FrameRegister, RuleKind, UnwindRule};
use super::{call, signal};
use crate::cfi::{Cfa, CfiScratch, Facts, FrameRegisters, NoCfi, Said};
use crate::module::ModuleTable;

const NAMES: FrameRegisters = FrameRegisters { sp: SP, fp: X29 };

/// The rule for the frame at `pc`, and the id of its module.
///
/// Off the hot path: parses CFI, may allocate, and asks the kernel whether a pc outside all modules is mapped.
pub(crate) fn rule(
    table: &ModuleTable,
    scratch: &mut CfiScratch,
    pc: u64,
    is_return_address: bool,
) -> (UnwindRule, u32) {
    // The kernel's vDSO has unwind information in which some kernels let the trampoline be part of what lies before
    // it.
    if signal::is_trampoline(pc) {
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

/// The fast rule that says the same as the row with these facts, if there is one. A function that has not saved its return
/// address has none: none of its frames but that which a signal stopped can be on a stack.
fn fast(facts: &Facts) -> Option<UnwindRule> {
    let pc_offset = match facts.return_address {
        Said::Undefined => return Some(UnwindRule::ROOT),
        Said::AtCfa(offset) => words(offset)?.try_into().ok()?,
        _ => return None,
    };
    let (kind, cfa_offset) = match facts.cfa {
        Cfa::Plus(SP, offset) => (RuleKind::Sp, offset),
        Cfa::Plus(X29, offset) => (RuleKind::Fp, offset),
        _ => return None,
    };
    let (fp, fp_offset) = match facts.fp {
        Said::Nothing | Said::Undefined | Said::Same => (FrameRegister::Same, 0),
        Said::AtCfa(offset) => (FrameRegister::AtCfa, words(offset)?),
        Said::AtFp(_) | Said::Other => return None,
    };
    Some(UnwindRule {
        kind,
        fp,
        cfa_offset: words(cfa_offset)?.try_into().ok()?,
        pc_offset,
        fp_offset: fp_offset.try_into().ok()?,
    })
}

/// An offset in bytes as one in words, if it is whole.
fn words(bytes: i32) -> Option<i32> {
    (bytes % 8 == 0).then_some(bytes / 8)
}
