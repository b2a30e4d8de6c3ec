//! The hook engine as a C library.
//!
//! `include/grapnel_hook.h` is made from what is here, comments included, by the test `header`, which fails if it isn't
//! what would be made now. So each comment is for readers of C: it says what fails and how, and, under "Safety", what the
//! caller answers for and which threads may call.
//!
//! The Rust interface has no state of its own; this one keeps one set for the whole library, so that hooks of different
//! callers on one function have an order.
//!
//! # Safety
//! Pointers come from C: each function says what it takes them for. Handles and errors are boxes that C holds and gives
//! back once.

pub mod announce;
pub mod attach;
pub mod batch;
pub mod call;
pub mod error;
pub mod find;
pub mod memory;
pub mod rebind;
mod shared;
pub mod wait;
