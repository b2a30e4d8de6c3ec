//! From a hooked call to a number of its stack.
//!
//! Each thread has a walker, found again when the thread is gone. Its nodes are numbered by itself; for each it is known
//! which of the stacks of all threads that is, so a stack that was seen before takes no lock.
//!
//! # Safety
//! A [`Walking`] is used by its thread alone, with signals blocked. It changes hands under [`WALKERS`] only, when its
//! thread doesn't exist any more, and is never freed.

use super::stacks::{EMPTY, Stacks};
use crate::context::memory_of;
use crate::entry::SavedRegisters;
use crate::lock::{Lock, Quiet};
use crate::modules::{self, TableInUse};
use crate::{abandoned, sys, tls};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{Ordering, compiler_fence};
use grapnel_unwind::{Frame, FrameFlags, NodeId, Sink, Walker};

/// What a thread walks with.
#[derive(Debug)]
pub(crate) struct Walking {
    walker: Walker,
    /// By the walker's node less one.
    known: Vec<u32>,
    modules_seen: u64,
    removals_seen: u64,
    owner: u32,
    /// It is in the middle of a walk; or was, in a thread that a fork left behind.
    busy: bool,
}

/// More nodes than this, and the walker begins anew.
const MOST_NODES: usize = 1 << 22;

struct Walkers(UnsafeCell<Vec<*mut Walking>>);
// SAFETY: used under WALKERS only.
unsafe impl Sync for Walkers {}
static ALL: Walkers = Walkers(UnsafeCell::new(Vec::new()));
pub(crate) static WALKERS: Lock = Lock::whole_in_children();

struct Shared(UnsafeCell<Stacks>);
// SAFETY: used under STACKS only.
unsafe impl Sync for Shared {}
static TREE: Shared = Shared(UnsafeCell::new(Stacks::new()));
/// Guards the stacks of all threads.
pub(crate) static STACKS: Lock = Lock::whole_in_children();

/// Lends the stacks of all threads.
pub(crate) fn with_stacks<T>(work: impl FnOnce(&mut Stacks) -> T) -> T {
    let _guard = STACKS.lock();
    // SAFETY: STACKS is held.
    work(unsafe { &mut *TREE.0.get() })
}

/// Takes over the nodes that a walk finds.
struct Nodes<'a>(&'a mut Vec<u32>);

impl Sink for Nodes<'_> {
    fn nodes(&mut self, first: NodeId, parent: NodeId, frames: impl ExactSizeIterator<Item = Frame>) {
        let Self(known) = self;
        let mut at = number(known, parent);
        // Nodes come in the order of their numbers; one that was lost for lack of memory is its parent.
        known.truncate((first.0 as usize).saturating_sub(1));
        let own = super::own_code();
        with_stacks(|stacks| {
            for frame in frames {
                let pc = pc_of(frame) as usize;
                // A stub of ours lies in the middle of a stack where an operator of C++ is hooked.
                if pc != 0 && !own.contains(&pc) {
                    at = stacks.add(at, pc);
                }
                if known.try_reserve(1).is_ok() {
                    known.push(at);
                }
            }
        });
    }
}

/// An address in the instruction that made the call.
fn pc_of(frame: Frame) -> u64 {
    let is_exact = frame.flags.contains(FrameFlags::EXACT);
    if is_exact || frame.flags.contains(FrameFlags::SIGNAL) { frame.pc } else { frame.pc.saturating_sub(1) }
}

fn number(known: &[u32], node: NodeId) -> u32 {
    (node.0 as usize).checked_sub(1).and_then(|at| known.get(at).copied()).unwrap_or(EMPTY)
}

/// The stack from which a hooked function was called; empty where there is no memory.
pub(crate) fn stack(saved: &SavedRegisters, _quiet: &Quiet) -> u32 {
    let cell = &tls::get().walking;
    if cell.get().is_null() {
        cell.set(claim());
    }
    // SAFETY: null, or this thread's own; signals are blocked, so nobody else is in it.
    let Some(walking) = (unsafe { cell.get().as_mut() }) else { return EMPTY };
    let (version, removals) = (modules::version(), modules::removals());
    if walking.removals_seen != removals || walking.known.len() > MOST_NODES {
        walking.walker.reset();
        walking.known.clear();
    } else if walking.modules_seen != version {
        walking.walker.flush();
    }
    (walking.modules_seen, walking.removals_seen) = (version, removals);
    walking.busy = true;
    compiler_fence(Ordering::SeqCst);
    let node = walking.walker.walk(saved, &mut TableInUse(None), &mut Nodes(&mut walking.known));
    compiler_fence(Ordering::SeqCst);
    walking.busy = false;
    number(&walking.known, node)
}

/// A walker for this thread.
#[cold]
fn claim() -> *mut Walking {
    let (process, thread) = (sys::process_id(), sys::thread_id());
    let _guard = WALKERS.lock();
    // SAFETY: WALKERS is held.
    let all = unsafe { &mut *ALL.0.get() };
    // SAFETY: walkers are never freed; an owner is written under the lock.
    let owner = |walking: *mut Walking| unsafe { (*walking).owner };
    let is_own = |walking| owner(walking) == thread;
    let is_gone = |walking| !sys::thread_exists(process, owner(walking));
    if let Some(found) = abandoned::find(all, is_own, is_gone) {
        // SAFETY: its thread is gone, and nobody else takes it.
        let walking = unsafe { &mut *found };
        walking.owner = thread;
        walking.walker.forget_stacks();
        if walking.busy {
            walking.walker.reset();
            walking.known.clear();
            walking.busy = false;
        }
        return found;
    }
    let Ok(walker) = Walker::new(memory_of(u32::try_from(all.len()).unwrap_or(u32::MAX))) else {
        return ptr::null_mut();
    };
    if all.try_reserve(1).is_err() {
        return ptr::null_mut();
    }
    let (modules_seen, removals_seen) = (modules::version(), modules::removals());
    let made = Walking { walker, known: Vec::new(), modules_seen, removals_seen, owner: thread, busy: false };
    let made = Box::into_raw(Box::new(made));
    all.push(made);
    made
}

/// In the child of a fork: this thread's walker is its own still; those of the others are anybody's.
pub(crate) fn forked() {
    let thread = sys::thread_id();
    // SAFETY: null, or this thread's own.
    if let Some(walking) = unsafe { tls::get().walking.get().as_mut() } {
        walking.owner = thread;
    }
}
