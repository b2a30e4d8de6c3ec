//! Backtraces from a profiler's signals, at any instruction of hooked functions of a loop.

use std::{
    ffi::c_void,
    hint::black_box,
    time::{Duration, Instant},
};

use grapnel_hook::HookSet;

use super::{
    backtrace::{self, Seen},
    handle, regions, samples, steps,
};

unsafe extern "C" fn sampled(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel's description of what was interrupted.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    backtrace::take(steps::pc(context));
}

#[inline(never)]
fn calls(until: Instant) {
    let samples = samples::all();
    while Instant::now() < until {
        for _ in 0..1000 {
            for sample in &samples {
                // SAFETY: the samples have this type.
                assert_eq!(unsafe { black_box(sample.function)(black_box(5)) }, 6);
            }
        }
    }
}

fn every(microseconds: i64) {
    let time = libc::timeval { tv_sec: 0, tv_usec: microseconds };
    let timer = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: the kernel reads one structure.
    assert_eq!(unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) }, 0);
}

/// Calls all samples for two seconds, with a signal every millisecond or so.
pub(crate) fn run(set: &HookSet) -> Seen {
    // The caller of all is the one of which the length isn't known: 4 KiB are more than it has.
    let start = calls as *const () as usize;
    backtrace::begin(start..start + 4096, regions(set));
    handle(libc::SIGPROF, sampled);
    every(500);
    calls(Instant::now() + Duration::from_secs(2));
    every(0);
    backtrace::end()
}
