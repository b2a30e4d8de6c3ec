//! The dynamic linker's list of loaded objects, as the agent takes it.
//!
//! An agent that was loaded before the program asks `dl_iterate_phdr` (`preloaded`); one that was put into a process that
//! runs calls no function of libc, and reads the list itself (`attached`).

#[cfg(grapnel_attached)]
pub(crate) mod attached;
#[cfg(not(grapnel_attached))]
mod preloaded;

#[cfg(grapnel_attached)]
pub(crate) use attached::{executable, frames, listed};
#[cfg(not(grapnel_attached))]
pub(crate) use preloaded::{executable, frames, listed, prepare};

use alloc::vec::Vec;
use grapnel_unwind::ProgramHeader;

/// An object as the dynamic linker lists it.
pub(crate) struct Listed {
    pub(crate) bias: u64,
    pub(crate) path: Vec<u8>,
    pub(crate) headers: Vec<ProgramHeader>,
}
