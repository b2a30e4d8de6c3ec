//! Relocation of x86-64 code.

mod emit;
mod far;
mod flow;
mod liveness;
mod plan;
mod redirect;
mod window;

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    x86_64::{Inst, MAX_INST_LEN, text},
};

use crate::{
    Culprit,
    sweep::{self, Check},
    window::{MAX_INSTS, MAX_MIN_LEN, Offsets},
};
pub(crate) use plan::{Plan, plan};
pub(crate) use redirect::{
    LENGTHS as REDIRECT_LENGTHS, absolute as redirect_absolute, near as redirect_near,
    short as redirect_short,
};
pub(crate) use window::window;

/// How many bytes from the window's start on are kept: the longest window, and 64 bytes of the code ahead.
const CODE_KEPT: usize = MAX_MIN_LEN + MAX_INST_LEN - 1 + 64;

/// The bytes from the window's start on.
type Code = ArrayVec<u8, CODE_KEPT>;

/// The instructions of a window, and what is known of the code around it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Insts {
    list: ArrayVec<Inst, MAX_INSTS>,
    code: Code,
    /// The window is at a function's entry.
    entry: bool,
    shadow_stack: bool,
}

/// Checks the flow of a function.
pub(crate) const CHECK: Check = sweep::check::<Inst>;

pub(crate) fn offsets(from: CodeAddr, insts: &Insts) -> Offsets {
    insts.list.iter().map(|inst| inst.addr().displacement_from(from) as u16).collect()
}

fn culprit(inst: &Inst) -> Culprit {
    culprit_at(inst.addr(), inst.bytes())
}

fn culprit_at(at: CodeAddr, bytes: &[u8]) -> Culprit {
    Culprit { at, bytes: bytes.iter().copied().take(15).collect::<ArrayVec<u8, 15>>(), text: text(at, bytes) }
}
