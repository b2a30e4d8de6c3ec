//! Arm's 32-bit instruction set with instructions of 32 bits.
//!
//! Source: Arm Architecture Reference Manual for A-profile architecture (DDI 0487), ARMv7-A and R edition (DDI 0406).

mod cond;
mod text;

pub use cond::Cond;
pub use text::text;

/// The length of every instruction in bytes.
pub const INST_LEN: usize = 4;
