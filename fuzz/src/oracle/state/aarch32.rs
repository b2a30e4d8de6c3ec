//! A32 and T32, which have their registers in common.

use fastrand::Rng;
use grapnel_relocator::Isa;
use unicorn_engine::{
    RegisterARM as R,
    unicorn_const::{Arch, Mode},
};

use super::{Layout, State, Vectors};

const LINK: usize = 14;
const SP: usize = 13;

const GENERAL: [i32; 15] = {
    let mut registers = [0; 15];
    let mut number = 0;
    while number < 13 {
        registers[number] = R::R0 as i32 + number as i32;
        number += 1;
    }
    registers[SP] = R::SP as i32;
    registers[LINK] = R::LR as i32;
    registers
};

/// The emulator's number of the CPU with all that it knows, which its Rust names leave out.
const MAX: i32 = 33;

pub(super) const LAYOUT: Layout = Layout {
    arch: Arch::ARM,
    mode: Mode::ARM,
    cpu: Some(MAX),
    general: &GENERAL,
    sp: SP,
    link: Some(LINK),
    scratch: &[12, LINK],
    pc: R::PC as i32,
    flags: R::CPSR as i32,
    flags_mask: FLAGS,
    extra: &[R::FPSCR as i32, R::C13_C0_3 as i32],
    vectors: Vectors::Halves { first: R::D0 as i32, count: 32 },
    wide: false,
    red_zone: 0,
};

/// N, Z, C, V, Q and GE.
const FLAGS: u64 = 0xf80f_0000;
/// The processor is in T32.
pub(crate) const THUMB: u64 = 1 << 5;
const USER: u64 = 0x10;

pub(super) const DATA: u64 = 0x2000_0000;
const STACK: u64 = 0x3000_0000;
const CALLER: u64 = 0x5000_0000;

pub(super) fn randomize(state: &mut State, isa: Isa, rng: &mut Rng) {
    for register in &mut state.general[..13] {
        *register = match rng.u8(..8) {
            0 => rng.u32(..).into(),
            1 | 2 => rng.u64(..4),
            3 => DATA + rng.u64(..0x1_0000),
            _ => DATA + (rng.u64(..0x1_0000) & !7),
        };
    }
    state.general[SP] = STACK + (rng.u64(..0x4000) & !7);
    state.general[LINK] = CALLER + (rng.u64(..0x1_0000) & !3) + u64::from(rng.bool());
    let thumb = if isa == Isa::T32 { THUMB } else { 0 };
    state.flags = u64::from(rng.u32(..)) & FLAGS | USER | thumb;
    state.extra = [0, DATA + 0x10_0000, 0];
}
