//! Exceptions that leave a call which was relocated into a trampoline.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use grapnel_hook::{HookSet, Liveness, Probe, listen::Hit, seen::Audience};

use super::steps::CALL;

unsafe extern "C-unwind" {
    #[link_name = "seen_thrown_through"]
    fn thrown_through(x: u64) -> u64;
}

static HITS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn hit(_: &mut Hit, _: *mut c_void) {
    HITS.fetch_add(1, Relaxed);
}

/// What [`thrown_through`] calls.
pub(super) extern "C-unwind" fn throws(x: u64) -> u64 {
    if x.is_multiple_of(2) {
        std::panic::resume_unwind(Box::new(x));
    }
    x + 1
}

/// Probes the call itself, so that it is the trampoline's from then on.
pub(super) fn run() {
    let mut set = HookSet::new();
    // SAFETY: nothing is loaded or unloaded meanwhile, and the unwinder stays.
    unsafe { set.announce_to(Audience { unwinders: true, ..Audience::default() }) }.unwrap();
    let mut batch = set.begin();
    let call = (thrown_through as *const () as usize + CALL) as *const ();
    batch.probe(call, Probe::new(hit, std::ptr::null_mut()));
    // SAFETY: one thread runs.
    let probe = unsafe { batch.commit(Liveness::SingleThreaded) }.remove(0).unwrap();
    for x in 0..1000 {
        // SAFETY: the function has this type.
        match std::panic::catch_unwind(|| unsafe { thrown_through(x) }) {
            Ok(result) => assert_eq!((result, x % 2), (x + 1, 1)),
            Err(thrown) => assert_eq!((thrown.downcast_ref(), x % 2), (Some(&x), 0)),
        }
    }
    assert_eq!(HITS.load(Relaxed), 1000);
    // SAFETY: one thread runs.
    unsafe { set.remove(probe, Liveness::SingleThreaded) }.unwrap();
}
