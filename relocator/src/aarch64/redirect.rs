//! Patches at a function's start.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    aarch64::{Field, INST_LEN, Low12, Page21, add_low12, adrp, b, br, ldr_literal},
};

use crate::{
    Error,
    redirect::{Lengths, Redirect},
};

pub(crate) const LENGTHS: Lengths = Lengths { short: 4, near: 4, page: Some(12), absolute: 16 };

/// X17, which veneers may change at any function's entry (AAPCS64, 6.1.1), and which a landing pad for calls accepts
/// in a `br` (DDI 0487, D8.4.7).
pub(crate) const SCRATCH: u8 = 17;

pub(crate) fn near(from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    let word = aligned(from, to).and_then(|displacement| Field::Branch26.set(b(), displacement));
    word.map(|word| bytes(&[word])).ok_or(Error::RedirectOutOfReach { from, to, len: LENGTHS.near })
}

pub(crate) fn page(from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    match aligned(from, to).and_then(|_| Page21::between(from, to)) {
        Some(pages) => Ok(bytes(&[adrp(SCRATCH, pages), add_low12(SCRATCH, Low12::of(to)), br(SCRATCH)])),
        None => Err(Error::RedirectOutOfReach { from, to, len: 3 * INST_LEN }),
    }
}

/// `ldr x17, literal; br x17` and the literal right behind it. It may lie at an odd multiple of 4: only stores and
/// exclusive loads ask for more (DDI 0487, B2.10.1), and nothing writes it while it can be executed.
pub(crate) fn absolute(from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    aligned(from, to).ok_or(Error::RedirectOutOfReach { from, to, len: LENGTHS.absolute })?;
    // The field counts from the load: two instructions.
    let load = ldr_literal(SCRATCH) | 2 << 5;
    Ok(bytes(&[load, br(SCRATCH), to.0 as u32, (to.0 >> 32) as u32]))
}

/// The displacement, if both are places of instructions.
fn aligned(from: CodeAddr, to: CodeAddr) -> Option<i64> {
    let both = (from.0 | to.0).is_multiple_of(INST_LEN as u64);
    both.then(|| to.displacement_from(from))
}

fn bytes(words: &[u32]) -> Redirect {
    words.iter().flat_map(|word| word.to_le_bytes()).collect::<ArrayVec<u8, 16>>()
}
