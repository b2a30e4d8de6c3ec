//! Inline hooks and trampolines for live code.
//!
//! ```text
//! bytes --decode--> Window --plan--> RelocationPlan --arena (reach, size)--> slot --emit--> trampoline --commit--> patched function
//! ```
//!
//! A [`Transaction`] collects what is to be hooked. [`Transaction::prepare`] does everything that can fail, without
//! changing a byte of live code: the windows are decoded and checked, the trampolines written. Every
//! [`original`](Prepared::original) is known then. [`Prepared::commit`] patches, and gives a [`Hook`] for each function.
//!
//! ```
//! use grapnel_hook::{Liveness, Transaction};
//!
//! extern "C" fn answer() -> i32 {
//!     core::hint::black_box(41)
//! }
//! extern "C" fn better() -> i32 {
//!     42
//! }
//! let answer: extern "C" fn() -> i32 = core::hint::black_box(answer);
//!
//! let mut transaction = Transaction::new();
//! let id = transaction.replace(answer as *const (), better as *const ());
//! let prepared = transaction.prepare();
//! // Known before the first call can reach the replacement, so that it can be published to it.
//! let original = prepared.original(id)?;
//! // SAFETY: one thread runs, and both functions have one type.
//! let mut hook = unsafe { prepared.commit(Liveness::SingleThreaded) }.remove(0)?;
//! assert_eq!(answer(), 42);
//! // SAFETY: the original has the type of the function.
//! let original: extern "C" fn() -> i32 = unsafe { core::mem::transmute(original) };
//! assert_eq!(original(), 41);
//! // SAFETY: one thread runs.
//! unsafe { hook.remove(Liveness::SingleThreaded) }?;
//! assert_eq!(answer(), 41);
//! # Ok::<(), grapnel_hook::Error>(())
//! ```
//!
//! # What is not here yet
//! Listeners, probes, several hooks on one function in a defined order, GOT hooks, hooks that wait for a library,
//! unwind entries and names for trampolines, and giving trampolines back. Functions are found through the dynamic symbol
//! table only. A trampoline that a thread is in has no unwind entry: a backtrace from a signal handler that interrupts
//! it there ends there.
//!
//! The crate lives inside the process that it changes. It calls no function of libc (system calls are made directly, so
//! `errno` is untouched), waits for no lock, and allocates through `alloc` only,
//! never while a function is half patched. It keeps nothing between calls but what patching under running threads needs:
//! a signal handler and its table ([`Liveness::Live`]). After fork the child has the same hooks, and they work: there is nothing to do.
//!
//! # Safety
//! `unsafe` is confined to: `sys` and `native` (system calls, two assembly routines), `memory::view` (writing code),
//! `memory::place` and `arena` (mapping and writing trampolines), `module`, `elf` and `extent` (reading loaded objects),
//! `symbol` (calling IFUNC resolvers), `live` (the trap handler), `patch`, `transaction` and `hook` (patching). Each says
//! at its start what it relies on.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod arena;
mod elf;
mod error;
mod extent;
mod hook;
mod live;
mod memory;
pub mod module;
mod native;
mod padding;
mod patch;
mod plan;
pub mod symbol;
mod sys;
mod transaction;
mod workshop;

pub use arena::{Arena, CodeWay};
pub use error::Error;
pub use grapnel_relocator::CodeAddr;
pub use hook::{Hook, RemoveOutcome};
pub use live::{Liveness, Refusal};
pub use memory::{
    maps::{self, Maps},
    view::{Bytes, PatchWay},
};
pub use plan::{HookPlan, Options, PatchKind, Proof};
pub use sys::Errno;
pub use transaction::{HookId, Prepared, Transaction};
