//! From a frame to its caller by a row of call frame information: all of its rules, on all registers that are known.

use super::Row;
use crate::resolve::Outcome;
use crate::stack::{StackMemory, is_far};
use gimli::{CfaRule, EvaluationResult, Register, RegisterRule, UnwindExpression, Value};

/// No expression in CFI loops; one that does is broken.
const MAX_OPERATIONS: u32 = 200;

/// What an instruction set calls its registers, and what it takes for granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) sp: Register,
    pub(crate) fp: Register,
    /// Where [`Columns`] keep the pc.
    pub(crate) pc: Register,
    /// Without a rule for the return address a function returns to where its register says, and does not end the
    /// stack.
    pub(crate) linked: bool,
    /// The bits of a return address that are part of the address.
    pub(crate) code: u64,
}

/// Registers by their DWARF numbers, as far as they are known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns<const N: usize> {
    values: [Option<u64>; N],
    /// Whether the pc is that of an instruction that a signal stopped.
    pub(crate) exact: bool,
}

impl<const N: usize> Columns<N> {
    pub(crate) fn new(known: impl IntoIterator<Item = (Register, u64)>) -> Self {
        let mut columns = Columns { values: [None; N], exact: false };
        for (register, value) in known {
            columns.set(register, Some(value));
        }
        columns
    }

    pub(crate) fn get(&self, register: Register) -> Option<u64> {
        self.values.get(usize::from(register.0)).copied().flatten()
    }

    pub(crate) fn set(&mut self, register: Register, value: Option<u64>) {
        if let Some(slot) = self.values.get_mut(usize::from(register.0)) {
            *slot = value;
        }
    }

    /// Applies a row: DWARF 5, section 6.4.4.
    pub(crate) fn leave(&mut self, names: &Names, row: &Row<'_>, stack: &mut StackMemory) -> Option<Outcome> {
        let cfa = match row.row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                self.get(*register)?.wrapping_add(*offset as u64)
            }
            CfaRule::Expression(e) => self.evaluate(row, e, None, stack)?,
        };
        let return_address = row.fde.cie().return_address_register();
        let target = match row.row.register(return_address) {
            Some(RegisterRule::Undefined) => return Some(Outcome::Root),
            None if !names.linked => return Some(Outcome::Root),
            None => self.get(return_address),
            Some(_) => None,
        };
        // Outside signal frames a caller lies above, or on another stack; without progress the walk would not end. A leaf that
        // saved nothing has no frame.
        let (sp, is_signal) = (self.get(names.sp)?, row.fde.is_signal_trampoline());
        let is_leaf = |caller_sp: u64| self.exact && names.linked && caller_sp == sp;
        if !is_signal && is_far(sp, cfa) && !is_leaf(cfa) {
            let by_sp = matches!(
                row.row.cfa(),
                CfaRule::RegisterAndOffset { register, .. } if *register == names.sp
            );
            if !stack.goes_far(sp, cfa, by_sp) {
                return None;
            }
        }
        let mut caller = *self;
        caller.set(names.pc, target);
        caller.set(names.sp, Some(cfa));
        for (register, rule) in row.row.registers() {
            let value = match rule {
                RegisterRule::Undefined => None,
                RegisterRule::SameValue => self.get(*register),
                RegisterRule::Offset(offset) => stack.read(cfa.wrapping_add(*offset as u64)),
                RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add(*offset as u64)),
                RegisterRule::Register(other) => self.get(*other),
                RegisterRule::Expression(e) => {
                    self.evaluate(row, e, Some(cfa), stack).and_then(|address| stack.read(address))
                }
                RegisterRule::ValExpression(e) => self.evaluate(row, e, Some(cfa), stack),
                RegisterRule::Constant(value) => Some(*value),
                _ => None,
            };
            caller.set(*register, value);
            if *register == return_address {
                caller.set(names.pc, value);
            }
        }
        // As the fast rules have it, a frame pointer without a rule worth the name is what it was.
        if matches!(row.row.register(names.fp), Some(RegisterRule::Undefined)) {
            caller.set(names.fp, self.get(names.fp));
        }
        caller.exact = is_signal;
        if names.linked && !caller.exact {
            // The callee may have changed it, whatever is said of it.
            caller.set(return_address, None);
        }
        let (pc, caller_sp) = (caller.get(names.pc)? & names.code, caller.get(names.sp)?);
        caller.set(names.pc, Some(pc));
        // Where it is told by itself it isn't looked for on another stack.
        if !is_signal && caller_sp != cfa && caller_sp <= sp && !is_leaf(caller_sp) {
            return None;
        }
        *self = caller;
        Some(if pc == 0 { Outcome::Root } else { Outcome::Next })
    }

    /// The value of an expression, with `initial` on its stack.
    fn evaluate(
        &self,
        row: &Row<'_>,
        expression: &UnwindExpression<usize>,
        initial: Option<u64>,
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
                    evaluation.resume_with_register(Value::Generic(self.get(register)?))
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
                gimli::Location::Register { register } => self.get(register),
                gimli::Location::Value { value } => value.to_u64(u64::MAX).ok(),
                _ => None,
            },
            _ => None,
        }
    }
}
