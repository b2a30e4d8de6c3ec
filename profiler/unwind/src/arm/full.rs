//! From a frame to its caller by all that the tables say: every register is tracked.
//!
//! Signal frames, functions that a signal stopped and hand-written assembly need this.

use super::code::is_return;
use super::frame_pointers::FramePointer;
use super::layout::Layout;
use super::opcode::{NoOpcode, Opcode, next};
use super::registers::{LR, PC, R4, R7, R11, Registers, SP};
use super::step::{is_data, step_by_frame_pointer};
use super::table::{Entry, Found, Program};
use super::{code, plain, signal};
use crate::cfi::CfiScratch;
use crate::memo::Words;
use crate::module::ModuleTable;
use crate::resolve::{FullStep, Outcome};
use crate::stack::{StackMemory, is_far};
use crate::start::Cursor;
use crate::tree::FrameFlags;

/// All registers of a frame, as far as they are known.
#[derive(Clone, Copy, Debug)]
pub struct FullState {
    registers: [Option<u32>; 16],
    exact: bool,
}

impl FullState {
    /// The state of the first frame of a walk.
    pub fn new(start: &Registers) -> Self {
        let mut registers = [None; 16];
        for (slot, value) in registers.iter_mut().skip(R4).zip(start.r4) {
            *slot = Some(value);
        }
        (registers[SP], registers[PC]) = (Some(start.sp), Some(start.pc));
        FullState { registers, exact: false }
    }

    /// Where the frame is.
    pub fn pc(&self) -> u64 {
        self.registers[PC].unwrap_or(0).into()
    }

    /// The frame's stack pointer.
    pub fn sp(&self) -> u64 {
        self.registers[SP].unwrap_or(0).into()
    }

    /// Takes the thread to be at this pc instead, for one that was stopped in code that stands for other code.
    pub fn set_pc(&mut self, pc: u64) {
        self.registers[PC] = Some(pc as u32);
    }

    /// Whether the pc is that of an instruction that a signal stopped.
    pub fn is_exact(&self) -> bool {
        self.exact
    }

    /// Not asked for: no rule is one of a signal's frame.
    pub(crate) fn stopped(_sp: u64, _stack: &mut StackMemory) -> Option<Self> {
        None
    }

    pub(crate) fn cursor(&self) -> Cursor {
        Cursor { pc: self.pc(), sp: self.sp(), fp: self.frame_pointers() }
    }

    pub(super) fn frame_pointers(&self) -> u64 {
        FramePointer::pair(self.registers[R7].unwrap_or(0), self.registers[R11].unwrap_or(0))
    }

    /// Goes on at a frame of which no more is known.
    fn move_to(&mut self, caller: Cursor) {
        let fp = FramePointer::known(caller.fp);
        for (register, value) in [(SP, caller.sp), (PC, caller.pc), (R7, fp.r7()), (R11, fp.r11())] {
            self.registers[register] = Some(value as u32);
        }
        self.registers[LR] = None;
        self.exact = false;
    }

    /// Goes on where a signal stopped the thread. `None` where its frame can't be read.
    fn leave_signal(&mut self, saved: signal::Saved, stack: &mut StackMemory) -> Option<Outcome> {
        let mut registers = [None; 16];
        for (number, register) in (0..).zip(registers.iter_mut()) {
            *register = Some(stack.read(saved.register(number))? as u32);
        }
        (self.registers, self.exact) = (registers, true);
        self.set_code(stack.read(saved.status())?);
        Some(if plain(self.pc()) == 0 { Outcome::Root } else { Outcome::Next })
    }

    /// Takes from a program status register whether the code is T32.
    fn set_code(&mut self, status: u64) {
        let is_t32 = status & signal::T32 != 0;
        self.registers[PC] = self.registers[PC].map(|pc| pc | u32::from(is_t32));
    }

    /// Follows the instructions (EHABI32, section 10.3). `None` where a word can't be read, or they lead nowhere.
    fn leave(&mut self, program: &Program, stack: &mut StackMemory) -> Option<Left> {
        let mut bytes = program.bytes();
        let mut caller = *self;
        caller.exact = false;
        let (mut vsp, mut pc) = (self.registers[SP]?, None);
        let (mut popped, mut by_sp) = (0, true);
        loop {
            match next(&mut bytes) {
                Ok(Opcode::Finish) => break,
                Ok(Opcode::Nothing) => {}
                Ok(Opcode::Add(n)) => vsp = vsp.wrapping_add_signed(n),
                Ok(Opcode::Skip(n)) => vsp = vsp.wrapping_add(n),
                Ok(Opcode::Set(register)) => {
                    vsp = (*caller.registers.get(usize::from(register))?)?;
                    by_sp = false;
                }
                Ok(Opcode::Pop(mask)) => {
                    for (register, slot) in caller.registers.iter_mut().enumerate() {
                        if mask & (1 << register) != 0 {
                            *slot = Some(stack.read(vsp.into())? as u32);
                            vsp = vsp.wrapping_add(4);
                        }
                    }
                    if mask & (1 << SP) != 0 {
                        vsp = caller.registers[SP]?;
                    }
                    if mask & (1 << PC) != 0 {
                        pc = caller.registers[PC];
                    }
                    popped |= mask;
                }
                Err(NoOpcode::Refused) => return Some(Left::Ended),
                Err(NoOpcode::Unknown) => return None,
            }
        }
        // Whoever gives both back returns to what was stopped, not to a caller: a signal's trampoline.
        caller.exact = popped & (1 << SP) != 0 && popped & (1 << PC) != 0;
        caller.registers[SP] = Some(vsp);
        caller.registers[PC] = Some(pc.or(caller.registers[LR])?);
        if !caller.exact {
            // What a callee leaves there is its own affair.
            caller.registers[LR] = None;
        }
        // Outside signal frames a caller lies above, or on another stack; without progress the walk would not end. A leaf that
        // saved nothing has no frame.
        let leaf = self.exact && caller.sp() == self.sp();
        let far = !caller.exact && !leaf && is_far(self.sp(), caller.sp());
        if far && !stack.goes_far(self.sp(), caller.sp(), by_sp) {
            return None;
        }
        *self = caller;
        Some(Left::ToCaller)
    }
}

impl FullState {
    /// Leaves a frame of which no table says how: a signal's, or one that is guessed at.
    fn leave_unknown(
        &mut self,
        table: &ModuleTable,
        found: Option<&Found<'_>>,
        stack: &mut StackMemory,
        flags: FrameFlags,
    ) -> FullStep {
        let module_id = found.map_or(0, |found| found.module.id);
        let step = |outcome, more| FullStep { outcome, module_id, flags: flags | more };
        if let Some(saved) = signal::saved(self.pc(), self.sp()) {
            let outcome = self.leave_signal(saved, stack).unwrap_or(Outcome::Stuck);
            return step(outcome, FrameFlags::SIGNAL);
        }
        let entry = found.and_then(|found| found.entry);
        if matches!(entry, Some(Entry::Unknown)) {
            return step(Outcome::Stuck, FrameFlags::NONE);
        }
        if let Some(layout) = found.and_then(|found| code::layout(self.pc(), !self.exact, found)) {
            let outcome = self.leave_by(&layout, stack).unwrap_or(Outcome::Stuck);
            return step(outcome, FrameFlags::GUESS);
        }
        match entry {
            Some(_) => step(Outcome::Root, FrameFlags::NONE),
            None => step(by_frame_pointer(table, self, stack), FrameFlags::GUESS),
        }
    }

    /// Leaves a frame that is laid out so as far as its code tells. `None` where a word can't be read, or no call returns to what
    /// was found.
    fn leave_by(&mut self, layout: &Layout, stack: &mut StackMemory) -> Option<Outcome> {
        stack.guess();
        let base = (*self.registers.get(layout.base())?)?;
        let mut caller = *self;
        caller.exact = false;
        for (place, register) in layout.saved.iter().zip(&mut caller.registers) {
            if let Some(place) = place {
                *register = Some(stack.read(base.wrapping_add_signed(*place).into())? as u32);
            }
        }
        let pc = match layout.saved[PC] {
            Some(_) => caller.registers[PC],
            None => caller.registers[LR],
        }?;
        caller.registers[PC] = Some(pc);
        caller.registers[SP] = Some(base.wrapping_add_signed(layout.cfa));
        caller.registers[LR] = None;
        // A leaf that a signal stopped may have no frame.
        let leaf = self.exact && caller.sp() == self.sp();
        if !leaf && caller.sp() <= self.sp() {
            return None;
        }
        let pc = pc.into();
        if plain(pc) != 0 && !is_return(pc, stack) {
            return None;
        }
        *self = caller;
        Some(if plain(pc) == 0 { Outcome::Root } else { Outcome::Next })
    }
}

/// What became of a program.
enum Left {
    ToCaller,
    Ended,
}

/// Moves `state` to the caller.
///
/// Off the hot path: reads tables.
pub(crate) fn full_step(
    table: &ModuleTable,
    _: &mut CfiScratch,
    state: &mut FullState,
    stack: &mut StackMemory,
) -> FullStep {
    let flags = if state.exact { FrameFlags::EXACT } else { FrameFlags::NONE };
    let pc = state.pc();
    let address = plain(pc).wrapping_sub(u64::from(!state.exact));
    let Some(found) = table.arm_entry(address) else {
        let module_id = table.module_at(address).unwrap_or(0);
        let at = Cursor { pc, sp: state.sp(), fp: state.frame_pointers() };
        let is_stack = module_id == 0 && !state.exact && is_data(at, stack);
        let is_code = !is_stack && code::is_elsewhere(table, pc, !state.exact);
        if !signal::is_trampoline(pc) && !is_code {
            return FullStep { outcome: Outcome::NotCode, module_id: 0, flags };
        }
        return FullStep { module_id, ..state.leave_unknown(table, None, stack, flags) };
    };
    let module_id = found.module.id;
    let Some(Entry::Program(program)) = found.entry else {
        return state.leave_unknown(table, Some(&found), stack, flags);
    };
    let trampoline = (pc, state.sp());
    let left = state.leave(&program, stack);
    if state.exact
        && let Some(saved) = signal::saved(trampoline.0, trampoline.1)
    {
        // The tables have the registers, of which none says which code was stopped.
        state.set_code(stack.read(saved.status()).unwrap_or(0));
    }
    let outcome = match left {
        Some(Left::ToCaller) if plain(state.pc()) == 0 => Outcome::Root,
        Some(Left::ToCaller) => Outcome::Next,
        Some(Left::Ended) => Outcome::Root,
        None => Outcome::Stuck,
    };
    let signal = if state.exact && outcome == Outcome::Next { FrameFlags::SIGNAL } else { FrameFlags::NONE };
    FullStep { outcome, module_id, flags: flags | signal }
}

/// The caller's frame, if r7 or r11 is a frame pointer, or the code was stopped before it made a frame.
fn by_frame_pointer(table: &ModuleTable, state: &mut FullState, stack: &mut StackMemory) -> Outcome {
    let at = Cursor { pc: state.pc(), sp: state.sp(), fp: state.frame_pointers() };
    if state.exact {
        // The return address is in its register then.
        if let Some(link) = state.registers[LR].map(u64::from)
            && table.is_code(plain(link))
        {
            state.move_to(Cursor { pc: link, ..at });
            return Outcome::Next;
        }
    }
    match step_by_frame_pointer(at, stack, &mut Words::none()) {
        Some(caller) if plain(caller.pc) == 0 => Outcome::Root,
        Some(caller) => {
            state.move_to(caller);
            Outcome::Next
        }
        None => Outcome::Stuck,
    }
}
