//! From unwinding instructions to a rule.

use super::layout::Layout;
use super::opcode::{Opcode, next};
use super::registers::{R7, R11};
use super::rule::{RuleKind, UnwindRule};
use super::table::{Entry, Program};
use super::{code, plain, signal};
use crate::cfi::CfiScratch;
use crate::module::ModuleTable;

/// The rule for the frame at `pc`, and the id of its module.
///
/// Off the hot path: reads tables, and asks the kernel whether a pc outside all modules is mapped.
pub(crate) fn rule(
    table: &ModuleTable,
    _: &mut CfiScratch,
    pc: u64,
    is_return_address: bool,
) -> (UnwindRule, u32) {
    // The trap: a return address may be the first byte after its function, when the call does not return. So the call
    // is looked up instead.
    let address = plain(pc).wrapping_sub(u64::from(is_return_address));
    let Some(found) = table.arm_entry(address) else {
        let module_id = table.module_at(address).unwrap_or(0);
        return match () {
            () if signal::is_trampoline(pc) => (UnwindRule::FULL, module_id),
            () if code::is_elsewhere(table, pc, is_return_address) => (UnwindRule::FRAME_POINTER, module_id),
            () => (UnwindRule::NOT_CODE, 0),
        };
    };
    let guess = || code::layout(pc, is_return_address, &found)?.guessed();
    let rule = match found.entry {
        Some(Entry::Program(program)) => compile(&program).unwrap_or(UnwindRule::FULL),
        _ if signal::is_trampoline(pc) => UnwindRule::FULL,
        Some(Entry::CantUnwind) => guess().unwrap_or(UnwindRule::ROOT),
        Some(Entry::Unknown) => UnwindRule::FULL,
        None => guess().unwrap_or(UnwindRule::FRAME_POINTER),
    };
    (rule, found.module.id)
}

/// Nothing: what is asked for here looks at more than tables.
pub(crate) fn quick_rule(_: &ModuleTable, _: u64, _: bool) -> Option<(UnwindRule, u32)> {
    None
}

/// The fast rule that says the same as the instructions, if there is one.
pub(super) fn compile(program: &Program) -> Option<UnwindRule> {
    let mut bytes = program.bytes();
    let mut layout = Layout::new(RuleKind::Sp);
    let mut vsp = 0i32;
    let mut popped = 0u16;
    loop {
        match next(&mut bytes).ok()? {
            Opcode::Finish => break,
            Opcode::Nothing => {}
            Opcode::Add(n) => vsp = vsp.checked_add(n)?,
            Opcode::Skip(n) => vsp = vsp.checked_add_unsigned(n)?,
            Opcode::Set(register) => {
                // Only ahead of all else are they the frame's own.
                if popped != 0 {
                    return None;
                }
                (layout.kind, vsp) = match register.into() {
                    R7 => (RuleKind::R7, 0),
                    R11 => (RuleKind::R11, 0),
                    _ => return None,
                };
            }
            Opcode::Pop(mask) => {
                vsp = layout.take(mask, vsp)?;
                popped |= mask;
            }
        }
    }
    Layout { cfa: vsp, ..layout }.rule()
}
