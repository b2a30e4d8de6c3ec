//! The patches that send execution from a function to its hook.
//!
//! Those of T32 stay in T32 state: where they go must be T32 code. Its address is given without bit 0.
//!
//! An address at which no instruction can be, for want of alignment, is out of every redirect's reach.

use arrayvec::ArrayVec;
use grapnel_arch::{CodeAddr, Isa};

use crate::{Error, Registers, a32, aarch64, t32, x86_64};

/// A redirect's bytes.
pub type Redirect = ArrayVec<u8, 16>;

/// The lengths of an instruction set's redirects, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lengths {
    /// Of [`short`].
    pub short: usize,
    /// Of [`near`].
    pub near: usize,
    /// Of [`page`], where there is one.
    pub page: Option<usize>,
    /// Of [`absolute`], at any alignment of its address.
    pub absolute: usize,
}

/// The registers that an instruction set's redirects change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// By [`short`].
    pub short: Registers,
    /// By [`near`].
    pub near: Registers,
    /// By [`page`].
    pub page: Registers,
    /// By [`absolute`].
    pub absolute: Registers,
}

/// Which registers each redirect changes.
#[must_use]
pub const fn costs(isa: Isa) -> Costs {
    let none = Registers::none(isa);
    match isa {
        Isa::X86_64 | Isa::A32 | Isa::T32 => Costs { short: none, near: none, page: none, absolute: none },
        Isa::Aarch64 => {
            let scratch = Registers::one(isa, aarch64::REDIRECT_SCRATCH);
            Costs { short: none, near: none, page: scratch, absolute: scratch }
        }
    }
}

/// How long each redirect is.
#[must_use]
pub const fn lengths(isa: Isa) -> Lengths {
    match isa {
        Isa::X86_64 => x86_64::REDIRECT_LENGTHS,
        Isa::Aarch64 => aarch64::REDIRECT_LENGTHS,
        Isa::A32 => a32::REDIRECT_LENGTHS,
        Isa::T32 => t32::REDIRECT_LENGTHS,
    }
}

/// The shortest redirect, for an island or padding nearby: `jmp rel8` on x86-64, the narrow `b` on T32. AArch64 and A32
/// have none below [`near`], and it is the same there.
///
/// # Errors
///
/// If `to` is out of its reach.
pub fn short(isa: Isa, from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    match isa {
        Isa::X86_64 => x86_64::redirect_short(from, to),
        Isa::Aarch64 => aarch64::redirect_near(from, to),
        Isa::A32 => a32::redirect_near(from, to),
        Isa::T32 => t32::redirect_short(from, to),
    }
}

/// The ordinary redirect: `jmp rel32` on x86-64, `b` on AArch64 and A32, the wide `b` on T32.
///
/// # Errors
///
/// If `to` is out of its reach.
pub fn near(isa: Isa, from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    match isa {
        Isa::X86_64 => x86_64::redirect_near(from, to),
        Isa::Aarch64 => aarch64::redirect_near(from, to),
        Isa::A32 => a32::redirect_near(from, to),
        Isa::T32 => t32::redirect_near(from, to),
    }
}

/// The redirect that reaches 4 GiB either way without a literal: `adrp`, `add` and `br` on AArch64.
///
/// Under BTI `to` must begin with a landing pad.
///
/// # Errors
///
/// If `to` is out of its reach, or the instruction set has none.
pub fn page(isa: Isa, from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    match isa {
        Isa::Aarch64 => aarch64::redirect_page(from, to),
        Isa::X86_64 | Isa::A32 | Isa::T32 => Err(Error::NoSuchRedirect { from, isa }),
    }
}

/// The redirect that reaches everything: `jmp [rip]` and its literal on x86-64, `ldr` and `br` with a literal on AArch64,
/// `ldr pc` with a literal on A32 and T32. The literal is at a multiple of its size where the instruction asks for that.
///
/// Under IBT and BTI `to` must begin with a landing pad.
///
/// # Errors
///
/// If an instruction can't be at `from` or `to`; on A32 and T32, that is so beyond 4 GiB.
pub fn absolute(isa: Isa, from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    match isa {
        Isa::X86_64 => Ok(x86_64::redirect_absolute(from, to)),
        Isa::Aarch64 => aarch64::redirect_absolute(from, to),
        Isa::A32 => a32::redirect_absolute(from, to),
        Isa::T32 => t32::redirect_absolute(from, to),
    }
}
