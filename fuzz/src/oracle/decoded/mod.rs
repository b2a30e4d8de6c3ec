//! Compares the decoded instructions, without running any.
//!
//! It needs no emulator, so it also judges what an emulator does not know.

mod a32;
mod aarch64;
mod ahead;
mod events;
mod t32;
mod walk;
mod x86_64;

use grapnel_relocator::{CodeAddr, Isa};

use super::{Subject, Verdict};

/// A register that relocated code has changed, and the original has not, where this goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    /// Its number in instructions.
    pub register: u8,
    /// A place of the original; nothing if only its registers tell.
    pub at: Option<CodeAddr>,
}

/// The registers that are changed, way by way. x86-64 is judged in [`judge`], and T32 changes none.
#[must_use]
pub fn changed(subject: &Subject<'_>) -> Vec<Changed> {
    match subject.case.isa {
        Isa::X86_64 | Isa::T32 => Vec::new(),
        Isa::Aarch64 => aarch64::changed(subject),
        Isa::A32 => a32::changed(subject),
    }
}

/// What was copied is the same instruction, an operand relative to the PC means the same address, and every branch
/// out of the window has its target somewhere in the code.
#[must_use]
pub fn judge(subject: &Subject<'_>) -> Verdict {
    // What follows the window is then the relocated code.
    let next = subject.case.from.add(subject.window.len() as u64);
    let covers = next.offset_within(subject.case.to, subject.relocated.bytes().len() as u64).is_some();
    if covers && subject.relocated.resumes() && subject.case.isa != Isa::X86_64 {
        return Verdict::Unjudged(walk::COVERED);
    }
    match subject.case.isa {
        Isa::X86_64 => x86_64::judge(subject),
        Isa::Aarch64 => aarch64::judge(subject),
        Isa::A32 => a32::judge(subject),
        Isa::T32 => t32::judge(subject),
    }
}
