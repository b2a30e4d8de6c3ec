//! The patches that send execution from a function to its hook.

use arrayvec::ArrayVec;
use grapnel_arch::{CodeAddr, Isa};

use crate::{Error, x86_64};

/// A redirect's bytes.
pub type Redirect = ArrayVec<u8, 16>;

/// The lengths of an instruction set's redirects, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lengths {
    /// Of [`short`].
    pub short: usize,
    /// Of [`near`].
    pub near: usize,
    /// Of [`absolute`].
    pub absolute: usize,
}

/// How long each redirect is.
#[must_use]
pub const fn lengths(isa: Isa) -> Lengths {
    match isa {
        Isa::X86_64 => x86_64::REDIRECT_LENGTHS,
    }
}

/// The shortest redirect: on x86-64 `jmp rel8`, for an island or padding nearby.
///
/// # Errors
///
/// If `to` is out of its reach.
pub fn short(isa: Isa, from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    match isa {
        Isa::X86_64 => x86_64::redirect_short(from, to),
    }
}

/// The ordinary redirect: on x86-64 `jmp rel32`.
///
/// # Errors
///
/// If `to` is out of its reach.
pub fn near(isa: Isa, from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    match isa {
        Isa::X86_64 => x86_64::redirect_near(from, to),
    }
}

/// The redirect that reaches everything: on x86-64 `jmp [rip]` and its literal, which costs no register.
///
/// Under indirect branch tracking `to` must begin with a landing pad.
///
/// # Errors
///
/// None on x86-64.
pub fn absolute(isa: Isa, from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    match isa {
        Isa::X86_64 => Ok(x86_64::redirect_absolute(from, to)),
    }
}
