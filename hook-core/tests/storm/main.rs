//! Hooks go in and out while four threads call the functions without pause and a timer's signal handler calls them too.
//! Every call must return what the function or its hook returns, and nothing else.
//!
//! `GRAPNEL_STORM_SECONDS` says how long the storm of sets is, which has it all: replacements, listeners and probes. It is 10
//! seconds without it, 2 under an emulator. The others are shorter. `GRAPNEL_EMULATED` says that an emulator runs this, whose own
//! threads never say what they may reach, so that no code can be given back.

#[path = "../common/code.rs"]
mod code;
#[path = "../common/find.rs"]
mod find;
#[path = "../common/gate.rs"]
mod gate;
mod heap;
#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "arm", path = "arm.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod isa;
mod reclaim;
#[path = "../common/samples.rs"]
mod samples;
mod sets;

use std::{
    sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::*},
    time::{Duration, Instant},
};

use grapnel_hook::{Arena, Error, Liveness, PatchWay, Transaction};

type Function = extern "C" fn(u64) -> u64;
/// A function's address, and what it returns.
type Target = (usize, fn(u64) -> u64);

const MARK: u64 = 1 << 40;
/// As many as there are replacements.
const MAX: usize = 48;

static ORIGINALS: [AtomicUsize; MAX] = [const { AtomicUsize::new(0) }; MAX];
static STOP: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicU64 = AtomicU64::new(0);
static HOOKED_CALLS: AtomicU64 = AtomicU64::new(0);
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static TARGETS: [AtomicUsize; MAX] = [const { AtomicUsize::new(0) }; MAX];
/// What the targets return for 1.
static EXPECTED: [AtomicU64; MAX] = [const { AtomicU64::new(0) }; MAX];
/// The threads that call the functions.
static CALLERS: [AtomicI32; 8] = [const { AtomicI32::new(0) }; 8];

fn function(at: usize) -> Function {
    // SAFETY: the samples and their trampolines have this type.
    unsafe { std::mem::transmute(at) }
}

extern "C" fn replacement<const I: usize>(x: u64) -> u64 {
    function(ORIGINALS[I].load(Acquire))(x).wrapping_add(MARK)
}

/// One for each number below [`MAX`].
macro_rules! replacements {
    ($of:ident $(, $kind:literal)?) => { replacements!($of $(, $kind)?; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47) };
    ($of:ident; $($i:literal)*) => { [$($of::<$i> as *const ()),*] };
    ($of:ident, $kind:literal; $($i:literal)*) => { [$($of::<$kind, $i> as *const ()),*] };
}
use replacements;

/// What is hooked while threads run it. One that ends in another sample would be marked twice.
fn samples() -> impl Iterator<Item = samples::Sample> {
    let storms = |s: &samples::Sample| s.expected.is_some() && s.name != "tail_through_memory";
    samples::all().into_iter().filter(storms)
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

/// Calls everything. Whatever a call passes adds multiples of [`MARK`].
extern "C" fn on_alarm(_: i32) {
    SIGNALS.fetch_add(1, Relaxed);
    for (target, expected) in TARGETS.iter().zip(&EXPECTED) {
        let at = target.load(Relaxed);
        if at != 0 && function(at)(1).wrapping_sub(expected.load(Relaxed)) & (MARK - 1) != 0 {
            // SAFETY: ends the process at once.
            unsafe { libc::abort() };
        }
    }
}

/// A signal now and then, in whichever thread runs.
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

/// This thread calls the functions, and may be interrupted at any instruction.
struct Caller(&'static AtomicI32);

impl Caller {
    fn begin() -> Self {
        // SAFETY: gettid has no preconditions.
        let me = unsafe { libc::gettid() };
        let free = CALLERS.iter().find(|caller| caller.compare_exchange(0, me, Relaxed, Relaxed).is_ok());
        Self(free.expect("fewer threads than places"))
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.store(0, Relaxed);
    }
}

/// Interrupts one of the callers, wherever it is.
fn interrupt(random: usize) {
    let thread = CALLERS[random % CALLERS.len()].load(Relaxed);
    if thread != 0 {
        // SAFETY: the handler may run anywhere.
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGPROF) };
    }
}

/// Replacements, many in one transaction, each time others.
fn transactions(seconds: u64) -> PatchWay {
    let samples: Vec<_> = samples().take(MAX).collect();
    let targets: Vec<Target> = samples.iter().map(|s| (s.at as usize, s.expected.unwrap())).collect();
    let before: Vec<_> = samples.iter().map(|s| code::bytes(s.at, 16)).collect();
    let replacements = replacements!(replacement);
    let mut way = PatchWay::ProcMem;

    for ((slot, result), (at, expected)) in TARGETS.iter().zip(&EXPECTED).zip(&targets) {
        result.store(expected(1), Relaxed);
        slot.store(*at, Relaxed);
    }
    start_alarms();
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let targets = targets.clone();
            std::thread::spawn(move || {
                let _caller = Caller::begin();
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
    // On a busy machine a round may take long.
    while Instant::now() < end || rounds <= 10 {
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
                    if isa::SHORT.contains(&samples[i].name) => {}
                Err(error) => panic!("{}: {error}", samples[i].name),
            }
        }
        // SAFETY: the threads run the functions with the trap signal unblocked; the types agree.
        let hooks = unsafe { prepared.commit(Liveness::Live) };
        for (&i, hook) in chosen.iter().zip(hooks) {
            match hook {
                Ok(mut hook) => {
                    way = hook.way();
                    if rounds.is_multiple_of(4) {
                        std::thread::yield_now();
                    }
                    // SAFETY: as above.
                    unsafe { hook.remove(Liveness::Live) }.unwrap();
                }
                // A short redirect has no island to choose.
                Err(_) if isa::SHORT.contains(&samples[i].name) => refused[i] += 1,
                Err(error) => panic!("{}: {error}", samples[i].name),
            }
        }
        interrupt(rounds as usize);
        rounds += 1;
    }
    STOP.store(true, Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    for (sample, before) in samples.iter().zip(&before) {
        // What the patch took; padding behind the function may keep the redirect of a short patch.
        let len = match sample.name {
            name if isa::SHORT.contains(&name) => 2,
            name if name.starts_with("landing_pad") => 9,
            _ => 5,
        };
        assert_eq!(code::bytes(sample.at, len), before[..len], "{}", sample.name);
    }
    assert_eq!(code::writable_code(), Vec::<String>::new());
    let refused: Vec<_> =
        samples.iter().zip(&refused).filter(|(_, n)| **n > 0).map(|(s, n)| (s.name, n)).collect();
    println!(
        "{way:?}: {rounds} rounds, {} calls, {} of them hooked, {} signals; refused live: {refused:?}; {} regions",
        CALLS.load(Relaxed),
        HOOKED_CALLS.load(Relaxed),
        SIGNALS.load(Relaxed),
        arena.regions().count(),
    );
    assert!(HOOKED_CALLS.load(Relaxed) > 0);
    way
}

/// The same in a child that may not write itself through `/proc/self/mem`.
fn without_proc_mem(seconds: u64) {
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let nobody = 65534;
        // SAFETY: changes this child alone.
        let reduced = unsafe {
            libc::setresuid(nobody, nobody, nobody) == 0
                && libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
        };
        if !reduced || std::fs::File::open("/proc/self/mem").is_ok() {
            println!("not root: a process without /proc/self/mem was not tried");
        } else {
            assert_eq!(transactions(seconds), PatchWay::Exchange);
        }
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// The same in a child that may not move pages, so that traps go in first.
#[cfg(target_arch = "x86_64")]
fn by_traps(seconds: u64) {
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let statement = |code: u32, jt, jf, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
        let answer = |value| statement(libc::BPF_RET | libc::BPF_K, 0, 0, value);
        let mut filter = [
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_mremap as u32),
            answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            answer(libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: changes this child alone; the program outlives the call.
        let filtered = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        assert!(filtered);
        assert_eq!(transactions(seconds), PatchWay::ProcMem);
        std::process::exit(0);
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

fn main() {
    let emulated = std::env::var_os("GRAPNEL_EMULATED").is_some();
    let usual = if emulated { 2 } else { 10 };
    let seconds: u64 =
        std::env::var("GRAPNEL_STORM_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(usual);
    let others = seconds.div_ceil(4);
    without_proc_mem(others);
    #[cfg(target_arch = "x86_64")]
    by_traps(others);
    transactions(others);
    heap::run(others);
    sets::run(seconds);
    if !emulated {
        reclaim::run(others);
    }
}
