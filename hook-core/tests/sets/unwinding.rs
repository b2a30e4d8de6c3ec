//! Exceptions, `longjmp` and backtraces pass through what is attached.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use grapnel_hook::{
    HookSet, Listener,
    listen::{Entry, Exit},
};

use crate::{attach, remove};

pub(crate) fn run() {
    panics_pass();
    backtraces_pass();
    long_jumps_pass();
}

static LEFT: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn leave(_: &mut Exit, _: *mut c_void) {
    LEFT.fetch_add(1, Relaxed);
}

fn listener() -> Listener {
    Listener::new(std::ptr::null_mut()).on_leave(leave)
}

/// More often than there are places for returns.
fn panics_pass() {
    #[inline(never)]
    extern "C-unwind" fn throws(x: u64) -> u64 {
        if x.is_multiple_of(2) {
            std::panic::resume_unwind(Box::new(x));
        }
        std::hint::black_box(x) + 1
    }
    let throws: extern "C-unwind" fn(u64) -> u64 = std::hint::black_box(throws);
    let mut set = HookSet::new();
    for listener in [listener(), listener().with_vectors()] {
        LEFT.store(0, Relaxed);
        let outer = attach(&mut set, |batch| batch.listen(throws as *const (), listener)).unwrap();
        let inner = attach(&mut set, |batch| batch.listen(throws as *const (), listener.guarded())).unwrap();
        for x in 0..12_000u64 {
            match std::panic::catch_unwind(|| throws(x)) {
                Ok(result) => assert_eq!((result, x % 2), (x + 1, 1)),
                Err(thrown) => assert_eq!((thrown.downcast_ref(), x % 2), (Some(&x), 0)),
            }
        }
        assert_eq!(LEFT.load(Relaxed), 12_000);
        assert!(set.awaited(outer) <= 1 << 12);
        remove(&mut set, outer).unwrap();
        remove(&mut set, inner).unwrap();
    }
}

/// Where a frame is on the stack.
///
/// # Safety
/// The context is the unwinder's.
#[cfg(not(target_arch = "arm"))]
unsafe fn place(context: *mut c_void) -> usize {
    unsafe extern "C" {
        fn _Unwind_GetCFA(context: *mut c_void) -> usize;
    }
    // SAFETY: the caller's promise.
    unsafe { _Unwind_GetCFA(context) }
}

/// The same by the stack pointer: here only exceptions tell the other.
#[cfg(target_arch = "arm")]
unsafe fn place(context: *mut c_void) -> usize {
    unsafe extern "C" {
        fn _Unwind_VRS_Get(context: *mut c_void, class: u32, number: u32, kind: u32, to: *mut usize) -> u32;
    }
    let (mut sp, core, words) = (0, 0, 0);
    // SAFETY: the caller's promise.
    assert_eq!(unsafe { _Unwind_VRS_Get(context, core, 13, words, &raw mut sp) }, 0);
    sp
}

/// The places of this thread's frames, as the unwinder of the C++ runtime sees them.
pub(crate) fn frames() -> Vec<usize> {
    unsafe extern "C" {
        fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, *mut c_void) -> i32, data: *mut c_void) -> i32;
    }
    extern "C" fn each(context: *mut c_void, frames: *mut c_void) -> i32 {
        // SAFETY: the unwinder's own context, and the list below.
        unsafe { (*frames.cast::<Vec<usize>>()).push(place(context)) };
        0
    }
    let mut frames: Vec<usize> = Vec::new();
    // SAFETY: the callback has the type that is asked for.
    unsafe { _Unwind_Backtrace(each, (&raw mut frames).cast()) };
    frames
}

fn backtraces_pass() {
    static DEPTHS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
    static OUTERMOST: AtomicU64 = AtomicU64::new(0);
    fn note(i: usize) {
        let frames = frames();
        // `main` and all below it is there.
        assert_eq!(*frames.last().unwrap() as u64, OUTERMOST.load(Relaxed));
        DEPTHS[i].store(frames.len() as u64, Relaxed);
    }
    #[inline(never)]
    extern "C" fn looks(x: u64) -> u64 {
        note(0);
        std::hint::black_box(x)
    }
    unsafe extern "C" fn at_entry(_: &mut Entry, _: *mut c_void) {
        note(1);
    }
    unsafe extern "C" fn at_exit(_: &mut Exit, _: *mut c_void) {
        note(2);
    }
    OUTERMOST.store(*frames().last().unwrap() as u64, Relaxed);
    let looks: extern "C" fn(u64) -> u64 = std::hint::black_box(looks);
    assert_eq!(looks(1), 1);
    let plain = DEPTHS[0].load(Relaxed);
    let mut set = HookSet::new();
    let listener = Listener::new(std::ptr::null_mut()).on_enter(at_entry).on_leave(at_exit);
    for listener in [listener, listener.with_vectors()] {
        let attached = attach(&mut set, |batch| batch.listen(looks as *const (), listener)).unwrap();
        assert_eq!(looks(1), 1);
        // The return point is a frame more.
        assert_eq!(DEPTHS[0].load(Relaxed), plain + 1);
        assert!(DEPTHS[1].load(Relaxed) >= plain && DEPTHS[2].load(Relaxed) >= plain);
        remove(&mut set, attached).unwrap();
    }
}

fn long_jumps_pass() {
    #[repr(C, align(16))]
    struct Buffer([u64; 64]);
    unsafe extern "C" {
        fn _setjmp(buffer: *mut Buffer) -> i32;
        fn longjmp(buffer: *mut Buffer, value: i32) -> !;
    }
    #[inline(never)]
    extern "C" fn jumps(buffer: *mut Buffer, x: u64) -> u64 {
        if x.is_multiple_of(3) {
            // SAFETY: the frame that filled the buffer is there, and none on the way needs an end.
            unsafe { longjmp(buffer, 1) };
        }
        std::hint::black_box(x)
    }
    let jumps: extern "C" fn(*mut Buffer, u64) -> u64 = std::hint::black_box(jumps);
    let mut set = HookSet::new();
    let attached = attach(&mut set, |batch| batch.listen(jumps as *const (), listener())).unwrap();
    LEFT.store(0, Relaxed);
    static COUNT: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    static X: AtomicU64 = AtomicU64::new(0);
    let mut buffer = Buffer([0; 64]);
    while X.load(Relaxed) < 20_000 {
        // SAFETY: the second return comes while this frame is there, and what it needs then is in memory.
        if unsafe { _setjmp(&raw mut buffer) } == 0 {
            assert_eq!(jumps(&raw mut buffer, X.load(Relaxed)), X.load(Relaxed));
            COUNT[0].fetch_add(1, Relaxed);
        } else {
            COUNT[1].fetch_add(1, Relaxed);
        }
        X.fetch_add(1, Relaxed);
    }
    assert_eq!(COUNT.each_ref().map(|n| n.load(Relaxed)), [13_333, 6667]);
    assert_eq!(LEFT.load(Relaxed), 13_333);
    remove(&mut set, attached).unwrap();
}
