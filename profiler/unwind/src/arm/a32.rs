//! A32 instructions (Arm ARM, F4).

use super::effect::{Effect, Instruction, count, field, moved, pair, register, signed};
use super::registers::{LR, PC, SP};

/// The instruction at `at`, which is this word.
pub(super) fn decode(word: u32, at: u64) -> Instruction {
    let condition = word >> 28;
    let effect = match (condition, field(word, 25, 3)) {
        (0xf, 5) => Effect::Call,
        // Vectors, hints and barriers.
        (0xf, _) => Effect::Other,
        (_, 0) => registers(word),
        (_, 1) => immediate(word),
        (_, 3) if word & 0x10 != 0 => {
            if word & 0xfff0_00f0 == 0xe7f0_00f0 {
                Effect::Trap
            } else {
                Effect::Other
            }
        }
        (_, 2 | 3) => one(word),
        (_, 4) => many(word),
        (_, 5) if word & 1 << 24 != 0 => Effect::Call,
        (_, 5) => {
            let offset = 4 * signed(field(word, 0, 24), 24);
            Effect::Branch(at.wrapping_add(8).wrapping_add_signed(offset.into()))
        }
        (_, 6) => vectors(word),
        _ => Effect::Other,
    };
    Instruction { effect, len: 4, conditional: condition < 0xe }
}

/// Data processing without a constant, branches to registers, and stores and loads of two registers.
fn registers(word: u32) -> Effect {
    let (n, d, m) = (register(word, 16), register(word, 12), register(word, 0));
    let imm8 = (field(word, 8, 4) << 4 | field(word, 0, 4)) as i32;
    match word & 0x0fff_fff0 {
        0x012f_ff10 if m == LR => return Effect::Return,
        0x012f_ff10 => return Effect::Leave,
        0x012f_ff30 => return Effect::Call,
        _ => {}
    }
    match word & 0x0fff_00f0 {
        // STRD with sp lowered first, and LDRD with sp raised behind.
        0x016d_00f0 => return Effect::Push { mask: pair(d, d | 1), size: imm8 },
        0x00cd_00d0 => return Effect::Pop { mask: pair(d, d | 1), size: imm8 },
        _ if word & 0x90 == 0x90 => return Effect::Other,
        _ => {}
    }
    match field(word, 21, 4) {
        // Comparisons, and others without a destination.
        8..=11 => Effect::Other,
        13 if word & 0xff0 == 0 => moved(d, m, 0),
        4 if d == PC && n == PC => Effect::Table,
        _ => clobbered(d),
    }
}

fn clobbered(register: usize) -> Effect {
    match register {
        SP => Effect::LosesSp,
        PC => Effect::Leave,
        _ => Effect::Other,
    }
}

/// Data processing with a constant.
fn immediate(word: u32) -> Effect {
    let (n, d) = (register(word, 16), register(word, 12));
    let value = field(word, 0, 8).rotate_right(2 * field(word, 8, 4)).cast_signed();
    match field(word, 21, 4) {
        8..=11 => Effect::Other,
        4 => moved(d, n, value),
        2 => moved(d, n, value.wrapping_neg()),
        _ => clobbered(d),
    }
}

/// Loads and stores of one register.
fn one(word: u32) -> Effect {
    let (t, imm12) = (register(word, 12), field(word, 0, 12) as i32);
    match word & 0x0fff_0000 {
        0x052d_0000 => Effect::Push { mask: 1 << t, size: imm12 },
        0x049d_0000 => Effect::Pop { mask: 1 << t, size: imm12 },
        0x058d_0000 if t == LR => Effect::StoreLink(imm12),
        0x059d_0000 if t == LR => Effect::LoadLink(imm12),
        // By an index from pc.
        _ if word & 0x0e5f_f000 == 0x061f_f000 => Effect::Table,
        _ if word & 0x0050_f000 == 0x0010_f000 => Effect::Leave,
        _ => Effect::Other,
    }
}

/// Loads and stores of many registers.
fn many(word: u32) -> Effect {
    let (n, mask) = (register(word, 16), word as u16);
    match word & 0x0fff_0000 {
        0x092d_0000 => Effect::Push { mask, size: count(mask) },
        0x08bd_0000 if mask & 1 << SP == 0 => Effect::Pop { mask, size: count(mask) },
        _ if word & 1 << 20 != 0 && word & 1 << 15 != 0 => Effect::Leave,
        _ if word & 1 << 21 != 0 && n == SP => Effect::LosesSp,
        _ => Effect::Other,
    }
}

/// VPUSH and VPOP.
fn vectors(word: u32) -> Effect {
    let size = 4 * field(word, 0, 8) as i32;
    match word & 0x0fbf_0e00 {
        0x0d2d_0a00 => Effect::Push { mask: 0, size },
        0x0cbd_0a00 => Effect::Pop { mask: 0, size },
        _ => Effect::Other,
    }
}

/// How far ahead of pc lies the constant that an instruction loads.
pub(super) fn constant(word: u32) -> Option<u64> {
    let imm12 = u64::from(field(word, 0, 12));
    match word {
        _ if word & 0x0fff_0000 == 0x059f_0000 => Some(imm12),
        // VLDR.
        _ if word & 0x0fbf_0e00 == 0x0d9f_0a00 => Some(4 * (imm12 & 0xff)),
        _ => None,
    }
}

/// Whether the instruction that ends behind `last` calls a function, or the two before it do.
pub(super) fn is_call(last_but_one: u32, last: u32) -> bool {
    // BLX; BL; BLX of a register; `mov lr, pc` and then a jump, as before ARMv5.
    last & 0xfe00_0000 == 0xfa00_0000
        || (last >> 28 != 0xf && (last & 0x0f00_0000 == 0x0b00_0000 || last & 0x0fff_fff0 == 0x012f_ff30))
        || last_but_one == 0xe1a0_e00f
}
