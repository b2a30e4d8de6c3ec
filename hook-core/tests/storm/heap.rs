//! The allocation functions of libc, hooked and unhooked while threads allocate, this one included.
//!
//! No thread starts or ends meanwhile: glibc ends a thread with all signals blocked, and frees memory then. A trap met
//! at that moment kills the process, which is what `Liveness::Live` asks its caller to rule out.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*},
    time::{Duration, Instant},
};

use grapnel_hook::{Arena, Error, Liveness, Options, Refusal, Transaction, symbol};

use crate::{find, gate};

static ORIGINALS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
static HOOKED: AtomicU64 = AtomicU64::new(0);
static STOP: AtomicBool = AtomicBool::new(false);

type Malloc = extern "C" fn(usize) -> usize;
type Calloc = extern "C" fn(usize, usize) -> usize;
type Free = extern "C" fn(usize);

fn original(i: usize) -> usize {
    HOOKED.fetch_add(1, Relaxed);
    ORIGINALS[i].load(Acquire)
}

extern "C" fn malloc(size: usize) -> usize {
    // SAFETY: the original has this type.
    let original: Malloc = unsafe { std::mem::transmute(original(0)) };
    original(size)
}

extern "C" fn calloc(count: usize, size: usize) -> usize {
    // SAFETY: the original has this type.
    let original: Calloc = unsafe { std::mem::transmute(original(1)) };
    original(count, size)
}

extern "C" fn realloc(old: usize, size: usize) -> usize {
    // SAFETY: the original has this type.
    let original: Calloc = unsafe { std::mem::transmute(original(2)) };
    original(old, size)
}

extern "C" fn free(old: usize) {
    // SAFETY: the original has this type.
    let original: Free = unsafe { std::mem::transmute(original(3)) };
    original(old)
}

/// Allocates, fills, grows and checks blocks until it is told to stop.
fn churn(seed: u64) -> u64 {
    let mut blocks: Vec<Vec<u64>> = Vec::new();
    let (mut x, mut count) = (seed, 0);
    while !STOP.load(Relaxed) {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let len = (x >> 33) as usize % 200 + 1;
        let mut block = vec![0u64; len];
        assert!(block.iter().all(|&word| word == 0));
        block.fill(x);
        block.extend(std::iter::repeat_n(x, len));
        blocks.push(block);
        if blocks.len() > 100 {
            let block = blocks.swap_remove((x >> 40) as usize % 100);
            assert!(block.iter().all(|&word| word == block[0]));
        }
        count += 1;
    }
    count
}

struct Stop;

impl Drop for Stop {
    fn drop(&mut self) {
        STOP.store(true, Relaxed);
    }
}

pub(crate) fn run(seconds: u64) {
    let libc_so = find::module("libc.so");
    let names = ["malloc", "calloc", "realloc", "free"];
    let symbols = names.map(|name| symbol::find(&libc_so, name.as_bytes()).unwrap());
    let before = symbols.map(|s| crate::code::bytes(s.pointer(), 32));
    let replacements = [malloc as *const (), calloc as *const (), realloc as *const (), free as *const ()];
    let (mut rounds, mut refused, allocations) = (0u64, 0u64, AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let allocations = &allocations;
            scope.spawn(move || allocations.fetch_add(churn(seed), Relaxed));
        }
        // Also when this thread panics: the scope waits for the others.
        let _stop = Stop;
        let mut arena = Arena::new();
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end || rounds <= 5 {
            let mut transaction = Transaction::with_arena(&mut arena).live();
            let ids: Vec<_> = symbols
                .iter()
                .zip(replacements)
                .map(|(s, to)| {
                    let options = Options { size: Some(s.size), ..Options::default() };
                    // Every other time half of the calls pass by a gate.
                    let gate = if rounds % 2 == 0 { Vec::new() } else { gate::for_bit(s.pointer(), 4) };
                    transaction.replace_gated(s.pointer(), to, options, gate)
                })
                .collect();
            let prepared = transaction.prepare();
            for (slot, id) in ORIGINALS.iter().zip(ids) {
                if let Ok(original) = prepared.original(id) {
                    slot.store(original as usize, Release);
                }
            }
            // SAFETY: the threads allocate with the trap signal unblocked; the types agree.
            for hook in unsafe { prepared.commit(Liveness::Live) } {
                match hook {
                    // SAFETY: as above.
                    Ok(mut hook) => drop(unsafe { hook.remove(Liveness::Live) }.unwrap()),
                    // The threads' heaps may fill the only 16 MiB in which the island of a prologue can be.
                    Err(Error::NotLive { refusal: Refusal::NoIsland, .. }) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            rounds += 1;
        }
    });
    for (s, before) in symbols.iter().zip(&before) {
        assert!(crate::code::bytes(s.pointer(), 32) == *before);
    }
    println!(
        "heap: {rounds} rounds, {} blocks, {} calls hooked, {refused} hooks refused live",
        allocations.load(Relaxed),
        HOOKED.load(Relaxed)
    );
    assert!(HOOKED.load(Relaxed) > 0);
}
