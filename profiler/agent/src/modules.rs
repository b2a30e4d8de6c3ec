//! Which objects are loaded, told to the trace and to the unwinder.
//!
//! The dynamic linker calls `_dl_debug_state`, which does nothing, each time before and after it changes its
//! list: a place made for debuggers, and hooked here. In it, and only there and at the start, the list is read
//! (`listing`): the linker's lock is then either free or this thread's.
//!
//! # Safety
//! [`STATE`] is used under [`life::PROCESS`] only, and [`TABLE`] besides by those who said so first ([`crate::lent`]). The list
//! is never read with that lock held: the linker's may belong to a thread that waits for ours. The table is replaced before the linker returns from
//! unloading, so that no pc is resolved in an object that is gone; between unmapping and that moment nothing is looked up in what may
//! be gone (`going`).

mod going;

use crate::entry::SavedRegisters;
use crate::hot::HOT;
use crate::lent::{Lent, Reading};
use crate::listing::{self, Listed};
use crate::meter::setting_up;
use crate::stack::on_own_stack;
use crate::{
    context, displaced, families, heaps, life, operators, reported, sandbox, session, slots, sys, throwing,
};
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use grapnel_hook::module::{BuildId, Module as LoadedObject};
use grapnel_trace::event::Module;
use grapnel_trace::ring::Producer;
use grapnel_trace::shared::failure;
use grapnel_trace::wire::{self, kind};
use grapnel_unwind::{
    CfiScratch, FrameFlags, FullState, FullStep, ModuleInfo, ModuleTable, Outcome, ProgramHeader, Resolver,
    RuleEntry, StackMemory, Start, may_be_stack,
};

static REMOVALS: AtomicU64 = AtomicU64::new(0);

/// What [`version`] rises by where memory goes that may have been a stack's.
const GONE: u64 = 1 << 32;

/// Has each walk forget what it knows of stacks, if memory that is about to go, or went, may have been one's.
pub(crate) fn goes(start: usize, len: usize) {
    if may_be_stack(start as u64, len as u64) {
        HOT.modules.fetch_add(GONE, Ordering::AcqRel);
    }
}

/// Whether the list has changed between two versions, and whether stacks may have gone.
pub(crate) fn changes(from: u64, to: u64) -> (bool, bool) {
    (from as u32 != to as u32, from / GONE != to / GONE)
}

/// Rises with every change of the list, and with stacks that go.
#[inline(always)]
pub(crate) fn version() -> u64 {
    HOT.modules.load(Ordering::Acquire)
}

/// Has each walk look whether the list has changed.
#[cfg(not(grapnel_attached))]
pub(crate) fn look_again() {
    HOT.modules.fetch_add(1, Ordering::AcqRel);
}

/// Rises when an object is unloaded: its addresses may soon be another's.
#[inline(always)]
pub(crate) fn removals() -> u64 {
    REMOVALS.load(Ordering::Acquire)
}

struct Loaded {
    module: Module,
    headers: Vec<ProgramHeader>,
}

/// The table that rules are looked up in. It is replaced under PROCESS.
static TABLE: Lent<ModuleTable> = Lent::new();

struct State {
    loaded: Vec<Loaded>,
    /// Tables that were replaced while somebody read them.
    retired: Vec<*mut ModuleTable>,
    scratch: Option<Box<CfiScratch>>,
    next_id: u32,
    /// The life whose trace was told of all of `loaded`.
    described: u64,
    /// What that trace is to be told besides: changes that were seen by nobody who could.
    untold: Vec<Vec<u64>>,
}

struct Shared(UnsafeCell<Option<State>>);

// SAFETY: used under PROCESS only, see the module's header.
unsafe impl Sync for Shared {}

static STATE: Shared = Shared(UnsafeCell::new(None));

/// The state.
///
/// # Safety
/// PROCESS must be held for as long as the reference lives.
#[expect(clippy::mut_from_ref, reason = "the lock stands for the borrow")]
unsafe fn state<'a>(_held: &'a crate::lock::Guard<'_>) -> &'a mut State {
    // SAFETY: the caller holds PROCESS.
    let state = unsafe { &mut *STATE.0.get() };
    state.get_or_insert_with(|| State {
        loaded: Vec::new(),
        retired: Vec::new(),
        scratch: None,
        next_id: 1,
        described: 0,
        untold: Vec::new(),
    })
}

/// Whether what is loaded from now on is looked through for operators of C++, and whether what it reports is heard.
static FOLLOWED: AtomicBool = AtomicBool::new(false);
static HEARD: AtomicBool = AtomicBool::new(false);

/// From now on, operators of objects that are loaded are hooked.
pub(crate) fn follow_operators() {
    FOLLOWED.store(true, Ordering::Relaxed);
}

/// From now on, what objects that are loaded report is heard.
pub(crate) fn hear() {
    HEARD.store(true, Ordering::Relaxed);
}

/// An object as [`update`] last saw it.
#[cfg(not(grapnel_attached))]
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) path: Vec<u8>,
    pub(crate) bias: u64,
    pub(crate) range: core::ops::Range<u64>,
    pub(crate) headers: Vec<ProgramHeader>,
}

/// All of them.
#[cfg(not(grapnel_attached))]
pub(crate) fn described_all() -> Vec<Described> {
    let guard = life::PROCESS.lock();
    // SAFETY: PROCESS is held by `guard`.
    let state = unsafe { state(&guard) };
    let describe = |loaded: &Loaded| Described {
        path: loaded.module.path.clone(),
        bias: loaded.module.bias,
        range: loaded.module.range.0..loaded.module.range.1,
        headers: loaded.headers.clone(),
    };
    state.loaded.iter().map(describe).collect()
}

/// Where the object around an address lies.
#[cfg(not(grapnel_attached))]
pub(crate) fn range_around(address: u64) -> Option<core::ops::Range<u64>> {
    described_all().into_iter().map(|object| object.range).find(|range| range.contains(&address))
}

/// An object as the hooks' engine sees it.
pub(crate) fn described(listed: &Listed) -> LoadedObject {
    let headers = listing::raw_headers(&listed.headers);
    // SAFETY: the headers are those of an object that is loaded; what is described lives no longer than this call of the
    // dynamic linker.
    unsafe {
        LoadedObject::from_program_headers(
            &listed.path,
            listed.bias as usize,
            headers.as_ptr().cast(),
            headers.len(),
        )
    }
}

/// Bias, path and program headers of each loaded object. Only where the list is at rest, as [`update`].
pub(crate) fn loaded() -> Vec<(u64, Vec<u8>, Vec<ProgramHeader>)> {
    listing::listed().into_iter().map(|listed| (listed.bias, listed.path, listed.headers)).collect()
}

/// Reads the linker's list and takes over what has changed. Called where the list is at rest: at the start, and
/// from `_dl_debug_state`. What is new is told to the trace through `ring`, if this thread has one.
pub(crate) fn update(mut ring: Option<&mut Producer<'static>>) {
    let list = listing::listed();
    let guard = life::PROCESS.lock();
    // What goes on in the child of a fork in which nothing is recorded, and where what is known may be gone.
    if life::is_over() && ring.as_ref().is_some_and(|ring| !ring.is_ready()) {
        return;
    }
    // SAFETY: PROCESS is held by `guard`.
    let state = unsafe { state(&guard) };
    let is_same = |loaded: &Loaded, listed: &Listed| {
        loaded.module.bias == listed.bias && loaded.headers == listed.headers
    };
    let before = state.loaded.len();
    let mut told = Vec::new();
    state.loaded.retain(|loaded| {
        let kept = list.iter().any(|listed| is_same(loaded, listed));
        if !kept {
            let (start, end) = loaded.module.range;
            slots::forget(&(start..end));
            told.push(alloc::vec![wire::head(u64::from(loaded.module.id), kind::UNLOAD)]);
        }
        kept
    });
    let removed = before - state.loaded.len();
    // Functions aren't patched where that may be the end of the program.
    let [followed, heard] =
        [&FOLLOWED, &HEARD].map(|wanted| wanted.load(Ordering::Relaxed) && sandbox::leaves_all());
    let mut added = Vec::new();
    let first_ever = state.next_id == 1;
    for (index, listed) in list.into_iter().enumerate() {
        if state.loaded.iter().any(|loaded| is_same(loaded, &listed)) {
            continue;
        }
        let module = describe(state.next_id, &listed, first_ever && index == 0);
        state.next_id += 1;
        if first_ever && cfg!(not(grapnel_attached)) && module.path != Module::AGENT && begins_first(&listed)
        {
            let name = module.path.escape_ascii();
            let note = format!(
                "what was allocated before {name} had begun is missing: it is linked to be first (-z initfirst)"
            );
            session::report_failure(failure::NOTE, note.as_bytes());
        }
        told.push(wire::module(&module));
        if heard {
            reported::connect(listed.bias, &listed.headers);
        }
        if followed {
            added.push(described(&listed));
        }
        state.loaded.push(Loaded { module, headers: listed.headers });
    }
    if first_ever && cfg!(not(grapnel_attached)) {
        // What the program was linked with stays.
        going::may_from(state.next_id);
    }
    if told.is_empty() {
        return;
    }
    let infos = state.loaded.iter().map(|loaded| ModuleInfo {
        id: loaded.module.id,
        bias: loaded.module.bias,
        phdrs: &loaded.headers,
    });
    // SAFETY: these objects are loaded; the table is replaced when one is unloaded (see the module's header).
    let mut table = unsafe { ModuleTable::build(infos) };
    if let (Some(frames), Some(program)) = (listing::frames(), state.loaded.first()) {
        // SAFETY: as above, of the program itself.
        unsafe { table.add_frames(program.module.id, frames) };
    }
    // SAFETY: PROCESS is held by `guard`; contexts alone are lent it.
    unsafe { TABLE.replace(table, &mut state.retired, |old| context::reads(old, &guard)) };
    if removed != 0 {
        REMOVALS.fetch_add(1, Ordering::AcqRel);
    }
    HOT.modules.fetch_add(1, Ordering::AcqRel);
    if !added.is_empty() {
        // Planning takes more stack than a thread may have.
        let heaps = on_own_stack(&guard, || {
            throwing::heed(added.iter().map(|module| (module, module.name())));
            let families = added.iter().filter(|module| throwing::may_have_hooks(module));
            let heaps = families::install(families.map(|module| (module, module.name())));
            operators::install(added.iter());
            heaps
        });
        if let Some(ring) = ring.as_mut() {
            heaps.into_iter().for_each(|handle| heaps::describe(handle.into(), ring));
        }
    }
    if state.described == 0 || state.described != life::current() {
        // Whoever records next describes them all.
        state.described = 0;
        return;
    }
    state.untold.append(&mut told);
    if let Some(ring) = ring.as_mut() {
        state.tell(ring);
    }
}

/// In the child of a fork that left the state torn: there is none, and nothing is known.
pub(crate) fn leave() {
    // SAFETY: this is the process's only thread. What was there is left where it lies.
    unsafe { core::ptr::write(STATE.0.get(), None) };
    TABLE.leave();
}

impl State {
    fn tell(&mut self, ring: &mut Producer<'static>) {
        // Nobody reads it: the trace is to hear of them by the next one.
        if !ring.is_ready() {
            return;
        }
        for record in self.untold.drain(..) {
            let _ = crate::record::push(ring, &record);
        }
    }
}

/// Tells the trace of life `life` of all loaded objects that it doesn't know.
pub(crate) fn describe_all(life: u64, ring: &mut Producer<'static>) {
    if !ring.is_ready() {
        return;
    }
    let guard = life::PROCESS.lock();
    // SAFETY: PROCESS is held by `guard`.
    let state = unsafe { state(&guard) };
    if core::mem::replace(&mut state.described, life) != life {
        state.untold = state.loaded.iter().map(|loaded| wire::module(&loaded.module)).collect();
    }
    state.tell(ring);
}

/// In the child of a fork that left the state torn: begins anew, and leaves the old to its torn heap.
#[cfg(not(grapnel_attached))]
pub(crate) fn renew() {
    // Recording has ended here, and the decoder's tables may be torn, too.
    [&FOLLOWED, &HEARD].iter().for_each(|wanted| wanted.store(false, Ordering::Relaxed));
    leave();
    update(None);
    REMOVALS.fetch_add(1, Ordering::AcqRel);
}

fn describe(id: u32, listed: &Listed, is_program: bool) -> Module {
    const PT_LOAD: u32 = libc::PT_LOAD;
    let loads = || listed.headers.iter().filter(|header| header.p_type == PT_LOAD);
    let at = |address: u64| listed.bias.wrapping_add(address);
    let start = loads().map(|header| at(header.p_vaddr)).min().unwrap_or(listed.bias);
    let end = loads().map(|header| at(header.p_vaddr.wrapping_add(header.p_memsz))).max().unwrap_or(start);
    // Stacks of what an operator of C++ calls pass through us, and our path leads nowhere when we are gone.
    let own = (&raw const STATE).addr() as u64;
    Module {
        id,
        bias: listed.bias,
        range: (start, end),
        build_id: build_id(listed).unwrap_or_default(),
        path: if (start..end).contains(&own) {
            Module::AGENT.to_vec()
        } else {
            full_path(&listed.path, is_program)
        },
    }
}

/// Whether an object is to be initialised before all others. So is the agent; the last one of these is.
fn begins_first(listed: &Listed) -> bool {
    const DT_FLAGS_1: usize = 0x6fff_fffb;
    const DF_1_INITFIRST: usize = 0x20;
    let Some(dynamic) = listed.headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else {
        return false;
    };
    let start = listed.bias.wrapping_add(dynamic.p_vaddr) as usize;
    let count = dynamic.p_memsz as usize / size_of::<[usize; 2]>();
    let entries = (0..count).map(|at| {
        let entry: *const [usize; 2] = core::ptr::with_exposed_provenance(start);
        // SAFETY: an entry of the dynamic section of an object that is loaded.
        unsafe { entry.add(at).read_unaligned() }
    });
    entries
        .take_while(|[tag, _]| *tag != 0)
        .any(|[tag, value]| tag == DT_FLAGS_1 && value & DF_1_INITFIRST != 0)
}

fn full_path(name: &[u8], is_program: bool) -> Vec<u8> {
    // Not on the stack, which is the thread's that loads, and may be small.
    let Ok(mut buffer) = Box::<[u8; 4096]>::try_from(alloc::vec![0; 4096].into_boxed_slice()) else {
        return Vec::new();
    };
    if name.is_empty() || is_program {
        return if is_program { listing::executable(&mut buffer).to_vec() } else { Vec::new() };
    }
    if name.starts_with(b"linux-vdso") || name.starts_with(b"linux-gate") {
        return b"[vdso]".to_vec();
    }
    if name.starts_with(b"/") {
        return name.to_vec();
    }
    let mut path = sys::working_directory(&mut *buffer).to_vec();
    path.push(b'/');
    path.extend_from_slice(name);
    path
}

/// The descriptor of the note of type NT_GNU_BUILD_ID (3) and owner `GNU`, as it is mapped.
fn build_id(listed: &Listed) -> Option<Vec<u8>> {
    let within = |start: u64, len: u64| {
        listed.headers.iter().any(|load| {
            load.p_type == libc::PT_LOAD
                && load.p_flags & sys::PF_R != 0
                && load.p_vaddr <= start
                && start.checked_add(len).is_some_and(|end| end <= load.p_vaddr.saturating_add(load.p_filesz))
        })
    };
    let notes = listed.headers.iter().filter(|header| header.p_type == libc::PT_NOTE);
    let mut notes = notes.filter(|note| within(note.p_vaddr, note.p_memsz));
    notes.find_map(|note| {
        let address = listed.bias.wrapping_add(note.p_vaddr) as usize;
        // SAFETY: the note lies in a readable segment of a loaded object, file-backed for its whole length.
        let bytes = unsafe {
            core::slice::from_raw_parts(
                core::ptr::with_exposed_provenance::<u8>(address),
                note.p_memsz as usize,
            )
        };
        BuildId::in_notes(bytes).map(|id| id.as_bytes().to_vec())
    })
}

/// The module that a pc lies in may be gone.
struct Going;

/// Resolves with the current table: a rule by a quick look, without the lock, if there is one that says so; all else under the lock.
#[derive(Debug)]
pub(crate) struct TableInUse<'a>(pub(crate) Option<&'a Reading<ModuleTable>>);

impl Resolver for TableInUse<'_> {
    #[cold]
    #[unsafe(link_section = ".text.hot.grapnel")]
    fn rule(&mut self, pc: u64, is_return_address: bool) -> RuleEntry {
        let may_go = |table: &ModuleTable| going::may_be(table, pc);
        let quick = |reading| {
            TABLE.lend(reading, |table| {
                if may_go(table) { Err(Going) } else { Ok(table.quick_rule(pc, is_return_address)) }
            })
        };
        loop {
            let found = match self.0.and_then(quick) {
                Some(Ok(Some(found))) => return found,
                Some(Err(Going)) => Err(Going),
                _ => under_lock(|table, scratch| {
                    if may_go(table) { Err(Going) } else { Ok(table.rule(scratch, pc, is_return_address)) }
                }),
            };
            match found {
                Ok(found) => return found,
                Err(Going) => going::wait(),
            }
        }
    }

    fn stopped(&mut self, pc: u64) -> u64 {
        displaced::original(pc).unwrap_or(pc)
    }

    #[cold]
    fn step(&mut self, full: &mut FullState, stack: &mut StackMemory) -> FullStep {
        let step = loop {
            let step = under_lock(|table, scratch| {
                (!going::may_be(table, full.pc())).then(|| table.step(scratch, full, stack))
            });
            match step {
                Some(step) => break step,
                None => going::wait(),
            }
        };
        if full.is_exact()
            && step.outcome == Outcome::Next
            && let Some(original) = displaced::original(full.pc())
        {
            full.set_pc(original);
        }
        step
    }
}

/// Whether calls alone led from the code whose stack pointer was at `from`, or a little above, to the call with these registers: no signal came in
/// between. Said only where all frames between are known.
#[cold]
#[inline(never)]
pub(crate) fn led_to(saved: &SavedRegisters, from: usize) -> Option<bool> {
    const MOST: usize = 64;
    /// What lies above is that code's own frame.
    const NEAR: u64 = 4096;
    let is_unknown = FrameFlags::SIGNAL | FrameFlags::GUESS;
    let is_known = |step: FullStep| step.flags.bits() & is_unknown.bits() == 0;
    let mut full = FullState::new(&saved.registers());
    let (mut stack, mut table) = (StackMemory::new(), TableInUse(None));
    stack.begin(full.sp());
    for _ in 0..MOST {
        let step = table.step(&mut full, &mut stack);
        match step.outcome {
            _ if !is_known(step) => return None,
            Outcome::Root => return Some(false),
            Outcome::Next if full.sp() > from as u64 => return Some(full.sp() - (from as u64) < NEAR),
            Outcome::Next => {}
            Outcome::Stuck | Outcome::NotCode => return None,
        }
    }
    None
}

/// Lends `work` the table under the lock.
fn under_lock<T>(work: impl FnOnce(&ModuleTable, &mut CfiScratch) -> T) -> T {
    let guard = life::PROCESS.lock();
    // SAFETY: PROCESS is held by `guard`.
    let State { scratch, .. } = unsafe { state(&guard) };
    let none = ModuleTable::default();
    // SAFETY: it is replaced under PROCESS only.
    let table = unsafe { TABLE.kept() }.unwrap_or(&none);
    on_own_stack(&guard, || work(table, scratch.get_or_insert_with(Box::default)))
}

/// What the hook on `_dl_debug_state` does.
pub(crate) fn changed(saved: &SavedRegisters) {
    going::heed();
    take_over(saved);
    going::end();
}

fn take_over(saved: &SavedRegisters) {
    #[cfg(not(grapnel_attached))]
    if crate::debug::is_on() && session::header().is_none() {
        return update(None);
    }
    // Whoever takes the agent out puts back what was hooked until then.
    #[cfg(grapnel_attached)]
    if session::header().is_some_and(session::is_over) {
        return;
    }
    if life::is_over() || (life::current() == 0 && session::header().is_none()) {
        return;
    }
    let mut updated = false;
    setting_up(|| {
        crate::record::enter(saved, |context| {
            update(Some(&mut context.ring));
            updated = true;
        });
        // In a child that is not recorded another thread's change may never end.
        if !updated && !life::is_over() {
            update(None);
        }
    });
}
