//! Patches at a function's start.

use grapnel_arch::{
    CodeAddr,
    x86_64::{Rel8, Rel32, jmp_mem, jmp_rel8, jmp_rel32},
};

use crate::{
    Error,
    redirect::{Lengths, Redirect},
};

pub(crate) const LENGTHS: Lengths = Lengths { short: 2, near: 5, page: None, absolute: 14 };

pub(crate) fn short(from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    match Rel8::between(from.add(2), to) {
        Some(rel) => Ok(jmp_rel8(rel).into_iter().collect()),
        None => Err(Error::RedirectOutOfReach { from, to, len: LENGTHS.short }),
    }
}

pub(crate) fn near(from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    match Rel32::between(from.add(5), to) {
        Some(rel) => Ok(jmp_rel32(rel).into_iter().collect()),
        None => Err(Error::RedirectOutOfReach { from, to, len: LENGTHS.near }),
    }
}

/// `jmp [rip + 0]` with the literal right behind it.
pub(crate) fn absolute(_from: CodeAddr, to: CodeAddr) -> Redirect {
    let here = CodeAddr(0);
    jmp_mem(Rel32::between_wrapping(here, here)).into_iter().chain(to.0.to_le_bytes()).collect()
}
