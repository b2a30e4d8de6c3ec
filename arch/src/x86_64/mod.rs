//! x86 in 64-bit mode.
//!
//! Sources: Intel 64 and IA-32 Architectures Software Developer's Manual volume 2 (SDM), AMD64 Architecture
//! Programmer's Manual volume 3 (APM).

mod decode;
mod effects;
mod encode;
mod flow;
mod general;
#[cfg(test)]
mod opcodes;
mod pointer;
mod quick;
mod table;
mod text;

pub use decode::{Inst, Prefixes, RipOperand, decode};
pub use effects::{Effects, Mask, RSP, effects};
pub use encode::{
    Cond, Rel8, Rel32, call_mem, call_rel32, jcc_rel8, jcc_rel32, jmp_mem, jmp_rel8, jmp_rel32,
    lea_rsp_disp8, lea_rsp_disp32, pop, pop_rsp_disp32, push, push_rsp_disp32, store_at_rsp,
};
pub use flow::{Counter, Flow, Unsupported};
pub use general::{is_general, stores_by_stack_pointer};
pub use pointer::{Bases, Pointer, StackUse, THROUGH_GROWS, mov_imm32, mov_imm64, through};
pub use table::table_jump;
pub use text::text;

/// The longest instruction in bytes (SDM 2.3.11).
pub const MAX_INST_LEN: usize = 15;
