//! A stack of our own for the slow paths: the target's may be tiny (a thread of PTHREAD_STACK_MIN, a signal handler
//! on an alternate stack), and parsing unwind tables is not.
//!
//! # Safety
//! There is one such stack, and whoever holds [`life::PROCESS`] may use it: signals are blocked then, so nobody
//! else comes in between. Work on it must not call [`on_own_stack`] again.

use crate::lock::Guard;
use crate::sys;
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

const BYTES: usize = 128 << 10;

static TOP: AtomicUsize = AtomicUsize::new(0);

/// Maps the stack, with a page below it that nothing may touch. False without memory.
pub(crate) fn prepare() -> bool {
    let Some(bottom) = sys::map_anonymous(BYTES) else { return false };
    crate::heap::count_mapped(BYTES);
    sys::forbid(bottom, sys::PAGE);
    TOP.store(bottom.expose_provenance() + BYTES, Ordering::Release);
    true
}

/// Runs `work` on the own stack, or, before there is one, where it is.
pub(crate) fn on_own_stack<T>(_held: &Guard<'_>, work: impl FnOnce() -> T) -> T {
    struct Call<F, T> {
        work: Option<F>,
        result: Option<T>,
    }
    unsafe extern "C" fn run<F: FnOnce() -> T, T>(call: *mut c_void) {
        // SAFETY: the pointer that is passed below, to a value that outlives the call.
        let call = unsafe { &mut *call.cast::<Call<F, T>>() };
        call.result = call.work.take().map(|work| work());
    }
    fn entry<F: FnOnce() -> T, T>(_: &Call<F, T>) -> unsafe extern "C" fn(*mut c_void) {
        run::<F, T>
    }
    let top = TOP.load(Ordering::Acquire);
    if top == 0 {
        return work();
    }
    let mut call = Call { work: Some(work), result: None };
    let entry = entry(&call);
    // SAFETY: the stack is ours alone while the lock is held, aligned, and has room; the call neither unwinds nor comes back
    // twice.
    unsafe { crate::native::call_on(top, entry, (&raw mut call).cast()) };
    match call.result {
        Some(result) => result,
        // `run` always stores one.
        None => unreachable!(),
    }
}
