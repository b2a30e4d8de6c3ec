//! Single instructions.

use arbitrary::{Result, Unstructured};
use exarmo_aarch32::{ItState, t32};

use super::{BX_LR, NOP, field::Field};

/// An instruction of 16 bits, or of 32 with the first halfword above the second.
#[derive(Clone, Copy)]
pub(super) struct Inst {
    pub(super) bits: u32,
    pub(super) field: Option<Field>,
}

impl Inst {
    pub(super) const fn plain(bits: u32) -> Self {
        Self { bits, field: None }
    }

    const fn with(bits: u32, field: Field) -> Self {
        Self { bits, field: Some(field) }
    }

    pub(super) const fn len(self) -> usize {
        if self.bits >> 16 == 0 { 2 } else { 4 }
    }
}

pub(super) fn inst(entropy: &mut Unstructured<'_>) -> Result<Inst> {
    match entropy.int_in_range(0..=19)? {
        0..=4 => branch(entropy),
        5..=10 => relative(entropy),
        11..=12 => high(entropy),
        13 => leaving(entropy),
        14 => noise(entropy),
        15..=16 => Ok(Inst::plain(alu(entropy)?)),
        _ => plain(entropy),
    }
}

fn any(entropy: &mut Unstructured<'_>, mask: u32) -> Result<u32> {
    Ok(entropy.arbitrary::<u32>()? & mask)
}

/// A register other than SP and PC, mostly.
fn reg(entropy: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match entropy.int_in_range(0..=15)? {
        0 => 15,
        1 => 13,
        2..=3 => 12,
        4 => 14,
        _ => entropy.int_in_range(0..=11)?,
    })
}

/// Branches with a displacement.
pub(super) fn branch(entropy: &mut Unstructured<'_>) -> Result<Inst> {
    let cond = entropy.int_in_range(0..=13)?;
    Ok(match entropy.int_in_range(0..=11)? {
        0..=1 => Inst::with(0xd000 | cond << 8, Field::Branch8),
        2 => Inst::with(0xe000, Field::Branch11),
        3..=4 => Inst::with(0xf000_8000 | cond << 22, Field::Branch20),
        5 => Inst::with(0xf000_9000, Field::Branch24),
        6..=7 => Inst::with(0xf000_d000, Field::Branch24),
        8 => Inst::with(0xf000_c000, Field::Exchange24),
        _ => Inst::with(0xb100 | any(entropy, 0x807)?, Field::Forward6),
    })
}

/// Literals and addresses.
pub(super) fn relative(entropy: &mut Unstructured<'_>) -> Result<Inst> {
    Ok(match entropy.int_in_range(0..=15)? {
        0..=2 => Inst::with(0x4800 | any(entropy, 0x700)?, Field::Words8),
        3..=4 => Inst::with(0xa000 | any(entropy, 0x700)?, Field::Words8),
        5..=6 => Inst::with(0xf20f_0000 | reg(entropy)? << 8, Field::Adr12),
        7..=8 => Inst::with(0xf85f_0000 | reg(entropy)? << 12, Field::Offset12),
        9..=11 => {
            // Bytes and halfwords; with the PC as destination they are PLD and PLI.
            let opcode = *entropy.choose(&[0xf81f_0000, 0xf83f_0000, 0xf91f_0000, 0xf93f_0000])?;
            let rt = if entropy.ratio(1u8, 6)? { 15 } else { reg(entropy)? };
            Inst::with(opcode | rt << 12, Field::Offset12)
        }
        12..=13 => Inst::with(0xe95f_0000 | reg(entropy)? << 12 | reg(entropy)? << 8, Field::Words8Up),
        _ => {
            let size = *entropy.choose(&[0x0900, 0x0a00, 0x0b00, 0x0b00, 0x0e00])?;
            let store = u32::from(!entropy.ratio(1u8, 8)?) << 20;
            Inst::with(0xed0f_0000 | store | size | any(entropy, 0x0040_f000)?, Field::Words8Up)
        }
    })
}

/// ADD, CMP and MOV with any register, and wide instructions with the PC as an operand.
fn high(entropy: &mut Unstructured<'_>) -> Result<Inst> {
    let either = |entropy: &mut Unstructured<'_>| -> Result<u32> {
        Ok(if entropy.arbitrary()? { 15 } else { entropy.int_in_range(0..=14)? })
    };
    Ok(match entropy.int_in_range(0..=7)? {
        0..=4 => {
            let opcode = *entropy.choose(&[0x4400, 0x4400, 0x4500, 0x4600, 0x4600])?;
            let (rd, rm) = (either(entropy)?, either(entropy)?);
            Inst::plain(opcode | (rd & 8) << 4 | rm << 3 | rd & 7)
        }
        // add.w, sub.w and other data processing
        5 => {
            let operands = either(entropy)? << 16 | reg(entropy)? << 8 | either(entropy)?;
            Inst::plain(0xea00_0000 | any(entropy, 0x01f0_70c0)? | operands)
        }
        // ldr.w, str.w with a register
        6 => {
            let operands = either(entropy)? << 16 | reg(entropy)? << 12 | either(entropy)?;
            Inst::plain(0xf800_0000 | any(entropy, 0x0170_0030)? | operands)
        }
        _ => {
            let operands = either(entropy)? << 16 | reg(entropy)? << 12 | any(entropy, 0xfff)?;
            Inst::plain(0xf880_0000 | any(entropy, 0x0170_0000)? | operands)
        }
    })
}

/// Exits through registers, memory and tables, and exceptions.
pub(super) fn leaving(entropy: &mut Unstructured<'_>) -> Result<Inst> {
    const FIXED: &[u32] = &[
        BX_LR,
        0xbd10,      // pop {r4, pc}
        0xbd00,      // pop {pc}
        0xe8bd_8010, // pop.w {r4, pc}
        0xf85d_fb04, // ldr pc, [sp], #4
        0xdf00,      // svc
        0xbe00,      // bkpt
        0xde00,      // udf
        0xf3de_8f04, // subs pc, lr, #4
        0xf7f0_a000, // udf.w
        0xf3bf_8f5b, // dmb
        0xb662,      // cpsie i
        0xb650,      // setend le
    ];
    Ok(Inst::plain(match entropy.int_in_range(0..=11)? {
        0..=2 => 0x4700 | any(entropy, 0x80)? | reg(entropy)? << 3,
        3..=4 => {
            // tbb, tbh
            let base = if entropy.arbitrary()? { 15 } else { reg(entropy)? };
            0xe8d0_f000 | base << 16 | any(entropy, 0x10)? | reg(entropy)?
        }
        5 => 0x4687 | reg(entropy)? << 3,
        6 => 0x4487 | reg(entropy)? << 3,
        7 => 0xf8d0_f000 | reg(entropy)? << 16 | any(entropy, 0xffc)?,
        8 => 0xf850_f000 | reg(entropy)? << 16 | any(entropy, 0x30)? | reg(entropy)?,
        _ => *entropy.choose(FIXED)?,
    }))
}

/// Narrow data processing, which sets flags outside an IT block and doesn't inside.
pub(super) fn alu(entropy: &mut Unstructured<'_>) -> Result<u32> {
    Ok(match entropy.int_in_range(0..=2)? {
        // shifts, add and sub of three
        0 => any(entropy, 0x1fff)?,
        // mov, cmp, add, sub with 8 bits
        1 => 0x2000 | any(entropy, 0x1fff)?,
        // and, eor, lsl, ..., mvn
        _ => 0x4000 | any(entropy, 0x3ff)?,
    })
}

/// What does not know where it is: opcode bits, and the bits that are free to choose.
const PLAIN: &[(u32, u32)] = &[
    (0x5000, 0x0fff),           // ldr, str (register)
    (0x6000, 0x1fff),           // ldr, str (immediate)
    (0x8000, 0x1fff),           // ldrh, strh, ldr and str from SP
    (0xa800, 0x07ff),           // add from SP
    (0xb400, 0x01ff),           // push
    (0xbc00, 0x00ff),           // pop
    (0xb000, 0x00ff),           // add, sub to SP
    (0xb200, 0x00ff),           // sxth and its kin
    (0xba00, 0x007f),           // rev
    (0xc000, 0x0fff),           // ldm, stm
    (0x4600, 0x00ff),           // mov
    (0xea00_0000, 0x01ff_ffff), // data processing (shifted register)
    (0xf000_0000, 0x05ff_7fff), // data processing (modified immediate)
    (0xf240_0000, 0x048f_7fff), // movw, movt
    (0xf300_0000, 0x00cf_7fdf), // bitfields, saturation
    (0xf8c0_0000, 0x001f_ffff), // ldr, str (immediate)
    (0xf840_0800, 0x001f_f7ff), // ldr, str (immediate, indexed)
    (0xfa00_f000, 0x007f_0fff), // shifts, extensions
    (0xfb00_0000, 0x007f_ffff), // multiplication
    (0xfba0_0000, 0x007f_ffff), // long multiplication, division
    (0xe890_0000, 0x003f_5fff), // ldm
    (0xe880_0000, 0x002f_5fff), // stm
    (0xe940_0000, 0x00ff_ffff), // ldrd, strd
    (0xe850_0f00, 0x000f_f0ff), // ldrex
    (0xe840_0000, 0x000f_ffff), // strex
    (0xed90_0a00, 0x004f_f1ff), // vldr
    (0xee30_0a00, 0x004f_f1af), // vadd
    (0xf3ef_8000, 0x0000_0f00), // mrs
    (0xf380_8800, 0x000f_0000), // msr
];

pub(super) fn plain(entropy: &mut Unstructured<'_>) -> Result<Inst> {
    let &(opcode, free) = entropy.choose(PLAIN)?;
    let bits = opcode | any(entropy, free)?;
    let word = if bits >> 16 == 0 { bits << 16 } else { bits };
    let sound = t32::decode_word(word, ItState::Outside).is_ok_and(|inst| !inst.unpredictable());
    Ok(Inst::plain(if sound || entropy.ratio(1u8, 16)? { bits } else { NOP }))
}

/// Any halfword, or two of which the first asks for a second.
fn noise(entropy: &mut Unstructured<'_>) -> Result<Inst> {
    let first = u32::from(entropy.arbitrary::<u16>()?);
    Ok(Inst::plain(match first >> 11 {
        0b11101.. => first << 16 | u32::from(entropy.arbitrary::<u16>()?),
        _ => first,
    }))
}
