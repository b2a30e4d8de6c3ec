//! Listeners and probes come with ever new data, which is taken away as soon as the set says that no thread can come to it
//! any more. Threads call the functions without pause, and a timer's signal handler too.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::*},
    time::{Duration, Instant},
};

use grapnel_hook::{
    HookSet, Listener, Liveness, Options, Probe,
    listen::{Entry, Exit, Hit},
};

use crate::{Caller, Target, function, interrupt, isa};

const GOOD: u64 = 0x600d_600d_600d_600d;
const GONE: u64 = 0xdead_dead_dead_dead;

static STOP: AtomicBool = AtomicBool::new(false);
static TOLD: AtomicU64 = AtomicU64::new(0);

fn look_at(data: *mut c_void) {
    // SAFETY: the data is never freed, only marked.
    let found = unsafe { &*data.cast::<AtomicU64>() }.load(SeqCst);
    if found != GOOD {
        eprintln!("told with data that was taken away: {found:#x}");
        std::process::abort();
    }
}

unsafe extern "C" fn enter(call: &mut Entry, data: *mut c_void) {
    look_at(data);
    call.set_word(data as u64);
    TOLD.fetch_add(1, Relaxed);
    look_at(data);
}

unsafe extern "C" fn leave(call: &mut Exit, data: *mut c_void) {
    look_at(data);
    if call.word() != data as u64 {
        eprintln!("a return was told to who hasn't heard of its call");
        std::process::abort();
    }
    look_at(data);
}

unsafe extern "C" fn hit(_: &mut Hit, data: *mut c_void) {
    look_at(data);
    TOLD.fetch_add(1, Relaxed);
    look_at(data);
}

pub(crate) fn run(seconds: u64) {
    let samples: Vec<_> = crate::samples().filter(|s| !isa::SHORT.contains(&s.name)).take(12).collect();
    let targets: Vec<Target> = samples.iter().map(|s| (s.at as usize, s.expected.unwrap())).collect();
    let mut set = HookSet::new();
    let (mut rounds, mut freed, mut doubts, mut most) = (0u64, 0u64, 0u64, 0);
    let mut waiting: Vec<&AtomicU64> = Vec::new();
    std::thread::scope(|scope| {
        struct Stop;
        impl Drop for Stop {
            fn drop(&mut self) {
                STOP.store(true, Relaxed);
            }
        }
        for n in 0..3 {
            let targets = &targets;
            scope.spawn(move || {
                let _caller = Caller::begin();
                let mut x = n;
                while !STOP.load(Relaxed) {
                    for (at, expected) in targets {
                        assert_eq!(function(*at)(x % 1000), expected(x % 1000));
                    }
                    // A call of another library: on AArch64 an address of a hook's code stays in X16 or X17 until there is one.
                    std::thread::yield_now();
                    x += 7;
                }
            });
        }
        // Also when this thread panics: the scope waits for the others.
        let _stop = Stop;
        let start = Instant::now();
        // On a busy machine a thread may stay in a listener for long, so that nothing can be taken away yet.
        let patience = |freed| {
            if freed == 0 || TOLD.load(Relaxed) == 0 { seconds.max(60) } else { seconds }
        };
        while start.elapsed() < Duration::from_secs(patience(freed)) {
            let mut batch = set.begin().live();
            for (i, sample) in samples.iter().enumerate() {
                let data: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(GOOD)));
                waiting.push(data);
                let data = std::ptr::from_ref(data).cast_mut().cast();
                let listener = Listener::new(data).on_enter(enter);
                match (rounds as usize + i) % 4 {
                    0 => batch.listen(sample.at, listener),
                    1 => batch.listen(sample.at, listener.on_leave(leave)),
                    2 => batch.listen(sample.at, listener.on_leave(leave).with_vectors()),
                    _ => {
                        let (range, probe) = (isa::range_of(sample.at), Probe::new(hit, data));
                        batch.probe_with(sample.at, range, probe, Options::default())
                    }
                };
            }
            // SAFETY: the threads run the functions with the trap signal unblocked.
            let attached = unsafe { batch.commit(Liveness::Live) };
            if rounds.is_multiple_of(2) {
                std::thread::sleep(Duration::from_micros(200));
            }
            let mut batch = set.begin().live();
            for attachment in attached.into_iter().flatten() {
                batch.remove(attachment);
            }
            // SAFETY: as above.
            for removed in unsafe { batch.commit(Liveness::Live) } {
                removed.unwrap();
            }
            most = most.max(set.kept());
            for _ in 0..20 {
                // SAFETY: no original is called, and there are no coroutines.
                let reclaimed = unsafe { set.reclaim(Liveness::Live) };
                doubts += u64::from(reclaimed.doubt.is_some());
                if (reclaimed.kept, reclaimed.awaited, reclaimed.doubt) == (0, 0, None) {
                    assert_eq!(set.kept(), 0);
                    for data in waiting.drain(..) {
                        data.store(GONE, SeqCst);
                        freed += 1;
                    }
                    break;
                }
            }
            interrupt(rounds as usize);
            rounds += 1;
        }
    });
    println!(
        "reclaim: {rounds} rounds, {freed} data taken away, {doubts} times in doubt, at most {most} bytes, {} calls told",
        TOLD.load(Relaxed)
    );
    assert!(freed > 0 && TOLD.load(Relaxed) > 0);
}
