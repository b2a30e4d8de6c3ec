//! Arm's 32-bit instruction set with instructions of 16 and 32 bits (Thumb).
//!
//! Sources: Arm Architecture Reference Manual for A-profile architecture (DDI 0487), ARMv7-A and R edition (DDI 0406).

mod decode;
mod encode;
mod flow;
mod it;
mod pointer;
mod table;
mod text;

pub use decode::{Exclusive, Inst, decode, decode_within};
pub use encode::{
    Modified, Rel, Rel6, Rel8, Rel11, Rel20, Rel24, Rel24By4, add_modified, add_narrow, add_twice, b_rel8,
    b_rel11, b_rel20, b_rel24, bl_rel24, blx_register, blx_rel24, bx_register, compare_zero, it_of_one,
    ldr_literal, load_byte_at, load_half_at, load_word, nop, orr_modified, pop, pop_pc, push, store_word_sp,
};
pub use flow::{Flow, Unsupported};
pub use it::It;
pub use pointer::{Literal, LiteralField, LiteralForm, PcUse, load_literal, load_through};
pub use table::table_jump;
pub(crate) use text::text_within;
pub use text::{len, text, text_in};

/// The longest instruction in bytes.
pub const MAX_INST_LEN: usize = 4;

/// What the PC reads as, counted from the instruction's address (DDI 0406, A2.3.1).
pub const PC_AHEAD: u64 = 4;
