//! Return points that are looked at, and threads in guarded listeners.

use core::sync::atomic::{AtomicU64, Ordering::*};

use super::{Entry, Hit, guard::Guard, link::Link, places::POINTS, returns::*};
use crate::{
    Listener, Probe,
    native::{self, RETURN_POINTS, StubKind, Vectors},
};

#[test]
fn a_look_that_is_late_takes_nothing_from_another() {
    let number = (1..RETURN_POINTS).find(|&number| native::is_return_point(number)).unwrap();
    let state = &POINTS[number].state;
    state.store(0x1000, Relaxed);
    let late = Look::begin(number).unwrap();
    assert!(Look::begin(number).is_none());
    // The call returns, and another takes the point.
    take(number, 0x1000);
    release(number);
    assert_eq!(state.compare_exchange(0, CLAIMED, Relaxed, Relaxed), Ok(0));
    state.store(0x2000, Relaxed);
    let other = Look::begin(number).unwrap();
    late.end(false);
    other.end(true);
    assert_eq!(state.load(Relaxed), 0x2000);
    Look::begin(number).unwrap().end(false);
    assert_eq!(state.load(Relaxed), 0);
}

/// The stub was left for good while it was about to watch a return, or to tell of one.
#[test]
fn a_point_is_found_again_when_its_place_on_the_stack_is_used_for_something_else() {
    if !native::RETURNS_BY_MEMORY {
        return;
    }
    let number = native::return_points(1).rev().find(|&number| native::is_return_point(number)).unwrap();
    let slot = AtomicU64::new(0);
    let state = &POINTS[number].state;
    let passing = core::ptr::from_ref(&slot) as usize | PASSING;
    native::return_word(number).store(0x1234, Relaxed);
    state.store(passing, Relaxed);
    for there in [0x1234, native::return_point(number)] {
        slot.store(there, Relaxed);
        take_back(number, 0, 0);
        assert_eq!(state.load(Relaxed), passing);
    }
    slot.store(0x1235, Relaxed);
    take_back(number, 0, 0);
    assert_eq!(state.load(Relaxed), 0);
}

/// In a frame of its own, as a call from within a listener is.
#[inline(never)]
fn may_enter() -> bool {
    core::hint::black_box(Guard::enter(&mut 0)).is_some()
}

#[test]
fn a_thread_is_inside_once() {
    let mut word = 0;
    let guard = Guard::enter(&mut word).unwrap();
    assert!(!may_enter());
    std::thread::spawn(|| assert!(may_enter())).join().unwrap();
    drop(guard);
    assert!(may_enter());
}

#[test]
fn a_guard_whose_frame_is_gone_counts_no_more() {
    let mut word = 0;
    core::mem::forget(Guard::enter(&mut word).unwrap());
    assert!(!may_enter());
    word = 1;
    core::hint::black_box(&mut word);
    assert!(may_enter());
}

#[test]
fn a_signal_handler_on_its_own_stack_close_above_is_inside() {
    use std::sync::atomic::AtomicBool;
    static ENTERED: AtomicBool = AtomicBool::new(true);
    extern "C" fn handle(_: i32) {
        ENTERED.store(may_enter(), Relaxed);
    }
    #[inline(never)]
    fn interrupted() {
        let mut word = 0;
        let guard = Guard::enter(&mut word).unwrap();
        // SAFETY: the handler may run anywhere.
        unsafe { libc::raise(libc::SIGUSR2) };
        drop(guard);
    }
    // In this frame, so that it lies above the next one's.
    let mut room = [0u8; 32 << 10];
    let stack = libc::stack_t { ss_sp: room.as_mut_ptr().cast(), ss_flags: 0, ss_size: room.len() };
    let handler: extern "C" fn(i32) = handle;
    // SAFETY: the stack outlives its use, and this thread has its own back afterwards.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (handler as usize, libc::SA_ONSTACK);
        assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
        let mut before: libc::stack_t = std::mem::zeroed();
        assert_eq!(libc::sigaltstack(&raw const stack, &raw mut before), 0);
        interrupted();
        assert_eq!(libc::sigaltstack(&raw const before, std::ptr::null_mut()), 0);
    }
    std::hint::black_box(&mut room);
    assert!(!ENTERED.load(Relaxed));
}

#[test]
fn vectors_are_saved_unless_nobody_changes_them() {
    unsafe extern "C" fn told(_: &mut Entry, _: *mut core::ffi::c_void) {}
    unsafe extern "C" fn hit(_: &mut Hit, _: *mut core::ffi::c_void) {}
    let saved = |mut link: Link, ours, alone: bool| {
        link.save_what_may_change(ours, |_| alone);
        link.kind(StubKind::Entry).vectors
    };
    let listener = Listener::new(core::ptr::null_mut()).on_enter(told);
    let probe = Probe::new(hit, core::ptr::null_mut());
    // SAFETY: the function does nothing.
    let general = unsafe { probe.general_only() };
    assert_eq!(saved(listener.into(), true, true), Vectors::None);
    for (ours, alone) in [(true, false), (false, true)] {
        assert_eq!(saved(listener.into(), ours, alone), Vectors::Low);
        assert_eq!(saved(probe.into(), ours, alone), Vectors::All);
    }
    assert_eq!(saved(listener.guarded().into(), true, true), Vectors::Low);
    assert_eq!(saved(listener.with_vectors().into(), true, true), Vectors::All);
    assert_eq!(saved(probe.into(), true, true), Vectors::None);
    assert_eq!(saved(probe.guarded().into(), true, true), Vectors::All);
    assert_eq!(saved(general.into(), true, false), Vectors::None);
    assert_eq!(saved(general.into(), false, false), Vectors::All);
}
