//! Unwind entries of hooks on functions in assembly.

mod backtrace;
mod samples;
#[cfg_attr(target_arch = "aarch64", path = "aarch64/steps.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64/steps.rs")]
mod steps;
mod storm;
mod thrown;

use std::ops::Range;

use backtrace::Seen;
use grapnel_hook::{
    Error, HookSet, Listener, Liveness, Probe,
    listen::{Entry, Exit, Hit},
    seen::Audience,
};

unsafe extern "C" fn enter(_: &mut Entry, _: *mut std::ffi::c_void) {}
unsafe extern "C" fn leave(_: &mut Exit, _: *mut std::ffi::c_void) {}
unsafe extern "C" fn hit(_: &mut Hit, _: *mut std::ffi::c_void) {}

fn regions(set: &HookSet) -> Vec<Range<usize>> {
    set.regions().map(|(range, _)| range).collect()
}

/// Installs a handler, which runs on the stack of what it interrupts.
fn handle(signal: i32, handler: unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut std::ffi::c_void)) {
    // SAFETY: the handler calls what may be called in one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// Replaces each sample, listens to it, and probes one of its instructions, while `look` looks at that.
fn hooked(audience: Audience, look: fn(&HookSet) -> Seen) -> Seen {
    let mut set = HookSet::new();
    // SAFETY: nothing is loaded or unloaded meanwhile, and the unwinder stays.
    unsafe { set.announce_to(audience) }.unwrap();
    let nothing = std::ptr::null_mut();
    let mut batch = set.begin();
    let mut replaced = Vec::new();
    for (i, sample) in samples::all().iter().enumerate() {
        batch.listen(sample.at(), Listener::new(nothing).on_enter(enter).on_leave(leave));
        replaced.push((i, batch.replace(sample.at(), samples::through(i))));
        if let Some(probed) = sample.probed() {
            batch.probe(probed, Probe::new(hit, nothing));
        }
    }
    let prepared = batch.prepare();
    for (i, id) in replaced {
        samples::set_original(i, prepared.original(id).unwrap());
    }
    // SAFETY: one thread runs, and the types agree.
    let done = unsafe { prepared.commit(Liveness::SingleThreaded) };
    let attached = done.into_iter().collect::<Result<Vec<_>, Error>>().unwrap();
    let seen = look(&set);
    let mut batch = set.begin();
    for attachment in attached {
        batch.remove(attachment);
    }
    // SAFETY: one thread runs.
    assert!(unsafe { batch.commit(Liveness::SingleThreaded) }.iter().all(Result::is_ok));
    seen
}

pub(crate) fn run() {
    let unwinders = Audience { unwinders: true, ..Audience::default() };
    // Where nobody is told, backtraces end in the code of hooks: else the others would prove nothing.
    assert!(hooked(Audience::default(), steps::run).lost > 0);
    let steps = hooked(unwinders, steps::run);
    assert!(steps.inside > 100 && steps.lost == 0, "{steps:?}");
    let samples = hooked(unwinders, storm::run);
    assert!(samples.all > 0 && samples.lost == 0, "{samples:?}");
    thrown::run();
    println!("{} steps and {} of {} signals inside, ok", steps.inside, samples.inside, samples.all);
}
