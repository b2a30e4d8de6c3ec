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
    /// A return address that no call pushed: it is the first byte of a function, and no code lies before it. The
    /// stack of a coroutine begins so (`__start_context` of makecontext).
    MadeUp(u32),
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
        compiled.unwrap_or_else(|| match self.without_cfi(scratch, pc, is_return_address) {
            NoCfi::MadeUp(module_id) => RuleEntry { rule: UnwindRule::ROOT, module_id },
            NoCfi::FramePointer(module_id) => RuleEntry { rule: UnwindRule::FRAME_POINTER, module_id },
            NoCfi::NotCode => RuleEntry { rule: UnwindRule::NOT_CODE, module_id: 0 },
        })
    }

    /// Shows the row for `pc` to `found`.
    ///
    /// The trap: a return address may be the first byte after its function, when the call does not return. So the
    /// call is looked up instead.
    pub(super) fn with_row_at<R>(
        &self,
        scratch: &mut CfiScratch,
        pc: u64,
        is_return_address: bool,
        found: impl FnOnce(&Module, Row<'_>) -> R,
    ) -> Option<R> {
        let address = pc.wrapping_sub(u64::from(is_return_address));
        let module = self.code_at(address)?;
        with_row(module, scratch, address, |row| found(module, row))
    }

    /// What a frame is whose pc has no CFI.
    pub(super) fn without_cfi(&self, scratch: &mut CfiScratch, pc: u64, is_return_address: bool) -> NoCfi {
        if let Some(module) = self.code_at(pc) {
            let starts_here = with_row(module, scratch, pc, |row| row.fde.initial_address() == pc);
            if is_return_address && starts_here == Some(true) {
                return NoCfi::MadeUp(module.id);
            }
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
