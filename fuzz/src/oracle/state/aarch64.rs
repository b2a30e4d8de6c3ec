//! AArch64.

use fastrand::Rng;
use unicorn_engine::{
    Arm64CpuModel, RegisterARM64 as R,
    unicorn_const::{Arch, Mode},
};

use super::{Layout, State, Vectors};

const X0: i32 = R::X0 as i32;
const LINK: usize = 30;
const SP: usize = 31;

const GENERAL: [i32; 32] = {
    let mut registers = [0; 32];
    let mut number = 0;
    while number < 29 {
        registers[number] = X0 + number as i32;
        number += 1;
    }
    registers[29] = R::X29 as i32;
    registers[LINK] = R::X30 as i32;
    registers[SP] = R::SP as i32;
    registers
};

/// The emulator's numbers of FPCR and FPSR, which its Rust names leave out.
const FPCR: i32 = R::CP_REG as i32 + 1;
const FPSR: i32 = FPCR + 1;

pub(super) const LAYOUT: Layout = Layout {
    arch: Arch::ARM64,
    mode: Mode::LITTLE_ENDIAN,
    cpu: Some(Arm64CpuModel::UC_CPU_ARM64_MAX as i32),
    general: &GENERAL,
    sp: SP,
    link: Some(LINK),
    scratch: &[16, 17, LINK],
    pc: R::PC as i32,
    flags: R::NZCV as i32,
    flags_mask: 0xf000_0000,
    extra: &[FPCR, FPSR, R::TPIDR_EL0 as i32],
    vectors: Vectors::Whole { first: R::Q0 as i32, count: 32 },
    wide: true,
    red_zone: 0,
};

const DATA: u64 = super::x86_64::DATA;
const STACK: u64 = 0x0000_3000_0000_0000;
const CALLER: u64 = 0x0000_5000_0000_0000;

pub(super) fn randomize(state: &mut State, rng: &mut Rng) {
    for register in &mut state.general {
        *register = match rng.u8(..8) {
            0 => rng.u64(..),
            1 | 2 => rng.u64(..4),
            3 => DATA + rng.u64(..0x1_0000),
            _ => DATA + (rng.u64(..0x1_0000) & !15),
        };
    }
    state.general[LINK] = CALLER + (rng.u64(..0x1_0000) & !3);
    state.general[SP] = STACK + (rng.u64(..0x4000) & !15);
    state.flags = u64::from(rng.u8(..16)) << 28;
    state.extra = [0, 0, DATA + 0x10_0000];
}
