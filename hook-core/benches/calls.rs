//! What a call of a hooked empty function costs, and what putting hooks in takes.
//!
//! `cargo bench -p grapnel-hook`. All kinds are measured in turn in each round, so that what the machine does meanwhile
//! befalls them alike; the table holds medians, and how they compare with a plain call and with one more jump.

use std::{
    arch::global_asm,
    ffi::c_void,
    hint::black_box,
    time::{Duration, Instant},
};

use grapnel_hook::{
    Arena, HookSet, Listener, Liveness, Options, Probe, Transaction,
    listen::{Entry, Exit, Hit},
};

const CALLS: u32 = 1_000_000;
const ROUNDS: usize = 21;
const MANY: usize = 10_000;

// Empty functions, one for each kind of hook; one that is a jump to another; and many of the usual form.
global_asm!(
    ".pushsection .text.bench, \"ax\", @progbits",
    ".rept 12",
    ".p2align 6",
    "xor eax, eax",
    "nop dword ptr [rax + rax]",
    "ret",
    ".endr",
    ".p2align 6",
    "bench_jump: .byte 0xe9; .long bench_behind_jump - . - 4",
    ".skip 4096",
    ".p2align 6",
    "bench_behind_jump:",
    "xor eax, eax",
    "nop dword ptr [rax + rax]",
    "ret",
    ".p2align 6",
    "bench_many:",
    ".rept 10000",
    "push rbp",
    "mov rbp, rsp",
    "mov eax, 1",
    "pop rbp",
    "ret",
    ".p2align 4",
    ".endr",
    "bench_empty = bench_jump - 64 * 12",
    ".globl bench_empty, bench_jump, bench_many",
    ".popsection",
);

unsafe extern "C" {
    fn bench_empty();
    fn bench_jump();
    fn bench_many();
}

/// The empty function of this number.
fn empty(number: usize) -> *const () {
    (bench_empty as *const ()).wrapping_byte_add(64 * number)
}

extern "C" fn replacement() -> u32 {
    0
}

unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
    black_box(call);
}

unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
    black_box(call);
}

unsafe extern "C" fn hit(hit: &mut Hit, _: *mut c_void) {
    black_box(hit);
}

/// Nanoseconds per call.
fn measure(function: *const ()) -> f64 {
    // SAFETY: the functions take nothing.
    let function: extern "C" fn() -> u32 = unsafe { std::mem::transmute(black_box(function)) };
    let start = Instant::now();
    for _ in 0..CALLS {
        black_box(function());
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn calls() {
    let mut kinds: Vec<(&str, *const ())> =
        vec![("plain call", empty(0)), ("one more jump", bench_jump as *const ())];
    let mut transaction = Transaction::new();
    transaction.replace_sized(empty(1), 8, replacement as *const ());
    kinds.push(("replaced, by a transaction", empty(1)));
    // SAFETY: one thread; the functions take nothing.
    unsafe { transaction.commit(Liveness::SingleThreaded) }.remove(0).expect("the function is hooked");

    let mut set = HookSet::new();
    let mut batch = set.begin();
    let options = Options { size: Some(8), ..Options::default() };
    let nothing = std::ptr::null_mut();
    batch.replace_with(empty(2), replacement as *const (), options);
    kinds.push(("replaced, in a set", empty(2)));
    let plain = Listener::new(nothing);
    for (name, listener) in [
        ("listener to entry", plain.on_enter(enter)),
        ("listener to entry and return", plain.on_enter(enter).on_leave(leave)),
        ("the same, guarded", plain.on_enter(enter).on_leave(leave).guarded()),
        ("the same, with vectors", plain.on_enter(enter).on_leave(leave).with_vectors()),
    ] {
        let target = empty(kinds.len());
        batch.listen_with(target, listener, options);
        kinds.push((name, target));
    }
    let probe = Probe::new(hit, nothing);
    // SAFETY: the listener uses general registers only.
    let general_only = unsafe { probe.general_only() };
    for (name, probe) in [("probe", probe), ("probe, general registers only", general_only)] {
        let target = empty(kinds.len());
        batch.probe_with(target, Some(target as u64..target as u64 + 8), probe, options);
        kinds.push((name, target));
    }
    // SAFETY: as above.
    for result in unsafe { batch.commit(Liveness::SingleThreaded) } {
        result.expect("the function is hooked");
    }

    let mut times = vec![Vec::new(); kinds.len()];
    for round in 0..=ROUNDS {
        for ((_, function), times) in kinds.iter().zip(&mut times) {
            let time = measure(*function);
            // The first round warms up.
            if round > 0 {
                times.push(time);
            }
        }
    }
    let medians: Vec<f64> = times.iter_mut().map(|times| median(times)).collect();
    println!(
        "| a call of an empty function | ns, lowest | ns | beyond a plain call | beyond one more jump | ratio |"
    );
    println!("|---|---|---|---|---|---|");
    for (((name, _), time), times) in kinds.iter().zip(&medians).zip(&times) {
        println!(
            "| {name} | {:.2} | {time:.2} | {:.2} | {:.2} | {:.2} |",
            times.first().copied().unwrap_or(f64::NAN),
            time - medians[0],
            time - medians[1],
            time / medians[0]
        );
    }
}

fn installs() {
    println!("\n| hooks at once | a transaction: in | out, one by one | a set: in | out |");
    println!("|---|---|---|---|---|");
    let micros = |time: Duration| format!("{:.0} us", time.as_secs_f64() * 1e6);
    for count in [1, 1000, MANY] {
        let target = |i: usize| (bench_many as *const ()).wrapping_byte_add(16 * i);
        let mut arena = Arena::new();
        let start = Instant::now();
        let mut transaction = Transaction::with_arena(&mut arena);
        for i in 0..count {
            transaction.replace_sized(target(i), 11, replacement as *const ());
        }
        // SAFETY: one thread; the functions take nothing.
        let hooks = unsafe { transaction.commit(Liveness::SingleThreaded) };
        let transaction_in = start.elapsed();
        let start = Instant::now();
        for hook in hooks {
            // SAFETY: as above.
            unsafe { hook.expect("hooked").remove(Liveness::SingleThreaded) }.expect("removed");
        }
        let transaction_out = start.elapsed();

        let mut set = HookSet::new();
        let start = Instant::now();
        let mut batch = set.begin();
        let options = Options { size: Some(11), ..Options::default() };
        for i in 0..count {
            batch.replace_with(target(i), replacement as *const (), options);
        }
        // SAFETY: as above.
        let attached = unsafe { batch.commit(Liveness::SingleThreaded) };
        let set_in = start.elapsed();
        let start = Instant::now();
        let mut batch = set.begin();
        for attachment in attached {
            batch.remove(attachment.expect("attached"));
        }
        // SAFETY: as above.
        for result in unsafe { batch.commit(Liveness::SingleThreaded) } {
            result.expect("removed");
        }
        let times = [transaction_in, transaction_out, set_in, start.elapsed()].map(micros);
        println!("| {count} | {} |", times.join(" | "));
    }
}

fn main() {
    // One of the tables alone, on request.
    let wanted = std::env::args().nth(1).filter(|name| !name.starts_with('-'));
    if wanted.as_deref() != Some("installs") {
        calls();
    }
    if wanted.as_deref() != Some("calls") {
        installs();
    }
}
