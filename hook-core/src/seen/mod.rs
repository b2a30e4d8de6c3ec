//! What others see of the code that is made here: unwinders, debuggers and profilers.
//!
//! Trampolines, stubs and islands are in no file, so nobody knows what they are unless told. Told on request only
//! ([`Arena::announce_to`](crate::Arena::announce_to), [`HookSet::announce_to`](crate::HookSet::announce_to)), of what is
//! made from then on, when it is prepared: before the first live byte changes, and never in a call of a hooked function.
//!
//! * **Unwinders**: C++ exceptions and `_Unwind_Backtrace` pass through listeners, replacements and probes in any case, and
//!   through a relocated call that returns to the original ([`HookPlan::returns_past`](crate::HookPlan::returns_past)). What
//!   needs unwind entries are calls that return to a trampoline ([`HookPlan::moves_call`](crate::HookPlan::moves_call)),
//!   through which an exception can't be thrown otherwise, and signal
//!   handlers that interrupt a thread in the few instructions of a trampoline or stub, whose backtraces end there otherwise.
//!   Not on 32-bit Arm, where unwinders take none.
//! * **Debuggers**: names and unwind entries for GDB and LLDB.
//! * **perf**: names in `/tmp/perf-PID.map`. The file stays; it is for who made it to remove.
//!
//! A backtrace shows the piece of code, and above it the hooked function at the instruction that the code stands for.
//!
//! # What it costs
//! Once libgcc's unwinder has entries of this kind, from whomever, each of its steps takes a lock (until GCC 13). A signal
//! handler that interrupts its own thread in the middle of an unwinding and then asks for a backtrace may wait for that
//! lock for ever. So don't ask for it where handlers take backtraces of threads that throw.
//!
//! libgcc allocates under that lock when hooks are prepared. A listener on `malloc` that takes a backtrace then waits for ever:
//! don't have unwinders told where there is one.
//!
//! `/tmp/perf-PID.map` is added to. One that an earlier process of that number left is emptied first, which its time tells.
//! PID is the number that the process has for itself, as perf expects it. Functions of libraries that aren't exported go by
//! their addresses.
//!
//! What was announced is kept for good: its memory isn't used for other code.
//!
//! # Safety
//! Unwinders are called through addresses that were found by name. Sections and objects are leaked, since they are read
//! whenever somebody looks.

mod debugger;
mod eh_frame;
mod image;
mod names;
mod perf;
pub(crate) mod piece;
mod unwinders;

use alloc::{collections::BTreeSet, vec::Vec};

pub(crate) use debugger::Descriptor;
use eh_frame::Reader;
use names::Names;
use piece::Piece;
use unwinders::Unwinder;

use crate::{arena::CodeSlot, module, native, sys::Errno};

/// Who is told of code that is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Audience {
    /// The unwinders that are loaded: libgcc's, LLVM's.
    pub unwinders: bool,
    /// Debuggers, now or when they are attached.
    pub debuggers: bool,
    /// `perf`, by a file.
    pub perf: bool,
}

impl Audience {
    /// All of them.
    pub const ALL: Self = Self { unwinders: true, debuggers: true, perf: true };
}

/// Why somebody can't be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SeenError {
    /// No loaded object has an unwinder.
    #[error("no loaded object exports an unwinder that takes entries")]
    NoUnwinder,
    /// Unwinders have no way to be told on this machine.
    #[error("unwinders take no entries for code that is made at run time on this machine")]
    NoEntries,
    /// The map can't be written.
    #[error("the map for perf can't be written in /tmp: {errno}")]
    NoMap {
        /// What the system answered.
        errno: Errno,
    },
}

impl SeenError {
    /// What could be done instead.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoUnwinder => "link libgcc_s or LLVM's libunwind, or leave unwinders out",
            Self::NoEntries => "leave unwinders out",
            Self::NoMap { .. } => "make /tmp writable, or leave perf out",
        }
    }
}

/// What is yet to be told, and to whom.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    audience: Audience,
    unwinders: Vec<Unwinder>,
    pieces: Vec<Piece>,
    /// Where those pieces are that anybody was told of.
    told: BTreeSet<usize>,
}

impl Notices {
    /// Begins to note what is made, for these.
    ///
    /// # Errors
    /// If somebody can't be told. Nobody is then.
    ///
    /// # Safety
    /// No object is loaded or unloaded meanwhile, and those with unwinders stay loaded.
    pub(crate) unsafe fn begin(&mut self, audience: Audience) -> Result<(), SeenError> {
        self.audience = Audience::default();
        self.unwinders.clear();
        if audience.unwinders && !native::LAYOUT.unwinders {
            return Err(SeenError::NoEntries);
        }
        if audience.unwinders {
            if let Some(debug) = module::r_debug_of_this_process() {
                // SAFETY: the caller's promise; what is in the list is relocated.
                self.unwinders = unsafe { Unwinder::all(&module::loaded_modules(debug)) };
            }
            if self.unwinders.is_empty() {
                return Err(SeenError::NoUnwinder);
            }
        }
        if audience.perf {
            perf::begin().map_err(|errno| SeenError::NoMap { errno })?;
        }
        self.audience = audience;
        Ok(())
    }

    /// Notes a piece of code that was written.
    pub(crate) fn note(&mut self, piece: impl FnOnce() -> Piece) {
        if self.are_given() {
            self.pieces.push(piece());
        }
    }

    /// Whether others are told of what is made.
    pub(crate) fn are_given(&self) -> bool {
        self.audience != Audience::default()
    }

    /// Whether others know of this piece of code.
    pub(crate) fn are_about(&self, slot: &CodeSlot) -> bool {
        self.told.contains(&slot.at) || self.pieces.iter().any(|piece| piece.slot == *slot)
    }

    /// Tells all of what was noted. The code can be run by now. Who can't be told any more, as perf whose file can't be
    /// written since, is left out.
    pub(crate) fn give(&mut self) {
        let mut pieces = core::mem::take(&mut self.pieces);
        if pieces.is_empty() {
            return;
        }
        self.told.extend(pieces.iter().map(|piece| piece.slot.at));
        pieces.sort_unstable_by_key(|piece| piece.slot.at);
        let named = self.audience.debuggers || self.audience.perf;
        let names = if named { Names::of(pieces.iter().map(|piece| piece.target)) } else { Names::default() };
        // From GCC 13 on, libgcc takes all between a section's first and last address for described by it.
        let gapless = |a: &Piece, b: &Piece| a.slot.at + a.slot.len == b.slot.at;
        for run in pieces.chunk_by(gapless) {
            let section = |reader| eh_frame::section(run, native::LAYOUT, reader);
            if self.audience.debuggers {
                let section = section(Reader::Debugger);
                let _ = debugger::register(image::of(run, &names, &section, native::LAYOUT).leak());
            }
            if let (true, Some(first)) = (self.audience.unwinders, run.first()) {
                let section: &'static [u8] = section(Reader::Unwinder).leak();
                for unwinder in &self.unwinders {
                    unwinder.register(section, first.slot.at);
                }
            }
        }
        if self.audience.perf {
            let _ = perf::write(&pieces, &names);
        }
    }
}
