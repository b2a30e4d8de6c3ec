//! The control flow of one function.
use crate::flow::{Reason, Surroundings, Verdict};
use grapnel_arch::CodeAddr;
pub(crate) fn check(
    _bytes: &[u8],
    from: CodeAddr,
    _window_len: usize,
    _around: &Surroundings<'_>,
) -> Verdict {
    Verdict::Assumed(Reason::Undecodable(from))
}
