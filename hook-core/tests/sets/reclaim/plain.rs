//! The code of a transaction's hooks, which their owner asks to have back.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::*},
};

use grapnel_hook::{Arena, CodeWay, Error, Hook, Liveness, Reclaimed, Refusal, Transaction};

use super::{blocking_first, clear_the_stack, leaks::mappings, seven, while_blocked};
use crate::{at, function};

fn reclaim(arena: &mut Arena, hooks: &mut Vec<Hook>, liveness: Liveness) -> Reclaimed {
    // SAFETY: what `liveness` says is so, no original is called any more, and there are no coroutines.
    unsafe { arena.reclaim(hooks, liveness) }
}

/// Hooks functions such that threads may be running them. What it names is gone from the stack when others have run there.
#[inline(never)]
fn hook(arena: &mut Arena, targets: &[*const ()], liveness: Liveness) -> Vec<Hook> {
    let mut transaction = Transaction::with_arena(arena);
    if liveness == Liveness::Live {
        transaction = transaction.live();
    }
    for &target in targets {
        transaction.replace(target, seven as *const ());
    }
    // SAFETY: the functions have this type, and what `liveness` says is so.
    unsafe { transaction.commit(liveness) }.into_iter().map(Result::unwrap).collect()
}

#[inline(never)]
fn take_out(hooks: &mut [Hook], liveness: Liveness) {
    for hook in hooks {
        // SAFETY: what `liveness` says is so.
        unsafe { hook.remove(liveness) }.unwrap();
    }
}

/// A hook goes in and out, and its code goes, thousands of times. What a frame of this test still names may be kept for a while.
fn memory_stays_flat() {
    let targets = ["frame", "compact"].map(at);
    for way in CodeWay::ALL {
        let mut arena = Arena::with_ways(&[way]);
        let (mut hooks, mut most, mut before) = (Vec::new(), 0, 0);
        for round in 0..4000 {
            let mut new = hook(&mut arena, &targets, Liveness::SingleThreaded);
            assert!(targets.iter().all(|&target| function(target)(1) == 7));
            take_out(&mut new, Liveness::SingleThreaded);
            hooks.append(&mut new);
            let reclaimed = reclaim(&mut arena, &mut hooks, Liveness::SingleThreaded);
            assert_eq!(reclaimed.doubt, None);
            assert_eq!(reclaimed.kept > 0, !hooks.is_empty());
            most = most.max(hooks.len());
            if round == 100 {
                before = mappings();
            }
        }
        // Where a hook has a region of its own, one that is kept has one more.
        assert!(mappings() <= before + 8, "{way:?}: {before} mappings, then {}", mappings());
        assert!(most <= 8, "{way:?}: {most} hooks kept at once");
        println!(
            "  plain hooks, {way:?}: 4000 rounds, {before} mappings, then {}, {most} kept at once",
            mappings()
        );
    }
}

/// The same while other threads run the functions.
fn memory_stays_flat_while_threads_run() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let targets = ["frame", "compact"].map(at);
    let mut arena = Arena::new();
    let mut hooks = Vec::new();
    std::thread::scope(|scope| {
        struct Stop;
        impl Drop for Stop {
            fn drop(&mut self) {
                STOP.store(true, Relaxed);
            }
        }
        let _stop = Stop;
        for _ in 0..2 {
            scope.spawn(|| {
                while !STOP.load(Relaxed) {
                    for target in ["frame", "compact"].map(at) {
                        std::hint::black_box(function(target)(1));
                    }
                }
            });
        }
        for _ in 0..300 {
            let mut new = hook(&mut arena, &targets, Liveness::Live);
            take_out(&mut new, Liveness::Live);
            hooks.append(&mut new);
            // A thread that doesn't come to run has no answer in time, and is asked again.
            reclaim(&mut arena, &mut hooks, Liveness::Live);
        }
    });
    clear_the_stack();
    let reclaimed = reclaim(&mut arena, &mut hooks, Liveness::SingleThreaded);
    assert_eq!(reclaimed.doubt, None);
    assert!(hooks.len() <= 8, "{}", hooks.len());
    assert!(arena.regions().count() <= 4);
}

static ORIGINAL: AtomicUsize = AtomicUsize::new(0);

extern "C" fn passing(x: u64) -> u64 {
    function(ORIGINAL.load(Relaxed) as *const ())(x)
}

/// Has a function replaced by one that calls the original. Nothing of it stays in the caller's frame.
#[inline(never)]
fn pass(arena: &mut Arena, target: *const ()) -> Hook {
    let mut transaction = Transaction::with_arena(arena);
    let id = transaction.replace(target, passing as *const ());
    let prepared = transaction.prepare();
    ORIGINAL.store(prepared.original(id).unwrap() as usize, Relaxed);
    // SAFETY: the functions have this type, and one thread runs.
    unsafe { prepared.commit(Liveness::SingleThreaded) }.remove(0).unwrap()
}

/// The call is made in the trampoline and returns there.
fn code_is_kept_while_a_thread_is_in_it() {
    let target = blocking_first as *const ();
    let mut arena = Arena::new();
    let hooks = vec![pass(&mut arena, target)];
    let state = RefCell::new((arena, hooks));
    while_blocked(
        function(target),
        || {
            let (arena, hooks) = &mut *state.borrow_mut();
            // The other thread is behind the first instructions.
            take_out(hooks, Liveness::SingleThreaded);
            let reclaimed = reclaim(arena, hooks, Liveness::Live);
            assert_eq!((reclaimed.doubt, hooks.len()), (None, 1), "{reclaimed:?}");
            assert!(reclaimed.kept > 0, "{reclaimed:?}");
        },
        || {
            let (arena, hooks) = &mut *state.borrow_mut();
            let reclaimed = reclaim(arena, hooks, Liveness::Live);
            assert_eq!((reclaimed.doubt, reclaimed.kept, hooks.len()), (None, 0, 0), "{reclaimed:?}");
            assert!(reclaimed.freed > 0);
        },
    );
}

/// What was prepared and dropped, and what failed, goes too; and what is in stays, with the island that it shares.
fn what_never_went_in_goes_and_what_is_in_stays() {
    let mut arena = Arena::with_ways(&[CodeWay::ProcMem, CodeWay::TwoViews]);
    let targets: Vec<_> = ["frame", "compact", "red_zone", "wide_immediate"].map(at).into();
    let mut hooks = hook(&mut arena, &targets, Liveness::Live);
    let used = arena.used();
    let mut transaction = Transaction::with_arena(&mut arena);
    transaction.replace(at("literal"), seven as *const ());
    drop(transaction.prepare());
    let mut transaction = Transaction::with_arena(&mut arena);
    transaction.replace(at("landing_pad"), seven as *const ());
    // SAFETY: nothing goes in.
    let failed = unsafe { transaction.commit(Liveness::Live) }.remove(0);
    assert!(matches!(failed, Err(Error::NotLive { refusal: Refusal::NotPrepared, .. })), "{failed:?}");
    assert!(arena.used() > used);
    clear_the_stack();
    let reclaimed = reclaim(&mut arena, &mut hooks, Liveness::SingleThreaded);
    assert_eq!((reclaimed.doubt, reclaimed.kept, hooks.len(), arena.used()), (None, 0, 4, used));

    // Nor is another arena's code given back.
    take_out(&mut hooks[..2], Liveness::Live);
    reclaim(&mut Arena::new(), &mut hooks, Liveness::SingleThreaded);
    assert_eq!((hooks.len(), arena.used()), (4, used));
    clear_the_stack();
    let reclaimed = reclaim(&mut arena, &mut hooks, Liveness::SingleThreaded);
    assert_eq!((reclaimed.doubt, reclaimed.kept, hooks.len()), (None, 0, 2));
    assert!(targets[2..].iter().all(|&target| function(target)(5) == 7));
    assert_eq!((function(targets[0])(5), function(targets[1])(5)), (6, 6));
    take_out(&mut hooks, Liveness::Live);
    clear_the_stack();
    reclaim(&mut arena, &mut hooks, Liveness::SingleThreaded);
    assert_eq!((hooks.len(), arena.used()), (0, 0));
}

pub(super) fn run() {
    what_never_went_in_goes_and_what_is_in_stays();
    code_is_kept_while_a_thread_is_in_it();
    memory_stays_flat();
    memory_stays_flat_while_threads_run();
}
