//! Relocation of x86-64 code.

mod emit;
mod flow;
mod plan;
mod redirect;
mod window;

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    x86_64::{Inst, text},
};

use crate::{
    Culprit,
    window::{MAX_INSTS, Offsets},
};
pub(crate) use flow::check;
pub(crate) use plan::{Plan, plan};
pub(crate) use redirect::{
    LENGTHS as REDIRECT_LENGTHS, absolute as redirect_absolute, near as redirect_near,
    short as redirect_short,
};
pub(crate) use window::window;

/// The instructions of a window.
pub(crate) type Insts = ArrayVec<Inst, MAX_INSTS>;

pub(crate) fn offsets(from: CodeAddr, insts: &Insts) -> Offsets {
    insts.iter().map(|inst| inst.addr().displacement_from(from) as u16).collect()
}

fn culprit(inst: &Inst) -> Culprit {
    culprit_at(inst.addr(), inst.bytes())
}

fn culprit_at(at: CodeAddr, bytes: &[u8]) -> Culprit {
    Culprit { at, bytes: bytes.iter().copied().take(15).collect::<ArrayVec<u8, 15>>(), text: text(at, bytes) }
}
