//! Jumps through tables, in the forms that compilers write.

use super::{Flow, Inst, Modified, PC_AHEAD, PcUse};
use crate::{CodeAddr, TableForm, TableJump};

/// How far back the parts of the pattern may lie.
const LOOK_BACK: usize = 24;

const PC: u8 = 15;

/// The table of the jump that `run` ends with. `run` is executed in a row, from its first instruction to its last.
///
/// The pattern is a comparison of the index with a constant, a branch out of it under `hi` or `cs`, and one of
///
/// ```text
/// tbb [pc, index]
/// tbh [pc, index, lsl #1]
/// adr base, table; ldr.w pc, [base, index, lsl #2]
/// adr base, table; ldr.w offset, [base, index, lsl #2]; add offset, base; bx offset
/// adr base, table; add.w place, base, index, lsl #2; mov pc, place
/// ```
///
/// with other instructions between them that name none of these registers. Only of the first two, whose table's place is
/// sure, the length may be missing.
#[must_use]
pub fn table_jump(run: &[Inst]) -> Option<TableJump> {
    let (jump, before) = run[run.len().saturating_sub(LOOK_BACK)..].split_last()?;
    let (first, second) = jump.halfwords();
    if let Flow::Table { half, base: PC, index } = jump.flow() {
        let table = jump.addr().add(PC_AHEAD);
        let form = TableForm::Offset { base: table, size: 1 + usize::from(half), signed: false, scale: 2 };
        return Some(TableJump { table, entries: bound(before, index), form });
    }
    if jump.flow() != Flow::JumpIndirect {
        return None;
    }
    if let Some((PC, base, index)) = scaled_load(jump) {
        let table = address(before, base)?;
        let entries = Some(bound(before, index)?);
        return Some(TableJump { table, entries, form: TableForm::Address { size: 4 } });
    }
    // mov pc, rm and bx rm
    let narrow_jump = first & 0xff87 == 0x4687 || first & 0xff87 == 0x4700;
    if !narrow_jump || second != 0 {
        return None;
    }
    let (sum, earlier) = last_naming(before, (first >> 3 & 0xf) as u8)?;
    if let Some((rd, base, index)) = scaled_sum(sum) {
        let entries = Some(bound(earlier, index)?);
        let named = rd == (first >> 3 & 0xf) as u8;
        let table = address(earlier, base)?;
        return named.then_some(TableJump { table, entries, form: TableForm::Instruction { size: 4 } });
    }
    let operands = plain_sum(sum)?;
    // Either operand of the sum may be the one that was loaded.
    [operands, (operands.1, operands.0)].into_iter().find_map(|(offset, base)| {
        let (load, earlier) = last_naming(earlier, offset)?;
        let (rt, loaded_from, index) = scaled_load(load)?;
        if rt != offset || loaded_from != base {
            return None;
        }
        let table = address(earlier, base)?;
        let entries = Some(bound(earlier, index)?);
        let form = TableForm::Offset { base: table, size: 4, signed: true, scale: 1 };
        Some(TableJump { table, entries, form })
    })
}

/// `ldr.w rt, [rn, rm, lsl #2]`: its three registers.
fn scaled_load(inst: &Inst) -> Option<(u8, u8, u8)> {
    let (first, second) = inst.halfwords();
    let scaled = first & 0xfff0 == 0xf850 && second & 0xff0 == 0x20;
    scaled.then_some(((second >> 12) as u8, (first & 0xf) as u8, (second & 0xf) as u8))
}

/// `add.w rd, rn, rm, lsl #2`: its three registers.
fn scaled_sum(inst: &Inst) -> Option<(u8, u8, u8)> {
    let (first, second) = inst.halfwords();
    let scaled = first & 0xfff0 == 0xeb00 && second & 0xf0f0 == 0x80;
    scaled.then_some(((second >> 8 & 0xf) as u8, (first & 0xf) as u8, (second & 0xf) as u8))
}

/// `add rdn, rm`, `adds rd, rn, rm` or `add.w rd, rn, rm`: the registers that are added.
fn plain_sum(inst: &Inst) -> Option<(u8, u8)> {
    let (first, second) = inst.halfwords();
    match first {
        _ if first & 0xff00 == 0x4400 => Some(((first >> 4 & 8 | first & 7) as u8, (first >> 3 & 0xf) as u8)),
        _ if first & 0xfe00 == 0x1800 => Some(((first >> 3 & 7) as u8, (first >> 6 & 7) as u8)),
        _ if first & 0xffe0 == 0xeb00 && second & 0xf0f0 == 0 => {
            Some(((first & 0xf) as u8, (second & 0xf) as u8))
        }
        _ => None,
    }
}

/// The last instruction that names the register, and what precedes it, if execution runs from it to the end of `run`
/// and nothing on the way is a call.
fn last_naming(run: &[Inst], register: u8) -> Option<(&Inst, &[Inst])> {
    for (at, inst) in run.iter().enumerate().rev() {
        if inst.registers() >> register & 1 == 1 {
            return (!inst.it().is_inside()).then_some((inst, &run[..at]));
        }
        if !is_plain(inst) {
            return None;
        }
    }
    None
}

fn is_plain(inst: &Inst) -> bool {
    matches!(inst.flow(), Flow::Next | Flow::Cond { .. } | Flow::CompareZero { .. })
}

/// The address that `adr` puts into the register.
fn address(run: &[Inst], base: u8) -> Option<CodeAddr> {
    match last_naming(run, base)?.0.pc_use() {
        PcUse::Address { register, value } if register == base => Some(value),
        _ => None,
    }
}

/// How many values `index` can have at the end of `run`.
fn bound(run: &[Inst], index: u8) -> Option<u64> {
    // What stands in the flags' way between the comparison and the branch, seen from the end: more than the constant.
    let mut above = None;
    for inst in run.iter().rev() {
        match (inst.flow(), above) {
            (Flow::Cond { cond, .. }, None) if matches!(cond.bits(), 2 | 8) => {
                above = Some(u64::from(cond.bits() == 8));
                continue;
            }
            _ if !is_plain(inst) => return None,
            _ => {}
        }
        if let Some(above) = above
            && inst.writes_flags()
        {
            return compared_with(inst, index).map(|constant| u64::from(constant) + above);
        }
        if inst.registers() >> index & 1 == 1 {
            return None;
        }
    }
    None
}

/// The constant that `cmp` holds `register` against.
fn compared_with(inst: &Inst, register: u8) -> Option<u32> {
    let (first, second) = inst.halfwords();
    if first & 0xf800 == 0x2800 {
        return ((first >> 8 & 7) as u8 == register).then_some(u32::from(first & 0xff));
    }
    let wide = first & 0xfbff == 0xf1b0 | u16::from(register) && second & 0x8f00 == 0x0f00;
    wide.then(|| Modified::value_of(first, second)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::t32::{It, decode_within};

    fn run(code: &[u16]) -> Vec<Inst> {
        let bytes: Vec<u8> = code.iter().flat_map(|halfword| halfword.to_le_bytes()).collect();
        let (mut at, mut it, mut insts) = (0, It::OUTSIDE, Vec::<Inst>::new());
        while at < bytes.len() {
            let inst = decode_within(CodeAddr(0x1000 + at as u64), &bytes[at..], it).unwrap();
            (at, it) = (at + inst.bytes().len(), inst.next_it());
            insts.push(inst);
        }
        insts
    }

    #[test]
    fn a_table_of_bytes_and_one_of_halfwords() {
        // cmp r3, #5; bhi +0x40; tbb [pc, r3]
        let found = table_jump(&run(&[0x2b05, 0xd81e, 0xe8df, 0xf003])).unwrap();
        let form = TableForm::Offset { base: CodeAddr(0x1008), size: 1, signed: false, scale: 2 };
        let expected = TableJump { table: CodeAddr(0x1008), entries: Some(6), form };
        assert_eq!(found, expected);
        // cmp.w r9, #0x1000; bcs.w +0x100; tbh [pc, r9, lsl #1]
        let found = table_jump(&run(&[0xf5b9, 0x5f80, 0xf080, 0x8080, 0xe8df, 0xf019])).unwrap();
        let form = TableForm::Offset { base: CodeAddr(0x100c), size: 2, signed: false, scale: 2 };
        let expected = TableJump { table: CodeAddr(0x100c), entries: Some(0x1000), form };
        assert_eq!(found, expected);
        // No comparison, of another register, or one whose register is written since: ldr r3, [r0].
        for code in [
            &[0xd81e, 0xe8df, 0xf003][..],
            &[0x2a05, 0xd81e, 0xe8df, 0xf003],
            &[0x2b05, 0xd81e, 0x6803, 0xe8df, 0xf003],
        ] {
            assert_eq!(table_jump(&run(code)).unwrap().entries, None);
        }
    }

    #[test]
    fn tables_of_addresses_offsets_and_branches() {
        // cmp r0, #3; bhi +0x40; adr r1, +8; ldr.w pc, [r1, r0, lsl #2]
        let found = table_jump(&run(&[0x2803, 0xd81e, 0xa102, 0xf851, 0xf020])).unwrap();
        let table = |form| TableJump { table: CodeAddr(0x1010), entries: Some(4), form };
        let expected = table(TableForm::Address { size: 4 });
        assert_eq!(found, expected);
        // cmp r3, #3; bhi; adr r2, +8; ldr.w r1, [r2, r3, lsl #2]; add r1, r2; bx r1
        let found = table_jump(&run(&[0x2b03, 0xd81e, 0xa202, 0xf852, 0x1023, 0x4411, 0x4708])).unwrap();
        let expected = table(TableForm::Offset { base: CodeAddr(0x1010), size: 4, signed: true, scale: 1 });
        assert_eq!(found, expected);
        // cmp r0, #3; bhi; adr r1, +8; add.w r1, r1, r0, lsl #2; mov pc, r1
        let found = table_jump(&run(&[0x2803, 0xd81e, 0xa102, 0xeb01, 0x0180, 0x468f])).unwrap();
        let expected = table(TableForm::Instruction { size: 4 });
        assert_eq!(found, expected);
    }

    #[test]
    fn a_tail_call_is_no_switch() {
        // ldr r3, [r0]; bx r3; and ldr.w pc, [r1, r0, lsl #2] without an address
        assert_eq!(table_jump(&run(&[0x6803, 0x4718])), None);
        assert_eq!(table_jump(&run(&[0x2803, 0xd81e, 0xf851, 0xf020])), None);
    }
}
