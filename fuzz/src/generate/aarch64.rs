//! Random AArch64 windows (DDI 0487, C4.1).

use arbitrary::{Result, Unstructured};
use grapnel_relocator::{CodeAddr, Isa};

use super::place;
use crate::case::Case;

const NOP: u32 = 0xd503_201f;
const RET: u32 = 0xd65f_03c0;

/// A place in a word that is filled in when the number of instructions is known.
#[derive(Clone, Copy)]
enum Field {
    /// 26 bits, of words: B, BL.
    Branch26,
    /// 19 bits from bit 5, of words: conditional and compare branches, literals.
    Branch19,
    /// 14 bits from bit 5, of words: test branches.
    Branch14,
    /// 9 bits from bit 5, of words: compare branches with two operands.
    Branch9,
    /// 21 bits in two parts, of bytes: ADR.
    Bytes21,
    /// The same of pages: ADRP.
    Pages21,
    /// 16 bits from bit 5, of words backward: instructions that authenticate a return address.
    Back16,
}

pub(super) fn case(entropy: &mut Unstructured<'_>) -> Result<Case> {
    let mut words = Vec::new();
    let mut fields = Vec::new();
    for _ in 0..entropy.int_in_range(1..=8)? {
        if let Some(field) = inst(entropy, &mut words)? {
            fields.push((words.len() - 1, field));
        }
    }
    behind(entropy, &mut words, &mut fields)?;
    let starts: Vec<usize> = (0..words.len()).map(|index| index * 4).collect();
    for (index, field) in fields {
        words[index] |= filled(entropy, (index * 4) as i64, &starts, field)?;
    }
    let source: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let from = match entropy.int_in_range(0..=5)? {
        0 => 0x0000_0000_0040_0000,
        1 => 0x0000_ffff_0000_0000,
        _ => 0x0000_5500_0000_0000,
    };
    let from = CodeAddr(from + (u64::from(entropy.arbitrary::<u32>()? >> 2) << 2));
    let min_len = place::min_len(entropy)?;
    let options = place::options(entropy, source.len(), 4)?;
    let to = place::apart(from, source.len(), to(entropy, from)?);
    Ok(Case { about: Vec::new(), isa: Isa::Aarch64, from, to, min_len, options, source })
}

fn to(entropy: &mut Unstructured<'_>, from: CodeAddr) -> Result<CodeAddr> {
    // Which distances are bridged by TBZ, ADR and literals, B, ADRP.
    const ENDS: [i64; 4] = [32 << 10, 1 << 20, 128 << 20, 4 << 30];
    let to = match entropy.int_in_range(0..=11)? {
        0..=3 => from.0.wrapping_add_signed(place::around_end(entropy, &ENDS)?),
        4 => from.0.wrapping_add_signed(entropy.int_in_range(-128..=128)?),
        5..=6 => from.0.wrapping_add_signed(entropy.int_in_range(-0x7_0000_0000..=0x7_0000_0000)?),
        7..=8 => entropy.arbitrary()?,
        _ => from.0.wrapping_add_signed(entropy.int_in_range(-0x100_0000..=0x100_0000)?),
    };
    Ok(CodeAddr((to & 0x0000_ffff_ffff_fffc).clamp(0x1000, 0x0000_ffff_ffff_f000)))
}

fn filled(entropy: &mut Unstructured<'_>, at: i64, starts: &[usize], field: Field) -> Result<u32> {
    let mut words = |bits| -> Result<u32> {
        let displacement = place::displacement(entropy, at, starts, 4, bits)?;
        Ok((displacement / 4) as u32 & ((1 << bits) - 1))
    };
    Ok(match field {
        Field::Branch26 => words(26)?,
        Field::Branch19 => words(19)? << 5,
        Field::Branch14 => words(14)? << 5,
        Field::Branch9 => words(9)? << 5,
        Field::Back16 => (words(10)? & 0xff) << 5,
        Field::Bytes21 => split(place::displacement(entropy, at, starts, 1, 21)?),
        Field::Pages21 => match entropy.int_in_range(0..=3)? {
            0 => split(entropy.int_in_range(-1..=1)?),
            1 => split(*entropy.choose(&[-0x10_0000, 0xf_ffff])?),
            _ => split(entropy.int_in_range(-0x10_0000..=0xf_ffff)?),
        },
    })
}

fn split(imm: i64) -> u32 {
    let imm = imm as u32;
    (imm & 3) << 29 | (imm >> 2 & 0x7_ffff) << 5
}

/// A register: any, or one that relocators like to take, or the zero register or SP.
fn reg(entropy: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match entropy.int_in_range(0..=7)? {
        0 => 16,
        1 => 17,
        2 => 31,
        3 => 30,
        4 => entropy.int_in_range(0..=30)?,
        _ => entropy.int_in_range(0..=7)?,
    })
}

fn inst(entropy: &mut Unstructured<'_>, words: &mut Vec<u32>) -> Result<Option<Field>> {
    match entropy.int_in_range(0..=15)? {
        0..=4 => relative(entropy, words).map(Some),
        5..=7 => branch(entropy, words).map(Some),
        8 => {
            words.push(fixed(entropy)?);
            Ok(None)
        }
        9 => {
            words.push(entropy.arbitrary()?);
            Ok(None)
        }
        _ => {
            words.push(plain(entropy)?);
            Ok(None)
        }
    }
}

/// What reads the PC and goes on.
fn relative(entropy: &mut Unstructured<'_>, words: &mut Vec<u32>) -> Result<Field> {
    const LITERALS: [u32; 7] =
        [0x1800_0000, 0x5800_0000, 0x9800_0000, 0xd800_0000, 0x1c00_0000, 0x5c00_0000, 0x9c00_0000];
    let (opcode, field) = match entropy.int_in_range(0..=31)? {
        0..=7 => (0x1000_0000, Field::Bytes21),
        8..=14 => (0x9000_0000, Field::Pages21),
        15 => (0xf380_001f | entropy.int_in_range(0..=1)? << 21, Field::Back16),
        _ => (*entropy.choose(&LITERALS)?, Field::Branch19),
    };
    words.push(opcode | reg(entropy)?);
    Ok(field)
}

fn branch(entropy: &mut Unstructured<'_>, words: &mut Vec<u32>) -> Result<Field> {
    let bit =
        |entropy: &mut Unstructured<'_>, shift: u32| Ok(u32::from(entropy.arbitrary::<bool>()?) << shift);
    let (opcode, field) = match entropy.int_in_range(0..=23)? {
        0..=2 => (0x1400_0000, Field::Branch26),
        3..=5 => (0x9400_0000, Field::Branch26),
        6..=9 => (0x5400_0000 | entropy.int_in_range(0..=15)?, Field::Branch19),
        10..=11 => (0x5400_0010 | entropy.int_in_range(0..=15)?, Field::Branch19),
        12..=15 => (0x3400_0000 | bit(entropy, 24)? | bit(entropy, 31)? | reg(entropy)?, Field::Branch19),
        16..=20 => {
            let number = entropy.int_in_range(0..=31)? << 19 | bit(entropy, 31)?;
            (0x3600_0000 | bit(entropy, 24)? | number | reg(entropy)?, Field::Branch14)
        }
        21 => {
            let (cond, other) = (entropy.int_in_range(0..=7)? << 21, reg(entropy)? << 16);
            let size = *entropy.choose(&[0, 0x8000, 0xc000])?;
            (0x7400_0000 | cond | other | size | bit(entropy, 31)? | reg(entropy)?, Field::Branch9)
        }
        22 => {
            let (cond, imm) = (entropy.int_in_range(0..=7)? << 21, entropy.int_in_range(0..=63)? << 15);
            (0x7500_0000 | cond | imm | bit(entropy, 31)? | reg(entropy)?, Field::Branch9)
        }
        _ => (0x5500_001f | bit(entropy, 21)?, Field::Back16),
    };
    words.push(opcode);
    Ok(field)
}

/// Exits, landing pads, return address signing, exceptions.
fn fixed(entropy: &mut Unstructured<'_>) -> Result<u32> {
    const FIXED: &[u32] = &[
        RET,
        0xd65f_0bff, // retaa
        0xd65f_0fff, // retab
        0xd503_241f, // bti
        0xd503_245f, // bti c
        0xd503_249f, // bti j
        0xd503_24df, // bti jc
        0xd503_233f, // paciasp
        0xd503_237f, // pacibsp
        0xd503_23bf, // autiasp
        0xd503_211f, // pacia1716
        0xd503_219f, // autia1716
        0xd503_20ff, // xpaclri
        0xd503_24ff, // pacm
        0xdac1_a3fe, // paciasppc
        0xdac1_83fe, // pacnbiasppc
        0xd503_201f, // nop
        0xd503_3f5f, // clrex
        0xd503_3bbf, // dmb ish
        0xd400_0001, // svc 0
        0xd420_0000, // brk 0
        0x0000_0000, // udf 0
        0xd69f_03e0, // eret
    ];
    const THROUGH: &[u32] = &[
        0xd61f_0000, // br
        0xd63f_0000, // blr
        0xd65f_0000, // ret
        0xd61f_081f, // braaz
        0xd63f_0c1f, // blrabz
        0xd71f_081f, // braa, sp
        0xd73f_0811, // blraa, x17
    ];
    match entropy.int_in_range(0..=3)? {
        0 => Ok(*entropy.choose(THROUGH)? | reg(entropy)? << 5),
        _ => Ok(*entropy.choose(FIXED)?),
    }
}

/// What does not know where it is: opcode bits, and the bits that are free to choose besides rd, rn and rm.
const PLAIN: &[(u32, u32)] = &[
    (0x1100_0000, 0xe07f_fc00), // add, sub (immediate), with and without flags
    (0x1200_0000, 0xe07f_fc00), // logical (immediate)
    (0x1280_0000, 0xe07f_ffe0), // movn, movz, movk
    (0x1300_0000, 0xe07f_fc00), // bitfields
    (0x1380_0000, 0x8040_fc00), // extr
    (0x0a00_0000, 0xe0e0_fc00), // logical (shifted register)
    (0x0b00_0000, 0xe0c0_fc00), // add, sub (shifted register)
    (0x0b20_0000, 0xe000_fc00), // add, sub (extended register)
    (0x1a00_0000, 0xe000_0000), // adc, sbc
    (0x1a80_0000, 0xe000_f400), // csel and its kin
    (0x3a40_0000, 0xc000_f80f), // ccmn, ccmp
    (0x1b00_0000, 0x8000_fc00), // madd, msub
    (0x1ac0_0000, 0x8000_3c00), // shifts, division
    (0x5ac0_0000, 0x8000_1c00), // rbit, rev, clz
    (0x3900_0000, 0xc0ff_fc00), // ldr, str (unsigned offset)
    (0x3800_0000, 0xc0df_fc00), // ldur, ldr (post, pre)
    (0x3820_4800, 0xc0c0_b000), // ldr, str (register)
    (0x2800_0000, 0x81ff_fc00), // ldp, stp in every mode
    (0x3d00_0000, 0xc0ff_fc00), // ldr, str of vectors
    (0x2c00_0000, 0xc1ff_fc00), // ldp, stp of vectors
    (0x0840_7c00, 0xc01f_8000), // ldxr, ldaxr
    (0x0800_7c00, 0xc01f_8000), // stxr, stlxr
    (0x0880_fc00, 0xc040_0000), // stlr, ldar
    (0x3820_0000, 0xc0c0_7000), // ldadd and its kin
    (0x1e20_2800, 0x0040_1000), // fadd, fsub
    (0x1e26_0000, 0x8001_0000), // fmov between general and vector
    (0x0e20_8400, 0x40c0_0000), // add of vectors
    (0xd53b_4200, 0x0000_0000), // mrs nzcv
    (0xd51b_4200, 0x0000_0000), // msr nzcv
    (0xd53b_d040, 0x0000_0000), // mrs tpidr_el0
];

fn plain(entropy: &mut Unstructured<'_>) -> Result<u32> {
    let &(opcode, free) = entropy.choose(PLAIN)?;
    let mut word = opcode | entropy.arbitrary::<u32>()? & free | reg(entropy)?;
    let fixed = opcode | free;
    // MRS and MSR have no second register, and some immediates lie where it would be.
    if fixed & 0x0000_03e0 == 0 && opcode >> 24 != 0xd5 {
        word |= reg(entropy)? << 5;
    }
    if fixed & 0x001f_0000 == 0 && opcode >> 24 != 0xd5 {
        word |= reg(entropy)? << 16;
    }
    let sound = exarmo_aarch64::decode_word(word).is_ok_and(|inst| !inst.unpredictable());
    Ok(if sound || entropy.ratio(1u8, 16)? { word } else { NOP })
}

/// What follows the window: registers overwritten or read before they are, a call, a return, branches.
fn behind(
    entropy: &mut Unstructured<'_>,
    words: &mut Vec<u32>,
    fields: &mut Vec<(usize, Field)>,
) -> Result<()> {
    for _ in 0..entropy.int_in_range(0..=4)? {
        let overwrites = 0xd280_0000 | entropy.int_in_range(0..=0xffff)? << 5;
        match entropy.int_in_range(0..=7)? {
            0 => words.push(overwrites | 16),
            1 => words.push(overwrites | 17),
            2 => words.push(overwrites | entropy.int_in_range(0..=30)?),
            // mov x0, xN
            3 => words.push(0xaa00_03e0 | reg(entropy)? << 16),
            4 => {
                let field = branch(entropy, words)?;
                fields.push((words.len() - 1, field));
            }
            5 => words.push(fixed(entropy)?),
            _ => words.push(plain(entropy)?),
        }
    }
    match entropy.int_in_range(0..=3)? {
        0 => words.extend([RET, NOP, NOP]),
        1 => words.extend([RET, 0, 0]),
        _ => words.push(RET),
    }
    // As many as the longest window may need.
    words.extend([NOP; 8]);
    Ok(())
}
