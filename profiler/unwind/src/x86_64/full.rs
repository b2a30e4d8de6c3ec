//! From a frame to its caller by all of CFI: every callee-saved register is tracked and expressions are evaluated.
//!
//! `_dl_runtime_resolve`, hand-written assembly and some of what a signal stopped need this. It costs about a microsecond a frame.

use super::registers::{R12, R13, R14, R15, RA, RBP, RBX, RSP, Registers};
use super::step::{is_data, step_by_frame_pointer};
use super::{call, signal};
use crate::cfi::{CfiScratch, Columns, Names, NoCfi};
use crate::memo::Words;
use crate::module::ModuleTable;
use crate::resolve::{FullStep, Outcome};
use crate::stack::StackMemory;
use crate::start::Cursor;
use crate::tree::FrameFlags;

const WORD: u64 = 8;
const NAMES: Names = Names { sp: RSP, fp: RBP, pc: RA, linked: false, code: u64::MAX };

/// All registers of a frame, as far as they are known.
#[derive(Clone, Copy, Debug)]
pub struct FullState(Columns<17>);

impl FullState {
    /// The state of the first frame of a walk.
    pub fn new(start: &Registers) -> Self {
        FullState(Columns::new([
            (RBX, start.rbx),
            (RBP, start.bp),
            (RSP, start.sp),
            (R12, start.r12),
            (R13, start.r13),
            (R14, start.r14),
            (R15, start.r15),
            (RA, start.pc),
        ]))
    }

    /// Where the frame is.
    pub fn pc(&self) -> u64 {
        self.0.get(RA).unwrap_or(0)
    }

    /// The frame's stack pointer.
    pub fn sp(&self) -> u64 {
        self.0.get(RSP).unwrap_or(0)
    }

    /// Takes the thread to be at this pc instead, for one that was stopped in code that stands for other code.
    pub fn set_pc(&mut self, pc: u64) {
        self.0.set(RA, Some(pc));
    }

    /// Whether the pc is that of an instruction that a signal stopped.
    pub fn is_exact(&self) -> bool {
        self.0.exact
    }

    /// What a signal stopped whose frame is at this stack pointer. `None` where it can't be read.
    pub(crate) fn stopped(sp: u64, stack: &mut StackMemory) -> Option<Self> {
        let mut state = FullState(Columns::new([(RSP, sp)]));
        state.leave_signal(stack).map(|_| state)
    }

    pub(crate) fn cursor(&self) -> Cursor {
        Cursor { pc: self.pc(), sp: self.sp(), fp: self.0.get(RBP).unwrap_or(0) }
    }

    /// Goes on at a frame of which no more is known.
    fn move_to(&mut self, caller: Cursor) {
        self.0.set(RA, Some(caller.pc));
        self.0.set(RSP, Some(caller.sp));
        self.0.set(RBP, Some(caller.fp));
        self.0.exact = false;
    }

    /// Goes on where a signal stopped the thread. `None` where its frame can't be read.
    fn leave_signal(&mut self, stack: &mut StackMemory) -> Option<Outcome> {
        let mut caller = Columns::new([]);
        for (register, address) in signal::saved(self.sp()) {
            caller.set(register, Some(stack.read(address)?));
        }
        caller.exact = true;
        self.0 = caller;
        Some(if self.pc() == 0 { Outcome::Root } else { Outcome::Next })
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
    if signal::is_trampoline(table, pc) {
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
        // Stopped in code without CFI, perhaps before it made a frame: the return address is then on top.
        stack.guess();
        if let Some(top) = stack.read(at.sp)
            && table.is_code(top)
        {
            state.move_to(Cursor { pc: top, sp: at.sp.wrapping_add(WORD), fp: at.fp });
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
