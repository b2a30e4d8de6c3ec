//! The emulator of one instruction set, used for many windows.

use std::ops::Range;

use arrayvec::ArrayVec;
use grapnel_relocator::Isa;
use unicorn_engine::{
    Context, RegisterARM, Unicorn, ffi,
    unicorn_const::{ControlType, HookType, MemType, Permission, TlbEntry, TlbType, uc_error},
};

use super::{
    EngineError,
    inspect::{self, Inst, Kind},
    memory::{BASE, CODE_PAGES, Memory, PAGE, SIZE},
    pair::Pair,
};
use crate::oracle::state::{Layout, layout};

/// A run of the original longer than this is compared up to there.
const MAX_STEPS: usize = 128;
/// How many times as long the relocated code may run.
const LONGER: usize = 8;
/// How far below the stack pointer a spill can be.
const SPILLS: u64 = 4096;

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
    stack: u64,
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
    /// The instruction at an address, if it is in the code.
    pub(super) fn at(&self, addr: u64) -> Option<Inst> {
        self.insts.get(usize::try_from(addr.wrapping_sub(self.base)).ok()?).copied()
    }
}

/// What the emulator's hooks work on.
pub(super) struct World {
    isa: Isa,
    layout: &'static Layout,
    memory: Memory,
    /// The pages of the code under judgement, and where they are.
    code: Vec<(u64, u64)>,
    pub(super) running: Running,
    pub(super) accesses: Vec<Access>,
    pub(super) stop: Option<Stop>,
    /// Code was asked for where there is none.
    pub(super) fetched_elsewhere: bool,
    /// More was executed after the code was to stop.
    pub(super) overrun: bool,
    /// There was no place left for a page.
    pub(super) crowded: bool,
    /// The instruction that was last begun.
    pub(super) last: u64,
    /// How many accesses there were before it.
    pub(super) before: usize,
    begun: bool,
    /// Flags that no one knows.
    pub(super) undefined: u64,
    /// How many accesses there were when an unknown flag was first read.
    pub(super) guessed: Option<usize>,
    /// Where the code was stopped.
    pub(super) stopped_at: u64,
    /// Where the code jumped to in itself.
    pub(super) jumps: Vec<u64>,
    pub(super) steps: usize,
    /// The stack pointer at the start of the instruction of the window that is under way.
    stack: u64,
    /// The original's stack pointers at the start of further instructions in the same piece of code.
    ahead: Vec<u64>,
    /// The stack pointer at the start of each of the original's instructions, by address.
    pub(super) stacks: Vec<(u64, u64)>,
    /// A read that may come again in parts: the instruction, where the parts start, and their size.
    whole: Option<(u64, u64, usize)>,
    /// Accesses whose instruction is over.
    pub(super) settled: usize,
    /// What was overwritten below the stack pointer.
    spilled: Vec<(u64, u64, usize)>,
    /// What was written to.
    dirty: Vec<(u64, usize)>,
}

pub(super) struct Engine {
    pub(super) uc: Unicorn<'static, World>,
    pub(super) layout: &'static Layout,
    isa: Isa,
    fresh: Context,
    turns: u32,
    filler: Vec<u8>,
}

type Hooked<'a> = Unicorn<'a, World>;

/// As long as the longest instruction.
const LOOKS_AHEAD: usize = 16;
/// How much room there is for translated code, in bytes. A window takes about 3 KiB of it.
const TRANSLATED: u32 = 128 << 20;
/// Translated code is dropped after so many windows, for the emulator can crash if the room runs out while code runs.
const TURNS: u32 = 4096;

impl Engine {
    pub(super) fn new(isa: Isa) -> Result<Self, EngineError> {
        let layout = layout(isa);
        let world = World {
            isa,
            layout,
            memory: Memory::new(layout.wide),
            code: Vec::new(),
            running: Running::default(),
            accesses: Vec::new(),
            stop: None,
            fetched_elsewhere: false,
            overrun: false,
            crowded: false,
            last: 0,
            before: 0,
            undefined: 0,
            guessed: None,
            begun: false,
            stopped_at: 0,
            jumps: Vec::new(),
            steps: 0,
            stack: 0,
            ahead: Vec::new(),
            stacks: Vec::new(),
            whole: None,
            settled: 0,
            spilled: Vec::new(),
            dirty: Vec::new(),
        };
        let mut uc = Unicorn::new_with_data(layout.arch, layout.mode, world)?;
        limit_translated(&uc)?;
        if let Some(cpu) = layout.cpu {
            uc.ctl_set_cpu_model(cpu)?;
        }
        uc.mem_map(BASE, SIZE as usize, Permission::ALL)?;
        uc.ctl_tlb_type(TlbType::VIRTUAL)?;
        uc.add_tlb_hook(1, 0, fill_tlb)?;
        uc.add_mem_hook(HookType::MEM_READ | HookType::MEM_WRITE, 1, 0, |uc, kind, place, size, value| {
            access(uc, kind, place, size, value);
            true
        })?;
        uc.add_code_hook(1, 0, |uc, addr, _| begin(uc, addr))?;
        uc.add_intr_hook(|uc, number| {
            // In an IT block the emulator does not stop at once.
            uc.get_data_mut().stop.get_or_insert(Stop::Interrupt(number));
            // It can't fail while code runs.
            let _ = uc.emu_stop();
        })?;
        let filler = match isa {
            Isa::X86_64 => vec![0xcc; PAGE as usize],
            Isa::Aarch64 => vec![0; PAGE as usize],
            Isa::A32 => [0xf0, 0x00, 0xf0, 0xe7].repeat(PAGE as usize / 4),
            Isa::T32 => vec![0xde; PAGE as usize],
        };
        for page in 0..CODE_PAGES {
            uc.mem_write(BASE + page * PAGE, &filler)?;
        }
        if matches!(isa, Isa::A32 | Isa::T32) {
            enable_floating_point(&mut uc)?;
        }
        let fresh = uc.context_init()?;
        Ok(Self { uc, layout, isa, fresh, turns: 0, filler })
    }

    /// Puts a pair into memory.
    pub(super) fn enter(&mut self, pair: &Pair<'_>) -> Result<(), EngineError> {
        self.turns += 1;
        if self.turns == TURNS {
            self.turns = 0;
            self.uc.ctl_flush_tb()?;
        }
        let world = self.uc.get_data_mut();
        if world.memory.is_full() {
            world.memory.clear();
        }
        world.code.clear();
        for (addr, len) in [(pair.from, pair.code_len), (pair.to, pair.relocated_len)] {
            // The emulator looks further ahead than the code goes.
            for page in pages(addr, len + LOOKS_AHEAD, self.layout.wide) {
                if !world.code.iter().any(|&(known, _)| known == page) {
                    let place = BASE + world.code.len() as u64 * PAGE;
                    world.code.push((page, place));
                }
            }
        }
        world.memory.overlay(pair.from, pair.source);
        world.memory.overlay(pair.to, pair.relocated);
        self.refresh(pair.from, pair.source.len())?;
        self.refresh(pair.to, pair.relocated.len())?;
        self.write_code(pair.from, &inspect::known(self.isa, pair.code()))?;
        self.write_code(pair.to, &inspect::known(self.isa, pair.relocated_code()))?;
        // The pages of the code before are not code any more.
        Ok(self.uc.ctl_flush_tlb()?)
    }

    /// Takes a pair out of memory.
    pub(super) fn leave(&mut self, pair: &Pair<'_>) -> Result<(), EngineError> {
        self.uc.get_data_mut().memory.take_overlays();
        self.refresh(pair.from, pair.source.len())?;
        self.refresh(pair.to, pair.relocated.len())?;
        for (addr, len) in [(pair.from, pair.code_len), (pair.to, pair.relocated_len)] {
            let phase = (addr % 4) as usize;
            let filler = self.filler[phase..phase + len].to_vec();
            self.write_code(addr, &filler)?;
        }
        // Writing to memory from outside does not drop what was translated from it.
        for number in 0..self.uc.get_data().code.len() {
            let (page, _) = self.uc.get_data().code[number];
            self.uc.ctl_remove_cache(page, page.saturating_add(PAGE))?;
        }
        Ok(())
    }

    fn write_code(&mut self, addr: u64, code: &[u8]) -> Result<(), EngineError> {
        let mut done = 0;
        while done < code.len() {
            let at = wrap(addr.wrapping_add(done as u64), self.layout.wide);
            let len = (code.len() - done).min((PAGE - at % PAGE) as usize);
            let found = self.uc.get_data().code.iter().find(|&&(page, _)| page == at & !(PAGE - 1)).copied();
            if let Some((_, place)) = found {
                self.uc.mem_write(place + at % PAGE, &code[done..done + len])?;
            }
            done += len;
        }
        Ok(())
    }

    /// Makes data what it is before anything is written to it, where its page is in use.
    fn refresh(&mut self, addr: u64, len: usize) -> Result<(), EngineError> {
        let mut buffer = [0; 1024];
        let bytes = &mut buffer[..len];
        self.uc.get_data().memory.content(addr, bytes);
        write_data(&mut self.uc, addr, bytes)?;
        Ok(())
    }

    /// Makes the processor what it was, before a run.
    pub(super) fn reset(&mut self, running: Running) -> Result<(), EngineError> {
        self.uc.context_restore(&self.fresh)?;
        let world = self.uc.get_data_mut();
        world.running = running;
        world.accesses.clear();
        world.jumps.clear();
        world.stacks.clear();
        world.settled = 0;
        world.whole = None;
        world.ahead.clear();
        world.begun = false;
        world.crowded = false;
        world.overrun = false;
        world.undefined = 0;
        world.guessed = None;
        world.steps = 0;
        world.stack = 0;
        Ok(())
    }

    /// Undoes what a run wrote to memory.
    pub(super) fn undo(&mut self) -> Result<(), EngineError> {
        self.uc.get_data_mut().spilled.clear();
        for (addr, size) in std::mem::take(&mut self.uc.get_data_mut().dirty) {
            self.refresh(addr, size)?;
        }
        Ok(())
    }

    /// Runs from `pc` until something stops it.
    pub(super) fn go(&mut self, pc: u64) -> Result<Option<Stop>, uc_error> {
        let world = self.uc.get_data_mut();
        world.stop = None;
        world.fetched_elsewhere = false;
        world.begun = false;
        world.before = 0;
        let thumb = u64::from(world.running.thumb);
        let outcome = self.uc.emu_start(pc | thumb, 0, 0, 0);
        settle(&mut self.uc);
        restore_spilled(&mut self.uc);
        let world = self.uc.get_data();
        match (world.stop, outcome) {
            (Some(stop), _) => Ok(Some(stop)),
            (None, Err(uc_error::EXCEPTION)) if world.fetched_elsewhere => {
                let pc = self.uc.reg_read(self.layout.pc)?;
                self.uc.get_data_mut().stopped_at = pc;
                Ok(Some(Stop::Left))
            }
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Ok(None),
        }
    }

    /// Reads what data holds now.
    pub(super) fn read_data(&mut self, addr: u64, bytes: &mut [u8]) -> Result<(), EngineError> {
        read_data(&self.uc, addr, bytes)?;
        Ok(())
    }

    /// Makes some data again what it was.
    pub(super) fn restore(&mut self, addr: u64, len: usize) -> Result<(), EngineError> {
        self.refresh(addr, len)
    }

    /// The processor is in T32.
    pub(super) fn is_thumb(&self) -> Result<bool, EngineError> {
        Ok(is_thumb(&self.uc, self.isa)?)
    }
}

fn limit_translated(uc: &Hooked<'_>) -> Result<(), uc_error> {
    let control = ControlType::UC_CTL_TCG_BUFFER_SIZE as u32 | ControlType::UC_CTL_IO_WRITE as u32;
    // SAFETY: the handle is alive as long as `uc` is, and this control takes one 32-bit number.
    unsafe { ffi::uc_ctl(uc.get_handle(), control, TRANSLATED) }.and(Ok(()))
}

fn wrap(addr: u64, wide: bool) -> u64 {
    if wide { addr } else { addr & 0xffff_ffff }
}

/// The pages of `addr .. addr + len`.
fn pages(addr: u64, len: usize, wide: bool) -> impl Iterator<Item = u64> {
    let first = addr & !(PAGE - 1);
    let count = (addr % PAGE + len.max(1) as u64).div_ceil(PAGE);
    (0..count).map(move |number| wrap(first.wrapping_add(number * PAGE), wide))
}

fn is_thumb(uc: &Hooked<'_>, isa: Isa) -> Result<bool, uc_error> {
    match isa {
        Isa::A32 | Isa::T32 => Ok(uc.reg_read(RegisterARM::CPSR)? & crate::oracle::state::THUMB != 0),
        Isa::X86_64 | Isa::Aarch64 => Ok(false),
    }
}

/// Coprocessors 10 and 11 are off until the program that is missing here turns them on.
fn enable_floating_point(uc: &mut Hooked<'_>) -> Result<(), uc_error> {
    // CPACR: coprocessor 15, CRn 1, CRm 0, opc1 0, opc2 2.
    let fields: [u32; 8] = [15, 0, 0, 1, 0, 0, 2, 0];
    let full_access: u64 = 0xf << 20;
    let mut register: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
    register.extend(full_access.to_le_bytes());
    uc.reg_write_long(RegisterARM::CP_REG, &register)?;
    uc.reg_write(RegisterARM::FPEXC, 1 << 30)
}

/// The pieces of `addr .. addr + len` that are each on one page in use: places, and where in the whole they start.
fn places(uc: &Hooked<'_>, addr: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let world = uc.get_data();
    let mut done = 0;
    std::iter::from_fn(move || {
        while done < len {
            let at = wrap(addr.wrapping_add(done as u64), world.layout.wide);
            let start = done;
            done = len.min(start + (PAGE - at % PAGE) as usize);
            if let Some(place) = world.memory.place(at & !(PAGE - 1)) {
                return Some((place + at % PAGE, start..done));
            }
        }
        None
    })
}

/// Writes to what is in use.
fn write_data(uc: &mut Hooked<'_>, addr: u64, bytes: &[u8]) -> Result<(), uc_error> {
    let places: ArrayVec<_, 3> = places(uc, addr, bytes.len()).collect();
    places.into_iter().try_for_each(|(place, part)| uc.mem_write(place, &bytes[part]))
}

fn read_data(uc: &Hooked<'_>, addr: u64, bytes: &mut [u8]) -> Result<(), uc_error> {
    uc.get_data().memory.content(addr, bytes);
    places(uc, addr, bytes.len()).try_for_each(|(place, part)| uc.mem_read(place, &mut bytes[part]))
}

/// The emulator's pages are no larger than those here, and on Arm smaller.
fn fill_tlb(uc: &mut Hooked<'_>, part: u64, kind: MemType) -> Option<TlbEntry> {
    let world = uc.get_data_mut();
    let part = wrap(part, world.layout.wide);
    let page = part & !(PAGE - 1);
    if kind == MemType::FETCH {
        let found = world.code.iter().find(|&&(known, _)| known == page);
        world.fetched_elsewhere = found.is_none();
        return found.map(|&(_, place)| TlbEntry { paddr: place + part % PAGE, perms: Permission::EXEC });
    }
    let place = match world.memory.place(page) {
        Some(place) => place,
        None => {
            let Some(place) = world.memory.allocate(page) else {
                world.crowded = true;
                return None;
            };
            let mut content = vec![0; PAGE as usize];
            world.memory.content(page, &mut content);
            uc.mem_write(place, &content).ok()?;
            place
        }
    };
    Some(TlbEntry { paddr: place + part % PAGE, perms: Permission::READ | Permission::WRITE })
}

fn access(uc: &mut Hooked<'_>, kind: MemType, place: u64, size: usize, value: i64) {
    let world = uc.get_data();
    let addr = world.memory.address(place);
    let writes = kind == MemType::WRITE;
    // One that crosses a page is read whole and then in aligned parts.
    if !writes && is_part(uc.get_data_mut(), addr, size) {
        return;
    }
    let world = uc.get_data();
    let end = addr.wrapping_add(size as u64);
    let literals = &world.running.literals;
    if !writes && addr < literals.end && literals.start < end {
        return;
    }
    let stack = stack(uc);
    if writes && is_below(uc, addr, size) {
        let mut old = [0; 8];
        let size = size.min(8);
        if read_data(uc, addr, &mut old[..size]).is_ok() {
            uc.get_data_mut().spilled.push((addr, u64::from_le_bytes(old), size));
        }
    }
    let world = uc.get_data_mut();
    if writes {
        world.dirty.push((addr, size));
    }
    let mask = if size >= 8 { u64::MAX } else { (1 << (size * 8)) - 1 };
    let written = writes.then_some(value.cast_unsigned() & mask);
    world.accesses.push(Access { addr, size, written, spill: false, stack, by: world.last });
}

/// A read is part of the one before, which crosses a page of the smallest size that the emulator has.
fn is_part(world: &mut World, addr: u64, size: usize) -> bool {
    const SMALLEST: u64 = 1 << 10;
    if let Some((by, first, whole)) = world.whole
        && (by, size) == (world.last, whole)
        && (addr == first || addr == wrap(first.wrapping_add(size as u64), world.layout.wide))
    {
        return true;
    }
    let crosses = addr % SMALLEST + size as u64 > SMALLEST;
    world.whole = crosses.then(|| (world.last, addr & !(size as u64 - 1), size));
    false
}

/// Whether an access is below where the stack pointer was at the start of the window's instruction, and below the red
/// zone.
fn is_below(uc: &Hooked<'_>, addr: u64, size: usize) -> bool {
    let world = uc.get_data();
    world.fits(addr, size, world.stack)
}

impl World {
    /// The access ends at or below a stack's top, and not too far from it.
    fn fits(&self, addr: u64, size: usize, top: u64) -> bool {
        let below = wrap(top.wrapping_sub(self.layout.red_zone).wrapping_sub(addr), self.layout.wide);
        below >= size as u64 && below <= SPILLS
    }

    /// The access is between where the stack pointer was moved to and where it was before. `push` writes, and then moves
    /// the stack pointer; `pop` reads first.
    fn is_spill(&self, access: &Access, now: u64) -> bool {
        self.fits(access.addr, access.size, self.stack)
            && [access.stack, now]
                .into_iter()
                .any(|low| wrap(access.addr.wrapping_sub(low), self.layout.wide) < SPILLS)
    }

    /// Several instructions of the window may be one piece of code here. The stack pointer is then at the start of the
    /// next of them when it has the value that it had there in the original.
    fn follow_stack(&mut self, stack: u64) {
        let next = self.ahead.iter().position(|&ahead| ahead == stack);
        if let Some(next) = next {
            self.stack = stack;
            self.ahead.drain(..=next);
        }
    }
}

/// The instruction that made these accesses is over.
fn settle(uc: &mut Hooked<'_>) {
    let world = uc.get_data();
    if !world.running.relocated || world.settled == world.accesses.len() {
        return;
    }
    let now = stack(uc);
    for number in world.settled..world.accesses.len() {
        let world = uc.get_data();
        let access = world.accesses[number];
        let spill = world.is_spill(&access, now);
        uc.get_data_mut().accesses[number].spill = spill;
    }
    let world = uc.get_data_mut();
    world.settled = world.accesses.len();
}

fn stack(uc: &Hooked<'_>) -> u64 {
    let layout = uc.get_data().layout;
    uc.reg_read(layout.general[layout.sp]).unwrap_or(0)
}

/// Memory below the stack pointer is no one's, and what was written there is gone; but random code reads it.
fn restore_spilled(uc: &mut Hooked<'_>) {
    if uc.get_data().spilled.is_empty() {
        return;
    }
    let (top, wide) = (stack(uc).wrapping_sub(uc.get_data().layout.red_zone), uc.get_data().layout.wide);
    let (gone, kept) = std::mem::take(&mut uc.get_data_mut().spilled).into_iter().partition::<Vec<_>, _>(
        |&(addr, _, size)| {
            let below = wrap(top.wrapping_sub(addr), wide);
            below >= size as u64 && below <= 2 * SPILLS
        },
    );
    uc.get_data_mut().spilled = kept;
    for (addr, old, size) in gone.into_iter().rev() {
        // The code wrote there, so it can be written to.
        let _ = write_data(uc, addr, &old.to_le_bytes()[..size]);
    }
}

/// An instruction is about to be executed.
fn begin(uc: &mut Hooked<'_>, addr: u64) {
    let world = uc.get_data_mut();
    if world.stop.is_some() {
        world.overrun = true;
        return;
    }
    world.steps += 1;
    settle(uc);
    let world = uc.get_data_mut();
    let (last, begun) = (world.last, world.begun);
    let found = world.running.at(addr);
    let previous = if begun { world.running.at(last) } else { None };
    let jumped = previous.is_some_and(|previous| last.wrapping_add(previous.len.into()) != addr);
    let limit = if world.running.relocated { MAX_STEPS * LONGER } else { MAX_STEPS };
    let stop = match found {
        None => Some(Stop::Left),
        // A recursive call.
        Some(_) if jumped && previous.is_some_and(|previous| previous.kind == Kind::Call) => Some(Stop::Left),
        Some(_) if world.steps > limit => Some(Stop::TooLong),
        Some(Inst { kind: Kind::Syscall | Kind::Xbegin { .. }, .. }) => Some(Stop::Special),
        Some(_) if jumped && addr == world.running.base && !world.running.relocated => Some(Stop::Start),
        Some(_) => None,
    };
    let (isa, thumb) = (world.isa, world.running.thumb);
    // A jump to the next address can be one to the other instruction set.
    let switched = is_thumb(uc, isa).is_ok_and(|now| now != thumb);
    let stop = if switched { Some(Stop::Left) } else { stop };
    if let Some(stop) = stop {
        let world = uc.get_data_mut();
        world.stop = Some(stop);
        world.stopped_at = addr;
        // It can't fail while code runs.
        let _ = uc.emu_stop();
        return;
    }
    let world = uc.get_data_mut();
    world.last = addr;
    world.before = world.accesses.len();
    world.begun = true;
    let flags = found.unwrap_or_default().flags;
    if world.undefined & flags.reads != 0 {
        world.guessed.get_or_insert(world.before);
    }
    world.undefined = world.undefined & !flags.defines | flags.undefines;
    if jumped || previous.is_some_and(|previous| previous.computes) {
        world.jumps.push(addr);
    }
    let offset = addr.wrapping_sub(world.running.base) as usize;
    if !world.running.relocated {
        restore_spilled(uc);
        let stack = stack(uc);
        let world = uc.get_data_mut();
        world.stack = stack;
        world.stacks.push((addr, stack));
    } else if world.running.starts.binary_search(&offset).is_ok() {
        restore_spilled(uc);
        let stack = stack(uc);
        let world = uc.get_data_mut();
        world.stack = stack;
        let stacks = world.running.stacks.iter();
        world.ahead = stacks.filter(|&&(start, _)| start == offset).map(|&(_, stack)| stack).collect();
    } else if !world.ahead.is_empty() {
        let stack = stack(uc);
        uc.get_data_mut().follow_stack(stack);
    }
}
