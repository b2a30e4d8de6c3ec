//! The trace: what the agent writes into shared rings, and what a trace file holds.
//!
//! Two forms of the same facts:
//! - [`wire`]: fixed words in a ring in shared memory ([`ring`], [`shared`]), made to be written in a few
//!   nanoseconds by the thread that allocates;
//! - [`event`]: the records of a trace file, in one order for all threads, compact and compressed
//!   ([`block`], [`encode`], [`decode`], and with the feature `file` [`writer`] and [`reader`]).
//!
//! The drain, in the command, turns the first into the second. [`attached`] is what else the command and an agent tell
//! each other that was put into a running process.
#![cfg_attr(not(any(test, feature = "file")), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

/// What [`ring`] is made of: its model in `tests/loom` has others.
mod atomic {
    pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
pub mod attached;
pub mod block;
mod columns;
#[cfg(feature = "file")]
mod compress;
pub mod decode;
pub mod encode;
pub mod error;
pub mod event;
#[cfg(feature = "file")]
pub mod growing;
pub mod heap;
pub mod heaps;
pub mod leaks;
pub mod mapping;
pub mod mark;
pub mod meter;
mod model;
pub mod names;
#[cfg(feature = "file")]
pub mod reader;
mod recent;
pub mod release;
pub mod ring;
pub mod shared;
mod varint;
pub mod wire;
#[cfg(feature = "file")]
pub mod writer;

pub use error::Error;
pub use event::{Event, Exit, Module, ProcessInfo, Source};
pub use heaps::{Heap, HeapKind};
pub use leaks::LeakScan;
pub use mapping::{Mapped, MappingEvent};
pub use mark::Mark;
pub use meter::Meter;
pub use release::{Alignment, FreedAs, Release};
