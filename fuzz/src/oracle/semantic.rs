//! Runs the original at its address and the relocated code at its own, and compares what they did.
//!
//! Both start from the same random registers, flags and memory. Memory is what a hash says of its address, and exists
//! wherever it is touched. What is compared: every access in order, with the values written; every call with the
//! registers it was made with; the address left for; and the registers at that point. Return addresses are compared
//! through the PC map. A callee returns at once and changes nothing, so that what follows a call is compared as well.

use std::{collections::HashSet, fmt::Debug, ops::Range};

use fastrand::Rng;
use grapnel_arch::x86_64::{Flow, Inst, decode};
use grapnel_relocator::CodeAddr;
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use unicorn_engine::{
    Context, RegisterX86, Unicorn,
    unicorn_const::{Arch, HookType, MemType, Mode, Permission, uc_error},
};

use super::{Subject, Verdict, state::State};

const PAGE: u64 = 4096;
/// No data is at such addresses, where the emulator's own arithmetic ends.
const ADDRESS_END: u64 = 0x000f_0000_0000_0000;
/// A run longer than this is not compared.
const MAX_STEPS: usize = 400;
/// With more pages than this mapped, the emulator is started anew.
const MAX_PAGES: usize = 256;

/// Something that code did which the world could see.
#[derive(Clone, PartialEq, Debug)]
enum Event {
    Read {
        addr: u64,
        size: usize,
    },
    Write {
        addr: u64,
        size: usize,
        value: i64,
    },
    /// A call, with the return address as an offset in the window.
    Call {
        target: u64,
        returns_to: Option<usize>,
        state: Box<State>,
    },
    Syscall {
        state: Box<State>,
    },
    /// `xbegin`; whether it aborted.
    Xbegin(bool),
    /// An exception in the instruction at this offset of the window.
    Fault {
        error: uc_error,
        offset: Option<usize>,
    },
    /// Left for this address.
    Exit {
        target: u64,
    },
}

/// What one run did.
struct Run {
    events: Vec<Event>,
    state: State,
    finished: bool,
}

/// The accesses of the running code.
#[derive(Default)]
struct World {
    events: Vec<Event>,
    pages: HashSet<u64>,
    /// The literals of relocated code: reading them is how it works, not what it does.
    literals: Range<u64>,
    dirty: Vec<(u64, usize)>,
}

/// An emulator, used for many windows.
pub struct Machine {
    engine: Unicorn<'static, World>,
    fresh: Context,
    /// Something was written beyond the emulator's address bits, and so to other memory too.
    spoilt: bool,
}

/// The emulator refused to be set up or used.
#[derive(Debug, thiserror::Error)]
#[error("the emulator failed: {0:?}")]
pub struct EngineError(uc_error);

impl From<uc_error> for EngineError {
    fn from(error: uc_error) -> Self {
        Self(error)
    }
}

/// One side of the comparison: code, where it lies, and how its addresses are told in terms of the window.
struct Side<'a> {
    base: u64,
    /// The instructions; literals behind them are not executed.
    code: &'a [u8],
    /// The offset in the window of an offset in the code at which an instruction is under way.
    offset: &'a dyn Fn(usize) -> Option<usize>,
    /// The offset in the window of a pushed return address's offset.
    returns: &'a dyn Fn(usize) -> Option<usize>,
}

impl Machine {
    /// Starts an emulator.
    ///
    /// # Errors
    ///
    /// If it can't be had.
    pub fn new() -> Result<Self, EngineError> {
        let mut engine = Unicorn::new_with_data(Arch::X86, Mode::MODE_64, World::default())?;
        engine.add_mem_hook(HookType::MEM_UNMAPPED, 1, 0, |engine, _, addr, size, _| {
            map(engine, addr, size).is_ok()
        })?;
        engine.add_mem_hook(
            HookType::MEM_READ | HookType::MEM_WRITE,
            1,
            0,
            |engine, kind, addr, size, value| {
                let world = engine.get_data_mut();
                match kind {
                    MemType::WRITE => {
                        world.dirty.push((addr, size));
                        world.events.push(Event::Write { addr, size, value });
                    }
                    // One that crosses a page is read in aligned parts.
                    _ if addr < world.literals.end && world.literals.start < addr + size as u64 => {}
                    _ => world.events.push(Event::Read { addr, size }),
                }
                true
            },
        )?;
        let fresh = engine.context_init()?;
        Ok(Self { engine, fresh, spoilt: false })
    }

    /// Runs both sides from one random state.
    ///
    /// # Errors
    ///
    /// If the emulator itself fails, as it does for a stack beyond its address bits. It is then started anew.
    pub fn judge(&mut self, subject: &Subject<'_>, seed: u64) -> Result<Verdict, EngineError> {
        let verdict = self.run_both(subject, seed);
        if verdict.is_err() || self.spoilt {
            *self = Self::new()?;
        }
        verdict
    }

    fn run_both(&mut self, subject: &Subject<'_>, seed: u64) -> Result<Verdict, EngineError> {
        if let Some(reason) = unjudged(subject) {
            return Ok(Verdict::Unjudged(reason));
        }
        if self.engine.get_data().pages.len() > MAX_PAGES {
            *self = Self::new()?;
        }
        let (start, aborts) = {
            let mut rng = Rng::with_seed(seed);
            (State::random(&mut rng), rng.bool())
        };
        let (from, to) = (subject.case.from.0, subject.case.to.0);
        let (bytes, map) = (subject.relocated.bytes(), subject.relocated.map());
        self.place(from, &subject.case.source)?;
        self.place(to, bytes)?;
        let original = Side {
            base: from,
            code: subject.original(),
            offset: &|offset| Some(offset),
            returns: &|offset| Some(offset),
        };
        let original = self.run(&original, &start, aborts)?;
        // What lies around the code may have been written to.
        self.place(from, &subject.case.source)?;
        self.place(to, bytes)?;
        self.engine.get_data_mut().literals = to + map.code_len() as u64..to + bytes.len() as u64;
        let relocated = Side {
            base: to,
            code: &bytes[..map.code_len()],
            offset: &|offset| map.to_original(offset).map(|origin| origin.offset),
            returns: &|offset| map.return_to_original(offset),
        };
        let relocated = self.run(&relocated, &start, aborts)?;
        self.engine.get_data_mut().literals = 0..0;
        self.restore(from, subject.case.source.len())?;
        self.restore(to, bytes.len())?;
        Ok(compare(&original, &relocated))
    }

    fn place(&mut self, addr: u64, bytes: &[u8]) -> Result<(), EngineError> {
        map(&mut self.engine, addr, bytes.len())?;
        self.engine.mem_write(addr, bytes)?;
        Ok(self.engine.ctl_remove_cache(addr, addr + bytes.len() as u64)?)
    }

    /// Makes memory again what the hash says.
    fn restore(&mut self, addr: u64, len: usize) -> Result<(), EngineError> {
        let bytes: Vec<u8> = (0..len as u64).map(|i| content(addr.wrapping_add(i))).collect();
        Ok(self.engine.mem_write(addr, &bytes)?)
    }

    fn run(&mut self, side: &Side<'_>, start: &State, aborts: bool) -> Result<Run, EngineError> {
        self.engine.context_restore(&self.fresh)?;
        start.write(&mut self.engine)?;
        self.engine.get_data_mut().events.clear();
        let finished = self.steps(side, aborts)?;
        let state = State::read(&self.engine)?;
        let world = self.engine.get_data_mut();
        let events = std::mem::take(&mut world.events);
        for (addr, size) in std::mem::take(&mut world.dirty) {
            self.spoilt |= addr.saturating_add(size as u64) >= ADDRESS_END;
            self.restore(addr, size)?;
        }
        Ok(Run { events, state, finished })
    }

    /// Steps until the code is left, an exception, or too many steps (then `false`).
    fn steps(&mut self, side: &Side<'_>, aborts: bool) -> Result<bool, EngineError> {
        let mut pc = side.base;
        for _ in 0..MAX_STEPS {
            let offset = pc.wrapping_sub(side.base) as usize;
            let inst = match side.code.get(offset..).map(|code| decode(CodeAddr(pc), code)) {
                Some(Ok(inst)) => inst,
                _ => {
                    self.engine.get_data_mut().events.push(Event::Exit { target: pc });
                    return Ok(true);
                }
            };
            match self.step(side, &inst, aborts)? {
                Some(next) => pc = next,
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Executes one instruction; the address of the next, or nothing after an exception.
    fn step(&mut self, side: &Side<'_>, inst: &Inst, aborts: bool) -> Result<Option<u64>, EngineError> {
        match inst.flow() {
            // The emulator knows neither.
            Flow::Xbegin { fallback } => {
                self.engine.get_data_mut().events.push(Event::Xbegin(aborts));
                if aborts {
                    self.engine.reg_write(RegisterX86::RAX, 1)?;
                }
                return Ok(Some(if aborts { fallback.0 } else { inst.next().0 }));
            }
            Flow::Syscall => {
                let state = Box::new(State::read(&self.engine)?);
                self.engine.reg_write(RegisterX86::RCX, inst.next().0)?;
                self.engine.reg_write(RegisterX86::R11, state.flags)?;
                self.engine.get_data_mut().events.push(Event::Syscall { state });
                return Ok(Some(inst.next().0));
            }
            _ => {}
        }
        let before = self.engine.get_data().events.len();
        if let Err(error) = self.engine.emu_start(inst.addr().0, u64::MAX, 0, 1) {
            let offset = (side.offset)(inst.addr().0.wrapping_sub(side.base) as usize);
            self.engine.get_data_mut().events.truncate(before);
            self.engine.get_data_mut().events.push(Event::Fault { error, offset });
            return Ok(None);
        }
        let pc = self.engine.reg_read(RegisterX86::RIP)?;
        let asks_for_address = inst.flow() == Flow::Call { target: inst.next() };
        if matches!(inst.flow(), Flow::Call { .. } | Flow::CallIndirect) && !asks_for_address {
            return self.call(side, inst, pc).map(Some);
        }
        Ok(Some(pc))
    }

    /// A call was made: records it, and returns from it.
    fn call(&mut self, side: &Side<'_>, inst: &Inst, target: u64) -> Result<u64, EngineError> {
        let state = Box::new(State::read(&self.engine)?);
        let stack = self.engine.reg_read(RegisterX86::RSP)?;
        let mut pushed = [0; 8];
        self.engine.mem_read(stack, &mut pushed)?;
        let pushed = u64::from_le_bytes(pushed);
        let world = self.engine.get_data_mut();
        // The push itself is told by the return address.
        world.events.pop_if(|event| matches!(event, Event::Write { addr, .. } if *addr == stack));
        let returns_to = (side.returns)(pushed.wrapping_sub(side.base) as usize);
        world.events.push(Event::Call {
            target,
            returns_to: returns_to.filter(|_| pushed == inst.next().0),
            state,
        });
        self.engine.reg_write(RegisterX86::RSP, stack + 8)?;
        // Its bytes on the stack differ between the sides; no code may read them, but random code does.
        self.restore(stack, 8)?;
        Ok(pushed)
    }
}

/// Maps the pages of `addr .. addr + len`.
fn map(engine: &mut Unicorn<'_, World>, addr: u64, len: usize) -> Result<(), uc_error> {
    let mut page = addr & !(PAGE - 1);
    let last = addr.saturating_add(len.max(1) as u64 - 1) & !(PAGE - 1);
    while page <= last {
        if !engine.get_data().pages.contains(&page) {
            engine.mem_map(page, PAGE as usize, Permission::ALL)?;
            engine.get_data_mut().pages.insert(page);
            let bytes: Vec<u8> =
                (0..PAGE / 8).flat_map(|i| content_word(page + i * 8).to_le_bytes()).collect();
            engine.mem_write(page, &bytes)?;
        }
        page += PAGE;
    }
    Ok(())
}

/// What memory holds. Half of the words are like pointers to data.
fn content_word(addr: u64) -> u64 {
    let mut hash = (addr >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash ^= hash >> 32;
    if hash & 1 == 0 { 0x0000_2000_0000_0000 + (hash & 0xffff) } else { hash }
}

fn content(addr: u64) -> u8 {
    content_word(addr).to_le_bytes()[(addr & 7) as usize]
}

/// Windows whose behaviour does not follow from their state, or belongs to a kernel.
fn unjudged(subject: &Subject<'_>) -> Option<&'static str> {
    let mut decoder = Decoder::with_ip(64, subject.original(), subject.case.from.0, DecoderOptions::NONE);
    decoder.iter().find_map(|inst| match inst.mnemonic() {
        Mnemonic::Rdtsc
        | Mnemonic::Rdtscp
        | Mnemonic::Rdrand
        | Mnemonic::Rdseed
        | Mnemonic::Rdpmc
        | Mnemonic::Rdpid => Some("it reads a clock or a random number"),
        Mnemonic::Popfq | Mnemonic::Popf => Some("it may set the trap flag"),
        Mnemonic::Swapgs | Mnemonic::Wrfsbase | Mnemonic::Wrgsbase => Some("it changes segments"),
        _ if inst.is_privileged() => Some("it is privileged"),
        _ if inst.op0_register().is_segment_register() => Some("it changes segments"),
        _ => None,
    })
}

fn compare(original: &Run, relocated: &Run) -> Verdict {
    if !original.finished || !relocated.finished {
        return Verdict::Unjudged("it runs too long");
    }
    // The emulator has 52 address bits, and what it does beyond them depends on what was mapped before.
    let beyond = |run: &Run| {
        run.events.iter().any(|event| match event {
            Event::Fault { error, .. } => *error == uc_error::MAP,
            Event::Read { addr, .. } | Event::Write { addr, .. } => *addr >= ADDRESS_END,
            _ => false,
        })
    };
    if beyond(original) || beyond(relocated) {
        return Verdict::Unjudged("it touches an address that the emulator does not have");
    }
    let mut pairs = original.events.iter().zip(&relocated.events);
    if let Some((original, relocated)) = pairs.find(|(original, relocated)| original != relocated) {
        return differs(original, relocated);
    }
    if original.events.len() != relocated.events.len() {
        return differs(&original.events.last(), &relocated.events.last());
    }
    if let Some(Event::Fault { .. }) = original.events.last() {
        return Verdict::Unjudged("the emulator raises an exception, in both");
    }
    if original.state != relocated.state {
        return differs(&original.state, &relocated.state);
    }
    Verdict::Same
}

fn differs(original: &dyn Debug, relocated: &dyn Debug) -> Verdict {
    Verdict::Mismatch(format!("original {original:x?}\nrelocated {relocated:x?}"))
}
