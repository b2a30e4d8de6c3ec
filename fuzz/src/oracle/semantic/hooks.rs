//! What is done while code runs: pages are given, accesses are kept, and the code is stopped where it leaves.

use std::ops::Range;

use arrayvec::ArrayVec;
use grapnel_relocator::Isa;
use unicorn_engine::{
    RegisterARM, Unicorn,
    unicorn_const::{MemType, Permission, TlbEntry, uc_error},
};

use super::{
    inspect::{self, Inst, Kind},
    memory::{PAGE, wrap},
    world::{Access, SPILLS, Stop, World},
};

/// A run of the original longer than this is compared up to there.
const MAX_STEPS: usize = 128;
/// How many times as long the relocated code may run.
const LONGER: usize = 8;

pub(super) type Hooked<'a> = Unicorn<'a, World>;

pub(super) fn is_thumb(uc: &Hooked<'_>, isa: Isa) -> Result<bool, uc_error> {
    match isa {
        Isa::A32 | Isa::T32 => Ok(uc.reg_read(RegisterARM::CPSR)? & crate::oracle::state::THUMB != 0),
        Isa::X86_64 | Isa::Aarch64 => Ok(false),
    }
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
pub(super) fn write_data(uc: &mut Hooked<'_>, addr: u64, bytes: &[u8]) -> Result<(), uc_error> {
    let places: ArrayVec<_, 3> = places(uc, addr, bytes.len()).collect();
    places.into_iter().try_for_each(|(place, part)| uc.mem_write(place, &bytes[part]))
}

pub(super) fn read_data(uc: &Hooked<'_>, addr: u64, bytes: &mut [u8]) -> Result<(), uc_error> {
    uc.get_data().memory.content(addr, bytes);
    places(uc, addr, bytes.len()).try_for_each(|(place, part)| uc.mem_read(place, &mut bytes[part]))
}

/// The emulator's pages are no larger than those here, and on Arm smaller.
pub(super) fn fill_tlb(uc: &mut Hooked<'_>, part: u64, kind: MemType) -> Option<TlbEntry> {
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

pub(super) fn access(uc: &mut Hooked<'_>, kind: MemType, place: u64, size: usize, value: i64) {
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

/// The instruction that made these accesses is over.
pub(super) fn settle(uc: &mut Hooked<'_>) {
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
pub(super) fn restore_spilled(uc: &mut Hooked<'_>) {
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
pub(super) fn begin(uc: &mut Hooked<'_>, addr: u64) {
    let world = uc.get_data_mut();
    world.entered.get_or_insert(addr);
    // The next round of a loop reads anew what the one before read across the end of a page.
    world.whole = None;
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
        // A recursive call. In relocated code a call to the middle of something is a step of it.
        Some(_)
            if jumped
                && previous.is_some_and(|previous| previous.kind == Kind::Call)
                && (!world.running.relocated || world.running.is_start(addr)) =>
        {
            Some(Stop::Left)
        }
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
    if let Some(previous) = previous.filter(|previous| !previous.direct) {
        let flags = world.layout.flags;
        let cond = if world.strayed { inspect::ALWAYS } else { previous.cond };
        let went = jumped || uc.reg_read(flags).is_ok_and(|flags| inspect::holds(cond, flags));
        if went {
            uc.get_data_mut().jumps.push(addr);
        }
    }
    let world = uc.get_data_mut();
    let member = isa == Isa::T32 && found.is_some_and(|inst| inst.cond != inspect::ALWAYS);
    world.strayed = member && (jumped || world.strayed);
    if !world.running.relocated {
        restore_spilled(uc);
        let stack = stack(uc);
        let world = uc.get_data_mut();
        world.stack = stack;
        world.stacks.push((addr, stack));
    } else if world.running.is_start(addr) {
        restore_spilled(uc);
        let stack = stack(uc);
        let world = uc.get_data_mut();
        world.stack = stack;
        let offset = addr.wrapping_sub(world.running.base) as usize;
        let stacks = world.running.stacks.iter();
        world.ahead = stacks.filter(|&&(start, _)| start == offset).map(|&(_, stack)| stack).collect();
    } else if !world.ahead.is_empty() {
        let stack = stack(uc);
        uc.get_data_mut().follow_stack(stack);
    }
}
