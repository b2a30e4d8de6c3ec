//! x86-64, System V ABI.
//!
//! The files here are those that any instruction set has: `registers` (the state at the start of a walk), `rule`
//! (what the cache holds for a pc), `compile` (from CFI to a rule), `step` (from a frame to its caller by a rule),
//! `full` (the same by all of CFI).

mod compile;
mod full;
mod registers;
mod rule;
mod step;

pub use full::FullState;
pub(crate) use registers::Cursor;
pub use registers::Registers;
pub use rule::{FrameRegister, RuleKind, UnwindRule};
pub(crate) use step::{step, step_by_frame_pointer};
