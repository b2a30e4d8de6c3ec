//! 32-bit Arm, A32 and T32 code alike, EHABI.
//!
//! The files are those of [`x86_64`](crate::x86_64) and, since unwind information isn't CFI here, `table` (the entry for
//! a pc in `.ARM.exidx` and `.ARM.extab`), `opcode` (what its bytes mean), `frame_pointers` (there are two) and `signal`. For
//! code without such information `code` reads what its instructions do (`a32`, `t32`, `effect`), ahead (`way_out`) or before
//! (`prologue`), to a `layout`.
//!
//! In a walk bit 0 of a pc says that the code there is T32; frames have addresses without it.

mod a32;
mod code;
mod compile;
mod context;
mod effect;
mod frame_pointers;
mod full;
mod layout;
mod opcode;
#[cfg(target_arch = "arm")]
mod prefetch;
mod prologue;
mod registers;
mod rule;
mod signal;
mod step;
mod t32;
mod table;
#[cfg(test)]
mod tests;
mod way_out;

pub(crate) use compile::{quick_rule, rule};
pub(crate) use context::{INSTRUCTION_POINTER, InstructionPointer, instruction_pointer};
pub(crate) use frame_pointers::FramePointer;
pub use full::FullState;
pub(crate) use full::full_step;
#[cfg(target_arch = "arm")]
pub(crate) use prefetch::prefetch;
pub use registers::Registers;
pub(crate) use rule::PackedRule;
pub use rule::{RuleKind, UnwindRule};
pub(crate) use step::{is_data, step, step_by_guess};

/// No rule is one of a signal's frame, and none is asked for of what it stopped.
pub(crate) const STOPPED_HAVE_RULES: bool = false;

/// The address of an instruction, as a frame has it.
#[inline(always)]
pub(crate) fn plain(pc: u64) -> u64 {
    pc & !1
}
