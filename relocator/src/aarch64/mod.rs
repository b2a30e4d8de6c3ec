//! Relocation of AArch64 code.
//!
//! What an instruction computes from its address is computed in its own destination register where it has one: ADRP, or
//! a literal beyond 4 GiB. Only far jumps, and far literals of vectors, need a register of their own, which `liveness`
//! finds. A far jump can't keep a register on the stack meanwhile: only `br` goes that far, and the code that it goes to is
//! the original's, which would not load the register again.
//!
//! What is found rests on the AAPCS64 where a call, a return or an entry is passed. Code with a convention of its own is
//! told by what it does with X0 to X17; a function that is so short that it does nothing with them is not. The one known
//! is the resolver of TLS descriptors that returns a constant (`ldr x0, [x0, #8]; ret`), whose callers keep values in
//! X16 and X17.
//!
//! Neither guarded pages (BTI) nor a guarded control stack (GCS) are told apart: every BL and BLR stays a call, every
//! RET a return, and what is reached by BR instead of B is listed as a landing pad. BL to the next instruction becomes
//! an address in X30, and pushes nothing.

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
    sweep::{self, Check},
    window::{MAX_MIN_LEN, Offsets},
};
pub(crate) use plan::{Plan, plan};
pub(crate) use redirect::{
    LENGTHS as REDIRECT_LENGTHS, SCRATCH as REDIRECT_SCRATCH, absolute as redirect_absolute,
    near as redirect_near, page as redirect_page,
};
pub(crate) use window::{Insts, window};

/// As many words as the longest window holds.
const MAX_WORDS: usize = MAX_MIN_LEN / INST_LEN;

/// Checks the flow of a function.
pub(crate) const CHECK: Check = sweep::check::<Inst>;

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
