//! The emulator of one instruction set, used for many windows.

use grapnel_relocator::Isa;
use unicorn_engine::{
    Context, RegisterARM, Unicorn, ffi,
    unicorn_const::{ControlType, HookType, Permission, TlbType, uc_error},
};

use super::{
    EngineError,
    hooks::{self, Hooked, access, begin, fill_tlb, restore_spilled, settle, write_data},
    inspect,
    memory::{BASE, CODE_PAGES, PAGE, SIZE, wrap},
    pair::Pair,
    world::{Running, Stop, World},
};
use crate::oracle::state::{Layout, layout};

pub(super) struct Engine {
    pub(super) uc: Unicorn<'static, World>,
    pub(super) layout: &'static Layout,
    isa: Isa,
    fresh: Context,
    turns: u32,
    filler: Vec<u8>,
}

/// As long as the longest instruction.
const LOOKS_AHEAD: usize = 16;
/// How much room there is for translated code, in bytes. A window takes about 3 KiB of it.
const TRANSLATED: u32 = 128 << 20;
/// Translated code is dropped after so many windows, for the emulator can crash if the room runs out while code runs.
const TURNS: u32 = 4096;

impl Engine {
    pub(super) fn new(isa: Isa) -> Result<Self, EngineError> {
        let layout = layout(isa);
        let mut uc = Unicorn::new_with_data(layout.arch, layout.mode, World::new(isa, layout))?;
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
        world.strayed = false;
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
        world.entered = None;
        world.before = 0;
        let thumb = u64::from(world.running.thumb);
        let outcome = self.uc.emu_start(pc | thumb, 0, 0, 0);
        settle(&mut self.uc);
        restore_spilled(&mut self.uc);
        let world = self.uc.get_data_mut();
        world.untold = world.entered.is_some_and(|entered| entered != pc);
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
        hooks::read_data(&self.uc, addr, bytes)?;
        Ok(())
    }

    /// Makes some data again what it was.
    pub(super) fn restore(&mut self, addr: u64, len: usize) -> Result<(), EngineError> {
        self.refresh(addr, len)
    }

    /// The processor is in T32.
    pub(super) fn is_thumb(&self) -> Result<bool, EngineError> {
        Ok(hooks::is_thumb(&self.uc, self.isa)?)
    }
}

fn limit_translated(uc: &Hooked<'_>) -> Result<(), uc_error> {
    let control = ControlType::UC_CTL_TCG_BUFFER_SIZE as u32 | ControlType::UC_CTL_IO_WRITE as u32;
    // SAFETY: the handle is alive as long as `uc` is, and this control takes one 32-bit number.
    unsafe { ffi::uc_ctl(uc.get_handle(), control, TRANSLATED) }.and(Ok(()))
}

/// The pages of `addr .. addr + len`.
fn pages(addr: u64, len: usize, wide: bool) -> impl Iterator<Item = u64> {
    let first = addr & !(PAGE - 1);
    let count = (addr % PAGE + len.max(1) as u64).div_ceil(PAGE);
    (0..count).map(move |number| wrap(first.wrapping_add(number * PAGE), wide))
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
