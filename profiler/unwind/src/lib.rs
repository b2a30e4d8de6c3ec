//! In-process stack unwinding for the agent.
//!
//! A walk starts from the registers of the caller of a hooked function and ends in a [`NodeId`]: a node of a
//! prefix tree of call stacks.
//!
//! ```text
//! Registers -> Walker -> frames -> StackTree -> NodeId
//!              |  |  |
//!              |  |  +-- Recent: some hundred walks, each reused if every word that it read is unchanged
//!              |  +----- Memo: the last walk that was none of these, reused as far as its words are unchanged
//!              +-------- Chains: the first frames from a leaf, as they were the last times
//!                          +-- RuleCache -- on a miss --> Resolver -> ModuleTable -> unwind tables of the module
//! ```
//!
//! * [`ModuleTable`] is an immutable snapshot of the loaded modules, made by whoever knows them.
//! * [`Resolver`] is asked on a miss of the rule cache, and for each frame of a stack that needs more than the
//!   fast rules. The caller takes its lock there, and only there. [`TableResolver`] is one without a lock.
//! * [`ModuleTable::quick_rule`] can be asked before: it knows most rules, and takes no lock either.
//! * [`Walker`] belongs to one thread at a time. It holds the rule cache, the readable part of the stack, recent walks,
//!   chains of frames and the [`StackTree`].
//! * [`Sink`] hears of each new node, in the order of the ids. The tree is bounded: a node that fell out of it is told
//!   again, under another id. Or walks [tell](Config::tells) what they need, and the sink finds out which nodes it knows.
//!
//! # What a walk does not do
//! No lock, no allocation and no system call on the hot path, except that the tree grows by steps as new stacks
//! are seen, and what is kept of a walk as stacks deeper than the limit are, and that a stack is probed page by page the first time that a walk reads there.
//! A walk that comes from one stack to another probes each page of the others: they may be gone. Nothing here calls
//! libc, sets `errno` or panics. No return address is rewritten.
//!
//! # Exactness
//! A fast rule is a function of (pc, sp, frame pointer) and of the words it reads. A frame that equals one of the
//! last walk in these three, with all words read from there to the root unchanged, has the same frames above it. The
//! commonest rule doesn't read the frame pointer (`CFA = sp + n`, the caller's is saved in the frame): the register
//! holds anything there, and is not compared. For the same reason a saved frame pointer is read only if the caller's rule
//! needs it.
//! All words that were read are read again: return addresses, saved frame pointers and saved CFAs. If none of a whole walk
//! has changed since, from the leaf to the root, it is the same stack, and so is its node.
//!
//! Of a stack that is deeper than the limit the frames that are kept are compared so, and their node is found by a sum of 122 bits over
//! them: that two stacks have the same one is less likely than a fault of the machine.
//!
//! # Instruction sets
//! Each has a folder with the same files, and all compile and are tested on every host; walks are those of the machine.
//! x86-64 and AArch64 have call frame information in `.eh_frame`, 32-bit Arm has instructions of its own in
//! `.ARM.exidx` and `.ARM.extab`. Where there is none, frame pointers are followed: rbp, x29, r7 in T32 code and r11 in A32
//! code.
//!
//! # Other ways
//! [`ModuleTable::by_frame_pointers`] makes walks that ask no table. [`Walker::walk_by_backtrace`] asks the unwinder that
//! the process has.
//!
//! # What it can't know
//! Code without CFI and without frame pointers ends the stack, or leads it astray: its frame is marked as a
//! [guess](FrameFlags::GUESS), and what lies rootward of it is only as good as that. CFI that is wrong, as in some
//! hand-written assembly, is believed. On 32-bit Arm `EXIDX_CANTUNWIND` is said by linkers of code without tables, and by
//! libraries of the first frame of a thread: there the code is read, and where it stores no return address the stack ends as
//! at a root. CFI of AArch64 that says that return addresses are signed
//! with the second key counts as none, since its reader doesn't know that letter.
//!
//! # Cost
//! `examples/ns_per_frame.rs` measures it, `examples/ns_per_rule.rs` what a rule for a new pc costs. `examples/rule_kinds.rs`
//! counts the call sites of libraries that need more than a fast rule. Of 2.7 million in Debian's libLLVM, libclang, libpython, libstdc++, libcrypto and what these need,
//! it found 65: 9 in the dynamic linker and 56 in libcrypto.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

#[cfg_attr(
    not(target_arch = "aarch64"),
    expect(dead_code, unused_imports, reason = "walks are those of this machine; the rest is for its tests")
)]
pub mod aarch64;
#[cfg_attr(
    not(target_arch = "arm"),
    expect(dead_code, unused_imports, reason = "walks are those of this machine; the rest is for its tests")
)]
pub mod arm;
mod backtrace;
mod cache;
mod call;
mod cfi;
mod chain;
mod copies;
mod deep;
mod error;
#[cfg_attr(target_arch = "arm", expect(dead_code, reason = "there are two frame pointers"))]
mod frame_pointer;
mod gather;
mod itanium;
mod memo;
mod memory;
mod module;
mod probe;
mod recent;
mod resolve;
mod stack;
mod start;
mod tree;
mod walker;
mod whereabouts;
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, unused_imports, reason = "walks are those of this machine; the rest is for its tests")
)]
pub mod x86_64;
mod zeroed;

// The one place where an instruction set is chosen.
#[cfg(target_arch = "aarch64")]
use aarch64 as native;
#[cfg(target_arch = "arm")]
use arm as native;
#[cfg(target_arch = "x86_64")]
use x86_64 as native;

pub use backtrace::Backtrace;
pub use cfi::CfiScratch;
pub use error::Error;
pub use module::{ModuleInfo, ModuleTable, ProgramHeader};
pub use native::{FullState, Registers, RuleKind, UnwindRule};
pub use probe::{Refuses, ask_before_probing, page_is_readable};
pub use resolve::{FullStep, Outcome, Resolver, RuleEntry, TableResolver};
pub use stack::StackMemory;
pub use start::Start;
pub use tree::{Frame, FrameFlags, MOST_TOLD, NodeId, Sink, StackTree, WORD_FLAGS_AT, WORD_MODULE_AT};
pub use walker::{Config, End, Walker};
pub use whereabouts::may_be_stack;
