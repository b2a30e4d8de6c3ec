//! Whether x86-64 code ahead reads a register, by iced-x86's own account.

use std::collections::HashSet;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register,
};

use crate::case::Case;

/// From this offset of the case's code on, every path overwrites the register before it reads it, within the bytes given
/// and without leaving through anything but jumps.
pub(super) fn overwrites(case: &Case, offset: usize, register: Register) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let mut seen = HashSet::new();
    let mut pending = vec![offset];
    while let Some(offset) = pending.pop() {
        // At the window's start a hook may look at any register.
        if offset == 0 || offset >= case.source.len() {
            return false;
        }
        if !seen.insert(offset) {
            continue;
        }
        let address = case.from.add(offset as u64).0;
        let inst = Decoder::with_ip(64, &case.source[offset..], address, DecoderOptions::NONE).decode();
        if inst.is_invalid() {
            return false;
        }
        let accesses = accesses(&mut factory, &inst, register);
        if accesses.iter().any(|&whole| !whole) {
            return false;
        }
        if !accesses.is_empty() {
            continue;
        }
        let target = || inst.near_branch_target().wrapping_sub(case.from.0) as usize;
        match inst.flow_control() {
            FlowControl::Next => pending.push(offset + inst.len()),
            FlowControl::UnconditionalBranch if inst.op0_kind() == OpKind::NearBranch64 => {
                pending.push(target())
            }
            FlowControl::ConditionalBranch => pending.extend([offset + inst.len(), target()]),
            _ => return false,
        }
    }
    true
}

/// For each time that the instruction touches the register, whether it writes it whole and does not read it.
fn accesses(factory: &mut InstructionInfoFactory, inst: &Instruction, register: Register) -> Vec<bool> {
    let used = factory.info(inst).used_registers().iter();
    let same = used.filter(|used| used.register().full_register() == register);
    same.map(|used| {
        used.access() == OpAccess::Write && (used.register().is_gpr32() || used.register().is_gpr64())
    })
    .collect()
}
