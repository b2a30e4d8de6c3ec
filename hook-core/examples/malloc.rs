//! Counts the calls of malloc in this process.

use grapnel_hook::{HookSet, Listener, Liveness, listen::Entry};
use std::{
    ffi::c_void,
    ptr,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

static CALLS: AtomicUsize = AtomicUsize::new(0);
unsafe extern "C" fn count(_: &mut Entry, _: *mut c_void) {
    CALLS.fetch_add(1, Relaxed);
}

fn main() -> Result<(), grapnel_hook::Error> {
    let mut hooks = HookSet::new();
    let mut batch = hooks.begin();
    batch.listen(libc::malloc as *const (), Listener::new(ptr::null_mut()).on_enter(count));
    // SAFETY: the program has one thread, and the listener changes nothing.
    unsafe { batch.commit(Liveness::SingleThreaded) }.remove(0)?;
    drop(vec![1; 1000]);
    println!("{} calls of malloc", CALLS.load(Relaxed));
    Ok(())
}
