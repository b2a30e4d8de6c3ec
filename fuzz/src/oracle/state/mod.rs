//! Registers to start from and to compare, by instruction set.

mod aarch32;
mod aarch64;
mod x86_64;

pub(crate) use aarch32::THUMB;
use fastrand::Rng;
use grapnel_relocator::Isa;
use unicorn_engine::{
    Unicorn,
    unicorn_const::{Arch, Mode, uc_error},
};

/// The most general registers that an instruction set has, with the stack pointer.
const MAX_GENERAL: usize = 32;
const MAX_EXTRA: usize = 3;
const MAX_VECTORS: usize = 32;

/// An instruction set's registers, by the emulator's numbers.
pub(super) struct Layout {
    pub(super) arch: Arch,
    pub(super) mode: Mode,
    pub(super) cpu: Option<i32>,
    /// By their number in instructions.
    pub(super) general: &'static [i32],
    /// The stack pointer's place in `general`.
    pub(super) sp: usize,
    /// The link register's place in `general`.
    pub(super) link: Option<usize>,
    /// Registers that a call may change before its callee is reached, or that no callee keeps.
    pub(super) scratch: &'static [usize],
    pub(super) pc: i32,
    pub(super) flags: i32,
    /// The flags that do not depend on the instruction set in use.
    pub(super) flags_mask: u64,
    /// Control registers and thread pointers.
    pub(super) extra: &'static [i32],
    pub(super) vectors: Vectors,
    /// Addresses have 64 bits.
    pub(super) wide: bool,
    /// Bytes below the stack pointer that belong to the code.
    pub(super) red_zone: u64,
}

/// How vector registers are read.
pub(super) enum Vectors {
    /// 128 bits at once, this many from this number on.
    Whole { first: i32, count: usize },
    /// 64 bits at once.
    Halves { first: i32, count: usize },
}

pub(super) const fn layout(isa: Isa) -> &'static Layout {
    match isa {
        Isa::X86_64 => &x86_64::LAYOUT,
        Isa::Aarch64 => &aarch64::LAYOUT,
        Isa::A32 | Isa::T32 => &aarch32::LAYOUT,
    }
}

/// The registers that both codes start from, and are compared in.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct State {
    pub(super) general: [u64; MAX_GENERAL],
    pub(super) flags: u64,
    pub(super) extra: [u64; MAX_EXTRA],
    /// Only where code can touch them.
    pub(super) vectors: Option<Box<[u128; MAX_VECTORS]>>,
}

impl State {
    /// Pointers, small numbers and noise.
    pub(super) fn random(isa: Isa, vectors: bool, rng: &mut Rng) -> Self {
        let mut state = Self { general: [0; MAX_GENERAL], flags: 0, extra: [0; MAX_EXTRA], vectors: None };
        match isa {
            Isa::X86_64 => x86_64::randomize(&mut state, rng),
            Isa::Aarch64 => aarch64::randomize(&mut state, rng),
            Isa::A32 | Isa::T32 => aarch32::randomize(&mut state, isa, rng),
        }
        if vectors {
            let mut all = Box::new([0; MAX_VECTORS]);
            all.iter_mut().for_each(|vector| *vector = rng.u128(..));
            state.vectors = Some(all);
        }
        state
    }

    pub(super) fn read<D>(layout: &Layout, vectors: bool, engine: &Unicorn<'_, D>) -> Result<Self, uc_error> {
        let mut state = Self { general: [0; MAX_GENERAL], flags: 0, extra: [0; MAX_EXTRA], vectors: None };
        for (value, &register) in state.general.iter_mut().zip(layout.general) {
            *value = engine.reg_read(register)?;
        }
        for (value, &register) in state.extra.iter_mut().zip(layout.extra) {
            *value = engine.reg_read(register)?;
        }
        state.flags = engine.reg_read(layout.flags)? & layout.flags_mask;
        if vectors {
            let mut all = Box::new([0; MAX_VECTORS]);
            match layout.vectors {
                Vectors::Whole { first, count } => {
                    for (number, vector) in (first..).zip(&mut all[..count]) {
                        let bytes = engine.reg_read_long(number)?;
                        *vector = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u128::from(byte));
                    }
                }
                Vectors::Halves { first, count } => {
                    for (number, vector) in (first..).zip(&mut all[..count]) {
                        *vector = engine.reg_read(number)?.into();
                    }
                }
            }
            state.vectors = Some(all);
        }
        Ok(state)
    }

    pub(super) fn write<D>(&self, layout: &Layout, engine: &mut Unicorn<'_, D>) -> Result<(), uc_error> {
        // On Arm they have the processor's mode, which has a stack pointer and a link register of its own.
        engine.reg_write(layout.flags, self.flags)?;
        for (value, &register) in self.general.iter().zip(layout.general) {
            engine.reg_write(register, *value)?;
        }
        for (value, &register) in self.extra.iter().zip(layout.extra) {
            engine.reg_write(register, *value)?;
        }
        let Some(vectors) = &self.vectors else { return Ok(()) };
        match layout.vectors {
            Vectors::Whole { first, count } => {
                for (number, vector) in (first..).zip(&vectors[..count]) {
                    engine.reg_write_long(number, &vector.to_le_bytes())?;
                }
            }
            Vectors::Halves { first, count } => {
                for (number, vector) in (first..).zip(&vectors[..count]) {
                    engine.reg_write(number, *vector as u64)?;
                }
            }
        }
        Ok(())
    }

    /// The first register in which two states differ, but for the general ones in `except`; with both values.
    pub(super) fn difference(&self, other: &Self, isa: Isa, except: u32) -> Option<(String, u128, u128)> {
        for (number, (one, two)) in self.general.iter().zip(&other.general).enumerate() {
            if one != two && except >> number & 1 == 0 {
                return Some((general_name(isa, number), (*one).into(), (*two).into()));
            }
        }
        if self.flags != other.flags {
            return Some(("flags".to_owned(), self.flags.into(), other.flags.into()));
        }
        for (number, (one, two)) in self.extra.iter().zip(&other.extra).enumerate() {
            if one != two {
                return Some((format!("control register {number}"), (*one).into(), (*two).into()));
            }
        }
        if let (Some(vectors), Some(others)) = (&self.vectors, &other.vectors) {
            for (number, (one, two)) in vectors.iter().zip(others.iter()).enumerate() {
                if one != two {
                    return Some((format!("vector register {number}"), *one, *two));
                }
            }
        }
        None
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x?} flags {:x} control {:x?}", self.general, self.flags, self.extra)
    }
}

fn general_name(isa: Isa, number: usize) -> String {
    let register = u8::try_from(number).ok().filter(|&number| !(isa == Isa::Aarch64 && number == 31));
    let name = register.and_then(|number| grapnel_relocator::Registers::one(isa, number).names().next());
    name.unwrap_or("sp").to_owned()
}
