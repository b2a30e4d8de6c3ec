//! Replacements, listeners and probes come and go in any order on functions that four threads and a signal handler call
//! without pause. The result of each call tells what it passed: each thing at most once, and the function exactly once.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*},
    time::{Duration, Instant},
};

use grapnel_hook::{
    Attachment, CodeAddr, Error, HookPlan, HookSet, Listener, Liveness, Options, Probe,
    listen::{self, Entry, Exit, Hit},
};

use crate::{Caller, MAX, SIGNALS, Target, code, function, interrupt, isa, replacements};

/// What a replacement adds, by its turn, and a listener of each kind.
const REPLACED: [u64; TURNS] = [1 << 40, 1 << 56];
const LISTENED: [u64; 3] = [1 << 44, 1 << 48, 1 << 52];

static STOP: AtomicBool = AtomicBool::new(false);
/// Each function has two replacements that take turns, each with an original of its own.
const TURNS: usize = 2;
static ORIGINALS: [[AtomicUsize; MAX]; TURNS] = [const { [const { AtomicUsize::new(0) }; MAX] }; TURNS];
/// How often each thread has called all functions.
static PASSES: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
static HITS: AtomicU64 = AtomicU64::new(0);
static PASSED: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

extern "C" fn replacement<const TURN: usize, const I: usize>(x: u64) -> u64 {
    function(ORIGINALS[TURN][I].load(Acquire))(x).wrapping_add(REPLACED[TURN])
}

/// A word of its own for each call, which must come back.
unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
    // SAFETY: the samples have one argument.
    call.set_word(isa::stack_pointer(call.registers()) ^ unsafe { call.argument(0) });
}

unsafe extern "C" fn leave(call: &mut Exit, kind: *mut c_void) {
    // The stack pointer is that of the entry, but for what the return has popped.
    let x = call.word() ^ (isa::stack_pointer(call.registers()) - isa::POPPED);
    if x > 1000 {
        eprintln!("a call with {x:#x} has the word {:#x}", call.word());
        std::process::abort();
    }
    isa::add_to_result(call, LISTENED[kind as usize]);
}

unsafe extern "C" fn hit(_: &mut Hit, _: *mut c_void) {
    HITS.fetch_add(1, Relaxed);
}

/// How often a call passed each kind of thing. A replacement of the other turn may come in within one that a call is in.
fn check(i: usize, at: usize, expected: fn(u64) -> u64, x: u64) -> [u64; 4] {
    let result = function(at)(x);
    let marks = result.wrapping_sub(expected(x));
    let count = |mark: u64| (marks >> mark.trailing_zeros()) & 15;
    let [one, other] = REPLACED.map(count);
    let listened = LISTENED.map(count);
    let all = REPLACED.iter().zip([one, other]).chain(LISTENED.iter().zip(listened));
    if all.clone().any(|(_, n)| n > 1) || marks != all.map(|(mark, n)| mark * n).sum() {
        eprintln!("function {i} returned {result:#x} for {x}, expected {:#x}", expected(x));
        std::process::abort();
    }
    [one + other, listened[0], listened[1], listened[2]]
}

/// Where a probe can be beside a hook at the function's start.
fn place_for_probe(at: *const ()) -> Option<*const ()> {
    let bytes = code::bytes(at, 64);
    let (mut offset, mut place) = (0, at);
    while offset <= 40 {
        offset += isa::len_if_followed(place, &bytes[offset..])?;
        place = at.wrapping_byte_add(offset);
        let options = Options { require_proof: true, ..Options::default() };
        let plan = || HookPlan::probe(CodeAddr(place as u64), isa::range_of(at), options);
        if offset >= isa::BEHIND_WINDOW && plan().is_ok() {
            return Some(place);
        }
    }
    None
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// What can be attached to one function: a replacement, three listeners and a probe, each at most once at a time.
#[derive(Clone, Copy, Default)]
struct Attached {
    what: [Option<Attachment>; 5],
    /// Whose turn it is among the replacements.
    turn: usize,
    /// What [`PASSES`] were when each was removed.
    removed: [Option<[u64; 4]>; TURNS],
}

impl Attached {
    /// Whether no call can be in the replacement whose turn it is. One that was would read the original of the new
    /// attachment, further out than where it stands, and pass a second time what is between.
    fn is_left(&self) -> bool {
        let passes = PASSES.each_ref().map(|count| count.load(Acquire));
        self.removed[self.turn].is_none_or(|then| passes.iter().zip(then).all(|(now, then)| *now > then))
    }
}

pub(crate) fn run(seconds: u64) {
    let samples: Vec<_> = crate::samples().take(MAX).collect();
    let targets: Vec<Target> = samples.iter().map(|s| (s.at as usize, s.expected.unwrap())).collect();
    let before: Vec<_> = samples.iter().map(|s| code::bytes(s.at, 16)).collect();
    let places: Vec<_> = samples.iter().map(|s| place_for_probe(s.at)).collect();
    let ranges: Vec<_> = samples.iter().map(|s| isa::range_of(s.at)).collect();
    let replacements = [replacements!(replacement, 0), replacements!(replacement, 1)];
    let mut set = HookSet::new();
    let mut attached = vec![Attached::default(); samples.len()];
    let mut random = Random(seconds);
    let (mut commits, mut refused) = (0u64, 0u64);

    std::thread::scope(|scope| {
        struct Stop;
        impl Drop for Stop {
            fn drop(&mut self) {
                STOP.store(true, Relaxed);
            }
        }
        for n in 0..4 {
            let targets = &targets;
            scope.spawn(move || {
                let _caller = Caller::begin();
                let (mut x, mut passed) = (n, [0; 4]);
                while !STOP.load(Relaxed) {
                    for (i, (at, expected)) in targets.iter().enumerate() {
                        for (sum, count) in passed.iter_mut().zip(check(i, *at, *expected, x % 1000)) {
                            *sum += count;
                        }
                    }
                    x += 7;
                    PASSES[n as usize].fetch_add(1, Release);
                }
                for (total, sum) in PASSED.iter().zip(passed) {
                    total.fetch_add(sum, Relaxed);
                }
            });
        }
        // Also when this thread panics: the scope waits for the others.
        let _stop = Stop;
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end || commits <= 20 {
            let mut batch = set.begin().live();
            let mut asked = Vec::new();
            for _ in 0..=random.below(4) {
                let (i, what) = (random.below(samples.len()), random.below(5));
                if asked.iter().any(|&(_, other, _)| other == i) {
                    continue;
                }
                let id = match (attached[i].what[what], what) {
                    (Some(attachment), _) => batch.remove(attachment),
                    (None, 0) if !attached[i].is_left() => continue,
                    (None, 0) => batch.replace(samples[i].at, replacements[attached[i].turn][i]),
                    (None, 4) => match places[i] {
                        Some(place) => {
                            let probe = Probe::new(hit, std::ptr::null_mut());
                            batch.probe_with(place, ranges[i].clone(), probe, Options::default())
                        }
                        None => continue,
                    },
                    (None, _) => {
                        let kind = std::ptr::without_provenance_mut(what - 1);
                        let listener = Listener::new(kind).on_enter(enter).on_leave(leave);
                        let listener = match what {
                            1 => listener,
                            2 => listener.guarded(),
                            _ => listener.with_vectors(),
                        };
                        batch.listen(samples[i].at, listener)
                    }
                };
                asked.push((id, i, what));
            }
            let prepared = batch.prepare();
            let replaces = |i: usize, what| what == 0 && attached[i].what[0].is_none();
            for &(id, i, _) in asked.iter().filter(|(_, i, what)| replaces(*i, *what)) {
                if let Ok(original) = prepared.original(id) {
                    ORIGINALS[attached[i].turn][i].store(original as usize, Release);
                }
            }
            interrupt(random.below(1 << 20));
            // SAFETY: the threads run the functions with the trap signal unblocked; the types agree.
            let results = unsafe { prepared.commit(Liveness::Live) };
            for ((_, i, what), result) in asked.into_iter().zip(results) {
                let Attached { what: slots, turn, removed } = &mut attached[i];
                let slot = &mut slots[what];
                match result {
                    Ok(_) if slot.is_some() => {
                        *slot = None;
                        if what == 0 {
                            removed[*turn] = Some(PASSES.each_ref().map(|count| count.load(Acquire)));
                            *turn = (*turn + 1) % TURNS;
                        }
                    }
                    Ok(attachment) => *slot = Some(attachment),
                    // A short redirect has no island to choose, and padding that was used stays so.
                    Err(_) if isa::SHORT.contains(&samples[i].name) => refused += 1,
                    Err(Error::Taken { .. }) if what == 4 => refused += 1,
                    Err(error) => panic!("{} {what}: {error}", samples[i].name),
                }
            }
            interrupt(random.below(1 << 20));
            commits += 1;
        }
        // All out while the threads still run.
        for attachment in attached.iter().flat_map(|one| one.what).flatten() {
            // SAFETY: as above.
            unsafe { set.remove(attachment, Liveness::Live) }.unwrap();
        }
    });
    for (sample, before) in samples.iter().zip(&before).filter(|(s, _)| !isa::SHORT.contains(&s.name)) {
        assert_eq!(code::bytes(sample.at, 9), before[..9], "{}", sample.name);
    }
    let passed = PASSED.each_ref().map(|count| count.load(Relaxed));
    println!(
        "sets: {commits} commits, {refused} refused, {} signals so far; calls passed: replacements {}, listeners {:?}, probes {} at {} places; {} missed, {} bytes",
        SIGNALS.load(Relaxed),
        passed[0],
        &passed[1..],
        HITS.load(Relaxed),
        places.iter().flatten().count(),
        listen::missed(),
        set.kept(),
    );
    assert!(passed.iter().all(|&count| count > 0) && HITS.load(Relaxed) > 0);
    // On 32-bit Arm in both instruction sets.
    let is_probed = |t32: bool| places.iter().flatten().any(|place| (code::start(*place) != *place) == t32);
    assert!(is_probed(false) && (is_probed(true) || cfg!(not(target_arch = "arm"))));
}
