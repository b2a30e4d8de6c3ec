//! Registers to start from and to compare.

use fastrand::Rng;
use unicorn_engine::{RegisterX86, Unicorn, unicorn_const::uc_error};

const GENERAL: [RegisterX86; 16] = [
    RegisterX86::RAX,
    RegisterX86::RCX,
    RegisterX86::RDX,
    RegisterX86::RBX,
    RegisterX86::RSP,
    RegisterX86::RBP,
    RegisterX86::RSI,
    RegisterX86::RDI,
    RegisterX86::R8,
    RegisterX86::R9,
    RegisterX86::R10,
    RegisterX86::R11,
    RegisterX86::R12,
    RegisterX86::R13,
    RegisterX86::R14,
    RegisterX86::R15,
];
const RCX: usize = 1;
const RSP: usize = 4;

/// CF, PF, AF, ZF, SF, DF and OF.
const FLAGS: u64 = 0xcd5;
/// The flag that is always set.
const FLAGS_FIXED: u64 = 2;

/// Data lies here, so that random pointers share pages.
const DATA: u64 = 0x0000_2000_0000_0000;
const STACK: u64 = 0x0000_3000_0000_0000;

/// The registers that both codes start from, and are compared in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) general: [u64; 16],
    pub(super) flags: u64,
    segments: [u64; 2],
    vectors: [[u8; 16]; 16],
}

impl State {
    /// Pointers, small numbers and noise; RCX is often a small count, for the instructions that count in it.
    pub(super) fn random(rng: &mut Rng) -> Self {
        let mut general = [0; 16];
        for register in &mut general {
            *register = match rng.u8(..8) {
                0 => rng.u64(..),
                1 | 2 => rng.u64(..4),
                _ => DATA + rng.u64(..0x1_0000),
            };
        }
        if rng.u8(..4) != 0 {
            general[RCX] = rng.u64(..5);
        }
        general[RSP] = STACK + (rng.u64(..0x4000) & !7);
        let mut vectors = [[0; 16]; 16];
        vectors.iter_mut().for_each(|vector| rng.fill(vector));
        let segments = [DATA + 0x10_0000, DATA + 0x20_0000];
        // DF would make string instructions of random length run away from the mapped pages either way; keep both.
        Self { general, flags: rng.u64(..) & FLAGS | FLAGS_FIXED, segments, vectors }
    }

    pub(super) fn read<D>(engine: &Unicorn<'_, D>) -> Result<Self, uc_error> {
        let mut general = [0; 16];
        for (value, register) in general.iter_mut().zip(GENERAL) {
            *value = engine.reg_read(register)?;
        }
        let mut vectors = [[0; 16]; 16];
        for (number, vector) in (0..).zip(&mut vectors) {
            vector.copy_from_slice(&engine.reg_read_long(RegisterX86::XMM0 as i32 + number)?[..16]);
        }
        let segments = [engine.reg_read(RegisterX86::FS_BASE)?, engine.reg_read(RegisterX86::GS_BASE)?];
        Ok(Self { general, flags: engine.reg_read(RegisterX86::EFLAGS)?, segments, vectors })
    }

    pub(super) fn write<D>(&self, engine: &mut Unicorn<'_, D>) -> Result<(), uc_error> {
        for (value, register) in self.general.iter().zip(GENERAL) {
            engine.reg_write(register, *value)?;
        }
        for (number, vector) in (0..).zip(&self.vectors) {
            engine.reg_write_long(RegisterX86::XMM0 as i32 + number, vector)?;
        }
        engine.reg_write(RegisterX86::FS_BASE, self.segments[0])?;
        engine.reg_write(RegisterX86::GS_BASE, self.segments[1])?;
        engine.reg_write(RegisterX86::EFLAGS, self.flags)
    }
}
