//! Backtraces from signal handlers.

use std::{
    ffi::c_void,
    ops::Range,
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*},
};

/// Where the caller of all samples is, which every backtrace has to reach.
static CALLER: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
static REGIONS: AtomicPtr<Vec<Range<usize>>> = AtomicPtr::new(std::ptr::null_mut());

/// What was seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Backtraces.
    pub(crate) all: usize,
    /// Those that began in the code of hooks.
    pub(crate) inside: usize,
    /// Those that didn't reach the caller, or began in the code of hooks and had the hooked function not behind it.
    pub(crate) lost: usize,
}

static ALL: AtomicUsize = AtomicUsize::new(0);
static INSIDE: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn begin(caller: Range<usize>, regions: Vec<Range<usize>>) {
    CALLER[0].store(caller.start, Relaxed);
    CALLER[1].store(caller.end, Relaxed);
    REGIONS.store(Box::into_raw(Box::new(regions)), Release);
    for count in [&ALL, &INSIDE, &LOST] {
        count.store(0, Relaxed);
    }
}

pub(crate) fn end() -> Seen {
    Seen { all: ALL.load(Relaxed), inside: INSIDE.load(Relaxed), lost: LOST.load(Relaxed) }
}

const MOST: usize = 64;
/// `_URC_NORMAL_STOP`.
const STOP: i32 = 4;

struct Frames {
    count: usize,
    at: [usize; MOST],
}

extern "C" fn each(context: *mut c_void, frames: *mut c_void) -> i32 {
    unsafe extern "C" {
        fn _Unwind_GetIP(context: *mut c_void) -> usize;
    }
    // SAFETY: the unwinder's own context, and what `take` passed.
    unsafe {
        let frames = &mut *frames.cast::<Frames>();
        if let Some(place) = frames.at.get_mut(frames.count) {
            *place = _Unwind_GetIP(context);
            frames.count += 1;
        }
        // More than there can be: it goes round in a circle.
        if frames.count == MOST { STOP } else { 0 }
    }
}

/// Whether an address is in the code of hooks.
pub(crate) fn is_inside(at: usize) -> bool {
    // SAFETY: what `begin` stored, which is never freed.
    unsafe { REGIONS.load(Acquire).as_ref() }
        .is_some_and(|regions| regions.iter().any(|region| region.contains(&at)))
}

/// Takes one in the handler of a signal that interrupted code at `pc`. Neither allocates nor locks.
pub(crate) fn take(pc: usize) {
    unsafe extern "C" {
        fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> i32, data: *mut c_void) -> i32;
    }
    let mut frames = Frames { count: 0, at: [0; MOST] };
    // SAFETY: the callback has the type that is asked for.
    unsafe { _Unwind_Backtrace(each, (&raw mut frames).cast()) };
    let frames = &frames.at[..frames.count];
    let caller = CALLER[0].load(Relaxed)..CALLER[1].load(Relaxed);
    let mut reached = frames.iter().any(|at| caller.contains(at));
    if is_inside(pc) {
        INSIDE.fetch_add(1, Relaxed);
        let behind = frames.iter().skip_while(|at| **at != pc).nth(1);
        reached &= behind.is_some_and(|at| super::samples::around(*at));
    }
    ALL.fetch_add(1, Relaxed);
    if !reached {
        LOST.fetch_add(1, Relaxed);
    }
}
