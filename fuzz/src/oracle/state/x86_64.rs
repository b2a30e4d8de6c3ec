//! x86-64.

use fastrand::Rng;
use unicorn_engine::{
    RegisterX86 as R,
    unicorn_const::{Arch, Mode},
};

use super::{Layout, State, Vectors};

const GENERAL: [i32; 16] = [
    R::RAX as i32,
    R::RCX as i32,
    R::RDX as i32,
    R::RBX as i32,
    R::RSP as i32,
    R::RBP as i32,
    R::RSI as i32,
    R::RDI as i32,
    R::R8 as i32,
    R::R9 as i32,
    R::R10 as i32,
    R::R11 as i32,
    R::R12 as i32,
    R::R13 as i32,
    R::R14 as i32,
    R::R15 as i32,
];
const RCX: usize = 1;
const RSP: usize = 4;

pub(super) const LAYOUT: Layout = Layout {
    arch: Arch::X86,
    mode: Mode::MODE_64,
    cpu: None,
    general: &GENERAL,
    sp: RSP,
    link: None,
    scratch: &[],
    pc: R::RIP as i32,
    flags: R::EFLAGS as i32,
    flags_mask: u64::MAX,
    extra: &[R::FS_BASE as i32, R::GS_BASE as i32, R::MXCSR as i32],
    vectors: Vectors::Whole { first: R::XMM0 as i32, count: 16 },
    wide: true,
    red_zone: 128,
};

/// CF, PF, AF, ZF, SF, DF and OF.
const FLAGS: u64 = 0xcd5;
/// The flag that is always set.
const FLAGS_FIXED: u64 = 2;
/// All exceptions masked.
const MXCSR: u64 = 0x1f80;

/// Data lies here, so that random pointers share pages.
pub(crate) const DATA: u64 = 0x0000_2000_0000_0000;
const STACK: u64 = 0x0000_3000_0000_0000;

/// RCX is often a small count, for the instructions that count in it.
pub(super) fn randomize(state: &mut State, rng: &mut Rng) {
    for register in &mut state.general[..16] {
        *register = match rng.u8(..8) {
            0 => rng.u64(..),
            1 | 2 => rng.u64(..4),
            _ => DATA + rng.u64(..0x1_0000),
        };
    }
    if rng.u8(..4) != 0 {
        state.general[RCX] = rng.u64(..5);
    }
    state.general[RSP] = STACK + (rng.u64(..0x4000) & !7);
    state.extra = [DATA + 0x10_0000, DATA + 0x20_0000, MXCSR];
    // DF would make string instructions of random length run away from the mapped pages either way; keep both.
    state.flags = rng.u64(..) & FLAGS | FLAGS_FIXED;
}
