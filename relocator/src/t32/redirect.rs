//! Patches at a function's start. They stay in T32 state: where they go must be T32 code.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr,
    t32::{Rel11, Rel24, b_rel11, b_rel24, ldr_literal, nop},
};

use super::window::can_be_at;
use crate::{
    Error,
    redirect::{Lengths, Redirect},
};

pub(crate) const LENGTHS: Lengths = Lengths { short: 2, near: 4, page: None, absolute: 10 };

const PC: u8 = 15;

pub(crate) fn short(from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    let rel = reachable(from, to).then(|| Rel11::between(from, to)).flatten();
    rel.map(|rel| bytes(&b_rel11(rel))).ok_or(Error::RedirectOutOfReach { from, to, len: LENGTHS.short })
}

pub(crate) fn near(from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    let rel = reachable(from, to).then(|| Rel24::between(from, to)).flatten();
    rel.map(|rel| bytes(&b_rel24(rel))).ok_or(Error::RedirectOutOfReach { from, to, len: LENGTHS.near })
}

/// `ldr.w pc, [pc]` with the literal right behind it. The literal must be at a multiple of 4, so a `nop` comes first
/// where `from` is none. It changes no register.
pub(crate) fn absolute(from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    if !reachable(from, to) {
        return Err(Error::RedirectOutOfReach { from, to, len: LENGTHS.absolute });
    }
    let mut code = ArrayVec::<u16, 5>::new();
    if !from.0.is_multiple_of(4) {
        code.extend(nop());
    }
    code.extend(ldr_literal(PC, 0));
    let literal = to.0 as u32 | 1;
    code.extend([literal as u16, (literal >> 16) as u16]);
    Ok(bytes(&code))
}

/// T32 code can be at both.
fn reachable(from: CodeAddr, to: CodeAddr) -> bool {
    can_be_at(from, LENGTHS.short).is_ok() && can_be_at(to, LENGTHS.short).is_ok()
}

fn bytes(code: &[u16]) -> Redirect {
    code.iter().flat_map(|halfword| halfword.to_le_bytes()).collect()
}
