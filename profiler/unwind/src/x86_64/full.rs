//! From a frame to its caller by all of CFI: every callee-saved register is tracked and expressions are evaluated.
//!
//! Signal frames, `_dl_runtime_resolve` and hand-written assembly need this. It costs about a microsecond a frame.

use super::compile::NoCfi;
use super::registers::{Cursor, R12, R13, R14, R15, RA, RBP, RBX, RSP, Registers};
use super::step::step_by_frame_pointer;
use crate::cfi::{CfiScratch, Row};
use crate::memo::Words;
use crate::module::ModuleTable;
use crate::resolve::{FullStep, Outcome};
use crate::stack::StackMemory;
use crate::tree::FrameFlags;
use gimli::{CfaRule, EvaluationResult, Register, RegisterRule, UnwindExpression, Value};

const WORD: u64 = 8;
const REGISTERS: usize = 17;
/// No expression in CFI loops; one that does is broken.
const MAX_OPERATIONS: u32 = 200;

/// All registers of a frame, as far as they are known.
#[derive(Clone, Copy, Debug)]
pub struct FullState {
    registers: [Option<u64>; REGISTERS],
    exact: bool,
}

impl FullState {
    /// The state of the first frame of a walk.
    pub fn new(start: &Registers) -> Self {
        let mut state = FullState { registers: [None; REGISTERS], exact: false };
        for (register, value) in [
            (RBX, start.rbx),
            (RBP, start.bp),
            (RSP, start.sp),
            (R12, start.r12),
            (R13, start.r13),
            (R14, start.r14),
            (R15, start.r15),
            (RA, start.pc),
        ] {
            state.set(register, Some(value));
        }
        state
    }

    /// Where the frame is.
    pub fn pc(&self) -> u64 {
        self.get(RA).unwrap_or(0)
    }

    /// The frame's stack pointer.
    pub fn sp(&self) -> u64 {
        self.get(RSP).unwrap_or(0)
    }

    /// Whether the pc is that of an instruction that a signal stopped.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    fn get(&self, register: Register) -> Option<u64> {
        self.registers.get(usize::from(register.0)).copied().flatten()
    }

    fn set(&mut self, register: Register, value: Option<u64>) {
        if let Some(slot) = self.registers.get_mut(usize::from(register.0)) {
            *slot = value;
        }
    }
}

impl ModuleTable {
    /// Moves `state` to the caller.
    ///
    /// Off the hot path: parses CFI and may allocate.
    pub fn step(&self, scratch: &mut CfiScratch, state: &mut FullState, stack: &mut StackMemory) -> FullStep {
        let exact = if state.exact { FrameFlags::EXACT } else { FrameFlags::NONE };
        let (pc, is_return_address) = (state.pc(), !state.exact);
        let by_cfi = self.with_row_at(scratch, pc, is_return_address, |module, row| {
            let signal = row.fde.is_signal_trampoline();
            let outcome = leave(state, &row, stack).unwrap_or(Outcome::Stuck);
            let flags = exact | if signal { FrameFlags::SIGNAL } else { FrameFlags::NONE };
            FullStep { outcome, module_id: module.id, flags }
        });
        by_cfi.unwrap_or_else(|| match self.without_cfi(scratch, pc, is_return_address) {
            NoCfi::MadeUp(module_id) => FullStep { outcome: Outcome::Root, module_id, flags: exact },
            NoCfi::NotCode => FullStep { outcome: Outcome::NotCode, module_id: 0, flags: exact },
            NoCfi::FramePointer(module_id) => {
                let outcome = self.guess(state, stack);
                FullStep { outcome, module_id, flags: exact | FrameFlags::GUESS }
            }
        })
    }

    fn guess(&self, state: &mut FullState, stack: &mut StackMemory) -> Outcome {
        let sp = state.sp();
        if state.exact {
            // Stopped in code without CFI, perhaps before it made a frame: the return address is then on top.
            stack.distrust();
            if let Some(top) = stack.read(sp)
                && self.is_code(top)
            {
                state.set(RA, Some(top));
                state.set(RSP, Some(sp.wrapping_add(WORD)));
                state.exact = false;
                return Outcome::Next;
            }
        }
        let at = Cursor { pc: state.pc(), sp, fp: state.get(RBP).unwrap_or(0) };
        match step_by_frame_pointer(at, stack, &mut Words::none()) {
            Some(caller) if caller.pc == 0 => Outcome::Root,
            Some(caller) => {
                state.set(RA, Some(caller.pc));
                state.set(RSP, Some(caller.sp));
                state.set(RBP, Some(caller.fp));
                state.exact = false;
                Outcome::Next
            }
            None => Outcome::Stuck,
        }
    }
}

/// Applies a row: DWARF 5, section 6.4.4.
fn leave(state: &mut FullState, row: &Row<'_>, stack: &mut StackMemory) -> Option<Outcome> {
    let cfa = match row.row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => state.get(*register)?.wrapping_add(*offset as u64),
        CfaRule::Expression(e) => evaluate(row, e, None, state, stack)?,
    };
    let return_address = row.fde.cie().return_address_register();
    if matches!(row.row.register(return_address), None | Some(RegisterRule::Undefined)) {
        return Some(Outcome::Root);
    }
    let mut caller = *state;
    caller.set(RSP, Some(cfa));
    for (register, rule) in row.row.registers() {
        let value = match rule {
            RegisterRule::Undefined => None,
            RegisterRule::SameValue => state.get(*register),
            RegisterRule::Offset(offset) => stack.read(cfa.wrapping_add(*offset as u64)),
            RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add(*offset as u64)),
            RegisterRule::Register(other) => state.get(*other),
            RegisterRule::Expression(e) => {
                evaluate(row, e, Some(cfa), state, stack).and_then(|address| stack.read(address))
            }
            RegisterRule::ValExpression(e) => evaluate(row, e, Some(cfa), state, stack),
            RegisterRule::Constant(value) => Some(*value),
            _ => None,
        };
        let target = if *register == return_address { RA } else { *register };
        caller.set(target, value);
    }
    // As the fast rules have it, bp without a rule worth the name is what it was.
    if matches!(row.row.register(RBP), Some(RegisterRule::Undefined)) {
        caller.set(RBP, state.get(RBP));
    }
    caller.exact = row.fde.is_signal_trampoline();
    let (pc, sp) = (caller.get(RA)?, caller.get(RSP)?);
    // Outside signal frames a caller lies above; without progress the walk would not end.
    if !caller.exact && sp <= state.sp() {
        return None;
    }
    *state = caller;
    Some(if pc == 0 { Outcome::Root } else { Outcome::Next })
}

/// The value of an expression, with `initial` on its stack.
fn evaluate(
    row: &Row<'_>,
    expression: &UnwindExpression<usize>,
    initial: Option<u64>,
    state: &FullState,
    stack: &mut StackMemory,
) -> Option<u64> {
    let mut evaluation = expression.get(row.section).ok()?.evaluation(row.fde.cie().encoding());
    evaluation.set_max_iterations(MAX_OPERATIONS);
    if let Some(value) = initial {
        evaluation.set_initial_value(value);
    }
    let mut result = evaluation.evaluate().ok()?;
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                evaluation.resume_with_register(Value::Generic(state.get(register)?))
            }
            EvaluationResult::RequiresMemory { address, size, space: None, .. } => {
                let bits = u32::from(size).min(8) * 8;
                let mask = u64::MAX.checked_shr(64 - bits).unwrap_or(0);
                evaluation.resume_with_memory(Value::Generic(stack.read(address)? & mask))
            }
            _ => return None,
        }
        .ok()?;
    }
    match evaluation.as_result() {
        [piece] => match piece.location {
            gimli::Location::Address { address } => Some(address),
            gimli::Location::Register { register } => state.get(register),
            gimli::Location::Value { value } => value.to_u64(u64::MAX).ok(),
            _ => None,
        },
        _ => None,
    }
}
