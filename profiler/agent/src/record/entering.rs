//! Into a thread's context, for the recording of one event, and out of it.
//!
//! # Safety
//! A context is used between the rise of the thread's level and its fall; a signal handler that records
//! in between is at the next level and has a context of its own.

use super::count_lost;
use crate::context::{self, Context};
use crate::entry::{SavedRegisters, rescued};
use crate::tls::{self, LEVELS, Tls};
use crate::{life, meter, sys};
use core::hint::cold_path;
use core::ptr;
use core::sync::atomic::{AtomicU16, Ordering, compiler_fence};

/// Lends `work` this thread's context, if this process records.
#[inline(always)]
pub(crate) fn enter(saved: &SavedRegisters, work: impl FnOnce(&mut Context)) {
    let tls = tls::get();
    let mut level = tls.level.get();
    rise(tls, level, saved);
    let life = life::current();
    let mut context = present(tls, level, life);
    if context.is_null() {
        cold_path();
        (context, level) = match find(life, level, saved) {
            Some(found) => found,
            None => return,
        };
        rise(tls, level, saved);
    }
    // SAFETY: the thread's, found for this level, to which it has risen.
    unsafe {
        lend(tls, level, context, |context| {
            work(context);
            if context.meter.is_timing() {
                cold_path();
                meter::finish(context);
            }
        });
    }
}

/// Records an event of no more than a kind and an address and empties `entry`, with a way out to `original`, where the thread has a
/// context in which nothing else is due. Whether it did; if not, the event is still to be recorded.
///
/// Most events need no more. It calls nobody, so that the compiler need not save registers for it; to that end, events that are
/// numbered have a form of their own.
#[inline(always)]
pub(crate) fn plain_quickly<const NUMBERED: bool>(
    saved: &SavedRegisters,
    original: usize,
    kind: u8,
    address: u64,
    entry: Option<&AtomicU16>,
) -> bool {
    let tls = tls::get();
    let level = tls.level.get();
    rise(tls, level, saved);
    let context = present(tls, level, life::current());
    if context.is_null() {
        tls.level.set(level);
        return false;
    }
    rescued(saved, ptr::null_mut(), original, || {
        let work = |context: &mut Context| context.plain_quickly::<NUMBERED>(kind, address, entry);
        // SAFETY: the thread's, at this level, to which it has risen.
        unsafe { lend(tls, level, context, work) }
    })
}

/// Says that the thread is in the middle of a recording at a level. Before it is looked whether there is a life: in the child of a fork that
/// comes behind that look, the recording is known for one of the parent's.
#[inline(always)]
fn rise(tls: &Tls, level: usize, saved: &SavedRegisters) {
    if let Some(entry) = tls.entries.get(level) {
        entry.set(ptr::from_ref(saved).addr());
    }
    tls.level.set(level + 1);
    compiler_fence(Ordering::SeqCst);
}

/// The thread's context at a level; null where it has none of this life there.
#[inline(always)]
fn present(tls: &Tls, level: usize, life: u64) -> *mut Context {
    match tls.contexts.get(level) {
        Some(cell) if tls.life.get() == life => cell.get(),
        _ => ptr::null_mut(),
    }
}

/// Lends `work` a context, and falls back to its level.
///
/// # Safety
/// It is the thread's own at this level, from which the thread has [risen](rise): nobody else uses it until the level falls again.
#[inline(always)]
unsafe fn lend<T>(tls: &Tls, level: usize, context: *mut Context, work: impl FnOnce(&mut Context) -> T) -> T {
    // SAFETY: the caller's promise.
    let context = unsafe { &mut *context };
    context.busy = true;
    let value = work(context);
    context.busy = false;
    compiler_fence(Ordering::SeqCst);
    tls.level.set(level);
    value
}

/// Says that the caller's stack will be asked for when the call that is about to begin returns.
#[inline(always)]
pub(crate) fn expect(saved: &SavedRegisters) {
    let tls = tls::get();
    if let Some(cell) = tls.contexts.get(tls.level.get())
        // SAFETY: null, or this thread's context at its level, in which nobody else is; contexts are never freed.
        && let Some(context) = unsafe { cell.get().as_ref() }
    {
        context.walker.expect(saved);
    }
}

/// A context for a thread that has risen from this level, and the level at which it is. Where there is none, the thread falls back.
#[cold]
#[inline(never)]
fn find(life: u64, mut level: usize, saved: &SavedRegisters) -> Option<(*mut Context, usize)> {
    let tls = tls::get();
    if tls::is_shared(tls) {
        tls.level.set(0);
        if life != 0 {
            count_lost();
        }
        return None;
    }
    if let Some(context) = meter::due(tls, life, level) {
        return Some((context, level));
    }
    if level >= LEVELS {
        if !all_abandoned(saved) {
            count_lost();
            tls.level.set(level);
            return None;
        }
        // Those recordings will not go on; should one after all, it has its context to itself.
        context::leave(tls);
        level = 0;
        tls.level.set(level + 1);
    }
    let context = meter::setting_up(|| context::attach(tls, level, saved));
    if context.is_none() {
        tls.level.set(level);
    }
    if context.is_none() && (life != 0 || life::current() != 0) {
        count_lost();
    }
    context.map(|context| (context, level))
}

/// Whether all recordings that this thread is in the middle of were left by a longjmp out of a signal handler: their
/// frames lie where the stack has been given up, or where this call's own is.
fn all_abandoned(saved: &SavedRegisters) -> bool {
    let here = ptr::from_ref(saved).addr();
    !sys::on_signal_stack() && tls::get().entries.iter().all(|entry| entry.get() <= here)
}

/// How many of the first so many recordings that this thread is in the middle of may go on. The others were left in that way, or lie
/// within one that was. Where a program has come deeper again since then, that isn't seen.
pub(crate) fn under_way(level: usize, saved: Option<&SavedRegisters>) -> usize {
    let Some(here) = saved.filter(|_| level != 0).map(|saved| ptr::from_ref(saved).addr()) else {
        return level;
    };
    if sys::on_signal_stack() {
        return level;
    }
    tls::get().entries.iter().take(level).take_while(|entry| entry.get() > here).count()
}
