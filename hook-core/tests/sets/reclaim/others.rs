//! What is in, what children have, and what others hooked.

use std::{
    ffi::c_void,
    sync::{Mutex, atomic::Ordering::*},
};

use grapnel_hook::{Arena, CodeWay, HookSet, Listener, Liveness};

use super::{
    TOLD, blocking_call, blocking_first, blocking_last, blocking_later, enter, leave, reclaim, seven,
    while_blocked,
};
use crate::{at, attach, function, remove};

/// What is in stays in, and what was attached before it is found again.
fn what_is_in_stays() {
    let target = at("frame");
    let call = function(target);
    let mut set = HookSet::new();
    let data = |i: usize| i as *mut c_void;
    let listen = |set: &mut HookSet, i| {
        attach(set, |b| b.listen(target, Listener::new(data(i)).on_enter(enter))).unwrap()
    };
    let first = listen(&mut set, 1);
    let middle = listen(&mut set, 10);
    let last = listen(&mut set, 100);
    remove(&mut set, middle).unwrap();
    let reclaimed = reclaim(&mut set, Liveness::SingleThreaded);
    assert_eq!((reclaimed.kept, reclaimed.doubt), (0, None));
    assert!(reclaimed.freed > 0);
    let again = listen(&mut set, 1000);
    TOLD.store(0, Relaxed);
    assert_eq!((call(1), TOLD.load(Relaxed)), (2, 1101));
    for (attached, told) in [(last, 1001), (first, 1000), (again, 0)] {
        remove(&mut set, attached).unwrap();
        reclaim(&mut set, Liveness::SingleThreaded);
        TOLD.store(0, Relaxed);
        assert_eq!((call(1), TOLD.load(Relaxed)), (2, told));
    }
    assert_eq!(set.kept(), 0);
}

/// A child made by fork keeps the hooks that its parent gives back.
fn a_child_keeps_what_its_parent_frees() {
    let target = at("frame");
    let call = function(target);
    for arena in [None, Some(Arena::with_ways(&[CodeWay::TwoViews]))] {
        let mut set = arena.map_or_else(HookSet::new, HookSet::with_arena);
        let attached = attach(&mut set, |b| b.replace(target, seven as *const ())).unwrap();
        // Another function keeps the memory mapped.
        let other = attach(&mut set, |b| b.replace(blocking_later as *const (), seven as *const ())).unwrap();
        let mut pipe = [0; 2];
        // SAFETY: two descriptors are written.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        // SAFETY: the child only reads, calls the function and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = 0u8;
            // SAFETY: as above.
            unsafe {
                libc::read(pipe[0], (&raw mut byte).cast(), 1);
                libc::_exit(call(1) as i32);
            }
        }
        remove(&mut set, attached).unwrap();
        assert_eq!(reclaim(&mut set, Liveness::SingleThreaded).doubt, None);
        let mut status = 0;
        // SAFETY: the descriptors and the child are this test's.
        unsafe {
            libc::write(pipe[1], (&raw const status).cast(), 1);
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            libc::close(pipe[0]);
            libc::close(pipe[1]);
        }
        remove(&mut set, other).unwrap();
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
    }
}

/// A call in a trampoline may be one whose return address a listener has taken from the stack.
fn return_addresses_that_listeners_took_are_looked_at() {
    let target = blocking_first as *const ();
    let set = Mutex::new(HookSet::new());
    let attached = attach(&mut set.lock().unwrap(), |b| {
        b.listen(target, Listener::new(core::ptr::null_mut()).on_enter(enter))
    });
    let attached = attached.unwrap();
    let mut other = HookSet::new();
    let within = attach(&mut other, |b| {
        b.listen(blocking_call as *const (), Listener::new(core::ptr::null_mut()).on_leave(leave))
    });
    while_blocked(
        function(target),
        || {
            let mut set = set.lock().unwrap();
            // SAFETY: the other thread is behind the first instructions.
            unsafe { set.remove(attached, Liveness::SingleThreaded) }.unwrap();
            let reclaimed = reclaim(&mut set, Liveness::Live);
            assert_eq!(reclaimed.doubt, None);
            assert!(reclaimed.kept > 0, "{reclaimed:?}");
        },
        || {
            let mut set = set.lock().unwrap();
            assert_eq!(reclaim(&mut set, Liveness::Live).doubt, None);
            assert_eq!(set.kept(), 0);
        },
    );
    remove(&mut other, within.unwrap()).unwrap();
}

/// A call that returns to the original needs nothing of the trampoline that it was made in.
fn a_call_that_returns_past_keeps_nothing() {
    let target = blocking_last as *const ();
    let mut set = HookSet::new();
    let attached =
        attach(&mut set, |b| b.listen(target, Listener::new(core::ptr::null_mut()).on_enter(enter)));
    while_blocked(
        function(target),
        || {
            // SAFETY: the other thread is behind the first instructions.
            unsafe { set.remove(attached.unwrap(), Liveness::SingleThreaded) }.unwrap();
            let reclaimed = reclaim(&mut set, Liveness::Live);
            assert_eq!((reclaimed.doubt, reclaimed.kept), (None, 0));
            assert!(reclaimed.freed > 0, "{reclaimed:?}");
        },
        || {},
    );
}

/// A thread may yet trap in what another set has put in since.
fn the_ways_of_other_sets_stay() {
    extern "C" fn none(_: u64) -> u64 {
        0
    }
    let target = blocking_first as *const ();
    let live = |set: &mut HookSet| {
        let mut batch = set.begin().live();
        batch.replace(target, none as *const ());
        // SAFETY: the function may be running, and is replaced by one of its type.
        unsafe { batch.commit(Liveness::Live) }.remove(0)
    };
    let (mut set, mut other) = (HookSet::new(), HookSet::new());
    let attached = live(&mut set).unwrap();
    // SAFETY: as above.
    unsafe { set.remove(attached, Liveness::Live) }.unwrap();
    let mut later = None;
    while_blocked(
        function(target),
        || {
            // The call returns into this patch.
            later = live(&mut other).ok();
            assert_eq!(reclaim(&mut set, Liveness::Live).doubt, None);
            assert_eq!(set.kept(), 0);
        },
        || {},
    );
    // SAFETY: as above.
    unsafe { other.remove(later.unwrap(), Liveness::Live) }.unwrap();
}

pub(super) fn run() {
    a_child_keeps_what_its_parent_frees();
    return_addresses_that_listeners_took_are_looked_at();
    a_call_that_returns_past_keeps_nothing();
    the_ways_of_other_sets_stay();
    what_is_in_stays();
}
