//! From CFI to a rule.

use super::registers::{RBP, RSP};
use super::rule::{FrameRegister, RuleKind, UnwindRule};
use crate::cfi::{CfiScratch, Row, operations, with_row};
use crate::module::{Module, ModuleTable};
use crate::probe::page_is_readable;
use crate::resolve::RuleEntry;
use gimli::{CfaRule, Operation, RegisterRule, UnwindExpression};

/// How code that is not in a module, or has no CFI, is treated.
pub(super) enum NoCfi {
    /// In a module, or at least in memory: follow the frame pointer.
    FramePointer(u32),
    /// No code can be here.
    NotCode,
}

impl ModuleTable {
    /// The rule for the frame at `pc`.
    ///
    /// Off the hot path: parses CFI, may allocate, and asks the kernel whether a pc outside all modules is mapped.
    pub fn rule(&self, scratch: &mut CfiScratch, pc: u64, is_return_address: bool) -> RuleEntry {
        let compiled = self.with_row_at(scratch, pc, is_return_address, |module, row| RuleEntry {
            rule: compile(&row),
            module_id: module.id,
        });
        compiled.unwrap_or_else(|| match self.without_cfi(pc) {
            NoCfi::FramePointer(module_id) => RuleEntry { rule: UnwindRule::FRAME_POINTER, module_id },
            NoCfi::NotCode => RuleEntry { rule: UnwindRule::NOT_CODE, module_id: 0 },
        })
    }

    /// Shows the row for `pc` to `found`.
    ///
    /// A return address may be the first byte after its function, when the call does not return, so the call is
    /// looked up instead. The other trap: a made-up return address, such as the start of `__start_context`, is the
    /// first byte of its function. It is taken for what it is only if no CFI covers the byte before it.
    pub(super) fn with_row_at<R>(
        &self,
        scratch: &mut CfiScratch,
        pc: u64,
        is_return_address: bool,
        mut found: impl FnMut(&Module, Row<'_>) -> R,
    ) -> Option<R> {
        if is_return_address {
            let call = pc.wrapping_sub(1);
            if let Some(module) = self.code_at(call)
                && let Some(answer) = with_row(module, scratch, call, |row| found(module, row))
            {
                return Some(answer);
            }
        }
        let module = self.code_at(pc)?;
        let only_at_start = is_return_address;
        with_row(module, scratch, pc, |row| {
            (!only_at_start || row.fde.initial_address() == pc).then(|| found(module, row))
        })?
    }

    pub(super) fn without_cfi(&self, pc: u64) -> NoCfi {
        if let Some(module) = self.code_at(pc) {
            return NoCfi::FramePointer(module.id);
        }
        // A module's data is never code; other memory may be a JIT compiler's.
        if self.module_at(pc).is_some() || !page_is_readable(pc) {
            return NoCfi::NotCode;
        }
        NoCfi::FramePointer(0)
    }
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
