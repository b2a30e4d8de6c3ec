//! Arm's 64-bit instruction set (A64).
//!
//! Source: Arm Architecture Reference Manual for A-profile architecture (DDI 0487).

mod text;

pub use text::text;

/// The length of every instruction in bytes.
pub const INST_LEN: usize = 4;
