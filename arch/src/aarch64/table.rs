//! Jumps through a table, as compilers write them for `switch`.

use super::{Field, Flow, INST_LEN, Inst, PcUse, RegisterMask, ZERO_OR_SP};
use crate::{CodeAddr, TableForm, TableJump};

/// How far back the parts of the pattern may lie.
const LOOK_BACK: usize = 48;

/// What a called function keeps: X19 to X29 (AAPCS64, 6.1.1).
const KEPT: RegisterMask = 0x3ff8_0000;

/// The table of the jump that `run` ends with. `run` is executed in a row, from its first instruction to its last; where
/// one does not follow the one before it in memory, that one branched there.
///
/// The pattern is a comparison of the index with a constant, `b.hi` out of it or `b.ls` into it, and
///
/// ```text
/// adrp table, page; add table, table, #low
/// ldrb entry, [table, index]              or ldrh, ldr, ldrsb, ldrsh, ldrsw
/// adr base, label                         or adrp and add
/// add target, base, entry, sxtb #2        with any extension, shifted by 2 or 0
/// br target
/// ```
///
/// with other instructions between them that write none of these registers; table and base may be the same. Anything else
/// is no known table.
#[must_use]
pub fn table_jump(run: &[Inst]) -> Option<TableJump> {
    let run = &run[run.len().saturating_sub(LOOK_BACK)..];
    let (jump, before) = run.split_last()?;
    let (add, before_add) = last_write(before, rn(jump))?;
    let sum = Sum::of(add)?;
    let (load, before_load) = last_write(before_add, sum.entry)?;
    let load_of = Load::of(load)?;
    let table = address(before_load, load_of.table)?;
    let entries = Some(bound(before_load, load_of.index, load_of.half)?);
    let form = form(&load_of, &sum, address(before_add, sum.base)?)?;
    Some(TableJump { table, entries, form })
}

/// What the load and the extension of the sum make of an entry together.
fn form(load: &Load, sum: &Sum, base: CodeAddr) -> Option<TableForm> {
    let bits = 8 * load.size as u32;
    let signed = match (load.extended, sum.extended) {
        // The entry's bits alone count.
        (_, Some(Extended::Zero(counted))) if counted == bits => false,
        (_, Some(Extended::Sign(counted))) if counted == bits => true,
        // It would be cut.
        (_, Some(Extended::Zero(counted) | Extended::Sign(counted))) if counted < bits => return None,
        (None, _) => false,
        (Some(width), None) => (width == 64).then_some(true)?,
        (Some(width), Some(Extended::Sign(counted))) => (counted <= width).then_some(true)?,
        (Some(_), Some(Extended::Zero(_))) => return None,
    };
    let scale = if sum.words { INST_LEN as u8 } else { 1 };
    Some(TableForm::Offset { base, size: load.size, signed, scale })
}

fn rn(inst: &Inst) -> u8 {
    (inst.word() >> 5 & 0x1f) as u8
}

fn rm(inst: &Inst) -> u8 {
    (inst.word() >> 16 & 0x1f) as u8
}

/// The sum of a base and an entry.
struct Sum {
    base: u8,
    entry: u8,
    words: bool,
    /// What is taken of the register of the entry: `None` for all of it.
    extended: Option<Extended>,
}

/// So many bits are taken.
#[derive(Clone, Copy)]
enum Extended {
    Zero(u32),
    Sign(u32),
}

impl Sum {
    fn of(inst: &Inst) -> Option<Self> {
        let word = inst.word();
        let (extended, shift) = match word & 0xffe0_0000 {
            // add xd, xn, wm, extend #shift
            0x8b20_0000 => {
                let (option, bits) = (word >> 13 & 7, 8 << (word >> 13 & 3));
                let extended = if option & 4 == 0 { Extended::Zero(bits) } else { Extended::Sign(bits) };
                (Some(extended), word >> 10 & 7)
            }
            // add xd, xn, xm, lsl #shift
            0x8b00_0000 => (None, word >> 10 & 0x3f),
            _ => return None,
        };
        let words = shift == 2;
        (words || shift == 0).then_some(Self { base: rn(inst), entry: rm(inst), words, extended })
    }
}

/// The load of an entry: a register and an index in units of the entry's size.
struct Load {
    table: u8,
    index: u8,
    /// Only the lower half of the index counts.
    half: bool,
    size: usize,
    /// The entry's sign is extended to so many bits.
    extended: Option<u32>,
}

impl Load {
    fn of(inst: &Inst) -> Option<Self> {
        let word = inst.word();
        // size 111000 opc 1 Rm option S 10 Rn Rt
        if word & 0x3f20_0c00 != 0x3820_0800 {
            return None;
        }
        let (size, opc, option) = (word >> 30, word >> 22 & 3, word >> 13 & 7);
        // UXTW or LSL: the index counts up from 0. Shifted by the entry's size.
        let counts_up = matches!(option, 2 | 3) && (word >> 12 & 1 == 1 || size == 0);
        // Loads of 8 bytes would be addresses, which no compiler writes; opc 0 is a store.
        let loads = opc != 0 && size < 3;
        (counts_up && loads).then_some(Self {
            table: rn(inst),
            index: rm(inst),
            half: option == 2,
            size: 1 << size,
            extended: match opc {
                2 => Some(64),
                3 => Some(32),
                _ => None,
            },
        })
    }
}

/// The last instruction that writes `register`, and what precedes it, if that is overwritten whole and by an instruction
/// of this run.
fn last_write(run: &[Inst], register: u8) -> Option<(&Inst, &[Inst])> {
    let mask: RegisterMask = (register != ZERO_OR_SP).then_some(1 << register)?;
    for (at, inst) in run.iter().enumerate().rev() {
        let effects = inst.effects();
        if effects.changes & mask != 0 {
            return (effects.writes & mask != 0).then_some((inst, &run[..at]));
        }
        if matches!(inst.flow(), Flow::Call { .. } | Flow::CallIndirect) && mask & KEPT == 0 {
            return None;
        }
    }
    None
}

/// The constant address in a register at the end of a run: from ADR, ADRP, and ADD to these.
#[must_use]
pub fn address(run: &[Inst], register: u8) -> Option<CodeAddr> {
    let mut low = 0;
    let (mut register, mut run) = (register, run);
    loop {
        let (inst, before) = last_write(run, register)?;
        if let Some(operand) = inst.operand()
            && matches!(operand.kind, PcUse::Address | PcUse::Page)
        {
            return Some(operand.target.add(low));
        }
        low += added(inst)?;
        (register, run) = (rn(inst), before);
    }
}

/// What `add xd, xn, #imm` adds.
#[must_use]
pub fn added(inst: &Inst) -> Option<u64> {
    let word = inst.word();
    let shift = if word >> 22 & 1 == 1 { 12 } else { 0 };
    (word & 0xff80_0000 == 0x9100_0000).then_some(u64::from(word >> 10 & 0xfff) << shift)
}

/// How many values `index` can have at the end of `run`: one more than the constant that it is compared with. A comparison
/// of the lower half bounds all of it only where that is all that counts, or the upper half is zero.
fn bound(run: &[Inst], mut index: u8, mut half: bool) -> Option<u64> {
    let mut above = false;
    for (at, inst) in run.iter().enumerate().rev() {
        let word = inst.word();
        let taken = run.get(at + 1).is_some_and(|behind| behind.addr() != inst.next());
        if above && let Some((register, last)) = comparison(word) {
            let whole = || half || word >> 31 == 1 || last_write(&run[..at], index).is_some_and(clears_half);
            return (register == index && whole()).then_some(last + 1);
        }
        if word & 0xff00_001f == if taken { 0x5400_0009 } else { 0x5400_0008 } {
            // b.ls, and the run goes on where it leads; b.hi, and it goes on behind it.
            above = true;
        } else if matches!(inst.flow(), Flow::Call { .. } | Flow::CallIndirect | Flow::Syscall)
            || above && !keeps_flags(inst)
        {
            return None;
        } else if inst.effects().changes >> index & 1 == 1 {
            index = widened(word)?;
            half |= word & 0xffe0_ffe0 != 0xaa00_03e0;
        }
    }
    None
}

/// It writes the lower half of a register and clears the upper: arithmetic on W registers, and loads to them.
fn clears_half((inst, _): (&Inst, &[Inst])) -> bool {
    let word = inst.word();
    match word >> 25 & 0xf {
        0b1000 | 0b1001 | 0b0101 | 0b1101 => word >> 31 == 0,
        // LDR Wt, LDRB and LDRH; LDRSB and LDRSH to Wt.
        _ if word & 0x3e00_0000 == 0x3800_0000 => match word >> 22 & 3 {
            1 => word >> 30 < 3,
            opc => opc == 3,
        },
        _ => false,
    }
}

/// `cmp wn, #last` and `cmp xn, #last`.
fn comparison(word: u32) -> Option<(u8, u64)> {
    let shift = if word >> 22 & 1 == 1 { 12 } else { 0 };
    let compares = word & 0x7f80_001f == 0x7100_001f;
    compares.then_some(((word >> 5 & 0x1f) as u8, u64::from(word >> 10 & 0xfff) << shift))
}

/// The register whose value this copies or widens: `mov wd, wm`, `mov xd, xm`, `uxtb`, `uxth`, `uxtw`.
fn widened(word: u32) -> Option<u8> {
    if word & 0x7fe0_ffe0 == 0x2a00_03e0 {
        return Some((word >> 16 & 0x1f) as u8);
    }
    let extends = matches!(word & 0xffff_fc00, 0x5300_1c00 | 0x5300_3c00 | 0xd340_7c00);
    extends.then_some((word >> 5 & 0x1f) as u8)
}

/// It is known not to change the flags: moves, sums and loads that don't say so.
fn keeps_flags(inst: &Inst) -> bool {
    let word = inst.word();
    match word >> 25 & 0xf {
        0b1000 | 0b1001 => {
            let (adds, logical) = (word >> 23 & 7 == 2, word >> 23 & 7 == 4);
            !(adds && word >> 29 & 1 == 1 || logical && word >> 29 & 3 == 3)
        }
        0b0101 | 0b1101 => match (word >> 28 & 1, word >> 24 & 1) {
            (0, 1) => word >> 29 & 1 == 0,
            (0, _) => word >> 29 & 3 != 3,
            (_, 1) => true,
            _ => word >> 21 & 0xf == 0b0100,
        },
        0b0100 | 0b0110 | 0b1100 | 0b1110 => inst.copying().is_none(),
        0b1010 | 0b1011 => matches!(inst.flow(), Flow::Cond { field: Field::Branch19 | Field::Branch14, .. }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::aarch64::decode;

    fn run(words: &[u32]) -> Vec<Inst> {
        let inst = |(at, word): (usize, &u32)| decode(CodeAddr(0x1000 + 4 * at as u64), &word.to_le_bytes());
        words.iter().enumerate().map(|word| inst(word).unwrap()).collect()
    }

    // cmp w0, #5; b.hi +0x40; adrp x1, 0x2000; add x1, x1, #0x20; ldrb w1, [x1, w0, uxtw]; adr x2, +12;
    // add x1, x2, w1, sxtb #2; br x1
    const GCC: [u32; 8] = [
        0x7100_141f,
        0x5400_0208,
        0xb000_0001,
        0x9100_8021,
        0x3860_4821,
        0x1000_0062,
        0x8b21_8841,
        0xd61f_0020,
    ];

    #[test]
    fn a_switch_by_gcc() {
        let found = table_jump(&run(&GCC)).unwrap();
        let form = TableForm::Offset { base: CodeAddr(0x1020), size: 1, signed: true, scale: 4 };
        let expected = TableJump { table: CodeAddr(0x2020), entries: Some(6), form };
        assert_eq!(found, expected);
        assert_eq!(form.target(&[0xff]), Some(CodeAddr(0x101c)));
    }

    #[test]
    fn a_switch_by_clang() {
        // cmp w0, #8; b.hi; mov w8, w0; adrp x9, 0x2000; add x9, x9, #0x20; adr x10, +16; ldrh w11, [x9, x8, lsl #1];
        // add x10, x10, x11, lsl #2; br x10
        let words = [
            0x7100_201f,
            0x5400_0208,
            0x2a00_03e8,
            0xb000_0009,
            0x9100_8129,
            0x1000_008a,
            0x7868_792b,
            0x8b0b_094a,
            0xd61f_0140,
        ];
        let form = TableForm::Offset { base: CodeAddr(0x1024), size: 2, signed: false, scale: 4 };
        let expected = TableJump { table: CodeAddr(0x2020), entries: Some(9), form };
        assert_eq!(table_jump(&run(&words)), Some(expected));
    }

    #[test]
    fn a_table_of_distances_from_itself() {
        // cmp w0, #3; b.hi; adrp x9, 0x2000; add x9, x9, #0; ldrsw x10, [x9, w0, uxtw #2]; add x9, x9, x10; br x9
        let words =
            [0x7100_0c1f, 0x5400_0208, 0xb000_0009, 0x9100_0129, 0xb8a0_592a, 0x8b0a_0129, 0xd61f_0120];
        let form = TableForm::Offset { base: CodeAddr(0x2000), size: 4, signed: true, scale: 1 };
        let expected = TableJump { table: CodeAddr(0x2000), entries: Some(4), form };
        assert_eq!(table_jump(&run(&words)), Some(expected));
    }

    #[test]
    fn a_switch_whose_bound_is_not_that_of_its_index() {
        // Compares W3 instead.
        let mut other = GCC;
        other[0] |= 3 << 5;
        assert_eq!(table_jump(&run(&other)), None);
        // The flags are another comparison's by then: `cmp w5, w6` between the two.
        let flags: Vec<u32> = [GCC[0], 0x6b06_00bf].into_iter().chain(GCC[1..].iter().copied()).collect();
        assert_eq!(table_jump(&run(&flags)), None);
        // The index is another by then: `ldr w0, [x3]`.
        let mut changed = GCC.to_vec();
        changed.insert(2, 0xb940_0060);
        assert_eq!(table_jump(&run(&changed)), None);
        // No comparison in the run.
        assert_eq!(table_jump(&run(&GCC[2..])), None);
    }

    #[test]
    fn a_bound_of_the_lower_half_alone() {
        // ldrb w1, [x1, x0]: the upper half of X0 may be anything.
        let mut whole = GCC.to_vec();
        whole[4] = 0x3860_6821;
        assert_eq!(table_jump(&run(&whole)), None);
        // ldr w0, [x3] before it clears that half, ldr x0, [x3] does not; cmp x0, #5 bounds it.
        let after = |load: u32| {
            let words: Vec<u32> = [load].into_iter().chain(whole.iter().copied()).collect();
            table_jump(&run(&words)).and_then(|jump| jump.entries)
        };
        assert_eq!(after(0xb940_0060), Some(6));
        assert_eq!(after(0xf940_0060), None);
        whole[0] |= 1 << 31;
        assert_eq!(table_jump(&run(&whole)).and_then(|jump| jump.entries), Some(6));
    }

    #[test]
    fn a_switch_that_is_branched_to() {
        // b.ls to the rest.
        let mut words = GCC;
        words[1] = 0x5400_0209;
        let mut insts = run(&words);
        assert_eq!(table_jump(&insts), None);
        let rest = words[2..].iter().enumerate();
        insts.truncate(2);
        insts.extend(
            rest.map(|(at, word)| decode(CodeAddr(0x1044 + 4 * at as u64), &word.to_le_bytes()).unwrap()),
        );
        assert_eq!(table_jump(&insts).and_then(|jump| jump.entries), Some(6));
        assert_eq!(insts[1].flow().target(), Some(insts[2].addr()));
    }

    #[test]
    fn a_tail_call_is_no_switch() {
        // ldr x1, [x0]; br x1
        assert_eq!(table_jump(&run(&[0xf940_0001, 0xd61f_0020])), None);
    }
}
