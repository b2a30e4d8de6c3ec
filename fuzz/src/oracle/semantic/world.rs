//! What the emulator's hooks keep of a run.

use std::ops::Range;

use grapnel_relocator::Isa;

use super::{
    inspect::Inst,
    memory::{Memory, wrap},
};
use crate::oracle::state::Layout;

/// How far below the stack pointer a spill can be.
pub(super) const SPILLS: u64 = 4096;

/// A data access.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) addr: u64,
    pub(super) size: usize,
    /// What was written.
    pub(super) written: Option<u64>,
    /// It is to memory that the code has taken from the stack by moving the stack pointer.
    pub(super) spill: bool,
    /// The stack pointer at the time.
    pub(super) stack: u64,
    /// The instruction that made it.
    pub(super) by: u64,
}

/// Why the emulator stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// About to execute what is not the code's.
    Left,
    /// At the window's start again.
    Start,
    TooLong,
    /// About to execute what the emulator does not have.
    Special,
    Interrupt(u32),
}

/// The code that runs.
#[derive(Default)]
pub(super) struct Running {
    pub(super) base: u64,
    pub(super) insts: Vec<Inst>,
    /// It is the relocated code.
    pub(super) relocated: bool,
    /// Offsets where the code of an instruction of the window starts, ascending.
    pub(super) starts: Vec<usize>,
    /// The original's stack pointer at the start of each instruction, by the offset of its code here.
    pub(super) stacks: Vec<(usize, u64)>,
    /// Literals: reading them is how the code works, not what it does.
    pub(super) literals: Range<u64>,
    pub(super) thumb: bool,
}

impl Running {
    /// The code of an instruction of the window starts at an address.
    pub(super) fn is_start(&self, addr: u64) -> bool {
        self.starts.binary_search(&(addr.wrapping_sub(self.base) as usize)).is_ok()
    }

    /// The instruction at an address, if it is in the code.
    pub(super) fn at(&self, addr: u64) -> Option<Inst> {
        self.insts.get(usize::try_from(addr.wrapping_sub(self.base)).ok()?).copied()
    }
}

/// What the emulator's hooks work on.
pub(super) struct World {
    pub(super) isa: Isa,
    pub(super) layout: &'static Layout,
    pub(super) memory: Memory,
    /// The pages of the code under judgement, and where they are.
    pub(super) code: Vec<(u64, u64)>,
    pub(super) running: Running,
    pub(super) accesses: Vec<Access>,
    pub(super) stop: Option<Stop>,
    /// Code was asked for where there is none.
    pub(super) fetched_elsewhere: bool,
    /// More was executed after the code was to stop.
    pub(super) overrun: bool,
    /// It did not tell of the instruction that it was started at: an IT, whose block it then passes in silence.
    pub(super) untold: bool,
    /// There was no place left for a page.
    pub(super) crowded: bool,
    /// The instruction that was last begun.
    pub(super) last: u64,
    /// How many accesses there were before it.
    pub(super) before: usize,
    pub(super) begun: bool,
    /// The first instruction that the emulator told of since it was started.
    pub(super) entered: Option<u64>,
    /// Flags that no one knows.
    pub(super) undefined: u64,
    /// How many accesses there were when an unknown flag was first read.
    pub(super) guessed: Option<usize>,
    /// Where the code was stopped.
    pub(super) stopped_at: u64,
    /// Where the code went on in itself, by addresses that it has from a register or from memory.
    pub(super) jumps: Vec<u64>,
    /// T32: a jump led into an IT block, past its IT, so that its members are under no condition.
    pub(super) strayed: bool,
    pub(super) steps: usize,
    /// The stack pointer at the start of the instruction of the window that is under way.
    pub(super) stack: u64,
    /// The original's stack pointers at the start of further instructions in the same piece of code.
    pub(super) ahead: Vec<u64>,
    /// The stack pointer at the start of each of the original's instructions, by address.
    pub(super) stacks: Vec<(u64, u64)>,
    /// A read that may come again in parts: the instruction, where the parts start, and their size.
    pub(super) whole: Option<(u64, u64, usize)>,
    /// Accesses whose instruction is over.
    pub(super) settled: usize,
    /// What was overwritten below the stack pointer.
    pub(super) spilled: Vec<(u64, u64, usize)>,
    /// What was written to.
    pub(super) dirty: Vec<(u64, usize)>,
}

impl World {
    pub(super) fn new(isa: Isa, layout: &'static Layout) -> Self {
        Self {
            isa,
            layout,
            memory: Memory::new(layout.wide),
            code: Vec::new(),
            running: Running::default(),
            accesses: Vec::new(),
            stop: None,
            fetched_elsewhere: false,
            overrun: false,
            untold: false,
            crowded: false,
            last: 0,
            before: 0,
            undefined: 0,
            guessed: None,
            begun: false,
            entered: None,
            stopped_at: 0,
            jumps: Vec::new(),
            strayed: false,
            steps: 0,
            stack: 0,
            ahead: Vec::new(),
            stacks: Vec::new(),
            whole: None,
            settled: 0,
            spilled: Vec::new(),
            dirty: Vec::new(),
        }
    }

    /// The access ends at or below a stack's top, and not too far from it.
    pub(super) fn fits(&self, addr: u64, size: usize, top: u64) -> bool {
        let below = wrap(top.wrapping_sub(self.layout.red_zone).wrapping_sub(addr), self.layout.wide);
        below >= size as u64 && below <= SPILLS
    }

    /// The access is between where the stack pointer was moved to and where it was before. `push` writes, and then moves
    /// the stack pointer; `pop` reads first.
    pub(super) fn is_spill(&self, access: &Access, now: u64) -> bool {
        self.fits(access.addr, access.size, self.stack)
            && [access.stack, now]
                .into_iter()
                .any(|low| wrap(access.addr.wrapping_sub(low), self.layout.wide) < SPILLS)
    }

    /// Several instructions of the window may be one piece of code here. The stack pointer is then at the start of the
    /// next of them when it has the value that it had there in the original.
    pub(super) fn follow_stack(&mut self, stack: u64) {
        let next = self.ahead.iter().position(|&ahead| ahead == stack);
        if let Some(next) = next {
            self.stack = stack;
            self.ahead.drain(..=next);
        }
    }
}
