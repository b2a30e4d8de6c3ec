//! From CFI to a rule.

use super::registers::{SP, X29};
use super::rule::{FrameRegister, RuleKind, UnwindRule};
use super::signal;
use crate::cfi::{CfiScratch, NoCfi, Row};
use crate::module::ModuleTable;
use gimli::{CfaRule, RegisterRule};

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
        return (UnwindRule::FULL, table.module_at(pc).unwrap_or(0));
    }
    let compiled =
        table.with_row_at(scratch, pc, is_return_address, |module, row| (compile(&row), module.id));
    compiled.unwrap_or_else(|| match table.without_cfi(scratch, pc, is_return_address) {
        NoCfi::MadeUp(module_id) => (UnwindRule::ROOT, module_id),
        NoCfi::FramePointer(module_id) => (UnwindRule::FRAME_POINTER, module_id),
        NoCfi::NotCode => (UnwindRule::NOT_CODE, 0),
    })
}

fn compile(row: &Row<'_>) -> UnwindRule {
    fast(row).unwrap_or(UnwindRule::FULL)
}

/// The fast rule that says the same as the row, if there is one. A function that has not saved its return address has
/// none: none of its frames but that which a signal stopped can be on a stack.
fn fast(row: &Row<'_>) -> Option<UnwindRule> {
    if row.fde.is_signal_trampoline() {
        return None;
    }
    let pc_offset = match row.row.register(row.fde.cie().return_address_register()) {
        Some(RegisterRule::Undefined) => return Some(UnwindRule::ROOT),
        Some(RegisterRule::Offset(offset)) => words(offset)?.try_into().ok()?,
        _ => return None,
    };
    if !matches!(row.row.register(SP), None | Some(RegisterRule::ValOffset(0))) {
        return None;
    }
    let (kind, cfa_offset) = match row.row.cfa() {
        CfaRule::RegisterAndOffset { register: SP, offset } => (RuleKind::Sp, *offset),
        CfaRule::RegisterAndOffset { register: X29, offset } => (RuleKind::Fp, *offset),
        _ => return None,
    };
    let (fp, fp_offset) = match row.row.register(X29) {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => (FrameRegister::Same, 0),
        Some(RegisterRule::Offset(offset)) => (FrameRegister::AtCfa, words(offset)?),
        Some(_) => return None,
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
fn words(bytes: i64) -> Option<i64> {
    (bytes % 8 == 0).then_some(bytes / 8)
}
