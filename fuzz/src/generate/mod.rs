//! Windows made up from bytes of entropy, a folder of choices per instruction set.

mod arm;
mod x86_64;

use arbitrary::{Result, Unstructured};
use grapnel_relocator::Isa;

use crate::case::Case;

/// How many bytes of entropy a case takes at most.
pub const ENTROPY: usize = 512;

/// A window of instructions that are valid for the most part and use the program counter more often than programs do,
/// with a destination near or far.
///
/// # Errors
///
/// If the entropy runs out in the middle of a choice.
pub fn case(isa: Isa, entropy: &mut Unstructured<'_>) -> Result<Case> {
    match isa {
        Isa::X86_64 => x86_64::case(entropy),
        Isa::Aarch64 | Isa::A32 | Isa::T32 => arm::case(isa, entropy),
    }
}
