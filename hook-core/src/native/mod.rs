//! What differs between instruction sets, as one alias to a folder.
//!
//! The folders have the same files:
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | redirects, traps and their contexts, caches, what identifies a thread |
//! | `island.rs` | where an island must be for the redirect to it to trap where a thread may still be |
//! | `registers.rs` | what a stub saves, and how listeners see it |
//! | `save.rs` | saving and loading it, as macros |
//! | `entry.rs`, `returns.rs` | the routines that call listeners |
//! | `seen.rs` | what unwinders and debuggers are told of stubs and relocated code |
//! | `general.rs` | whether code leaves the vector registers alone, and what may use them all the same; on x86-64 only |
//! | `inbound.rs` | branches from other functions into a patch; on x86-64 only |
//! | `stub.rs` | the code that is written for each thing that is attached |
//! | `kernel.rs` | system calls and their structures, where they are not the same everywhere; those of 64 bits are in `kernel64.rs` |

mod debugger;
#[cfg(target_pointer_width = "64")]
mod kernel64;
mod points;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "arm")]
mod arm;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "aarch64")]
use aarch64 as isa;
#[cfg(target_arch = "arm")]
use arm as isa;
#[cfg(target_arch = "x86_64")]
use x86_64 as isa;

use grapnel_relocator::CodeAddr;

/// Where a link stub stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StubKind {
    /// At a function's entry.
    Entry,
    /// In the middle of a function, where everything may be in use.
    Inside,
}

/// What a link's routine saves of the vector registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Vectors {
    /// What the compiler's own code and a listener without wishes may change. Not for probes.
    Low,
    /// All vector state.
    All,
    /// Nothing: whoever is told leaves them alone.
    None,
}

/// What a link stub and its routine have to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkKind {
    pub(crate) stub: StubKind,
    pub(crate) vectors: Vectors,
    /// The call's return may be awaited.
    pub(crate) returns: bool,
}

impl LinkKind {
    #[cfg(test)]
    pub(crate) fn plain(stub: StubKind) -> Self {
        let vectors = match stub {
            StubKind::Entry => Vectors::Low,
            StubKind::Inside => Vectors::None,
        };
        Self { stub, vectors, returns: false }
    }
}

/// The instruction at which indirect calls of a function must land, and which a patch leaves where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pad {
    pub(crate) bytes: &'static [u8],
    /// Undoes what it does beyond that, for a replacement that begins anew.
    pub(crate) undo: &'static [u8],
}

/// What is in unwind tables and in objects, as far as it differs between instruction sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The column of the stack pointer.
    pub(crate) stack_pointer: u8,
    /// The column of the return address.
    pub(crate) return_address: u8,
    /// How far behind an instruction's start a return address has to be for those who look into the instruction ahead of it.
    pub(crate) behind: u64,
    /// `e_machine`.
    pub(crate) machine: u16,
    /// `e_flags`.
    pub(crate) flags: u32,
    /// Whether unwinders take such tables; else debuggers do alone.
    pub(crate) unwinders: bool,
}

/// Whether these bytes of code change for everybody at once when they are written.
pub(crate) fn is_one_store(at: CodeAddr, len: usize) -> bool {
    STORE > 1 && len == STORE && at.0.is_multiple_of(STORE as u64)
}

/// A routine whose code may be changed by one aligned store from the first of the given forms to the second, which answer
/// 1 and 2.
pub(crate) struct Trial {
    pub(crate) routine: unsafe extern "C" fn() -> u32,
    pub(crate) forms: [[u8; 4]; 2],
}

pub(crate) use debugger::{debug_descriptor, debug_register};
pub use isa::Registers;
pub(crate) use isa::*;
pub(crate) use points::{
    POINT_PARTS, RETURN_POINTS, is_outer_point, is_return_point, number_of_return_point, part_of_point,
    part_of_points, point_at, return_point, return_point_to_try, return_points, return_word,
};
