//! x86-64, System V ABI.
//!
//! The files here are those that any instruction set has: `registers` (the state at the start of a walk), `rule`
//! (what the cache holds for a pc), `compile` (from CFI to a rule), `step` (from a frame to its caller by a rule),
//! `full` (the same by all of CFI), `prefetch` (a hint to the processor).

mod compile;
mod full;
mod prefetch;
mod registers;
mod rule;
mod step;

pub use full::FullState;
pub(crate) use prefetch::prefetch;
pub(crate) use registers::Cursor;
pub use registers::{Registers, Start};
pub(crate) use rule::PackedRule;
pub use rule::{FrameRegister, RuleKind, UnwindRule};
pub(crate) use step::{FramePointer, step, step_by_frame_pointer};
