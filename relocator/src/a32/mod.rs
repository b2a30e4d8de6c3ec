//! Relocation of A32 code.
//!
//! What reads the PC is given the value that it had at the original place, by a literal behind the code: the only form
//! that every version of the architecture has. Most often the register that the instruction overwrites takes it; else
//! another that is free, or one that is kept on the stack meanwhile ([`scratch`]).
//!
//! Where the manual leaves a choice, ours is that of ARMv7 and later: a store of the PC stores the instruction's address
//! plus 8 (DDI 0406, A2.3.1; older processors may store 4 more), and data processing that writes the PC selects
//! the instruction set by bit 0 of the value.
//!
//! `mov lr, pc` before a branch is how ARMv4 calls through a register. The value is the original one, so the callee
//! returns to the original code behind the branch. That is right if it lies behind the window; inside it is refused as
//! a call into the window.

mod emit;
mod flow;
mod liveness;
mod plan;
mod redirect;
mod scratch;
mod store;
mod sum;
mod window;

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    a32::{INST_LEN, Inst, text},
};

use crate::{
    Culprit,
    sweep::{self, Check},
    window::{MAX_MIN_LEN, Offsets},
};
pub(crate) use plan::{Plan, plan};
pub(crate) use redirect::{
    LENGTHS as REDIRECT_LENGTHS, absolute as redirect_absolute, near as redirect_near,
};
pub(crate) use window::window;

/// As many words as the longest window has.
const MAX_WORDS: usize = MAX_MIN_LEN / INST_LEN;

/// How many words behind the window are looked at for registers that are free.
const SIGHT: usize = 24;

/// A word of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Item {
    Code(Inst),
    /// A constant behind an exit, which a load of the window names.
    Data {
        at: CodeAddr,
        word: u32,
    },
}

impl Item {
    const fn code(&self) -> Option<&Inst> {
        match self {
            Self::Code(inst) => Some(inst),
            Self::Data { .. } => None,
        }
    }

    const fn at(&self) -> CodeAddr {
        match self {
            Self::Code(inst) => inst.addr(),
            Self::Data { at, .. } => *at,
        }
    }

    const fn bytes(&self) -> [u8; INST_LEN] {
        match self {
            Self::Code(inst) => inst.bytes(),
            Self::Data { word, .. } => word.to_le_bytes(),
        }
    }
}

/// The words of a window, and what is known around it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Insts {
    items: ArrayVec<Item, MAX_WORDS>,
    /// The words behind the window.
    ahead: ArrayVec<u32, SIGHT>,
    /// The window is at a function's entry.
    entry: bool,
}

impl Insts {
    fn code(&self) -> impl Iterator<Item = &Inst> {
        self.items.iter().filter_map(Item::code)
    }
}

/// Checks the flow of a function.
pub(crate) const CHECK: Check = sweep::check::<Inst>;

pub(crate) fn offsets(from: CodeAddr, insts: &Insts) -> Offsets {
    insts.code().map(|inst| inst.addr().displacement_from(from) as u16).collect()
}

fn culprit(inst: &Inst) -> Culprit {
    culprit_at(inst.addr(), &inst.bytes())
}

fn culprit_at(at: CodeAddr, bytes: &[u8]) -> Culprit {
    let bytes: ArrayVec<u8, 15> = bytes.iter().copied().take(INST_LEN).collect();
    Culprit { at, text: text(at, &bytes), bytes }
}
