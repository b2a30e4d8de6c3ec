//! What others see of the code that hooks are made of. One thread runs.

// Unwinders on 32-bit Arm take no entries.
#[cfg(not(target_arch = "arm"))]
mod hooked;

use grapnel_hook::{HookSet, Liveness, Options, seen::Audience};

#[unsafe(no_mangle)]
extern "C" fn one() -> u64 {
    core::hint::black_box(1)
}

extern "C" fn two() -> u64 {
    2
}

/// What an earlier process of this number left is no code of this one; what this one has written stays.
fn the_map_for_perf_is_this_process_s() {
    let path = format!("/tmp/perf-{}.map", std::process::id());
    let announced = || {
        let mut set = HookSet::new();
        // SAFETY: nothing is loaded or unloaded meanwhile.
        unsafe { set.announce_to(Audience { perf: true, ..Audience::default() }) }.unwrap();
        let mut batch = set.begin();
        batch.replace_with(one as *const (), two as *const (), Options::default());
        // SAFETY: one thread runs, and the types agree.
        let attached = unsafe { batch.commit(Liveness::SingleThreaded) }.remove(0).unwrap();
        // SAFETY: one thread runs.
        unsafe { set.remove(attached, Liveness::SingleThreaded) }.unwrap();
        std::fs::read_to_string(&path).unwrap()
    };
    std::fs::write(&path, "1000 10 stale\n").unwrap();
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
    let lines = announced();
    assert!(!lines.contains("stale") && lines.contains("one [grapnel trampoline]"), "{lines}");
    let more = announced();
    assert!(more.len() > lines.len() && more.starts_with(&lines), "{more}");
    std::fs::remove_file(&path).unwrap();
}

fn main() {
    the_map_for_perf_is_this_process_s();
    #[cfg(not(target_arch = "arm"))]
    hooked::run();
}
