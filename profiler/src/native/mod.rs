//! What depends on the instruction set: whose programs can be started, and the processor's clock.
//!
//! What attaching takes lies with it, in [`attach`](crate::attach).
//!
//! # Safety
//! Registers are read that every processor of the machine has.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "arm")]
mod arm;
#[cfg(target_arch = "x86_64")]
mod x86_64;

// The one place where an instruction set is chosen.
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{Header, MACHINE, NAME, guessed_ns_per_tick, ticks};
#[cfg(target_arch = "arm")]
pub(crate) use arm::{Header, MACHINE, NAME, guessed_ns_per_tick, ticks};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{Header, MACHINE, NAME, guessed_ns_per_tick, ticks};
