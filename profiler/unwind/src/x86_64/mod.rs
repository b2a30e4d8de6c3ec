//! x86-64, System V ABI.
//!
//! The files here are those that any instruction set has: `registers` (the state at the start of a walk), `rule`
//! (what the cache holds for a pc), `compile` (from CFI to a rule), `step` (from a frame to its caller by a rule),
//! `full` (the same by all of CFI), `signal` (the kernel's frames), `call` (what a return address lies behind), `prefetch` (a hint to the processor).

mod call;
mod compile;
mod full;
#[cfg(target_arch = "x86_64")]
mod prefetch;
mod registers;
mod rule;
mod signal;
mod step;

pub(crate) use crate::frame_pointer::FramePointer;
pub(crate) use crate::itanium::{INSTRUCTION_POINTER, InstructionPointer, instruction_pointer};
pub(crate) use compile::{quick_rule, rule};
pub use full::FullState;
pub(crate) use full::full_step;
#[cfg(target_arch = "x86_64")]
pub(crate) use prefetch::prefetch;
pub use registers::Registers;
pub(crate) use rule::PackedRule;
pub use rule::{FrameRegister, RuleKind, UnwindRule};
pub(crate) use step::{is_data, step, step_by_guess};

/// Whether the rule at an instruction that a signal stopped is that of its frame. Fast ones have the return address on the stack, where it is from the
/// function's first instruction on.
pub(crate) const STOPPED_HAVE_RULES: bool = true;

/// The address of an instruction, as a frame has it.
#[inline(always)]
pub(crate) fn plain(pc: u64) -> u64 {
    pc
}
