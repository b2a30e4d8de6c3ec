//! T32 instructions (Arm ARM, F3).

use super::effect::{Effect, Instruction, count, field, moved, pair, register, signed};
use super::registers::{LR, PC, SP};

/// The instruction at `at`, whose halfwords these are; the second one is asked for if there is one.
pub(super) fn decode(first: u16, at: u64, second: impl FnOnce() -> Option<u16>) -> Option<Instruction> {
    if first < 0xe800 {
        let (effect, conditional) = narrow(first.into(), at);
        return Some(Instruction { effect, len: 2, conditional });
    }
    let (effect, conditional) = wide(first.into(), second()?.into(), at);
    Some(Instruction { effect, len: 4, conditional })
}

fn to(at: u64, offset: i32) -> Effect {
    Effect::Branch(at.wrapping_add(4).wrapping_add_signed(offset.into()))
}

fn narrow(code: u32, at: u64) -> (Effect, bool) {
    let low = code & 0xff;
    let imm7 = (4 * (code & 0x7f)) as i32;
    let effect = match code {
        0x3700..=0x37ff => moved(7, 7, low as i32),
        0x3f00..=0x3fff => moved(7, 7, -(low as i32)),
        0x4400..=0x44ff => match high_register(code) {
            SP => Effect::LosesSp,
            PC => Effect::Leave,
            _ => Effect::Other,
        },
        0x4600..=0x46ff => moved(high_register(code), register(code, 3), 0),
        0x4700..=0x477f if register(code, 3) == LR => Effect::Return,
        0x4700..=0x477f => Effect::Leave,
        0x4780..=0x47ff => Effect::Call,
        0xaf00..=0xafff => moved(7, SP, (4 * low) as i32),
        0xb000..=0xb07f => moved(SP, SP, imm7),
        0xb080..=0xb0ff => moved(SP, SP, -imm7),
        0xb400..=0xb5ff => push((low | field(code, 8, 1) << LR) as u16),
        0xbc00..=0xbdff => pop((low | field(code, 8, 1) << PC) as u16),
        // CBZ and CBNZ.
        0xb100..=0xbbff if code & 0x500 == 0x100 => {
            return (to(at, (field(code, 9, 1) << 6 | field(code, 3, 5) << 1) as i32), true);
        }
        0xbf01..=0xbfff if code & 0xf != 0 => Effect::If(4 - (code & 0xf).trailing_zeros()),
        0xd000..=0xddff => return (to(at, 2 * signed(low, 8)), true),
        0xde00..=0xdeff => Effect::Trap,
        0xe000..=0xe7ff => to(at, 2 * signed(code & 0x7ff, 11)),
        _ => Effect::Other,
    };
    (effect, false)
}

/// Rd of ADD and MOV with any registers.
fn high_register(code: u32) -> usize {
    (field(code, 7, 1) << 3 | code & 7) as usize
}

fn push(mask: u16) -> Effect {
    Effect::Push { mask, size: count(mask) }
}

fn pop(mask: u16) -> Effect {
    Effect::Pop { mask, size: count(mask) }
}

fn wide(first: u32, second: u32, at: u64) -> (Effect, bool) {
    if first & 0xf800 == 0xf000 && second & 0x8000 != 0 {
        return branch(first, second, at);
    }
    let (t, t2, d) = (register(second, 12), register(second, 8), register(second, 8));
    let (imm8, imm12) = ((second & 0xff) as i32, (second & 0xfff) as i32);
    let effect = match (first, second) {
        (0xe92d, _) => push((second & 0x5fff) as u16),
        (0xe8bd, _) => pop((second & 0xdfff) as u16),
        // STR with sp lowered first, and LDR with sp raised behind.
        (0xf84d, _) if second & 0xf00 == 0xd00 => Effect::Push { mask: 1 << t, size: imm8 },
        (0xf85d, _) if second & 0xf00 == 0xb00 => Effect::Pop { mask: 1 << t, size: imm8 },
        (0xf8cd, _) if t == LR => Effect::StoreLink(imm12),
        (0xf8dd, _) if t == LR => Effect::LoadLink(imm12),
        // The same of STRD and LDRD.
        (0xe96d, _) => Effect::Push { mask: pair(t, t2), size: 4 * imm8 },
        (0xe8fd, _) => Effect::Pop { mask: pair(t, t2), size: 4 * imm8 },
        (0xe9cd, _) if t == LR => Effect::StoreLink(4 * imm8),
        (0xe9cd, _) if t2 == LR => Effect::StoreLink(4 * imm8 + 4),
        (0xe9dd, _) if t == LR => Effect::LoadLink(4 * imm8),
        (0xe9dd, _) if t2 == LR => Effect::LoadLink(4 * imm8 + 4),
        // VPUSH and VPOP.
        (0xed2d | 0xed6d, _) if second & 0xe00 == 0xa00 => Effect::Push { mask: 0, size: 4 * imm8 },
        (0xecbd | 0xecfd, _) if second & 0xe00 == 0xa00 => Effect::Pop { mask: 0, size: 4 * imm8 },
        // TBB and TBH; LDR of pc by an index.
        (0xe8d0..=0xe8df, _) if second & 0xffe0 == 0xf000 => Effect::Table,
        (0xf850..=0xf85f, _) if t == PC && second & 0xfc0 == 0 => Effect::Table,
        (0xf850..=0xf85f | 0xf8d0..=0xf8df, _) if t == PC => Effect::Leave,
        (0xe890..=0xe89f | 0xe8b0..=0xe8bf | 0xe910..=0xe91f | 0xe930..=0xe93f, 0x8000..) => Effect::Leave,
        (0xea4f, _) if second & 0x70f0 == 0 => moved(d, register(second, 0), 0),
        (0xea00..=0xebff, _) if d == SP => Effect::LosesSp,
        (0xf000..=0xf7ff, _) => immediate(first, second),
        _ => Effect::Other,
    };
    (effect, false)
}

/// Data processing with a constant.
fn immediate(first: u32, second: u32) -> Effect {
    let (n, d) = (register(first, 0), register(second, 8));
    let imm12 = field(first, 10, 1) << 11 | field(second, 12, 3) << 8 | second & 0xff;
    let add = match first & 0xfbe0 {
        0xf100 => expanded(imm12),
        0xf1a0 => -expanded(imm12),
        0xf200 if first & 0x10 == 0 => imm12 as i32,
        0xf2a0 if first & 0x10 == 0 => -(imm12 as i32),
        _ if d == SP => return Effect::LosesSp,
        _ => return Effect::Other,
    };
    if d == PC { Effect::Other } else { moved(d, n, add) }
}

/// ThumbExpandImm.
fn expanded(imm12: u32) -> i32 {
    let byte = imm12 & 0xff;
    let value = match imm12 >> 8 {
        0 => byte,
        1 => byte << 16 | byte,
        2 => byte << 24 | byte << 8,
        3 => byte << 24 | byte << 16 | byte << 8 | byte,
        _ => (0x80 | byte & 0x7f).rotate_right(imm12 >> 7),
    };
    value.cast_signed()
}

fn branch(first: u32, second: u32, at: u64) -> (Effect, bool) {
    let (s, j1, j2) = (field(first, 10, 1), field(second, 13, 1), field(second, 11, 1));
    match second & 0x5001 {
        0x5000 | 0x5001 | 0x4000 => (Effect::Call, false),
        0x1000 | 0x1001 => {
            let (i1, i2) = (1 ^ j1 ^ s, 1 ^ j2 ^ s);
            let offset = s << 24 | i1 << 23 | i2 << 22 | field(first, 0, 10) << 12 | (second & 0x7ff) << 1;
            (to(at, signed(offset, 25)), false)
        }
        0x0000 | 0x0001 if field(first, 6, 4) < 14 => {
            let offset = s << 20 | j2 << 19 | j1 << 18 | field(first, 0, 6) << 12 | (second & 0x7ff) << 1;
            (to(at, signed(offset, 21)), true)
        }
        _ if first == 0xf7f0 && second & 0xf000 == 0xa000 => (Effect::Trap, false),
        _ => (Effect::Other, false),
    }
}

/// How far ahead of pc lies the constant that the instruction of these halfwords loads.
pub(super) fn constant(first: u16, second: u16) -> Option<u64> {
    let (low, imm12) = (u64::from(first & 0xff), u64::from(second & 0xfff));
    match (first, second) {
        (0x4800..=0x4fff, _) => Some(4 * low),
        (0xf8df, _) => Some(imm12),
        // VLDR.
        (0xed9f | 0xeddf, _) if second & 0xe00 == 0xa00 => Some(4 * (imm12 & 0xff)),
        // LDRD.
        (0xe9df, _) => Some(4 * (imm12 & 0xff)),
        _ => None,
    }
}

/// Whether the instruction whose last two halfwords these are calls a function.
pub(super) fn is_call(last_but_one: u16, last: u16) -> bool {
    // BLX of a register; BL and BLX.
    last & 0xff87 == 0x4780
        || (last_but_one & 0xf800 == 0xf000 && (last & 0xd000 == 0xd000 || last & 0xd001 == 0xc000))
}
