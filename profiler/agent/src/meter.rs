//! What recording costs this process, measured on some of its calls.
//!
//! A counter or a clock in each call would be a cost of its own. So at about every 512th word of a ring that isn't of a node,
//! where the ring stops anyway (`Context::stop`), the thread's next call is chosen. Its life is made to look like another, which
//! leads it out of the way of all others and through [`due`], where the clock is read; at its end a flag is looked at, and
//! [`finish`] reads the clock again. All between is what every other call does; but what gives a block back then takes the way that it
//! takes where something else is due, which is longer ([`plain_quickly`](crate::record::plain_quickly)).
//!
//! Which call comes after a stop depends on how long records are. So calls that took a stack and calls that did not are
//! added up apart, and the command knows how many there were of each.
//!
//! What happens around that, from the hooked function to the recording and back, is measured once on calls that record
//! nothing; and so is how much longer that takes by a slot's stub, which comes on top of those of the calls that came by one. What the recording takes from the program's caches isn't measured, nor what it makes of the compiler's
//! assumptions: the figure is too low by that.

use crate::context::Context;
use crate::entry::{SavedRegisters, rescued, stub};
use crate::record::ticks;
use crate::tls::Tls;
use crate::{heap, hooks, life, session, slots, tls};
use core::hint::black_box;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use grapnel_trace::meter::{EMPTY_CALLS, MeterCells};
use grapnel_trace::ring::Producer;
use grapnel_trace::wire::{self, Record, kind};

/// Words of a ring from one call that is timed to the next, on average, besides a word for each node.
const APART: u64 = 512;

/// No more than so many words of nodes are expected between two calls.
const MOST_OF_NODES: u64 = 64 * APART;

/// A call that takes longer was interrupted: the thread lost its processor, or a signal handler came. Waiting for room is
/// counted by itself.
pub(crate) const INTERRUPTED_TICKS: u64 = 100_000;

/// The least ticks between two looks at the clock.
static CLOCK_TICKS: AtomicU64 = AtomicU64::new(0);

/// The least ticks that a hooked call takes which records nothing, and a look at the clock.
static AROUND_TICKS: AtomicU64 = AtomicU64::new(0);

/// How many ticks more such a call takes that comes by a slot's stub.
static SLOT_TICKS: AtomicU64 = AtomicU64::new(0);

/// What comes on top of what is measured within a call, in ticks: the way into it and back, and the clock itself.
#[inline]
pub(crate) fn around() -> u64 {
    AROUND_TICKS.load(Ordering::Relaxed) + by_slot()
}

/// The way by a slot's stub, if the call under way came by one.
#[inline]
fn by_slot() -> u64 {
    if tls::get().by_slot.get() { SLOT_TICKS.load(Ordering::Relaxed) } else { 0 }
}

/// Of a context: which call is timed.
#[derive(Debug)]
pub(crate) struct Meter {
    /// The clock when the call under way began that is timed; 0 if it isn't.
    begun: u64,
    /// The ring's position then.
    from: u64,
    /// The ticks that the process's threads had waited then.
    waited: u64,
    /// The ring's position from which the next is due.
    next: u64,
    /// How many nodes there were when a call was chosen last.
    nodes: u32,
    random: u64,
}

impl Meter {
    pub(crate) fn new(seed: u32) -> Self {
        Self { begun: 0, from: 0, waited: 0, next: 0, nodes: 0, random: u64::from(seed) }
    }

    /// The ring's position from which a call is to be chosen.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The ring begins anew, or the call under way won't come to its end.
    pub(crate) fn reset(&mut self) {
        (self.begun, self.next) = (0, 0);
    }

    /// Whether the call under way is timed.
    #[inline(always)]
    pub(crate) fn is_timing(&self) -> bool {
        self.begun != 0
    }

    /// Chooses the thread's next call. Steps vary, so as not to fall in with those of the program. `nodes` is how many there
    /// are: as many as there came since the last choice are expected until the next.
    pub(crate) fn choose(&mut self, position: u64, nodes: u32) {
        let of_nodes = u64::from(nodes.saturating_sub(core::mem::replace(&mut self.nodes, nodes)));
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        self.next = position + of_nodes.min(MOST_OF_NODES) + APART / 2 + (self.random >> 33) % APART;
        let (tls, life) = (tls::get(), life::current());
        if tls.life.get() == life {
            tls.life.set(!life);
        }
    }
}

fn cells() -> Option<&'static MeterCells> {
    session::segment().map(|segment| &segment.meter)
}

/// If this thread's next call was chosen: its context at this level, from now on timed.
#[cold]
pub(crate) fn due(tls: &Tls, life: u64, level: usize) -> Option<*mut Context> {
    if life == 0 || tls.life.get() != !life {
        return None;
    }
    tls.life.set(life);
    let context = tls.contexts.get(level)?.get();
    // SAFETY: null, or the thread's own, which has risen from this level: a signal handler in here is one level up.
    if let Some(Context { meter, ring, segment, .. }) = unsafe { context.as_mut() } {
        meter.from = ring.position();
        meter.waited = segment.meter.waited_ticks.load(Ordering::Relaxed);
        meter.begun = ticks().max(1);
    }
    (!context.is_null()).then_some(context)
}

/// The call that is timed is recorded.
#[cold]
#[inline(never)]
pub(crate) fn finish(context: &mut Context) {
    // Where a handler has forked meanwhile, its parent's, in whose place there are zeroes.
    let Context { meter, ring, segment, .. } = context;
    let now = ticks();
    let begun = core::mem::replace(&mut meter.begun, 0);
    segment.agent_bytes.store(heap::mapped(), Ordering::Relaxed);
    let cells = &segment.meter;
    let waited = cells.waited_ticks.load(Ordering::Relaxed).wrapping_sub(meter.waited);
    let clock = CLOCK_TICKS.load(Ordering::Relaxed);
    let spent = now.wrapping_sub(begun).saturating_sub(clock).saturating_sub(waited);
    if spent > INTERRUPTED_TICKS {
        cells.interrupted.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let spent = spent + by_slot();
    match took_stack(ring, meter.from) {
        Some(true) => cells.given.add(spent),
        Some(false) => cells.taken.add(spent),
        None => {}
    }
}

/// Whether the record of the heap that was written since the ring was at `from` has a stack; `None` if there is none.
fn took_stack(ring: &Producer<'static>, from: u64) -> Option<bool> {
    const MOST: usize = 16;
    let len = ring.position().wrapping_sub(from);
    if len > MOST as u64 {
        // Nodes of a new stack.
        return Some(true);
    }
    let words: [u64; MOST] = core::array::from_fn(|at| ring.written(from + at as u64));
    let mut words = words.get(..len as usize)?;
    let mut found = None;
    loop {
        // Apart from the others, since those have memory of their own, which the heap's lock and two system calls stand before.
        if let Some((_, frames)) = wire::whole_nodes(words) {
            words = words.get(1 + frames.len()..)?;
            continue;
        }
        let Ok(Some((record, len))) = wire::parse(words) else { break };
        if let Record::OfHeap(heap) = record
            && !heap.is_of_many()
        {
            found = Some(!matches!(heap.kind, kind::FREE | kind::REALLOC_BEGIN | kind::REALLOC_FAILED));
        }
        words = words.get(len..)?;
    }
    found
}

/// Counts the ticks that `work` takes as a thread's waiting for room.
pub(crate) fn waiting<T>(work: impl FnOnce() -> T) -> T {
    counted(|cells| &cells.waited_ticks, work)
}

/// Counts the ticks that `work` takes as a thread's beginning to record.
pub(crate) fn setting_up<T>(work: impl FnOnce() -> T) -> T {
    counted(|cells| &cells.setup_ticks, work)
}

fn counted<T>(cell: fn(&MeterCells) -> &AtomicU64, work: impl FnOnce() -> T) -> T {
    // Before the work: a handler that interrupts it may fork, and the child's are others.
    let cells = cells();
    let before = ticks();
    let value = work();
    // Nor is it the parent's where the work found that a child is not to be followed.
    if let Some(cells) = cells.filter(|_| session::segment().is_some()) {
        cell(cells).fetch_add(ticks().saturating_sub(before), Ordering::Relaxed);
    }
    value
}

stub!(grapnel_agent_empty, empty, 1);
/// As a hook that finds nothing to record.
unsafe extern "C" fn empty(value: usize, saved: &SavedRegisters) -> usize {
    if value != 0 && !hooks::is_inside(saved) {
        rescued(saved, ptr::null_mut(), 0, || {
            let _ = black_box(value);
        });
    }
    value
}

/// A function that does nothing.
extern "C" fn nothing(value: usize) -> usize {
    value
}

/// Measures what can't be in calls that are recorded.
pub(crate) fn prepare(cells: &MeterCells) {
    let least = |measure: &dyn Fn() -> u64| (0..16).map(|_| measure()).min().unwrap_or(0);
    let clock = least(&|| {
        let before = ticks();
        ticks().saturating_sub(before)
    });
    let calls = |stub: *const ()| {
        let before = ticks();
        for _ in 0..EMPTY_CALLS {
            // SAFETY: the stub keeps to the ABI, and its hook, or the function that it leads to, takes and gives a number.
            unsafe {
                let stub: unsafe extern "C" fn(usize) -> usize =
                    core::mem::transmute::<*const (), _>(black_box(stub));
                let _ = stub(black_box(1));
            }
        }
        ticks().saturating_sub(before)
    };
    let empty = least(&|| calls(grapnel_agent_empty as *const ()));
    slots::with_thunk(nothing as *const (), |thunk| {
        let tls = tls::get();
        let here = 0usize;
        // As a part of a call that is made from here: nothing is recorded then, and nobody thrown off.
        tls.inside.set((&raw const here).addr() & !slots::MARKS);
        let by_slot = least(&|| calls(thunk));
        tls.inside.set(0);
        SLOT_TICKS.store(by_slot.saturating_sub(empty) / EMPTY_CALLS, Ordering::Relaxed);
    });
    CLOCK_TICKS.store(clock, Ordering::Relaxed);
    AROUND_TICKS.store(clock + empty / EMPTY_CALLS, Ordering::Relaxed);
    cells.empty_ticks.store(empty.saturating_sub(clock), Ordering::Relaxed);
}
