//! Jumps through tables, in the forms that compilers write.

use super::{
    Cond, Flow, Form, INST_LEN, Inst, Literal, Opcode,
    form::{bit, nibble},
    pc,
    registers::PC,
};
use crate::{CodeAddr, TableForm, TableJump};

/// How far back the parts of the pattern may lie.
const LOOK_BACK: usize = 24;

/// The table of the jump that `run` ends with. `run` is executed in a row, from its first instruction to its last.
///
/// The pattern is a comparison of the index with a constant, the jump under `ls` or `cc` or a branch out of it under
/// `hi` or `cs`, and one of
///
/// ```text
/// add pc, pc, index, lsl #2
/// ldr pc, [pc, index, lsl #2]
/// adr base, table; ldr pc, [base, index, lsl #2]
/// adr base, table; ldr offset, [base, index, lsl #2]; add pc, base, offset
/// ```
///
/// with other instructions between them that write none of these registers. Anything else is no known table.
#[must_use]
pub fn table_jump(run: &[Inst]) -> Option<TableJump> {
    let (jump, before) = run[run.len().saturating_sub(LOOK_BACK)..].split_last()?;
    let word = jump.word();
    let (rn, rd, rm) = (nibble(word, 16), nibble(word, 12), nibble(word, 0));
    let here = pc(jump.addr());
    if rd != PC {
        return None;
    }
    if is_table_load(jump) {
        let table = if rn == PC { here } else { address(before, rn)? };
        let entries = Some(bound(jump, before, rm)?);
        return Some(TableJump { table, entries, form: TableForm::Address { size: INST_LEN } });
    }
    if jump.form() != Form::DataRegister || Opcode::of(word) != Opcode::ADD || bit(word, 20) {
        return None;
    }
    if rn == PC {
        let scaled = word & 0xff0 == 0x100;
        let entries = Some(bound(jump, before, rm)?);
        let form = TableForm::Instruction { size: INST_LEN };
        return scaled.then_some(TableJump { table: here, entries, form });
    }
    // Either operand of the sum may be the one that was loaded.
    [(rn, rm), (rm, rn)].into_iter().filter(|_| word & 0xff0 == 0).find_map(|(base, offset)| {
        let (load, earlier) = last_write(before, offset)?;
        if !is_table_load(load) || nibble(load.word(), 16) != base {
            return None;
        }
        let table = address(before, base)?;
        // The index may be the register that the offset is loaded into.
        let entries = Some(bound(load, earlier, nibble(load.word(), 0))?);
        let form = TableForm::Offset { base: table, size: INST_LEN, signed: true, scale: 1 };
        Some(TableJump { table, entries, form })
    })
}

/// What the last instruction of `run` accesses, if an `adr` before it left the address in its base:
/// `adr r5, literal; ldrd r4, r5, [r5]`, the form for what is beyond the reach of the load itself.
#[must_use]
pub fn literal_through_register(run: &[Inst]) -> Option<Literal> {
    let (inst, before) = run[run.len().saturating_sub(LOOK_BACK)..].split_last()?;
    let base = nibble(inst.word(), 16);
    // A quick look first: most instructions access nothing.
    inst.operand_from(base, CodeAddr(0))?;
    inst.operand_from(base, address(before, base)?)
}

/// `ldr rt, [rn, rm, lsl #2]`
fn is_table_load(inst: &Inst) -> bool {
    let word = inst.word();
    // P, U and L set; B and W clear.
    inst.form() == Form::WordRegister && word & 0x01f0_0ff0 == 0x0190_0100
}

/// The address that `adr` leaves in a register at the end of `run`.
fn address(run: &[Inst], register: u8) -> Option<CodeAddr> {
    let (inst, _) = last_write(run, register)?;
    inst.address().filter(|_| inst.cond().is_always()).map(|address| address.value)
}

/// It writes the registers that it says and no others, and execution may go on behind it.
fn is_plain(inst: &Inst) -> bool {
    let is_branch = matches!(inst.flow(), Flow::Jump { .. }) && !inst.cond().is_always();
    match inst.form() {
        Form::Branch => is_branch,
        Form::Other => inst.is_padding(),
        Form::Supervisor | Form::BranchRegister => false,
        _ => inst.flow() == Flow::Next,
    }
}

fn writes(inst: &Inst, register: u8) -> bool {
    inst.uses().writes >> register & 1 == 1
}

/// The last instruction that writes a register, and what precedes it, if all behind it is plain.
fn last_write(run: &[Inst], register: u8) -> Option<(&Inst, &[Inst])> {
    for (at, inst) in run.iter().enumerate().rev() {
        if !is_plain(inst) {
            return None;
        }
        if writes(inst, register) {
            return Some((inst, &run[..at]));
        }
    }
    None
}

/// How many values `index` can have when `last` is executed behind `run`, by the constant that it is compared with.
fn bound(last: &Inst, run: &[Inst], index: u8) -> Option<u64> {
    const CS: u8 = 2;
    const CC: u8 = 3;
    const HI: u8 = 8;
    const LS: u8 = 9;
    // Entries beyond the constant: of the condition under which the jump is made.
    let of = |cond: Cond| match cond.bits() {
        LS => Some(1),
        CC => Some(0),
        _ => None,
    };
    let mut extra = of(last.cond());
    for inst in run.iter().rev() {
        let word = inst.word();
        let compares = inst.form() == Form::DataImmediate && word & 0x0ff0_0000 == 0x0350_0000;
        if compares && nibble(word, 16) == index && inst.cond().is_always() {
            return extra.map(|extra| u64::from(super::modified_immediate(word)) + extra);
        }
        if !is_plain(inst) || inst.sets_flags() || writes(inst, index) {
            return None;
        }
        if extra.is_none() && inst.form() == Form::Branch {
            extra = match inst.cond().bits() {
                HI => Some(1),
                CS => Some(0),
                _ => None,
            };
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::a32::decode;

    fn run(words: &[u32]) -> Vec<Inst> {
        let at = |number: usize| CodeAddr(0x1000 + 4 * number as u64);
        words
            .iter()
            .enumerate()
            .map(|(number, word)| decode(at(number), &word.to_le_bytes()).unwrap())
            .collect()
    }

    #[test]
    fn branches_behind_the_jump() {
        // cmp r0, #4; addls pc, pc, r0, lsl #2
        let found = table_jump(&run(&[0xe350_0004, 0x908f_f100]));
        let form = TableForm::Instruction { size: 4 };
        let table = TableJump { table: CodeAddr(0x100c), entries: Some(5), form };
        assert_eq!(found, Some(table));
        // The jump is made under another condition, compares another register, or the index is another by then.
        assert_eq!(table_jump(&run(&[0xe350_0004, 0x108f_f100])), None);
        assert_eq!(table_jump(&run(&[0xe351_0004, 0x908f_f100])), None);
        assert_eq!(table_jump(&run(&[0xe350_0004, 0xe280_0001, 0x908f_f100])), None);
    }

    #[test]
    fn addresses_behind_the_jump() {
        // cmp r3, #7; ldrcc pc, [pc, r3, lsl #2]
        let found = table_jump(&run(&[0xe353_0007, 0x379f_f103]));
        assert_eq!(
            found,
            Some(TableJump {
                table: CodeAddr(0x100c),
                entries: Some(7),
                form: TableForm::Address { size: 4 }
            })
        );
    }

    #[test]
    fn offsets_from_a_table() {
        // cmp r0, #3; bhi .+0x40; adr r1, .+0x10; ldr r0, [r1, r0, lsl #2]; add pc, r0, r1
        let words = [0xe350_0003, 0x8a00_000e, 0xe28f_1008, 0xe791_0100, 0xe080_f001];
        let found = table_jump(&run(&words));
        let form = TableForm::Offset { base: CodeAddr(0x1018), size: 4, signed: true, scale: 1 };
        assert_eq!(found, Some(TableJump { table: CodeAddr(0x1018), entries: Some(4), form }));
        // Without the comparison.
        assert_eq!(table_jump(&run(&words[1..])), None);
    }

    #[test]
    fn a_constant_through_a_register() {
        // add r5, pc, #40; ldrd r4, r5, [r5, #8]
        let found = literal_through_register(&run(&[0xe28f_5028, 0xe1c5_40d8]));
        assert_eq!(found, Some(Literal { target: CodeAddr(0x1038), access: 8, store: false }));
        // Under a condition the register may hold something else.
        assert_eq!(literal_through_register(&run(&[0x028f_5028, 0xe1c5_40d8])), None);
    }

    #[test]
    fn a_tail_call_is_no_switch() {
        // ldr r3, [r0]; bx r3; and ldr pc, [r3, #8]; and mov pc, r3
        for words in [[0xe590_3000, 0xe12f_ff13], [0xe590_3000, 0xe593_f008], [0xe590_3000, 0xe1a0_f003]] {
            assert_eq!(table_jump(&run(&words)), None);
        }
    }
}
