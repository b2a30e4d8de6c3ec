//! From CFI to a rule.

use super::registers::{RBP, RSP};
use super::rule::{FrameRegister, RuleKind, UnwindRule};
use crate::cfi::{CfiScratch, NoCfi, Row, operations};
use crate::module::ModuleTable;
use gimli::{CfaRule, Operation, RegisterRule, UnwindExpression};

/// The rule for the frame at `pc`, and the id of its module.
///
/// Off the hot path: parses CFI, may allocate, and asks the kernel whether a pc outside all modules is mapped.
pub(crate) fn rule(
    table: &ModuleTable,
    scratch: &mut CfiScratch,
    pc: u64,
    is_return_address: bool,
) -> (UnwindRule, u32) {
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

/// The fast rule that says the same as the row, if there is one.
fn fast(row: &Row<'_>) -> Option<UnwindRule> {
    if row.fde.is_signal_trampoline() {
        return None;
    }
    let return_address = row.fde.cie().return_address_register();
    match row.row.register(return_address) {
        None | Some(RegisterRule::Undefined) => return Some(UnwindRule::ROOT),
        Some(RegisterRule::Offset(-8)) => {}
        Some(_) => return None,
    }
    if !matches!(row.row.register(RSP), None | Some(RegisterRule::ValOffset(0))) {
        return None;
    }
    let (kind, cfa_offset) = match row.row.cfa() {
        CfaRule::RegisterAndOffset { register: RSP, offset } => (RuleKind::Sp, *offset),
        CfaRule::RegisterAndOffset { register: RBP, offset } => (RuleKind::Bp, *offset),
        CfaRule::Expression(e) => (RuleKind::BpDeref, bp_plus(row, e, true)?),
        CfaRule::RegisterAndOffset { .. } => return None,
    };
    let (bp, bp_offset) = match row.row.register(RBP) {
        None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => (FrameRegister::Same, 0),
        Some(RegisterRule::Offset(offset)) => (FrameRegister::AtCfa, offset),
        Some(RegisterRule::Expression(e)) => (FrameRegister::AtBp, bp_plus(row, &e, false)?),
        Some(_) => return None,
    };
    Some(UnwindRule {
        kind,
        bp,
        bp_offset: bp_offset.try_into().ok()?,
        cfa_offset: cfa_offset.try_into().ok()?,
    })
}

/// The offset of an expression that is `bp + offset`, or `*(bp + offset)`.
fn bp_plus(row: &Row<'_>, expression: &UnwindExpression<usize>, deref: bool) -> Option<i64> {
    let mut operations = operations(row, expression)?;
    let Operation::RegisterOffset { register: RBP, offset, base_type } = operations.next().ok()?? else {
        return None;
    };
    if base_type.0 != 0 {
        return None;
    }
    if deref && !matches!(operations.next().ok()??, Operation::Deref { size: 8, space: false, .. }) {
        return None;
    }
    operations.next().ok()?.is_none().then_some(offset)
}
