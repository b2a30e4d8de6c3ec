//! Patches at a function's start.

use grapnel_arch::{
    CodeAddr, Isa,
    a32::{
        Cond, INST_LEN, PC,
        encode::{Branch24, b},
        field,
    },
};

use crate::{
    Error,
    redirect::{Lengths, Redirect},
};

pub(crate) const LENGTHS: Lengths = Lengths { short: 4, near: 4, page: None, absolute: 8 };

pub(crate) fn near(from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    match Branch24::between(from, to).filter(|_| is_code(from) && is_code(to)) {
        Some(displacement) => Ok(b(Cond::ALWAYS, displacement).to_le_bytes().into_iter().collect()),
        None => Err(Error::RedirectOutOfReach { from, to, len: LENGTHS.near }),
    }
}

/// `ldr pc, [pc, #-4]` with the literal right behind it. The target is A32 code, so bit 0 of the literal is clear.
pub(crate) fn absolute(from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    if !is_code(to) || !is_code(from) {
        return Err(Error::RedirectOutOfReach { from, to, len: LENGTHS.absolute });
    }
    let load = field(0xe51f_0004, 12, PC);
    Ok(load.to_le_bytes().into_iter().chain((to.0 as u32).to_le_bytes()).collect())
}

fn is_code(addr: CodeAddr) -> bool {
    can_be_at(addr, INST_LEN).is_ok()
}

/// A32 code of this length can be at this address: an aligned one, and all of it below 4 GiB.
pub(super) fn can_be_at(at: CodeAddr, len: usize) -> Result<(), Error> {
    if !at.0.is_multiple_of(INST_LEN as u64) {
        return Err(Error::Misaligned { at, align: INST_LEN as u64 });
    }
    let below = (1_u64 << 32).checked_sub(len as u64).is_some_and(|last| at.0 <= last);
    if below { Ok(()) } else { Err(Error::BeyondAddressSpace { at, isa: Isa::A32 }) }
}
