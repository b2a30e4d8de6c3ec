//! Whether anything in a function branches back into the window.
//!
//! A patch overwrites the window. A branch from the rest of the function to the middle of it would land in the patch,
//! and a read of it, where code and constants are mixed, would see the patch.

use core::ops::Range;

use grapnel_arch::{CodeAddr, Isa};

use crate::{
    Culprit, a32, aarch64,
    sweep::{Check, Scope},
    t32, x86_64,
};

/// What is known of the branches into a window.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// Every instruction of the function was seen, and none leads into the window.
    Proven,
    /// No branch into the window was seen, and the reason says what could not be seen.
    Assumed(Reason),
    /// This branch, or the instruction at this entry, leads into the window; or this instruction reads the window's bytes
    /// or takes the address of one inside it.
    Refused(Culprit),
}

/// Why a verdict is an assumption.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// An indirect jump may go anywhere: it is a jump table whose entries aren't known, or a tail call.
    IndirectJump(Culprit),
    /// A branch goes to the window's start, where the patch is: at a function's entry, a loop over the whole function. It
    /// works, but each turn of it passes through the hook as if it were a call.
    LoopsToStart(Culprit),
    /// Code that no direct branch leads to begins at this address: a landing pad, or an entry of a jump table.
    Unreached(CodeAddr),
    /// The bytes at this address are no instruction, or run out of the function. Or they are data in a function where data
    /// shows so slowly, one piece at a time, that the search was given up.
    Undecodable(CodeAddr),
}

/// Reads the memory at an address into a buffer, all of it, or answers `false`.
pub type Read<'a> = dyn Fn(CodeAddr, &mut [u8]) -> bool + 'a;

/// What is known around a function beyond its bytes.
#[derive(Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// Places in the function that are entered from elsewhere, such as landing pads of exceptions.
    pub entries: &'a [CodeAddr],
    /// For jump tables.
    pub read: Option<&'a Read<'a>>,
}

/// [`check_with`] nothing but the function's own bytes.
#[must_use]
pub fn check(isa: Isa, function_bytes: &[u8], from: CodeAddr, window_len: usize) -> Verdict {
    check_with(isa, function_bytes, from, window_len, &Surroundings::default())
}

/// Decodes the function at `from`, whose bytes are all of `function_bytes`, for branches into its first `window_len`
/// bytes. These are the bytes that a patch overwrites: an instruction that begins behind them stays what it was, also
/// where the window is longer than the patch.
///
/// Jump tables of the form that compilers write are followed where they can be read. Time and memory grow with the
/// function's length, whatever it consists of.
#[must_use]
pub fn check_with(
    isa: Isa,
    function_bytes: &[u8],
    from: CodeAddr,
    window_len: usize,
    around: &Surroundings<'_>,
) -> Verdict {
    check_inside(isa, function_bytes, from, 0..window_len, around)
}

/// The same for a window in the middle of the function at `from`: `window` is its offsets.
///
/// A branch to the window's start is told as [`Reason::LoopsToStart`]: it goes through the patch, as everything does that
/// comes to this place. An instruction that begins before the window and runs into it is refused like a branch, and so is
/// an IT instruction (T32) whose block does.
#[must_use]
pub fn check_inside(
    isa: Isa,
    function_bytes: &[u8],
    from: CodeAddr,
    window: Range<usize>,
    around: &Surroundings<'_>,
) -> Verdict {
    check_of(isa)(function_bytes, from, window, Scope::Function, around)
}

/// What leads into a window of a function whose extent isn't known: a branch, or a read of it, among the code that jumps
/// reach from the window's start. `bytes` are those at `from`, as many as are to be looked at, before the window and behind
/// it; `window` is its offsets in them.
///
/// What is called is not followed, nor what lies beyond the bytes, and where an indirect jump leads only if a table says so.
/// So `None` proves nothing.
#[must_use]
pub fn reached_inside(isa: Isa, bytes: &[u8], from: CodeAddr, window: Range<usize>) -> Option<Culprit> {
    match check_of(isa)(bytes, from, window, Scope::Reached, &Surroundings::default()) {
        Verdict::Refused(culprit) => Some(culprit),
        Verdict::Proven | Verdict::Assumed(_) => None,
    }
}

fn check_of(isa: Isa) -> Check {
    match isa {
        Isa::X86_64 => x86_64::CHECK,
        Isa::Aarch64 => aarch64::CHECK,
        Isa::A32 => a32::CHECK,
        Isa::T32 => t32::CHECK,
    }
}
