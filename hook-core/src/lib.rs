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
//! That is one replacement by one jump, the fastest. A [`HookSet`] does more: any number of replacements and
//! [listeners](Listener) on one function, in a defined order, and [probes](Probe) in the middle of functions.
//! A [`Rebinding`](rebind::Rebinding) changes no code, but the addresses by which objects call a function. There is an
//! example for each in `hook-core/examples`: `replace`, `listen`, `probe`, `rebind`, `wait`.
//! [`symbol`] finds functions by name and by address; those that aren't exported in the files of their object, with the
//! feature `files`, which is on by default. [`waiting`] hooks functions of objects that are not loaded yet.
//!
//! # What is not here yet
//! The code of removed hooks is kept until it is asked for ([`HookSet::reclaim`], [`Arena::reclaim`]). A [`waiting::Waiting`]
//! waits for functions, not for places in them: probes can't wait. In a process with a shadow stack the return can't be listened to.
//!
//! Exceptions and backtraces pass through listeners, replacements and probes, on x86-64 also through a call that is the last of
//! the instructions that a patch takes, unless it goes through memory that isn't relative to RIP. They pass through every
//! trampoline and stub if [`HookSet::announce_to`] was asked for that, on x86-64 and AArch64: see [`seen`], where names for
//! debuggers and perf are, too. One jump in the padding between functions, which a short patch takes, has no unwind entry.
//!
//! Code of a file that others run is changed by mapping its pages anew ([`PatchWay::Remap`]), which leaves mappings of single pages
//! also when the hooks are out again. A process that has 16,384 mappings gets no more of them that way.
//!
//! Of several hooks of transactions on one function the newest has to be removed first, as [`Hook::remove_all`] does: if two of them
//! have one replacement, their patches may be alike, and what is removed out of turn takes the others' place for its own.
//!
//! Preparing and committing take some 40 KiB of stack. Where memory is exhausted, the process ends, as it does wherever Rust's
//! collections find none; no code is half changed then, because nothing is allocated while it changes.
//!
//! # On 32-bit Arm
//! A32 and T32 code live in one process, and either may be hooked from either. Bit 0 of a function's address says which it
//! is, in every address that goes in and out: that of a function, an original, or a place for a probe. Under QEMU 32-bit
//! processes are tested in both sets, with the libc of Debian's armhf, which is T32, and that of armel, which is A32; those of
//! armhf also on Debian's kernel for arm64, in an emulated machine.
//! * Nothing in an object says how long its functions are but their symbols: those that it exports, else those that its files
//!   have. Where there is neither, nor [`Options::size`], only that code is looked at which direct jumps reach
//!   ([`Proof::ExtentUnknown`]), and a probe wants its function's addresses ([`Error::NoFunction`]). No padding is used.
//! * Exceptions and backtraces pass a call whose return is listened to with the help of the unwinder's `_Unwind_VRS_Get` and
//!   `_Unwind_VRS_Set`, as the dynamic linker finds them for this library. If there are none, as in a process that throws
//!   nothing, a backtrace ends at such a call. An unwinder of another kind than the one that they belong to isn't to be expected
//!   beside it.
//! * At a function's entry R12 isn't kept in a set (AAPCS32, 6.1.1). The functions within functions of GNU C get their frame
//!   in it: replace these by a [`Transaction`], whose originals keep all registers.
//! * Arguments and results are words: one of 64 bits takes two, of which the first has an even number.
//! * Without [`Listener::with_vectors`], FPSCR is as the listener leaves it. Of vector registers those are kept that the
//!   processor has: none, 16 or 32 of 64 bits.
//! * An emulator, and a kernel that also serves the older ABI, reads an `svc` again when a thread has run it, to see which ABI is
//!   meant. No probe may go to an `svc` while other threads run it: they find its patch there, and the thread gets SIGILL.
//! * In glibc's T32 code `stpcpy` goes on at the second instruction of `strcpy`, which is refused therefore: another function's
//!   branch is seen if it lies within 256 bytes of the patch and in a function with a symbol.
//! * Unwinders can't be told of code ([`SeenError::NoEntries`](seen::SeenError::NoEntries)), debuggers and perf can. Exceptions
//!   and backtraces pass a call that was relocated if it ends its window, as one of `push {r4, lr}; bl` does: the callee returns
//!   to the original then. They don't pass one that has more of the window behind it
//!   ([`RelocationPlan::calls`](grapnel_relocator::RelocationPlan::calls)), which takes `blx` through a register as a T32
//!   function's first instruction. The backtrace of a signal that comes in a trampoline or a stub ends there.
//! * Patches reach 16 MiB, where code for them must find room.
//!
//! # On AArch64
//! * While threads run it, an instruction becomes a branch by one aligned store, here and on 32-bit Arm. That a thread finds the old
//!   one or the new one the manuals promise where both are branches, NOP, breakpoints or the like (DDI 0487, B2.2.5; DDI
//!   0406, A3.5.4). Of others it is a property of the processors. Only a stop of all threads would do without it.
//! * A call that was listened to and never returns keeps its place until another call has the same stack pointer, or its
//!   stack is gone.
//! * Landing pads (BTI) are kept, and so is what signs a return address (PAC). Memory for code isn't guarded by landing
//!   pads; pages that are written by `mprotect` lose that guard. What SVE keeps beyond 128 bits of a vector register, a
//!   listener loses.
//! * Pages of another size than 4 KiB are refused by the kernel, so there is no memory for code.
//!
//! # Where `/proc/self/mem` can't be written
//! That is so for processes that are not dumpable, on kernels that forbid it, also for code alone, and under emulators, which
//! may not run what is written there; on AArch64 and Arm it is tried once. Each write that is refused goes another way. Pages
//! that their owner may write, as a compiler's at run time, are written as they are ([`PatchWay::InPlace`]), and keep their
//! rights at all times. Others are written by `mprotect` ([`PatchWay::Protect`]) where no other thread runs their code, and
//! have their rights again afterwards; where the kernel wouldn't give them back, nothing is changed, or the pages are
//! exchanged. While threads run it, a changed copy of the pages takes their place ([`PatchWay::Exchange`]). From then on the
//! pages are memory of no file, and on AArch64 they aren't guarded by landing pads. A change that another tool makes to the
//! same pages in that moment is lost. Shared pages are not exchanged, but refused.
//! Under QEMU threads can't be asked what they may reach, since its own never answer: [`HookSet::reclaim`] frees nothing there
//! with [`Liveness::Live`]. What depends on several processors' caches and on `membarrier` isn't shown by it either: it runs
//! translated code, and a translation that has changed is dropped at once for all threads.
//!
//! # Where no `/proc` is mounted
//! As in a `chroot` that has none. Objects and their functions are found, and functions are hooked while one thread runs. What
//! takes the list of mappings is refused, and says so: patches that threads may be inside of ([`Refusal::NoMaps`],
//! [`Refusal::NoProc`]), [rebinding](rebind::NotWritten::NoMaps), and asking threads what they may reach ([`Doubt::remedy`]).
//!
//! # Known weaknesses
//! * A stub that is left for good in the two instructions in which it claims a place for a return, by a handler that
//!   `siglongjmp`s out of it or a thread that is cancelled there, loses that place ([`listen::missed`]). It is not found
//!   again; on AArch64 and Arm that holds for all of the stub that has to do with the return.
//! * While all places for returns are taken, as in a deep recursion, calls without a place aren't told of their return. Each
//!   thousandth to 32,000th of them takes milliseconds, in which places are looked for whose calls will never return.
//! * A guarded listener takes coroutines whose stacks lie within 64 KiB of each other for one stack, and may be told of a
//!   call that one makes while the other is in it.
//! * What was attached once keeps its stub until [`HookSet::reclaim`] is called; only an attachment of the same functions and
//!   data uses it again. What that frees it must be told to, and coroutines that were left in a listener it doesn't see.
//! * [`HookSet::reclaim`] doesn't see who else moved a patch of the set: its Safety section asks for that. It frees nothing
//!   while a thread has the signal blocked by which it is asked, or waits for signals by `sigwait`; nor in a child that
//!   another thread than the first one forked; nor in a namespace of processes that has the `/proc` of another
//!   ([`Refusal::OtherNamespace`]).
//! * A [`Rebinding`](rebind::Rebinding) by name replaces each object's own function of that name, those of objects loaded
//!   with `RTLD_LOCAL` and of other `dlmopen` namespaces among them; [`rebind::Rebinding::original`] is that of the first.
//!   [`rebind::Rebinding::of`] is for one of them. A word that is bound in the very moment that it is changed may end up with
//!   the function: `update` again, or load with `RTLD_NOW`.
//! * A trap that another tool writes over a patch that is in, or over its place while a thread that has trapped there
//!   before is on its way to the handler, is not told apart from this crate's own.
//!
//! The crate lives inside the process that it changes. It calls no function of libc but two (system calls are made
//! directly, so `errno` is untouched; `__errno_location` is asked when the first listener is attached, and `getauxval` where
//! `/proc` has no auxiliary vector to read), waits for no
//! lock but while another thread rebinds or changes hooks that wait, for no longer than seconds, and while another makes the
//! decoder's tables, once in a process and for less than a millisecond ([`prepare`]), and allocates through `alloc` only,
//! never while a function is half patched. It keeps nothing between calls but what patching under running threads needs,
//! a signal handler and its table ([`Liveness::Live`]), another to ask threads what they may reach, and what listeners need, tables of the returns that are awaited and
//! of the threads in guarded listeners. After fork the child has the same hooks, and they work: there is nothing to do.
//!
//! # Safety
//! `unsafe` is confined to: `sys` and `native` (system calls, assembly routines), `memory::view` (writing code),
//! `memory::place` and `arena` (mapping and writing trampolines), `module`, `elf` and `extent` (reading loaded objects),
//! `symbol` (calling IFUNC resolvers, memory that files are read into), `rebind` (writing addresses), `live` (the trap handler), `waiting` (what runs inside the dynamic linker), `seen` (what unwinders and debuggers read), `listen` (what runs between a caller and its function),
//! `patch`, `transaction`, `set` and `hook` (patching), `reclaim` (freeing code). Each says
//! at its start what it relies on.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod arena;
/// What is shared between threads without a lock is made of these; its model in `tests/loom` has others.
mod atomic {
    pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
}
mod elf;
mod error;
mod extent;
mod gate;
mod hook;
pub mod listen;
mod live;
mod lock;
mod memory;
pub mod module;
mod native;
mod padding;
mod patch;
mod plan;
pub mod rebind;
mod reclaim;
pub mod seen;
pub mod set;
mod surroundings;
pub mod symbol;
mod sys;
mod transaction;
pub mod waiting;
mod workshop;

/// Makes the decoder's tables, which is otherwise done when the first instruction is looked at that needs them: the commonest
/// ones of x86-64 don't, so that need not be at the first hook. The C library does it as it is loaded.
///
/// A process that forks while a thread makes them leaves a child in which they are never ready: its first hook that needs them
/// would wait for ever. So call this before there are threads that may fork. It takes less than a millisecond, and later calls
/// nothing.
pub fn prepare() {
    native::prepare();
}

pub use arena::{Arena, CodeWay};
pub use error::Error;
pub use gate::way_out;
pub use grapnel_relocator::CodeAddr;
pub use hook::{Hook, RemoveOutcome};
pub use listen::{Listener, Probe};
pub use live::{Doubt, Liveness, Refusal};
pub use memory::{
    maps::{self, Maps},
    view::{Bytes, PatchWay},
};
pub use plan::{HookPlan, Options, PatchKind, Proof};
pub use reclaim::Reclaimed;
pub use set::{Attachment, Batch, BatchId, HookSet, PreparedBatch};
pub use sys::Errno;
pub use transaction::{HookId, Prepared, PreparedHook, Transaction};
