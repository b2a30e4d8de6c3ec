//! Moves instructions to another address so that they do there what they did at their own.
//!
//! ```text
//! bytes --Window::decode--> Window --RelocationPlan::new--> plan --emit(to)--> Relocated
//! ```
//!
//! A [`Window`] is the run of whole instructions that a patch at `from` overwrites. A [`RelocationPlan`] knows how each
//! is rewritten, how long the result can get, and which destinations are near enough; it has no side effects.
//! [`RelocationPlan::emit`] writes the code for one destination.
//!
//! ```
//! use grapnel_relocator::{CodeAddr, Isa, RelocationPlan, Window, redirect};
//!
//! // push rbp; mov rbp, rsp; mov eax, [rip + 0x1000]; ...
//! let function = [0x55, 0x48, 0x89, 0xe5, 0x8b, 0x05, 0x00, 0x10, 0x00, 0x00, 0xc3];
//! let from = CodeAddr(0x7f00_0000_1000);
//! let window = Window::decode(Isa::X86_64, from, &function, redirect::lengths(Isa::X86_64).near)?;
//! assert_eq!(window.len(), 10);
//!
//! let plan = RelocationPlan::new(&window)?;
//! let to = CodeAddr(0x7f00_0010_0000);
//! assert!(plan.reach().contains(to));
//! let relocated = plan.emit(to)?;
//! assert!(relocated.bytes().len() <= plan.max_len());
//! assert_eq!(relocated.map().to_relocated(4), Some(4));
//! # Ok::<(), grapnel_relocator::Error>(())
//! ```
//!
//! # The contract
//!
//! For every window that is accepted, running the relocated code leaves the same registers, flags and memory, makes the
//! same accesses, and leaves by the same exits as the original does at its own address. Five things are excepted,
//! because they are what a trampoline is:
//!
//! * A `call` inside the window pushes the address of the relocated code behind it, so that the callee returns into the
//!   relocated code. `call` to the very next instruction only asks for its address, and pushes the original one; in the
//!   window, where a patch lies, that address is refused. On x86-64, in A32 and in T32 a call at the window's end leaves the
//!   original address, that of what follows the window, so that the callee returns there
//!   ([`RelocationPlan::returns_past`]). On x86-64 the other one stands on the stack for some instructions before. Calls that
//!   stay: those through memory that isn't relative to RIP, since they may read what they push to, through RSP, under BND, and on
//!   x86-64 all where there is a shadow stack ([`WindowOptions::shadow_stack`]).
//! * A recursive call to the window's own start goes to the original address, where the patch is: it is a call like any
//!   other of the function.
//! * The x87 unit keeps the address of its last instruction, for handlers of its exceptions. After an x87 instruction of
//!   the window that is an address in the relocated code. A window that stores it itself is refused.
//! * In A32 code `push` of several registers and the program counter reads one of the words back that it has just
//!   written, still above the stack pointer. Through any other base it does not.
//! * The address of the window's start is the function's, and stays what it was. Code that computes another one from it
//!   and reads there or jumps there, as `lea rax, [start]; add rax, 11; jmp rax`, meets the patch. Only ADRP and ADD of
//!   AArch64 are known to make one address together.
//!
//! An operand or a target that the destination does not reach may need a register. One is taken only if it is shown that
//! nobody reads it any more, and is then listed in [`Relocated::clobbers`]; otherwise it is kept on the stack meanwhile,
//! where no signal handler and no red zone is. Memory below the stack pointer, and below the red zone where there is one,
//! is nobody's: an instruction that writes there itself may overwrite what is kept for it. What a path ahead reads is
//! seen in the bytes behind the window, so it is worth giving more of them.
//!
//! What lies between two instructions of the original is seen by no one but a signal handler or a debugger: there an
//! instruction may be under way in several steps, and [`PcMap::to_original`] says so.
//!
//! What can't meet the contract is refused with an [`Error`] that names the instruction and the reason. An instruction
//! that is not known to be independent of its address is never copied.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

#[cfg(feature = "arm")]
mod a32;
#[cfg(feature = "arm")]
mod aarch64;
#[cfg(not(feature = "arm"))]
mod absent;
mod error;
pub mod flow;
mod instruction;
mod map;
mod plan;
mod reach;
pub mod redirect;
mod registers;
mod sweep;
#[cfg(feature = "arm")]
mod t32;
mod window;
mod x86_64;

#[cfg(not(feature = "arm"))]
use absent as a32;
#[cfg(not(feature = "arm"))]
use absent as aarch64;
#[cfg(not(feature = "arm"))]
use absent as t32;
pub use error::{Culprit, Error, Unsupported};
pub use grapnel_arch::{CodeAddr, Isa};
pub use map::{Origin, PcMap};
pub use plan::{MAX_EMITTED, Relocated, RelocationPlan};
pub use reach::Reach;
pub use registers::Registers;
pub use window::{MAX_MIN_LEN, Window, WindowOptions};
