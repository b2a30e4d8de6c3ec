//! AArch64, AAPCS64.
//!
//! The files are those of [`x86_64`](crate::x86_64), and `signal`: the kernel's signal frame, whose trampoline has no
//! CFI in most kernels.
//!
//! Return addresses may be signed (FEAT_PAuth): the signature lies in bits that no address of a program has, and is cut
//! off whether CFI says that there is one (`DW_CFA_AARCH64_negate_ra_state`) or not.

mod call;
mod compile;
mod full;
#[cfg(target_arch = "aarch64")]
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
#[cfg(target_arch = "aarch64")]
pub(crate) use prefetch::prefetch;
pub use registers::Registers;
pub(crate) use rule::PackedRule;
pub use rule::{FrameRegister, RuleKind, UnwindRule};
pub(crate) use step::{is_data, step, step_by_guess};

/// Whether the rule at an instruction that a signal stopped is that of its frame: where the return address is in its register, it isn't.
pub(crate) const STOPPED_HAVE_RULES: bool = false;

/// The address of an instruction, as a frame has it.
#[inline(always)]
pub(crate) fn plain(pc: u64) -> u64 {
    pc
}
