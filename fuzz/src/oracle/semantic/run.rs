//! One run of one side, and what it did.

use fastrand::Rng;
use grapnel_relocator::Isa;
use unicorn_engine::{RegisterX86, unicorn_const::uc_error};

use super::{
    EngineError, compare,
    engine::Engine,
    inspect::{self, Kind},
    pair::Pair,
    world::{Access, Running, Stop},
};
use crate::oracle::state::State;

/// Something that code did which the world could see.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Access(Access),
    /// A call, with the return address as an offset in the window.
    Call {
        target: u64,
        thumb: bool,
        returns_to: Option<usize>,
        state: Box<State>,
    },
    /// A request to the kernel.
    Syscall {
        state: Box<State>,
    },
    /// The window's start was come to by a jump: the original goes on there, and is patched there.
    Start {
        state: Box<State>,
    },
    /// `xbegin`; whether it aborted.
    Xbegin(bool),
    /// An exception in the instruction at this offset of the window.
    Fault {
        cause: Cause,
        offset: Option<usize>,
    },
    /// Left for this address; in the middle of an IT block, if the window ends there.
    Exit {
        target: u64,
        thumb: bool,
        in_it_block: bool,
    },
}

/// What stopped the emulator.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Cause {
    /// An exception, by the emulator's number.
    Exception(u32),
    Error(uc_error),
    /// It waits for an interrupt.
    Halted,
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Left,
    Fault,
    TooLong,
    Crowded,
    Overrun,
    /// It goes into its own window, in A32 state, at an address that no A32 instruction has (DDI 0406, A2.3.1:
    /// BXWritePC() is UNPREDICTABLE).
    Misaligned,
}

/// What one run did.
pub(super) struct Run {
    pub(super) events: Vec<Event>,
    /// Where it went on in its own code, by addresses that it has from a register or from memory.
    pub(super) jumps: Vec<u64>,
    /// The stack pointer at the start of each instruction behind the first of an entry of the map, by the offset of the
    /// entry's code in the other.
    stacks: Vec<(usize, u64)>,
    pub(super) state: State,
    pub(super) end: End,
    /// What follows after so many events depends on flags that no one knows.
    pub(super) guessed: Option<usize>,
    /// What the link register says of the window, as an offset in it: after a call to the next instruction, and in the
    /// relocated code always.
    pub(super) link: Option<usize>,
}

/// Where and from what a run starts.
pub(super) struct Start<'a> {
    /// The offset in the code.
    pub(super) offset: usize,
    pub(super) state: &'a State,
    /// Transactions abort.
    pub(super) aborts: bool,
    /// What callees leave in the registers that are theirs.
    pub(super) seed: u64,
}

/// The emulator's number of a request to the kernel, on Arm.
const SVC: u32 = 2;

struct Runner<'a> {
    engine: &'a mut Engine,
    pair: &'a Pair<'a>,
    start: &'a Start<'a>,
    /// For the relocated code: which of the original's ways out were calls.
    calls: Option<&'a [bool]>,
    base: u64,
    events: Vec<Event>,
    exits: usize,
    vectors: bool,
    guessed: Option<usize>,
    link: Option<usize>,
}

/// Runs the window, or after it the other code.
pub(super) fn run(
    engine: &mut Engine,
    pair: &Pair<'_>,
    start: &Start<'_>,
    original: Option<&Run>,
) -> Result<Run, EngineError> {
    let relocated = original.is_some();
    let calls = original.map(compare::calls);
    let (base, code) = if relocated { (pair.to, pair.relocated_code()) } else { (pair.from, pair.code()) };
    let literals =
        pair.to.wrapping_add(pair.relocated_len as u64)..pair.to.wrapping_add(pair.relocated.len() as u64);
    let starts: Vec<usize> = pair.map.iter().map(|&(from, to)| if relocated { to } else { from }).collect();
    let running = Running {
        base,
        insts: inspect::sweep(pair.isa, base, code, &starts),
        relocated,
        starts,
        stacks: original.map_or_else(Vec::new, |run| run.stacks.clone()),
        literals: if relocated { literals } else { 0..0 },
        thumb: pair.isa == Isa::T32,
    };
    engine.reset(running)?;
    start.state.write(engine.layout, &mut engine.uc)?;
    let vectors = start.state.vectors.is_some();
    let mut runner = Runner {
        engine,
        pair,
        start,
        calls: calls.as_deref(),
        base,
        events: Vec::new(),
        exits: 0,
        vectors,
        guessed: None,
        link: None,
    };
    let end = runner.all()?;
    let state = *runner.state()?;
    let (events, guessed, link) = (runner.events, runner.guessed, runner.link);
    engine.undo()?;
    let world = engine.uc.get_data();
    let stacks = world.stacks.iter().filter_map(|&(at, stack)| {
        let offset = at.wrapping_sub(pair.from) as usize;
        // The first instruction of an entry starts where its code does.
        let (first, start) = pair.entry_of(offset)?;
        (first != offset).then_some((start, stack))
    });
    Ok(Run { events, jumps: world.jumps.clone(), stacks: stacks.collect(), state, end, guessed, link })
}

impl Runner<'_> {
    fn all(&mut self) -> Result<End, EngineError> {
        let mut pc = self.base.wrapping_add(self.start.offset as u64);
        loop {
            if self.engine.uc.get_data().running.at(pc).is_none() {
                self.events.push(Event::Exit {
                    target: pc,
                    thumb: self.pair.isa == Isa::T32,
                    in_it_block: false,
                });
                return Ok(End::Left);
            }
            let stop = self.engine.go(pc);
            let world = self.engine.uc.get_data_mut();
            world.settled = 0;
            let before = self.events.len() + world.before;
            if let Some(guessed) = world.guessed {
                self.guessed.get_or_insert(self.events.len() + guessed);
            }
            self.events.extend(world.accesses.drain(..).map(Event::Access));
            if world.crowded {
                return Ok(End::Crowded);
            }
            if world.untold && self.pair.isa == Isa::T32 {
                return Ok(End::Overrun);
            }
            let (last, at) = (world.last, world.stopped_at);
            let overrun = world.overrun;
            let after = last.wrapping_add(world.running.at(last).unwrap_or_default().len.into());
            if overrun && (self.calls.is_some() || !self.is_cut(at)) {
                return Ok(End::Overrun);
            }
            match stop {
                Ok(Some(Stop::TooLong)) => return Ok(End::TooLong),
                Ok(Some(Stop::Left)) if self.is_misaligned(at)? => return Ok(End::Misaligned),
                Ok(Some(Stop::Left)) => match self.left(at, last, after)? {
                    Some(next) => pc = next,
                    None => return Ok(End::Left),
                },
                Ok(Some(Stop::Start)) => {
                    let state = self.state()?;
                    self.events.push(Event::Start { state });
                    pc = at;
                }
                Ok(Some(Stop::Special)) => pc = self.special(at)?,
                Ok(Some(Stop::Interrupt(SVC))) if self.pair.isa != Isa::X86_64 => {
                    let state = self.state()?;
                    self.events.push(Event::Syscall { state });
                    pc = after;
                }
                Ok(Some(Stop::Interrupt(number))) => {
                    return Ok(self.fault(Cause::Exception(number), last, before));
                }
                Ok(None) => return Ok(self.fault(Cause::Halted, last, before)),
                Err(error) => return Ok(self.fault(Cause::Error(error), last, before)),
            }
        }
    }

    fn state(&self) -> Result<Box<State>, EngineError> {
        let mut state = State::read(self.engine.layout, self.vectors, &self.engine.uc)?;
        state.flags &= !self.engine.uc.get_data().undefined;
        Ok(Box::new(state))
    }

    /// An exception in the instruction at `at`, before which there were so many events.
    fn fault(&mut self, cause: Cause, at: u64, before: usize) -> End {
        let offset = self.made_by(at);
        // What it did before the exception need not be done in the same order.
        self.events.truncate(before);
        self.events.push(Event::Fault { cause, offset });
        End::Fault
    }

    /// The code was left for `target`, from the instruction before `after`. The address to go on from, after a call.
    fn left(&mut self, target: u64, last: u64, after: u64) -> Result<Option<u64>, EngineError> {
        let thumb = self.engine.is_thumb()?;
        let inst = self.engine.uc.get_data().running.at(last).unwrap_or_default();
        let to_next = target == after && thumb == (self.pair.isa == Isa::T32);
        let has_link = self.engine.layout.link.is_some();
        let call = match self.calls {
            // The original may only have gone on at the window's start here.
            Some(_) if target == self.pair.from && has_link && self.link()?.is_none() => false,
            Some(calls) => calls.get(self.exits).copied().unwrap_or(false),
            None => inst.kind == Kind::Call && !to_next,
        };
        self.exits += 1;
        if !call {
            if self.calls.is_some() || to_next && inst.indirect {
                self.link = self.link()?;
            }
            // Whatever is jumped to is outside of all blocks.
            let in_it_block =
                self.calls.is_none() && target == after && self.pair.isa == Isa::T32 && self.is_cut(target);
            self.events.push(Event::Exit { target, thumb, in_it_block });
            return Ok(None);
        }
        let state = self.state()?;
        let returns = match self.engine.layout.link {
            Some(link) => state.general[link],
            None => self.pop_return()?,
        };
        let thumb_bit = u64::from(self.pair.isa == Isa::T32);
        let returns_to = match self.calls {
            None => (returns == after | thumb_bit).then(|| after.wrapping_sub(self.base) as usize),
            Some(_) => self.returns_to(returns ^ thumb_bit),
        };
        self.events.push(Event::Call { target, thumb, returns_to, state });
        if returns_to.is_none() {
            return Ok(None);
        }
        self.callee()?;
        Ok(Some(returns ^ thumb_bit))
    }

    /// The original goes into its window where the manual leaves open what then happens.
    fn is_misaligned(&self, target: u64) -> Result<bool, EngineError> {
        let inside = target.wrapping_sub(self.pair.from) < self.pair.code_len as u64;
        let original = self.calls.is_none() && matches!(self.pair.isa, Isa::A32 | Isa::T32);
        Ok(original && inside && target & 2 != 0 && !self.engine.is_thumb()?)
    }

    /// What the link register says of the window.
    fn link(&self) -> Result<Option<usize>, EngineError> {
        let Some(link) = self.engine.layout.link else { return Ok(None) };
        let thumb_bit = u64::from(self.pair.isa == Isa::T32);
        let link = self.state()?.general[link] ^ thumb_bit;
        Ok(if self.calls.is_some() {
            self.returns_to(link)
        } else {
            usize::try_from(link.wrapping_sub(self.base)).ok()
        })
    }

    /// What a return address in the relocated code is in the window. That of the last call may be the original one.
    fn returns_to(&self, address: u64) -> Option<usize> {
        if address == self.pair.behind() {
            return Some(self.pair.window_len);
        }
        self.pair.return_to_original(address.wrapping_sub(self.base))
    }

    /// The window ends at this address, and inside an IT block.
    fn is_cut(&self, end: u64) -> bool {
        end.wrapping_sub(self.base) == self.pair.code_len as u64
            && inspect::cut_by(self.pair.code())
                .is_some_and(|block| self.pair.map.iter().any(|&(from, _)| from == block))
    }

    /// The offset in the window of the instruction whose code has an instruction at an address.
    fn made_by(&self, at: u64) -> Option<usize> {
        let offset = at.wrapping_sub(self.base) as usize;
        if self.calls.is_some() {
            self.pair.origin(offset)
        } else {
            self.pair.entry_of(offset).map(|entry| entry.0)
        }
    }

    /// x86-64: the return address, which the callee takes from the stack.
    fn pop_return(&mut self) -> Result<u64, EngineError> {
        let stack = self.engine.uc.reg_read(RegisterX86::RSP)?;
        let mut pushed = [0; 8];
        self.engine.read_data(stack, &mut pushed)?;
        // The push itself is told by the return address. Relocated code may write there in several steps.
        let caller = self.made_by(self.engine.uc.get_data().last);
        let made = self
            .events
            .iter()
            .rposition(|event| !matches!(event, Event::Access(access) if self.made_by(access.by) == caller));
        let steps = self.events.split_off(made.map_or(0, |before| before + 1));
        let pushes = |event: &Event| matches!(event, Event::Access(Access { addr, written: Some(_), .. }) if addr.wrapping_sub(stack) < 8);
        self.events.extend(steps.into_iter().filter(|event| !pushes(event)));
        self.engine.uc.reg_write(RegisterX86::RSP, stack.wrapping_add(8))?;
        // Its bytes on the stack differ between the sides; no code may read them, but random code does.
        self.engine.restore(stack, 8)?;
        Ok(u64::from_le_bytes(pushed))
    }

    /// A callee keeps neither the link register nor those between a call and it, nor those that are said to be changed.
    fn callee(&mut self) -> Result<(), EngineError> {
        let layout = self.engine.layout;
        let mut rng = Rng::with_seed(self.start.seed ^ self.exits as u64);
        for (number, &register) in layout.general.iter().enumerate() {
            let value = rng.u64(..);
            if layout.scratch.contains(&number) || self.pair.clobbers >> number & 1 == 1 {
                let value = if layout.wide { value } else { value & 0xffff_ffff };
                self.engine.uc.reg_write(register, value)?;
            }
        }
        Ok(())
    }

    /// Does what the emulator does not know how to.
    fn special(&mut self, at: u64) -> Result<u64, EngineError> {
        let inst = self.engine.uc.get_data().running.at(at).unwrap_or_default();
        let next = at.wrapping_add(inst.len.into());
        if let Kind::Xbegin { fallback } = inst.kind {
            self.events.push(Event::Xbegin(self.start.aborts));
            if self.start.aborts {
                self.engine.uc.reg_write(RegisterX86::RAX, 1)?;
                return Ok(fallback);
            }
            return Ok(next);
        }
        let state = self.state()?;
        self.engine.uc.reg_write(RegisterX86::RCX, next)?;
        self.engine.uc.reg_write(RegisterX86::R11, state.flags)?;
        self.events.push(Event::Syscall { state });
        Ok(next)
    }
}
