//! Windows made up from bytes of entropy, a file or folder of choices per instruction set.

mod a32;
mod aarch64;
mod place;
mod t32;
mod x86_64;

use arbitrary::{Result, Unstructured};
use grapnel_relocator::Isa;

use crate::case::Case;

/// How many bytes of entropy a case takes at most.
pub const ENTROPY: usize = 768;

/// A window of instructions that are valid for the most part and use the program counter more often than programs do,
/// with a destination near or far.
///
/// # Errors
///
/// If the entropy runs out in the middle of a choice.
pub fn case(isa: Isa, entropy: &mut Unstructured<'_>) -> Result<Case> {
    match isa {
        Isa::X86_64 => x86_64::case(entropy),
        Isa::Aarch64 => aarch64::case(entropy),
        Isa::A32 => a32::case(entropy),
        Isa::T32 => t32::case(entropy),
    }
}
