//! Relocation of AArch64 code.

mod emit;
mod flow;
mod liveness;
mod plan;
mod redirect;
mod window;

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    aarch64::{INST_LEN, Inst, text},
};

use crate::{
    Culprit,
    window::{MAX_MIN_LEN, Offsets},
};
pub(crate) use flow::check;
pub(crate) use plan::{Plan, plan};
pub(crate) use redirect::{
    LENGTHS as REDIRECT_LENGTHS, SCRATCH as REDIRECT_SCRATCH, absolute as redirect_absolute,
    near as redirect_near, page as redirect_page,
};
pub(crate) use window::{Insts, window};

/// As many words as the longest window holds.
const MAX_WORDS: usize = MAX_MIN_LEN / INST_LEN;

pub(crate) fn offsets(from: CodeAddr, insts: &Insts) -> Offsets {
    insts.code.iter().map(|inst| inst.addr().displacement_from(from) as u16).collect()
}

fn culprit(inst: &Inst) -> Culprit {
    culprit_at(inst.addr(), &inst.bytes())
}

fn culprit_at(at: CodeAddr, bytes: &[u8]) -> Culprit {
    let bytes = bytes.iter().copied().take(INST_LEN).collect::<ArrayVec<u8, 15>>();
    Culprit { at, text: text(at, &bytes), bytes }
}
