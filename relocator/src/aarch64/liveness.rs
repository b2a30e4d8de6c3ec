//! Which registers hold nothing at a place.

use grapnel_arch::{CodeAddr, aarch64::Inst};

use super::plan::Base;
use crate::WindowOptions;

/// The registers that hold nothing, place by place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Free {}

impl Free {
    pub(super) fn find(
        _code: &[Inst],
        _from: CodeAddr,
        _len: usize,
        _bytes: &[u8],
        _options: WindowOptions,
    ) -> Self {
        Self {}
    }

    pub(super) fn for_resume(&self) -> Option<u8> {
        Some(17)
    }

    pub(super) fn at_target(&self, _number: usize) -> Option<u8> {
        Some(17)
    }

    pub(super) fn base(&self, _code: &[Inst], _number: usize) -> Base {
        Base::Spilled(17)
    }
}
