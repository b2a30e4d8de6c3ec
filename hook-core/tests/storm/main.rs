//! Hooks go in and out while four threads call the functions without pause and a timer's signal handler calls them too.
//! Every call must return what the function or its hook returns, and nothing else.
//!
//! `GRAPNEL_STORM_SECONDS` says how long; 2 seconds without it.

#[path = "../common/code.rs"]
mod code;
#[path = "../common/find.rs"]
mod find;
mod heap;
mod reclaim;
#[path = "../common/samples.rs"]
mod samples;
mod sets;

use std::{
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*},
    time::{Duration, Instant},
};

use grapnel_hook::{Arena, Error, Liveness, Transaction};

type Function = extern "C" fn(u64) -> u64;
/// A function's address, and what it returns.
type Target = (usize, fn(u64) -> u64);

/// Samples that take a short redirect.
const SHORT: &[&str] = &["no_room", "inner_loop"];
const MARK: u64 = 1 << 40;
/// As many as there are replacements.
const MAX: usize = 24;

static ORIGINALS: [AtomicUsize; MAX] = [const { AtomicUsize::new(0) }; MAX];
static STOP: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
static HOOKED_CALLS: AtomicU64 = AtomicU64::new(0);
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static TARGETS: [AtomicUsize; MAX] = [const { AtomicUsize::new(0) }; MAX];

fn function(at: usize) -> Function {
    // SAFETY: the samples and their trampolines have this type.
    unsafe { std::mem::transmute(at) }
}

extern "C" fn replacement<const I: usize>(x: u64) -> u64 {
    function(ORIGINALS[I].load(Acquire))(x).wrapping_add(MARK)
}

macro_rules! replacements {
    ($($i:literal)*) => { [$(replacement::<$i> as *const ()),*] };
}

fn call_all(targets: &[Target], x: u64) -> (u64, u64) {
    let (mut calls, mut hooked) = (0, 0);
    for (i, (at, expected)) in targets.iter().enumerate() {
        let result = function(*at)(x);
        let mark = result.wrapping_sub(expected(x));
        if mark != 0 && mark != MARK {
            eprintln!("function {i} returned {result:#x} for {x}, expected {:#x}", expected(x));
            std::process::abort();
        }
        calls += 1;
        hooked += mark >> 40;
    }
    (calls, hooked)
}

extern "C" fn on_alarm(_: i32) {
    SIGNALS.fetch_add(1, Relaxed);
    for target in &TARGETS {
        let at = target.load(Relaxed);
        if at != 0 {
            std::hint::black_box(function(at)(1));
        }
    }
}

/// A signal at random moments, in whichever thread runs.
fn start_alarms() {
    // SAFETY: the handler calls functions without state only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_alarm as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut());
        let every = libc::timeval { tv_sec: 0, tv_usec: 1000 };
        let timer = libc::itimerval { it_interval: every, it_value: every };
        libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut());
    }
}

fn main() {
    let seconds = std::env::var("GRAPNEL_STORM_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    // One that ends in another sample would be marked twice.
    let storms = |s: &samples::Sample| s.expected.is_some() && s.name != "tail_through_memory";
    let samples: Vec<_> = samples::all().into_iter().filter(storms).take(MAX).collect();
    let targets: Vec<Target> = samples.iter().map(|s| (s.at as usize, s.expected.unwrap())).collect();
    let before: Vec<_> = samples.iter().map(|s| code::bytes(s.at, 16)).collect();
    let replacements = replacements!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23);

    for (slot, (at, _)) in TARGETS.iter().zip(&targets) {
        slot.store(*at, Relaxed);
    }
    start_alarms();
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let targets = targets.clone();
            std::thread::spawn(move || {
                let mut x = n;
                let (mut calls, mut hooked) = (0, 0);
                while !STOP.load(Relaxed) {
                    let (c, h) = call_all(&targets, x % 1000);
                    x += 7;
                    calls += c;
                    hooked += h;
                }
                CALLS.fetch_add(calls, Relaxed);
                HOOKED_CALLS.fetch_add(hooked, Relaxed);
            })
        })
        .collect();

    let mut arena = Arena::new();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0u64;
    let mut refused = vec![0u64; samples.len()];
    while Instant::now() < end {
        // Another choice of functions each time, together in one transaction.
        let chosen: Vec<usize> =
            (0..samples.len()).filter(|i| (rounds.wrapping_mul(0x9e37_79b9) >> (i % 13)) & 1 == 0).collect();
        let mut transaction = Transaction::with_arena(&mut arena).live();
        let ids: Vec<_> =
            chosen.iter().map(|&i| transaction.replace(samples[i].at, replacements[i])).collect();
        let prepared = transaction.prepare();
        for (&i, &id) in chosen.iter().zip(&ids) {
            match prepared.original(id) {
                Ok(original) => ORIGINALS[i].store(original as usize, Release),
                // All padding in reach holds redirects of before, which stay.
                Err(Error::Relocation { .. } | Error::InboundBranch { .. })
                    if SHORT.contains(&samples[i].name) => {}
                Err(error) => panic!("{}: {error}", samples[i].name),
            }
        }
        // SAFETY: the threads run the functions with the trap signal unblocked; the types agree.
        let hooks = unsafe { prepared.commit(Liveness::Live) };
        for (&i, hook) in chosen.iter().zip(hooks) {
            match hook {
                Ok(mut hook) => {
                    if rounds.is_multiple_of(4) {
                        std::thread::yield_now();
                    }
                    // SAFETY: as above.
                    unsafe { hook.remove(Liveness::Live) }.unwrap();
                }
                // A short redirect has no island to choose.
                Err(_) if SHORT.contains(&samples[i].name) => refused[i] += 1,
                Err(error) => panic!("{}: {error}", samples[i].name),
            }
        }
        rounds += 1;
    }
    STOP.store(true, Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    for (sample, before) in samples.iter().zip(&before) {
        // What the patch took; padding behind the function may keep the redirect of a short patch.
        let len = match sample.name {
            name if SHORT.contains(&name) => 2,
            name if name.starts_with("landing_pad") => 9,
            _ => 5,
        };
        assert_eq!(code::bytes(sample.at, len), before[..len], "{}", sample.name);
    }
    assert_eq!(code::writable_code(), Vec::<String>::new());
    let refused: Vec<_> =
        samples.iter().zip(&refused).filter(|(_, n)| **n > 0).map(|(s, n)| (s.name, n)).collect();
    println!(
        "{rounds} rounds, {} calls, {} of them hooked, {} signals; refused live: {refused:?}; {} regions",
        CALLS.load(Relaxed),
        HOOKED_CALLS.load(Relaxed),
        SIGNALS.load(Relaxed),
        arena.regions().count(),
    );
    assert!(rounds > 10 && HOOKED_CALLS.load(Relaxed) > 0);
    heap::run(seconds);
    sets::run(seconds + 1);
    reclaim::run(seconds);
}
