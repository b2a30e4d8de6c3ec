//! What a walker asks of the world when its own cache does not know.

use crate::cfi::CfiScratch;
use crate::module::ModuleTable;
use crate::native::{self, FullState, UnwindRule};
use crate::stack::StackMemory;
use crate::tree::FrameFlags;

/// The rule for a pc, and the module that the pc lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleEntry {
    /// How to leave the frame.
    pub rule: UnwindRule,
    /// The module's id; 0 where the pc is in no module.
    pub module_id: u32,
}

/// What became of a full step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The state is that of the caller now.
    Next,
    /// The frame is the outermost one.
    Root,
    /// The caller can't be found.
    Stuck,
    /// The pc is not in code; there is no such frame.
    NotCode,
}

/// A full step from one frame to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullStep {
    /// What became of it.
    pub outcome: Outcome,
    /// The module of the frame that was left.
    pub module_id: u32,
    /// Of the frame that was left.
    pub flags: FrameFlags,
}

/// Answers what a walker's cache does not know. Called off the hot path; this is where the caller takes its lock.
pub trait Resolver {
    /// The rule for the frame at `pc`. `is_return_address` is true for all frames but those that a signal stopped.
    fn rule(&mut self, pc: u64, is_return_address: bool) -> RuleEntry;

    /// The instruction of the program that a thread was at which a signal stopped at `pc`: another one where code stands for it.
    fn stopped(&mut self, pc: u64) -> u64 {
        pc
    }

    /// Makes a full step: all callee-saved registers are tracked, expressions are evaluated.
    fn step(&mut self, state: &mut FullState, stack: &mut StackMemory) -> FullStep;
}

impl ModuleTable {
    /// The rule for the frame at `pc`.
    ///
    /// Off the hot path: parses unwind information, may allocate, and asks the kernel whether a pc outside all modules
    /// is mapped.
    pub fn rule(&self, scratch: &mut CfiScratch, pc: u64, is_return_address: bool) -> RuleEntry {
        if let Some(found) = self.rule_without_tables(pc) {
            return found;
        }
        let (rule, module_id) = native::rule(self, scratch, pc, is_return_address);
        RuleEntry { rule, module_id }
    }

    /// What [`Self::rule`] says of the frame at `pc`, or nothing where that takes more than a look at the commonest forms of
    /// unwind information.
    ///
    /// Neither allocates nor locks, makes no system call, and takes a few hundred bytes of stack.
    pub fn quick_rule(&self, pc: u64, is_return_address: bool) -> Option<RuleEntry> {
        if let Some(found) = self.rule_without_tables(pc) {
            return Some(found);
        }
        let (rule, module_id) = native::quick_rule(self, pc, is_return_address)?;
        Some(RuleEntry { rule, module_id })
    }

    /// The rule of all code where tables aren't asked.
    fn rule_without_tables(&self, pc: u64) -> Option<RuleEntry> {
        if !self.by_frame_pointers {
            return None;
        }
        let module = self.code_at(native::plain(pc))?;
        Some(RuleEntry { rule: UnwindRule::FRAME_POINTER, module_id: module.id })
    }

    /// Moves `state` to the caller, by what tables say of its code.
    ///
    /// Off the hot path: parses unwind information and may allocate.
    pub fn step(&self, scratch: &mut CfiScratch, state: &mut FullState, stack: &mut StackMemory) -> FullStep {
        native::full_step(self, scratch, state, stack)
    }
}

/// A resolver over a table that nobody else changes.
#[derive(Debug)]
pub struct TableResolver<'a> {
    table: &'a ModuleTable,
    scratch: &'a mut CfiScratch,
}

impl<'a> TableResolver<'a> {
    /// Resolves with this table.
    pub fn new(table: &'a ModuleTable, scratch: &'a mut CfiScratch) -> Self {
        TableResolver { table, scratch }
    }
}

impl Resolver for TableResolver<'_> {
    fn rule(&mut self, pc: u64, is_return_address: bool) -> RuleEntry {
        self.table.rule(self.scratch, pc, is_return_address)
    }

    fn step(&mut self, state: &mut FullState, stack: &mut StackMemory) -> FullStep {
        self.table.step(self.scratch, state, stack)
    }
}
