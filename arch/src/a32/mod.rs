//! Arm's 32-bit instruction set with instructions of 32 bits.
//!
//! Source: Arm Architecture Reference Manual for A-profile architecture (DDI 0487), ARMv7-A and R edition (DDI 0406).

mod cond;
mod decode;
pub mod encode;
mod flow;
mod form;
mod pointer;
mod registers;
mod table;
mod text;

pub use cond::Cond;
pub use decode::{Exclusive, Inst, decode};
pub use flow::{Flow, Unsupported};
pub use form::{Form, Opcode};
pub use pointer::{Address, Literal, PcReads, field, modified_immediate, pc};
pub use registers::{LR, PC, SP, Uses};
pub use table::{literal_through_register, table_jump};
pub use text::text;

/// The length of every instruction in bytes.
pub const INST_LEN: usize = 4;
