//! An instruction set that is not built in: everything is refused.

use core::convert::Infallible;

use grapnel_arch::CodeAddr;

use crate::{
    Error, Reach, Relocated, Window, WindowOptions,
    flow::{Reason, Verdict},
    redirect::{Lengths, Redirect},
    sweep::Check,
    window::Offsets,
};

/// The instructions of a window, of which there is none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Insts(Infallible);

pub(crate) fn offsets(_from: CodeAddr, insts: &Insts) -> Offsets {
    match insts.0 {}
}

pub(crate) fn window(
    from: CodeAddr,
    _bytes: &[u8],
    _min_len: usize,
    _options: WindowOptions,
) -> Result<Window, Error> {
    Err(Error::NotBuilt { at: from })
}

pub(crate) fn plan(_window: &Window, insts: &Insts) -> Result<Plan, Error> {
    match insts.0 {}
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan(Infallible);

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

    pub(crate) fn returns_past(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn emit(&self, _to: CodeAddr) -> Result<Relocated, Error> {
        match self.0 {}
    }
}

/// There is no redirect, so none has a length.
pub(crate) const REDIRECT_LENGTHS: Lengths = Lengths { short: 0, near: 0, page: None, absolute: 0 };

/// What redirects would cost.
pub(crate) const REDIRECT_SCRATCH: u8 = 17;

pub(crate) fn redirect(from: CodeAddr, _to: CodeAddr) -> Result<Redirect, Error> {
    Err(Error::NotBuilt { at: from })
}

pub(crate) use redirect as redirect_short;
pub(crate) use redirect as redirect_near;
pub(crate) use redirect as redirect_page;
pub(crate) use redirect as redirect_absolute;

/// What can't be decoded is assumed.
pub(crate) const CHECK: Check = |_, from, _, _, _| Verdict::Assumed(Reason::Undecodable(from));
