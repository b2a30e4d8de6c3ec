//! Judges of relocated code.
//!
//! [`decoded`] compares the two codes as text: what was copied is the same instruction, and each RIP-relative operand
//! means the same address. `semantic` runs both. `second` is another decoder's view of the original, and
//! of the code ahead, where registers that were changed must be read by nobody.

pub mod decoded;
#[cfg(feature = "capstone")]
pub mod second;
#[cfg(feature = "unicorn")]
pub mod semantic;
#[cfg(feature = "unicorn")]
mod state;

use grapnel_relocator::{Relocated, Window};

use crate::case::Case;

/// What a judge says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Both do the same.
    Same,
    /// The judge can't tell, and why.
    Unjudged(&'static str),
    /// They differ, and in what.
    Mismatch(String),
}

/// A relocation to be judged.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The case it came from.
    pub case: &'a Case,
    /// Its window.
    pub window: &'a Window,
    /// What came out.
    pub relocated: &'a Relocated,
}

impl Subject<'_> {
    /// The window's instructions, without the padding behind them.
    #[must_use]
    pub fn original(&self) -> &[u8] {
        &self.case.source[..self.window.code_len()]
    }
}
