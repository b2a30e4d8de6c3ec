//! Instruction sets as data: what an instruction does to the program counter, and how a branch is encoded.
//!
//! Every instruction set compiles, and is tested, on every host. Nothing here reads the memory of a process: code comes
//! in as bytes together with the address that it has ([`CodeAddr`]), which need not be where the bytes lie.
//!
//! Each instruction set has a folder with the same file names: `decode` (one instruction and its properties), `flow`
//! (how it leaves), `encode` (branches by field width), `pointer` (operands beyond the reach of their field), `table`
//! (jumps through tables) and `text` (an instruction for people).
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(feature = "arm")]
pub mod a32;
#[cfg(feature = "arm")]
pub mod aarch64;
mod addr;
mod error;
mod isa;
mod listing;
#[cfg(feature = "arm")]
pub mod t32;
mod table;
pub mod x86_64;

pub use addr::CodeAddr;
pub use error::DecodeError;
pub use isa::{Isa, UnknownIsa};
pub use listing::{Line, listing};
pub use table::{TableForm, TableJump};
