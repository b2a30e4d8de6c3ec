//! Jumps through a table, as compilers write them for `switch`.

use alloc::vec::Vec;

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::Inst;
use crate::{CodeAddr, TableForm, TableJump};

/// How far back the parts of the pattern may lie.
const LOOK_BACK: usize = 24;

/// The table of the jump that `run` ends with. `run` is executed in a row, from its first instruction to its last.
///
/// The pattern is a comparison of the index with a constant, `ja` out of it, and one of
///
/// ```text
/// lea base, [rip + table]; movsxd offset, [base + index * 4]; add offset, base; jmp offset
/// jmp [table + index * 8]
/// ```
///
/// with other instructions between them that write none of these registers. Anything else is no known table.
#[must_use]
pub fn table_jump(run: &[Inst]) -> Option<TableJump> {
    let run: Vec<Instruction> = run[run.len().saturating_sub(LOOK_BACK)..].iter().map(Inst::raw).collect();
    let (jump, before) = run.split_last()?;
    if jump.op0_kind() == OpKind::Memory {
        let absolute = jump.memory_base() == Register::None && jump.memory_index_scale() == 8;
        let table = CodeAddr(jump.memory_displacement64());
        let entries = Some(bound(before, jump.memory_index())?);
        return absolute.then_some(TableJump { table, entries, form: TableForm::Address { size: 8 } });
    }
    let (add, before) = last_write(before, jump.op0_register())?;
    if add.mnemonic() != Mnemonic::Add || add.op1_kind() != OpKind::Register {
        return None;
    }
    // Either operand of the sum may be the one that was loaded.
    [(add.op0_register(), add.op1_register()), (add.op1_register(), add.op0_register())].into_iter().find_map(
        |(offset, base)| {
            let (load, before) = last_write(before, offset)?;
            let loads = load.mnemonic() == Mnemonic::Movsxd
                && load.op1_kind() == OpKind::Memory
                && load.memory_base() == base
                && load.memory_index_scale() == 4
                && load.memory_displacement64() == 0;
            if !loads {
                return None;
            }
            let (lea, _) = last_write(before, base)?;
            let points = lea.mnemonic() == Mnemonic::Lea && lea.is_ip_rel_memory_operand();
            let entries = Some(bound(before, load.memory_index())?);
            let table = CodeAddr(lea.ip_rel_memory_address());
            let form = TableForm::Offset { base: table, size: 4, signed: true, scale: 1 };
            points.then_some(TableJump { table, entries, form })
        },
    )
}

/// Instructions that write their first operand and nothing else but flags.
fn is_plain(inst: &Instruction) -> bool {
    matches!(
        inst.mnemonic(),
        Mnemonic::Mov
            | Mnemonic::Movzx
            | Mnemonic::Movsx
            | Mnemonic::Movsxd
            | Mnemonic::Lea
            | Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::And
            | Mnemonic::Or
            | Mnemonic::Xor
            | Mnemonic::Cmp
            | Mnemonic::Test
            | Mnemonic::Nop
            | Mnemonic::Pxor
            | Mnemonic::Xorps
            | Mnemonic::Movaps
            | Mnemonic::Movups
            | Mnemonic::Movdqa
            | Mnemonic::Movdqu
    ) || inst.flow_control() == FlowControl::ConditionalBranch && inst.is_jcc_short_or_near()
}

fn writes(inst: &Instruction, register: Register) -> bool {
    let reads_only = matches!(inst.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop);
    inst.op0_kind() == OpKind::Register && !reads_only && inst.op0_register().full_register() == register
}

/// The last instruction that writes all of `register`, and what precedes it, if all behind it is plain.
fn last_write(run: &[Instruction], register: Register) -> Option<(Instruction, &[Instruction])> {
    let register = register.full_register();
    for (at, inst) in run.iter().enumerate().rev() {
        if writes(inst, register) {
            return Some((*inst, &run[..at]));
        }
        if !is_plain(inst) {
            return None;
        }
    }
    None
}

/// How many values `index` can have at the end of `run`: one more than the constant that it is compared with. A comparison
/// of the register's lower part bounds all of it only where the rest is zero.
fn bound(run: &[Instruction], index: Register) -> Option<u64> {
    let index = index.full_register();
    let (mut above, mut counted) = (false, 8);
    for (at, inst) in run.iter().enumerate().rev() {
        let is_compare = inst.mnemonic() == Mnemonic::Cmp;
        if above && is_compare {
            let compared = inst.op0_register().size();
            let whole = counted <= compared || is_cleared_above(&run[..at], index, compared);
            return constant(inst, index).filter(|_| whole).and_then(|last| last.checked_add(1));
        }
        let keeps_flags = matches!(
            inst.mnemonic(),
            Mnemonic::Mov | Mnemonic::Lea | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd
        );
        if inst.mnemonic() == Mnemonic::Ja {
            above = true;
        } else if !is_plain(inst) || above && !keeps_flags {
            return None;
        } else if writes(inst, index) {
            if !widens(inst, index) {
                return None;
            }
            counted = counted.min(inst.op1_register().size());
        }
    }
    None
}

/// At the end of `run` all bytes of a register above the lower `size` are zero, by the instruction that wrote it last.
fn is_cleared_above(run: &[Instruction], register: Register, size: usize) -> bool {
    let Some((inst, _)) = last_write(run, register) else { return false };
    let source = match inst.mnemonic() {
        Mnemonic::Movzx if inst.op1_kind() == OpKind::Register => inst.op1_register().size(),
        Mnemonic::Movzx => inst.memory_size().size(),
        _ => 4,
    };
    inst.op0_register().is_gpr32() && source <= size
}

/// The constant that a comparison holds `index` against.
fn constant(compare: &Instruction, index: Register) -> Option<u64> {
    let register = compare.op0_register();
    let immediate = !matches!(compare.op1_kind(), OpKind::Register | OpKind::Memory);
    if compare.op0_kind() != OpKind::Register || register.full_register() != index || !immediate {
        return None;
    }
    let mask = u64::MAX >> (64 - 8 * register.size());
    Some(compare.immediate(1) & mask)
}

/// It clears the upper part of the register and keeps the lower: `mov eax, eax`, `movzx eax, al`.
fn widens(inst: &Instruction, register: Register) -> bool {
    matches!(inst.mnemonic(), Mnemonic::Mov | Mnemonic::Movzx)
        && inst.op0_register().is_gpr32()
        && inst.op1_kind() == OpKind::Register
        && inst.op1_register().full_register() == register
        && !matches!(inst.op1_register(), Register::AH | Register::BH | Register::CH | Register::DH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86_64::decode;

    fn run(bytes: &[u8]) -> Vec<Inst> {
        let mut insts: Vec<Inst> = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let inst = decode(CodeAddr(0x1000 + at as u64), &bytes[at..]).unwrap();
            at += inst.bytes().len();
            insts.push(inst);
        }
        insts
    }

    // cmp edi, 5; ja +0x40; lea rdx, [rip + 0x100]; mov edi, edi; movsxd rax, [rdx + rdi * 4]; add rax, rdx; jmp rax
    const PIC: [u8; 24] = [
        0x83, 0xff, 0x05, 0x77, 0x40, 0x48, 0x8d, 0x15, 0, 1, 0, 0, 0x89, 0xff, 0x48, 0x63, 0x04, 0xba, 0x48,
        0x01, 0xd0, 0x3e, 0xff, 0xe0,
    ];

    #[test]
    fn a_position_independent_switch() {
        let found = table_jump(&run(&PIC)).unwrap();
        let form = TableForm::Offset { base: CodeAddr(0x110c), size: 4, signed: true, scale: 1 };
        assert_eq!(found, TableJump { table: CodeAddr(0x110c), entries: Some(6), form });
    }

    #[test]
    fn an_absolute_switch() {
        // cmp al, 3; ja +0x40; movzx eax, al; jmp [rax * 8 + 0x402000]
        let found = table_jump(&run(&[
            0x3c, 0x03, 0x77, 0x40, 0x0f, 0xb6, 0xc0, 0xff, 0x24, 0xc5, 0x00, 0x20, 0x40, 0x00,
        ]));
        let expected =
            TableJump { table: CodeAddr(0x40_2000), entries: Some(4), form: TableForm::Address { size: 8 } };
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn a_switch_whose_bound_is_not_that_of_its_index() {
        // Compares ESI instead.
        let mut other = PIC;
        other[1] = 0xfe;
        assert_eq!(table_jump(&run(&other)), None);
        // The index is another by then: `mov edi, esi`.
        let mut changed = PIC;
        changed[13] = 0xf7;
        assert_eq!(table_jump(&run(&changed)), None);
        // No comparison in the run.
        assert_eq!(table_jump(&run(&PIC[5..])), None);
    }

    #[test]
    fn a_bound_of_the_lower_part_alone() {
        // cmp edi, 5; ja; lea rdx; movsxd rax, [rdx + rdi * 4]; add rax, rdx; jmp rax: the upper half may be anything
        let mut half = PIC.to_vec();
        half.drain(12..14);
        assert_eq!(table_jump(&run(&half)), None);
        // mov edi, [rsi] before it clears the upper half; mov rdi, [rsi] does not.
        let after = |load: &[u8]| table_jump(&run(&[load, &half].concat())).and_then(|jump| jump.entries);
        assert_eq!(after(&[0x8b, 0x3e]), Some(6));
        assert_eq!(after(&[0x48, 0x8b, 0x3e]), None);
        // cmp dil, 5 bounds what movzx edi, byte [rsi] loads, and not what mov edi, [rsi] does.
        half.splice(..3, [0x40, 0x80, 0xff, 0x05]);
        let after = |load: &[u8]| table_jump(&run(&[load, &half].concat())).and_then(|jump| jump.entries);
        assert_eq!(after(&[0x0f, 0xb6, 0x3e]), Some(6));
        assert_eq!(after(&[0x8b, 0x3e]), None);
    }

    #[test]
    fn a_tail_call_is_no_switch() {
        // mov rax, [rdi]; jmp [rax + 8]; and jmp rax
        assert_eq!(table_jump(&run(&[0x48, 0x8b, 0x07, 0xff, 0x60, 0x08])), None);
        assert_eq!(table_jump(&run(&[0x48, 0x8b, 0x07, 0xff, 0xe0])), None);
    }
}
