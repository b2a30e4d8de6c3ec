//! Arm's 64-bit instruction set (A64).
//!
//! Source: Arm Architecture Reference Manual for A-profile architecture (DDI 0487).

mod decode;
mod encode;
mod flow;
mod pointer;
mod registers;
mod table;
mod text;

pub use decode::{Copying, Exclusive, Inst, decode};
pub use encode::{
    Field, Low12, NOP, Page21, Rel21, add_low12, adr, adrp, b, bl, blr, br, inverted, ldr_literal,
    load_through, pop, push,
};
pub use flow::{Flow, Unsupported};
pub use pointer::{Literal, PcOperand, PcUse};
pub use registers::{Effects, RegisterMask};
pub use table::{added, address, table_jump};
pub use text::text;

/// The length of every instruction in bytes.
pub const INST_LEN: usize = 4;

/// The number that means the zero register or the stack pointer, depending on the instruction.
pub const ZERO_OR_SP: u8 = 31;

/// The link register, X30.
pub const LINK: u8 = 30;
