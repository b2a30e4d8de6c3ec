//! Relocation of A32 code.

use arrayvec::ArrayVec;
use grapnel_arch::CodeAddr;

use crate::{
    Culprit, Error, Reach, Relocated, Window, WindowOptions,
    flow::{Reason, Surroundings, Verdict},
    redirect::{Lengths, Redirect},
    window::Offsets,
};

/// The instructions of a window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Insts(core::convert::Infallible);

pub(crate) fn offsets(_from: CodeAddr, insts: &Insts) -> Offsets {
    match insts.0 {}
}

pub(crate) fn window(
    from: CodeAddr,
    bytes: &[u8],
    _min_len: usize,
    _options: WindowOptions,
) -> Result<Window, Error> {
    let culprit = Culprit {
        at: from,
        bytes: bytes.iter().copied().take(4).collect::<ArrayVec<u8, 15>>(),
        text: grapnel_arch::a32::text(from, bytes),
    };
    Err(Error::Undefined { culprit })
}

pub(crate) fn plan(_window: &Window, insts: &Insts) -> Result<Plan, Error> {
    match insts.0 {}
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan(core::convert::Infallible);

impl Plan {
    pub(crate) fn max_len(&self) -> usize {
        match self.0 {}
    }
    pub(crate) fn reach(&self) -> Reach {
        match self.0 {}
    }
    pub(crate) fn required_reach(&self) -> Reach {
        match self.0 {}
    }
    pub(crate) fn resumes(&self) -> bool {
        match self.0 {}
    }
    pub(crate) fn calls(&self) -> Offsets {
        match self.0 {}
    }
    pub(crate) fn emit(&self, _to: CodeAddr) -> Result<Relocated, Error> {
        match self.0 {}
    }
}

pub(crate) const REDIRECT_LENGTHS: Lengths = Lengths { short: 4, near: 4, page: None, absolute: 8 };

pub(crate) fn redirect_near(from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    Err(Error::RedirectOutOfReach { from, to, len: 0 })
}
pub(crate) fn redirect_absolute(from: CodeAddr, to: CodeAddr) -> Result<Redirect, Error> {
    Err(Error::RedirectOutOfReach { from, to, len: 0 })
}

pub(crate) fn check(
    _bytes: &[u8],
    from: CodeAddr,
    _window_len: usize,
    _around: &Surroundings<'_>,
) -> Verdict {
    Verdict::Assumed(Reason::Undecodable(from))
}
