//! Random A32 windows (DDI 0487, F4.1; DDI 0406, A5).

use arbitrary::{Result, Unstructured};
use exarmo_aarch32::a32;
use grapnel_relocator::{CodeAddr, Isa};

use super::place;
use crate::case::Case;

const NOP: u32 = 0xe320_f000;
const BX_LR: u32 = 0xe12f_ff1e;
const PC: u32 = 15;

/// A place in a word that is filled in when the number of instructions is known.
#[derive(Clone, Copy)]
enum Field {
    /// 24 bits, of words: B, BL.
    Branch24,
    /// The same and the halfword bit 24: BLX.
    Exchange24,
    /// 12 bits and the direction in bit 23: LDR, STR, PLD.
    Offset12,
    /// 8 bits in two parts and the direction in bit 23: halfwords and doublewords.
    Offset44,
    /// 8 bits, of words, and the direction in bit 23: VLDR, LDC.
    Words8,
}

pub(super) fn case(entropy: &mut Unstructured<'_>) -> Result<Case> {
    let mut words = Vec::new();
    let mut fields = Vec::new();
    for _ in 0..entropy.int_in_range(1..=8)? {
        let (word, field) = inst(entropy)?;
        fields.extend(field.map(|field| (words.len(), field)));
        words.push(word);
    }
    behind(entropy, &mut words, &mut fields)?;
    let starts: Vec<usize> = (0..words.len()).map(|index| index * 4).collect();
    for (index, field) in fields {
        words[index] |= filled(entropy, (index * 4) as i64, &starts, field)?;
    }
    let source: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let from = CodeAddr(u64::from((entropy.arbitrary::<u32>()? & !3).clamp(0x1_0000, 0xffff_0000)));
    let to = place::apart(from, source.len(), place::to32(entropy, from)?);
    let min_len = place::min_len(entropy)?;
    let options = place::options(entropy, source.len(), 4)?;
    Ok(Case { about: Vec::new(), isa: Isa::A32, from, to, min_len, options, source })
}

fn filled(entropy: &mut Unstructured<'_>, at: i64, starts: &[usize], field: Field) -> Result<u32> {
    // The PC reads as the instruction's address and 8 (DDI 0487, E1.2.1).
    let pc = at + 8;
    let signed = |entropy: &mut Unstructured<'_>, step: i64, bits: u32| -> Result<(u32, u32)> {
        let displacement = place::displacement(entropy, pc, starts, step, bits + 1)? / step;
        let up = u32::from(displacement >= 0) << 23;
        Ok((up, (displacement.unsigned_abs() as u32).min((1 << bits) - 1)))
    };
    Ok(match field {
        Field::Branch24 => (place::displacement(entropy, pc, starts, 4, 24)? / 4) as u32 & 0x00ff_ffff,
        Field::Exchange24 => {
            let displacement = place::displacement(entropy, pc, starts, 2, 25)?;
            (displacement >> 2) as u32 & 0x00ff_ffff | (displacement as u32 >> 1 & 1) << 24
        }
        Field::Offset12 => {
            let (up, offset) = signed(entropy, 1, 12)?;
            up | offset
        }
        Field::Offset44 => {
            let (up, offset) = signed(entropy, 1, 8)?;
            up | (offset & 0xf0) << 4 | offset & 0xf
        }
        Field::Words8 => {
            let (up, offset) = signed(entropy, 4, 8)?;
            up | offset
        }
    })
}

/// Always in half of the cases, otherwise under a condition.
fn cond(entropy: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match entropy.int_in_range(0..=1)? {
        0 => 0xe000_0000,
        _ => entropy.int_in_range(0..=14)? << 28,
    })
}

/// A register, the PC as often as all those that relocators like to take.
fn reg(entropy: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match entropy.int_in_range(0..=7)? {
        0 => PC,
        1 => 12,
        2 => 14,
        3 => entropy.int_in_range(0..=15)?,
        _ => entropy.int_in_range(0..=7)?,
    })
}

/// A register that is not the PC, mostly.
fn low(entropy: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match entropy.int_in_range(0..=15)? {
        0 => PC,
        1..=2 => 12,
        3 => 14,
        4 => 13,
        _ => entropy.int_in_range(0..=11)?,
    })
}

fn bits(entropy: &mut Unstructured<'_>, mask: u32) -> Result<u32> {
    Ok(entropy.arbitrary::<u32>()? & mask)
}

fn inst(entropy: &mut Unstructured<'_>) -> Result<(u32, Option<Field>)> {
    match entropy.int_in_range(0..=19)? {
        0..=3 => branch(entropy),
        4..=7 => data(entropy).map(|word| (word, None)),
        8..=13 => memory(entropy),
        14 => Ok((fixed(entropy)?, None)),
        15 => Ok((entropy.arbitrary()?, None)),
        _ => plain(entropy).map(|word| (word, None)),
    }
}

fn branch(entropy: &mut Unstructured<'_>) -> Result<(u32, Option<Field>)> {
    Ok(match entropy.int_in_range(0..=9)? {
        0..=3 => (0x0a00_0000 | cond(entropy)?, Some(Field::Branch24)),
        4..=5 => (0x0b00_0000 | cond(entropy)?, Some(Field::Branch24)),
        6 => (0xfa00_0000, Some(Field::Exchange24)),
        7 => (0x012f_ff10 | cond(entropy)? | reg(entropy)?, None),
        8 => (0x012f_ff30 | cond(entropy)? | reg(entropy)?, None),
        _ => (0x012f_ff20 | cond(entropy)? | reg(entropy)?, None),
    })
}

/// Data processing with the PC as any operand: immediate, shifted by an immediate, rarely by a register.
fn data(entropy: &mut Unstructured<'_>) -> Result<u32> {
    let opcode = entropy.int_in_range(0..=15u32)?;
    // Comparisons always set flags; without them the space holds other instructions.
    let flags = u32::from((8..=11).contains(&opcode) || entropy.ratio(1u8, 3)?) << 20;
    let (mut rd, mut rn) = (low(entropy)?, reg(entropy)?);
    if (8..=11).contains(&opcode) {
        rd = 0;
    }
    if opcode & 0xd == 0xd {
        rn = 0;
    }
    let head = cond(entropy)? | opcode << 21 | flags | rn << 16 | rd << 12;
    let word = match entropy.int_in_range(0..=7)? {
        0..=2 => head | 0x0200_0000 | bits(entropy, 0xfff)?,
        3 => head | reg(entropy)?,
        4 => head | bits(entropy, 0xf60)? | 0x10 | reg(entropy)?,
        _ => head | bits(entropy, 0xfe0)? | reg(entropy)?,
    };
    // ADR and `mov rd, pc` are what programs have.
    Ok(match entropy.int_in_range(0..=9)? {
        0 => cond(entropy)? | 0x028f_0000 | rd << 12 | bits(entropy, 0xfff)?,
        1 => cond(entropy)? | 0x024f_0000 | rd << 12 | bits(entropy, 0xfff)?,
        2 => cond(entropy)? | 0x01a0_000f | rd << 12,
        3 => cond(entropy)? | 0x008f_0000 | rd << 12 | low(entropy)?,
        _ => word,
    })
}

/// Loads and stores with the PC as base, index, destination or in the list.
fn memory(entropy: &mut Unstructured<'_>) -> Result<(u32, Option<Field>)> {
    let cond = cond(entropy)?;
    let load = u32::from(entropy.ratio(3u8, 4)?) << 20;
    let up = u32::from(entropy.arbitrary::<bool>()?) << 23;
    Ok(match entropy.int_in_range(0..=23)? {
        // Literals: words and bytes, halfwords and doublewords, floating point.
        0..=6 => {
            let byte = u32::from(entropy.ratio(1u8, 4)?) << 22;
            (cond | 0x050f_0000 | byte | load | low(entropy)? << 12, Some(Field::Offset12))
        }
        7..=9 => {
            let kind = *entropy.choose(&[0x0010_00b0, 0x0010_00d0, 0x0010_00f0, 0x0000_00b0])?;
            (cond | 0x014f_0000 | kind | low(entropy)? << 12, Some(Field::Offset44))
        }
        10 => {
            let kind = *entropy.choose(&[0x0000_00d0, 0x0000_00f0])?;
            (cond | 0x014f_0000 | kind | (low(entropy)? & 14) << 12, Some(Field::Offset44))
        }
        11..=12 => {
            let size = *entropy.choose(&[0x0900, 0x0a00, 0x0b00, 0x0e00])?;
            (cond | 0x0d0f_0000 | load | bits(entropy, 0x0040_f000)? | size, Some(Field::Words8))
        }
        13 => {
            let kind = *entropy.choose(&[0xf55f_f000, 0xf51f_f000, 0xf45f_f000])?;
            (kind, Some(Field::Offset12))
        }
        // A register as offset, with shifts.
        14..=16 => {
            let byte = u32::from(entropy.ratio(1u8, 4)?) << 22;
            let operands = reg(entropy)? << 16 | low(entropy)? << 12 | reg(entropy)?;
            (cond | 0x0700_0000 | up | byte | load | operands | bits(entropy, 0xfe0)?, None)
        }
        17 => {
            let kind = *entropy.choose(&[0x0010_00b0, 0x0010_00d0, 0x0010_00f0, 0x0000_00b0, 0x0000_00d0])?;
            let operands = reg(entropy)? << 16 | low(entropy)? << 12 | low(entropy)?;
            (cond | 0x0100_0000 | up | kind | operands, None)
        }
        18 => {
            let kind = *entropy.choose(&[0xf750_f000, 0xf710_f000, 0xf650_f000])?;
            (kind | up | reg(entropy)? << 16 | bits(entropy, 0xfe0)? | low(entropy)?, None)
        }
        // The PC as what is loaded or stored.
        19 => (cond | 0x0500_f000 | up | load | low(entropy)? << 16 | bits(entropy, 0xfff)?, None),
        20 => (cond | 0x0490_f004 | low(entropy)? << 16, None),
        // Lists, with the PC in them or as base.
        21 => (cond | 0x08bd_8000 | bits(entropy, 0x5fff)?, None),
        22 => (cond | 0x092d_0000 | bits(entropy, 0xdfff)?, None),
        _ => {
            let list = bits(entropy, 0xffff)? | u32::from(entropy.arbitrary::<bool>()?) << 15;
            (cond | 0x0800_0000 | load | bits(entropy, 0x01a0_0000)? | reg(entropy)? << 16 | list, None)
        }
    })
}

/// Exits, exceptions, barriers.
fn fixed(entropy: &mut Unstructured<'_>) -> Result<u32> {
    const FIXED: &[u32] = &[
        BX_LR,
        0xe1a0_f00e, // mov pc, lr
        0xe8bd_8010, // pop {r4, pc}
        0xe49d_f004, // pop {pc}
        0x012f_ff1e, // bxeq lr
        0xef00_0000, // svc
        0xe120_0070, // bkpt
        0xe7f0_00f0, // udf
        0xe25e_f004, // subs pc, lr, #4
        0xf57f_f01f, // clrex
        0xf57f_f05b, // dmb
        0xf101_0200, // setend be
        0xee1d_0f70, // mrc tpidruro
        0xee11_ff10, // mrc apsr_nzcv
        0xe10f_0000, // mrs apsr
        0xe128_f000, // msr apsr_nzcvq
        0xf8bd_0a00, // rfe
        NOP,
    ];
    Ok(*entropy.choose(FIXED)?)
}

/// What mostly does not know where it is: opcode bits, and the bits that are free to choose besides the registers in
/// bits 19, 15 and 3.
const PLAIN: &[(u32, u32, [u32; 3])] = &[
    (0x0200_0000, 0x01f0_0fff, [16, 12, 32]), // data processing (immediate)
    (0x0000_0000, 0x01f0_0fe0, [16, 12, 0]),  // data processing (register)
    (0x0000_0010, 0x01f0_0f60, [16, 12, 0]),  // data processing (register-shifted register)
    (0x0300_0000, 0x004f_0fff, [12, 32, 32]), // movw, movt
    (0x0400_0000, 0x01d0_0fff, [16, 12, 32]), // ldr, str
    (0x0000_00b0, 0x01f0_0f0f, [16, 12, 32]), // strh, ldrh
    (0x0000_0090, 0x0030_0f00, [16, 12, 0]),  // mul, mla
    (0x0080_0090, 0x0070_0f00, [16, 12, 0]),  // umull and its kin
    (0x016f_0f10, 0x0000_0000, [12, 0, 32]),  // clz
    (0x06ef_0070, 0x0000_0c00, [12, 0, 32]),  // uxtb
    (0x06bf_0f30, 0x0000_0000, [12, 0, 32]),  // rev
    (0x07e0_0050, 0x001f_0f80, [12, 0, 32]),  // ubfx
    (0x0800_0000, 0x01b0_7fff, [16, 32, 32]), // ldm, stm
    (0x0190_0f9f, 0x0000_0000, [16, 12, 32]), // ldrex
    (0x0180_0f90, 0x0000_0000, [16, 12, 0]),  // strex
    (0x0d00_0a00, 0x00d0_f1ff, [16, 32, 32]), // vldr, vstr
    (0x0e30_0a00, 0x004f_f1af, [32, 32, 32]), // vadd
    (0x0e00_0a10, 0x001f_0080, [12, 32, 32]), // vmov
    (0x06a0_0010, 0x001f_0fc0, [12, 0, 32]),  // ssat
];

fn plain(entropy: &mut Unstructured<'_>) -> Result<u32> {
    let &(opcode, free, registers) = entropy.choose(PLAIN)?;
    let mut word = opcode | bits(entropy, free)? | cond(entropy)?;
    for shift in registers.into_iter().filter(|&shift| shift < 32) {
        word |= low(entropy)? << shift;
    }
    let sound = a32::decode_word(word).is_ok_and(|inst| !inst.unpredictable());
    Ok(if sound || entropy.ratio(1u8, 16)? { word } else { NOP })
}

/// What follows the window: registers overwritten or read before they are, a call, a return, branches, a literal pool.
fn behind(
    entropy: &mut Unstructured<'_>,
    words: &mut Vec<u32>,
    fields: &mut Vec<(usize, Field)>,
) -> Result<()> {
    for _ in 0..entropy.int_in_range(0..=4)? {
        let (word, field) = match entropy.int_in_range(0..=7)? {
            // mov rN, #imm; mov r0, rN
            0..=2 => (0xe3a0_0000 | entropy.int_in_range(0..=14)? << 12 | bits(entropy, 0xff)?, None),
            3 => (0xe1a0_0000 | entropy.int_in_range(0..=14)?, None),
            4 => branch(entropy)?,
            _ => (plain(entropy)?, None),
        };
        fields.extend(field.map(|field| (words.len(), field)));
        words.push(word);
    }
    words.push(BX_LR);
    if entropy.arbitrary()? {
        words.extend(entropy.arbitrary::<[u32; 2]>()?);
    }
    // As many as the longest window may need.
    words.extend([NOP; 8]);
    Ok(())
}
