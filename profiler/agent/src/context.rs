//! What a thread owns while it records: a ring, a walker with its caches and stack tree.
//!
//! Contexts outlive their threads. A thread has no destructor of ours (it would run too early for the frees of
//! its last moments, and be seen by the target); a context whose thread is gone is found when another thread
//! needs one, and serves it with warm caches.
//!
//! # Safety
//! A context is used by one thread at one level at a time: its owner is noted under [`life::PROCESS`], apart from the context,
//! which its thread works in meanwhile, and changes only when the old owner no longer exists. Contexts are never freed, so
//! pointers to them stay good.

use crate::entry::SavedRegisters;
use crate::lent::Reading;
use crate::lock::Guard;
use crate::meter::Meter;
use crate::sampling::{self, Looks};
use crate::stack::on_own_stack;
use crate::tls::{self, Tls};
use crate::{abandoned, forked, guests, heaps, life, modules, own_stack, session, sys};
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::Ordering;
use grapnel_trace::ring::{Producer, RingControl};
use grapnel_trace::shared::{
    LARGE_RINGS, LARGEST_RING, QUIET_RING, SegmentHeader, SessionHeader, session_flags,
};
use grapnel_trace::wire;
use grapnel_unwind::{Config, ModuleTable, Walker};

/// What a thread records with. What each event needs comes first, in as few cache lines as it takes.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) ring: Producer<'static>,
    /// The position from which something is due, or the ring may be full: see [`crate::record`].
    pub(crate) next_stop: u64,
    /// Set while the context is in the middle of a recording. Still set when its owner is gone or starts anew:
    /// a signal handler left it by longjmp, and its caches may be half changed.
    pub(crate) busy: bool,
    /// Every stack is walked a second time without the memo and compared.
    pub(crate) check: bool,
    pub(crate) meter: Meter,
    /// [`modules::version`] when the walker's rules were known to be good.
    pub(crate) modules_seen: u64,
    pub(crate) walker: Walker,
    /// Of the walker's looks at what is loaded.
    pub(crate) reading: &'static Reading<ModuleTable>,
    /// The segment that the ring is in, where events take their numbers. In the child of a fork that came amid a recording this is
    /// its parent's, in whose place there are zeroes.
    pub(crate) segment: &'static SegmentHeader,
    /// The last clock that was written into the ring; 0 before the first.
    pub(crate) clock: u64,
    /// The position in the ring from which another is due.
    pub(crate) next_clock: u64,
    /// The mean of the samples that the ring's reader knows of; 0 for none.
    pub(crate) told_mean: u64,
    /// Of a session with a budget.
    pub(crate) looks: Looks,
    /// Which ring of the segment that is.
    index: u32,
    /// What `modules_seen` says, also where that leads each walk to where it is asked what is due.
    pub(crate) modules_known: u64,
    /// Of a session that drops: the words that there must be room for when a walk begins.
    pub(crate) room_for_walk: Option<u64>,
    /// [`modules::removals`] when the walker's nodes were known to be good.
    pub(crate) removals_seen: u64,
}

const _: () = assert!(offset_of!(Context, meter) <= 64);

/// Whose a context is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The thread with this id, at this level.
    Thread(u32, usize),
    /// The thread whose block this is, at this level. In the child of a vfork, which works in the memory of its parent, that is
    /// the parent's thread: it is told by its block, since its id can't be had there.
    Block(usize, usize),
    /// Nobody's, until the process ends: a longjmp left it in the middle of a recording.
    Left,
}

/// A context and whose it is.
#[derive(Clone, Copy, Debug)]
struct Owned {
    context: *mut Context,
    owner: Owner,
    /// The context's.
    reading: &'static Reading<ModuleTable>,
}

#[derive(Debug)]
struct Contexts(UnsafeCell<Vec<Owned>>);

// SAFETY: used under PROCESS only, or in the only thread of a fork's child.
unsafe impl Sync for Contexts {}

static CONTEXTS: Contexts = Contexts(UnsafeCell::new(Vec::new()));

/// Of recordings that may go on, but whose contexts are nobody's in this process: it is the child of a fork that came amid them.
struct Amid(UnsafeCell<Vec<&'static Reading<ModuleTable>>>);

// SAFETY: used under PROCESS only, or in the only thread of a fork's child.
unsafe impl Sync for Amid {}

static AMID: Amid = Amid(UnsafeCell::new(Vec::new()));

/// The context of the calling thread at its level, claimed on first use. `None`: nothing is recorded.
#[cold]
#[inline(never)]
pub(crate) fn attach(tls: &Tls, level: usize, saved: &SavedRegisters) -> Option<*mut Context> {
    let (number, guard) = loop {
        if life::current() == 0 {
            forked::revive(level, Some(saved))?;
        }
        let number = life::current();
        if number == 0 {
            return None;
        }
        let guard = life::PROCESS.lock();
        // A handler may have forked in between.
        if life::current() == number {
            break (number, guard);
        }
    };
    if tls.life.get() != number {
        tls.contexts.iter().for_each(|context| context.set(ptr::null_mut()));
        tls.life.set(number);
    }
    let process = session::segment()?.pid.load(Ordering::Relaxed);
    let is_guest = sys::process_id() != process;
    // A child of a vfork is the process's first thread, as far as one can tell from there; and a filter for system calls may be
    // against asking.
    let known = Some(sys::thread_id()).filter(|&thread| !is_guest && thread != 0);
    let thread = known.unwrap_or(process);
    let by_block = Owner::Block(ptr::from_ref(tls).addr(), level);
    let owner = known.map_or(by_block, |thread| Owner::Thread(thread, level));
    // SAFETY: PROCESS is held.
    let contexts = unsafe { &mut *CONTEXTS.0.get() };
    let context = on_own_stack(&guard, || {
        let is_own = |one: Owned| one.owner == owner || one.owner == by_block;
        // A child of a vfork may have a namespace of its own, from which none of the process's threads is seen.
        let can_ask = !is_guest || sys::thread_exists(process, process);
        let is_gone = |one: Owned| match one.owner {
            Owner::Thread(thread, _) => can_ask && !sys::thread_exists(process, thread),
            Owner::Block(..) | Owner::Left => false,
        };
        match abandoned::find(contexts, is_own, is_gone) {
            Some(found) => {
                contexts
                    .iter_mut()
                    .filter(|one| one.context == found.context)
                    .for_each(|one| one.owner = owner);
                Some(found.context)
            }
            None => add(contexts, owner),
        }
    })?;
    // What a child of a vfork finds is found again by the parent's thread, which then says who it is. With signals held back: a handler that
    // forks finds in whose ring this thread is about to write.
    if !is_guest || guests::is_of_one(tls) || !is_of_thread(process) {
        tls.contexts.get(level)?.set(context);
    }
    drop(guard);
    // SAFETY: the context had no owner that exists; from here on it is this thread's.
    let ours = unsafe { &mut *context };
    if ours.busy {
        ours.walker.reset();
        ours.forget_nodes();
        ours.meter.reset();
        ours.busy = false;
    }
    ours.walker.forget_stacks();
    ours.walker.own_stack(if is_guest { 0..0 } else { own_stack::known(thread) });
    (ours.told_mean, ours.looks) = (0, Looks::default());
    crate::record::push(&mut ours.ring, &wire::thread(thread, sys::thread_name())).ok()?;
    modules::describe_all(number, &mut ours.ring);
    heaps::describe_all(number, &mut ours.ring);
    Some(context)
}

/// Whether this task has the thread pointer of one of the process's threads, as the child of a vfork has. A child of `clone` that shares the memory
/// may have its own.
fn is_of_thread(process: u32) -> bool {
    let thread = tls::thread_id();
    thread != 0 && sys::thread_exists(process, thread)
}

/// Leaves this thread's contexts as they are and begins without.
pub(crate) fn leave(tls: &Tls) {
    let _guard = life::PROCESS.lock();
    // SAFETY: PROCESS is held.
    let contexts = unsafe { &mut *CONTEXTS.0.get() };
    for cell in &tls.contexts {
        let context = cell.replace(ptr::null_mut());
        contexts.iter_mut().filter(|one| one.context == context).for_each(|one| one.owner = Owner::Left);
    }
}

/// Whether any context reads this table.
pub(crate) fn reads(table: *mut ModuleTable, _held: &Guard<'_>) -> bool {
    // SAFETY: PROCESS is held.
    let contexts = unsafe { &*CONTEXTS.0.get() };
    // SAFETY: as above.
    let amid = unsafe { &*AMID.0.get() };
    contexts.iter().map(|one| one.reading).chain(amid.iter().copied()).any(|reading| reading.is_of(table))
}

/// How much the walker of this ring remembers: that of the first thread, which most often does most, as much as it can, the next
/// ones fewer chains, and those of a process with many threads less of all, so that all together stay within some megabytes.
///
/// Where few allocations are recorded, hardly a walk is one of the last ones, and what would be looked up and kept for that
/// comes from memory, and goes there: only rules are kept.
pub(crate) fn memory_of(index: u32) -> Config {
    let most = Config::default();
    let memory = if index == 0 {
        most
    } else if index < LARGE_RINGS as u32 {
        Config { chain_bits: most.chain_bits - 1, ..most }
    } else {
        Config {
            cache_bits: most.cache_bits - 2,
            chain_bits: most.chain_bits - 4,
            tree_bits: most.tree_bits - 3,
            recent_bits: most.recent_bits - 4,
            ..most
        }
    };
    if sampling::is_sparse() { Config { chain_bits: 0, recent_bits: 0, ..memory } } else { memory }
}

/// The most words of a ring that are used. Few where few allocations are recorded: but who drops what has no room has use for all of it.
fn words_of_ring(header: &SessionHeader) -> usize {
    let drops = header.flags.load(Ordering::Relaxed) & session_flags::DROP != 0;
    if sampling::is_sparse() && !drops { QUIET_RING } else { LARGEST_RING }
}

/// Memory for a value that stays for good.
struct Room<T>(Vec<T>);

impl<T> Room<T> {
    /// `None` without memory.
    fn new() -> Option<Self> {
        let mut room = Vec::new();
        room.try_reserve_exact(1).ok()?;
        Some(Self(room))
    }

    fn keep(self, value: T) -> Option<&'static mut T>
    where
        T: 'static,
    {
        let Self(mut room) = self;
        room.push(value);
        room.leak().first_mut()
    }
}

fn add(contexts: &mut Vec<Owned>, owner: Owner) -> Option<*mut Context> {
    let (segment, header) = (session::segment()?, session::header()?);
    let index = segment.rings.load(Ordering::Relaxed);
    let (control, words) = session::ring(index, words_of_ring(header))?;
    contexts.try_reserve(1).ok()?;
    let max_frames = header.max_frames.load(Ordering::Relaxed) as usize;
    let check = header.flags.load(Ordering::Relaxed) & session_flags::CHECK_STACKS != 0;
    let drops = header.flags.load(Ordering::Relaxed) & session_flags::DROP != 0;
    let version = modules::version();
    let memory = memory_of(index);
    // Two walks of a stack agree in its node only as long as it is looked up, and the tree is not emptied in between.
    let tree_bits = if check { 28 } else { memory.tree_bits };
    // The drain finds nodes again, as long as it hasn't many threads' to do. What it takes longer is waited for: not where
    // nobody waits.
    let tells = index == 0 && !check && !drops;
    let (room, reading) = (Room::new()?, Room::new()?);
    let walker = Walker::new(Config { max_frames, tree_bits, tells, ..memory }).ok()?;
    let reading = &*reading.keep(Reading::new())?;
    let context = room.keep(Context {
        ring: Producer::new(control, words),
        segment,
        clock: 0,
        next_clock: 0,
        next_stop: 0,
        meter: Meter::new(index),
        told_mean: 0,
        looks: Looks::default(),
        index,
        walker,
        reading,
        modules_seen: if drops { u64::MAX } else { version },
        modules_known: version,
        room_for_walk: drops.then(|| crate::record::room_for_walk(max_frames, words.len())),
        removals_seen: modules::removals(),
        check,
        busy: false,
    })?;
    control.capacity_log2.store(words.len().trailing_zeros(), Ordering::Release);
    segment.rings.store(index + 1, Ordering::Release);
    segment.agent_bytes.store(crate::heap::mapped(), Ordering::Relaxed);
    if index != 0 {
        crate::record::number_events();
    }
    let context = ptr::from_mut(context);
    contexts.push(Owned { context, owner, reading });
    Some(context)
}

impl Context {
    /// Tells the drain that nodes are numbered from 1 again.
    pub(crate) fn forget_nodes(&mut self) {
        let _ = crate::record::push(&mut self.ring, &[wire::head(0, wire::kind::RESET)]);
    }
}

/// In the child of a fork, in its only thread: the rings of the recordings that it was in the middle of, `level` of them, with their numbers.
pub(crate) fn rings_amid(tls: &Tls, level: usize) -> impl Iterator<Item = (&'static RingControl, u32)> {
    tls.contexts.iter().take(level).filter_map(|context| {
        // SAFETY: null, or a context, which is never freed. It is lent to a frame of this thread's, which stands still meanwhile.
        unsafe { context.get().as_ref() }.map(|context| (context.ring.control(), context.index))
    })
}

/// In the child of a fork, in its only thread, which is in the middle of `level` recordings: takes the contexts that the thread has at other
/// levels over into the child's segment. The first ones stay their recordings' until the process ends. `None` without room for a ring.
pub(crate) fn take_over(level: usize, header: &SessionHeader, segment: &'static SegmentHeader) -> Option<()> {
    let tls = tls::get();
    // SAFETY: this is the process's only thread, and the contexts of the others are gone with them.
    let contexts = unsafe { &mut *CONTEXTS.0.get() };
    // SAFETY: as above.
    let amid = unsafe { &mut *AMID.0.get() };
    let is_amid = |one: &Owned| tls.contexts.iter().take(level).any(|context| context.get() == one.context);
    let left = contexts.iter().filter(|one| one.owner == Owner::Left || is_amid(one));
    amid.try_reserve(left.clone().count()).ok()?;
    amid.extend(left.map(|one| one.reading));
    contexts.clear();
    for (level, context) in tls.contexts.iter().enumerate().skip(level) {
        let context = context.get();
        // SAFETY: null, or a context, which is never freed, and which nobody uses: the thread is at none of these levels, and there is no other.
        let Some(idle) = (unsafe { context.as_mut() }) else { continue };
        let (control, words) = session::ring(idle.index, words_of_ring(header))?;
        idle.ring = Producer::new(control, words);
        idle.segment = segment;
        (idle.clock, idle.next_clock, idle.next_stop, idle.told_mean) = (0, 0, 0, 0);
        idle.looks = Looks::default();
        idle.meter.reset();
        idle.walker.reset();
        let owner = Owner::Thread(sys::thread_id(), level);
        contexts.push(Owned { context, owner, reading: idle.reading });
        control.capacity_log2.store(words.len().trailing_zeros(), Ordering::Release);
        let rings = segment.rings.load(Ordering::Relaxed).max(idle.index + 1);
        segment.rings.store(rings, Ordering::Release);
    }
    tls.contexts.iter().for_each(|context| context.set(ptr::null_mut()));
    Some(())
}
