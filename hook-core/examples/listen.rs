//! Sees the arguments and the result of a function, and changes them.

use std::{
    ffi::c_void,
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use grapnel_hook::{
    Error, HookSet, Listener, Liveness,
    listen::{Entry, Exit},
};

#[inline(never)]
extern "C" fn power(base: u64, exponent: u64) -> u64 {
    (0..exponent).fold(1, |product, _| product * black_box(base))
}

/// What the listener is given as its data.
#[derive(Default)]
struct Seen {
    calls: AtomicU64,
    largest: AtomicU64,
}

/// Limits the exponent, and keeps what it was for when the call returns.
unsafe extern "C" fn enter(call: &mut Entry, data: *mut c_void) {
    // SAFETY: what was given to `Listener::new`.
    let seen = unsafe { &*data.cast::<Seen>() };
    seen.calls.fetch_add(1, Relaxed);
    // SAFETY: the function has two arguments.
    let exponent = unsafe { call.argument(1) };
    call.set_word(exponent);
    // SAFETY: as above; any exponent will do.
    unsafe { call.set_argument(1, exponent.min(3)) };
}

/// Marks results of calls whose exponent was limited.
unsafe extern "C" fn leave(call: &mut Exit, data: *mut c_void) {
    // SAFETY: as above.
    let seen = unsafe { &*data.cast::<Seen>() };
    seen.largest.fetch_max(call.result(), Relaxed);
    if call.word() > 3 {
        call.set_result(0);
    }
}

fn main() -> Result<(), Error> {
    let power: extern "C" fn(u64, u64) -> u64 = black_box(power);
    let seen = Seen::default();
    let listener = Listener::new((&raw const seen).cast_mut().cast()).on_enter(enter).on_leave(leave);

    let mut hooks = HookSet::new();
    let mut batch = hooks.begin();
    batch.listen(power as *const (), listener);
    // SAFETY: one thread runs, and `seen` lives until the listener is removed.
    let attached = unsafe { batch.commit(Liveness::SingleThreaded) }.remove(0)?;
    assert_eq!([power(2, 3), power(5, 2), power(10, 9)], [8, 25, 0]);
    // SAFETY: as above.
    unsafe { hooks.remove(attached, Liveness::SingleThreaded) }?;

    assert_eq!(power(2, 4), 16);
    println!("{} calls, the largest result {}", seen.calls.into_inner(), seen.largest.into_inner());
    Ok(())
}
