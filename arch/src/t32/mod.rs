//! Arm's 32-bit instruction set with instructions of 16 and 32 bits (Thumb).
//!
//! Source: Arm Architecture Reference Manual for A-profile architecture (DDI 0487), ARMv7-A and R edition (DDI 0406).

mod text;

pub(crate) use text::text_within;
pub use text::{len, text};

/// The longest instruction in bytes.
pub const MAX_INST_LEN: usize = 4;
