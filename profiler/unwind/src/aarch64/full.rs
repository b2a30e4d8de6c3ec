//! From a frame to its caller by all of CFI: every callee-saved register is tracked and expressions are evaluated.
//!
//! Functions that a signal stopped and hand-written assembly need this. It costs about a microsecond a
//! frame.

use super::registers::{CODE, PC, Registers, SP, X19, X29, X30};
use super::step::{is_data, step_by_frame_pointer};
use super::{call, signal};
use crate::cfi::{CfiScratch, Columns, Names, NoCfi};
use crate::memo::Words;
use crate::module::ModuleTable;
use crate::resolve::{FullStep, Outcome};
use crate::stack::StackMemory;
use crate::start::Cursor;
use crate::tree::FrameFlags;
use gimli::Register;

const NAMES: Names = Names { sp: SP, fp: X29, pc: PC, linked: true, code: CODE };

/// All registers of a frame, as far as they are known.
#[derive(Clone, Copy, Debug)]
pub struct FullState(Columns<33>);

impl FullState {
    /// The state of the first frame of a walk.
    pub fn new(start: &Registers) -> Self {
        let Cursor { pc, sp, fp } = start.cursor();
        let saved = (X19..).map(Register).zip(start.x19);
        FullState(Columns::new(saved.chain([(PC, pc), (SP, sp), (X29, fp)])))
    }

    /// Where the frame is.
    pub fn pc(&self) -> u64 {
        self.0.get(PC).unwrap_or(0)
    }

    /// The frame's stack pointer.
    pub fn sp(&self) -> u64 {
        self.0.get(SP).unwrap_or(0)
    }

    /// Takes the thread to be at this pc instead, for one that was stopped in code that stands for other code.
    pub fn set_pc(&mut self, pc: u64) {
        self.0.set(PC, Some(pc));
    }

    /// Whether the pc is that of an instruction that a signal stopped.
    pub fn is_exact(&self) -> bool {
        self.0.exact
    }

    /// What a signal stopped whose frame is at this stack pointer. `None` where it can't be read.
    pub(crate) fn stopped(sp: u64, stack: &mut StackMemory) -> Option<Self> {
        let mut state = FullState(Columns::new([(SP, sp)]));
        state.leave_signal(stack).map(|_| state)
    }

    pub(crate) fn cursor(&self) -> Cursor {
        Cursor { pc: self.pc(), sp: self.sp(), fp: self.0.get(X29).unwrap_or(0) }
    }

    /// Goes on at a frame of which no more is known.
    fn move_to(&mut self, caller: Cursor) {
        self.0.set(PC, Some(caller.pc));
        self.0.set(SP, Some(caller.sp));
        self.0.set(X29, Some(caller.fp));
        self.0.set(X30, None);
        self.0.exact = false;
    }

    /// Goes on where a signal stopped the thread. `None` where its frame can't be read.
    fn leave_signal(&mut self, stack: &mut StackMemory) -> Option<Outcome> {
        let saved = signal::Saved::at(self.sp());
        let mut caller = Columns::new([]);
        for number in 0..=X30.0 {
            caller.set(Register(number), Some(stack.read(saved.register(number.into()))?));
        }
        caller.set(SP, Some(stack.read(saved.sp())?));
        let pc = stack.read(saved.pc())? & CODE;
        caller.set(PC, Some(pc));
        caller.exact = true;
        self.0 = caller;
        Some(if pc == 0 { Outcome::Root } else { Outcome::Next })
    }
}

/// Moves `state` to the caller.
///
/// Off the hot path: parses CFI and may allocate.
pub(crate) fn full_step(
    table: &ModuleTable,
    scratch: &mut CfiScratch,
    state: &mut FullState,
    stack: &mut StackMemory,
) -> FullStep {
    let exact = if state.is_exact() { FrameFlags::EXACT } else { FrameFlags::NONE };
    let (pc, is_return_address) = (state.pc(), !state.is_exact());
    if signal::is_trampoline(pc) {
        let module_id = table.module_at(pc).unwrap_or(0);
        let outcome = state.leave_signal(stack).unwrap_or(Outcome::Stuck);
        return FullStep { outcome, module_id, flags: exact | FrameFlags::SIGNAL };
    }
    let by_cfi = table.with_row_at(scratch, pc, is_return_address, |module, row| {
        let signal = row.fde.is_signal_trampoline();
        let outcome = state.0.leave(&NAMES, &row, stack).unwrap_or(Outcome::Stuck);
        let flags = exact | if signal { FrameFlags::SIGNAL } else { FrameFlags::NONE };
        FullStep { outcome, module_id: module.id, flags }
    });
    by_cfi.unwrap_or_else(|| match table.without_cfi(scratch, pc, is_return_address, call::returns_to) {
        NoCfi::MadeUp(module_id) => FullStep { outcome: Outcome::Root, module_id, flags: exact },
        NoCfi::NotCode => FullStep { outcome: Outcome::NotCode, module_id: 0, flags: exact },
        NoCfi::FramePointer(0) if is_return_address && is_data(state.cursor(), stack) => {
            FullStep { outcome: Outcome::NotCode, module_id: 0, flags: exact }
        }
        NoCfi::FramePointer(module_id) => {
            let outcome = guess(table, state, stack);
            FullStep { outcome, module_id, flags: exact | FrameFlags::GUESS }
        }
    })
}

fn guess(table: &ModuleTable, state: &mut FullState, stack: &mut StackMemory) -> Outcome {
    let at = state.cursor();
    if state.is_exact() {
        // Stopped in code without CFI, perhaps before it made a frame: the return address is then in its register.
        if let Some(link) = state.0.get(X30).map(|link| link & CODE)
            && table.is_code(link)
        {
            state.move_to(Cursor { pc: link, ..at });
            return Outcome::Next;
        }
    }
    match step_by_frame_pointer(at, stack, &mut Words::none()) {
        Some(caller) if caller.pc == 0 => Outcome::Root,
        Some(caller) => {
            state.move_to(caller);
            Outcome::Next
        }
        None => Outcome::Stuck,
    }
}
