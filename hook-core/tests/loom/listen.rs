//! Returns that are listened to, and threads in guarded listeners.

use loom::thread;

use crate::{
    atomic::Ordering::*,
    model,
    native::{self, STACK, STACKS, Saved},
};
use guard::Guard;

#[path = "../../src/listen/guard.rs"]
mod guard;
#[path = "../../src/listen/returns.rs"]
mod returns;

mod places {
    use super::{
        guard::Bucket,
        returns::{Kind, Point},
    };
    use crate::{atomic::AtomicUsize, native::RETURN_POINTS};
    use loom::sync::atomic::AtomicBool;

    /// More than there are threads: who looks for a free one may come past each when it isn't.
    pub(super) const BUCKET: usize = 4;

    loom::lazy_static! {
        pub(super) static ref POINTS: [Point; RETURN_POINTS] = Default::default();
        pub(super) static ref KINDS: [[Kind; 2]; 1] = Default::default();
        pub(super) static ref SCARCE: AtomicBool = AtomicBool::new(false);
        pub(super) static ref THREADS: [Bucket; 1] = Default::default();
        pub(super) static ref LOOKS: AtomicUsize = AtomicUsize::new(1);
    }
}

#[derive(Debug)]
pub(crate) struct Link;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkKey;

impl Link {
    fn part(&self) -> usize {
        0
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnLink;

impl OwnLink {
    pub(crate) fn key(&self) -> LinkKey {
        LinkKey
    }
}

fn miss() {}

static LINK: Link = Link;

fn real(thread: usize) -> u64 {
    0x1000 + thread as u64
}

/// A thread calls a function that is listened to.
fn enter(thread: usize) {
    let call = STACKS + 8 * thread;
    STACK[thread].store(real(thread), Relaxed);
    let mut saved = Saved { call, return_address: real(thread), word: 0x70 + thread as u64 };
    // SAFETY: the call enters its function.
    unsafe { returns::watch(&LINK, &mut saved) };
}

/// The function returns to where its return address says. Answers whether that was told.
fn leave(thread: usize) -> bool {
    let to = STACK[thread].load(Relaxed);
    if to == real(thread) {
        return false;
    }
    let number = native::number_of_return_point(to);
    assert_eq!(native::return_point(number), to, "it returns to a point or to its caller");
    assert_eq!(returns::take(number, STACKS + 8 * thread), real(thread));
    // The routine puts that there, and the caller uses the stack for something else.
    STACK[thread].store(real(thread), Relaxed);
    let (link, word) = returns::release(number);
    STACK[thread].store(0xdead, Relaxed);
    assert!(core::ptr::eq(link, &LINK));
    assert_eq!(word, 0x70 + thread as u64, "its own");
    true
}

#[test]
fn calls_return_to_their_callers_while_another_looks() {
    model(|| {
        let caller = thread::spawn(|| {
            enter(0);
            assert!(leave(0), "there are enough points");
            enter(0);
            assert!(leave(0));
        });
        returns::settle(&LINK);
        enter(1);
        assert!(leave(1));
        caller.join().unwrap();
        assert_eq!(returns::awaited(&LINK), 0);
    });
}

#[test]
fn points_of_calls_that_never_return_are_taken_from_these_alone() {
    model(|| {
        // It is left by an exception, and its place on the stack is used for something else.
        enter(2);
        STACK[2].store(0xdead, Relaxed);
        let caller = thread::spawn(|| {
            enter(0);
            leave(0);
        });
        enter(1);
        leave(1);
        caller.join().unwrap();
        returns::settle(&LINK);
        assert_eq!(returns::awaited(&LINK), 0, "and the lost one is found");
    });
}

#[test]
fn a_thread_finds_its_own_returns() {
    model(|| {
        let looker = thread::spawn(|| returns::settle(&LINK));
        enter(0);
        let mut found = false;
        returns::each_return(|address| found |= address == real(0));
        assert!(found, "whoever else looks at the point meanwhile");
        leave(0);
        looker.join().unwrap();
    });
}

/// In a frame of its own, as a call from within a listener is.
#[inline(never)]
fn may_enter() -> bool {
    core::hint::black_box(Guard::enter(&mut 0)).is_some()
}

fn listens(thread: usize) {
    native::set_thread_pointer(thread);
    let mut word = 0;
    let Some(guard) = Guard::enter(&mut word) else { panic!("there is room") };
    assert!(!may_enter(), "it is inside");
    drop(guard);
    let mut word = 0;
    // It is left by a jump, and its frame is gone.
    core::mem::forget(Guard::enter(&mut word).expect("it is outside again"));
    word = 1;
    core::hint::black_box(&mut word);
    assert!(may_enter(), "what was left behind counts no more");
}

#[test]
fn each_thread_is_inside_by_itself() {
    model(|| {
        let other = thread::spawn(|| listens(0x10));
        listens(0x20);
        other.join().unwrap();
    });
}
