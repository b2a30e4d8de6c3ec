//! Relocation of T32 code.

mod emit;
mod flow;
mod plan;
mod redirect;
mod window;

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    t32::{Inst, It, text_in},
};

use crate::{
    Culprit,
    sweep::{self, Check},
    window::{MAX_MIN_LEN, Offsets},
};
pub(crate) use plan::{Plan, plan};
pub(crate) use redirect::{
    LENGTHS as REDIRECT_LENGTHS, absolute as redirect_absolute, near as redirect_near,
    short as redirect_short,
};
pub(crate) use window::window;

/// A window can outgrow what was asked for by an IT block of four 32-bit members and a literal.
const MAX_WINDOW: usize = MAX_MIN_LEN + 32;

/// As many instructions as that holds: the last one asked for may be an IT, whose members are added.
const MAX_INSTS: usize = MAX_MIN_LEN / 2 + 4;

/// How many bytes behind the window are looked at.
const SIGHT: usize = 96;

/// What a window holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Insts {
    /// The instructions, without what lies between them.
    code: ArrayVec<Inst, MAX_INSTS>,
    /// All bytes: literals of the window's own loads are among them.
    bytes: ArrayVec<u8, MAX_WINDOW>,
    /// What follows in the function.
    ahead: ArrayVec<u8, SIGHT>,
}

/// Checks the flow of a function.
pub(crate) const CHECK: Check = sweep::check::<Inst>;

pub(crate) fn offsets(from: CodeAddr, insts: &Insts) -> Offsets {
    insts.code.iter().map(|inst| inst.addr().displacement_from(from) as u16).collect()
}

fn culprit(inst: &Inst) -> Culprit {
    culprit_at(inst.addr(), inst.bytes(), inst.it())
}

fn culprit_at(at: CodeAddr, bytes: &[u8], it: It) -> Culprit {
    let len = match bytes {
        &[low, high, ..] => grapnel_arch::t32::len(u16::from_le_bytes([low, high])),
        _ => 1,
    };
    let bytes: ArrayVec<u8, 15> = bytes.iter().copied().take(len).collect();
    let text = text_in(at, &bytes, it);
    Culprit { at, bytes, text }
}
