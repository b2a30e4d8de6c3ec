//! Windows of Arm's instruction sets.

use arbitrary::{Result, Unstructured};
use grapnel_relocator::{CodeAddr, Isa, WindowOptions};

use crate::case::Case;

pub(super) fn case(isa: Isa, entropy: &mut Unstructured<'_>) -> Result<Case> {
    let source = entropy.bytes(64)?.to_vec();
    let (from, to) = (CodeAddr(0x1000_0000), CodeAddr(0x1010_0000));
    Ok(Case { about: Vec::new(), isa, from, to, min_len: 4, options: WindowOptions::default(), source })
}
