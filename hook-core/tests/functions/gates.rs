//! Gates: code that decides at each call whether the replacement takes it.

use super::{Function, ORIGINAL, code, function, gate, samples};
use grapnel_hook::{Arena, Error, Liveness, Options, Transaction, way_out};
use std::sync::atomic::Ordering::Relaxed;

/// Calls the original, and adds a mark.
extern "C" fn marked(x: u64) -> u64 {
    let original: Function = function(ORIGINAL.load(Relaxed) as *const ());
    original(x) + 1000
}

/// Answers in front of how many functions gates were.
fn gated(live: bool) -> usize {
    let (mut arena, mut count) = (Arena::new(), 0);
    let liveness = if live { Liveness::Live } else { Liveness::SingleThreaded };
    for sample in samples::all() {
        let Some(expected) = sample.expected else { continue };
        let (plain, before) = (function(sample.at), code::bytes(sample.at, 48));
        let mut transaction = Transaction::with_arena(&mut arena);
        let gate = gate::for_bit(sample.at, 0);
        let len = gate.len();
        let id = transaction.replace_gated(sample.at, marked as *const (), Options::default(), gate);
        let transaction = if live { transaction.live() } else { transaction };
        let prepared = transaction.prepare();
        let original = match prepared.original(id) {
            Ok(original) => original,
            Err(Error::NotLive { .. }) if live => continue,
            Err(error) => panic!("{}: {error}", sample.name),
        };
        ORIGINAL.store(original as usize, Relaxed);
        // SAFETY: one thread, and the types agree.
        let mut hook = match unsafe { prepared.commit(liveness) }.remove(0) {
            Ok(hook) => hook,
            Err(Error::NotLive { .. }) if live => continue,
            Err(error) => panic!("{}: {error}", sample.name),
        };
        for x in [0, 1, 10, 11, 12345, 12346] {
            let mark = if x % 2 == 0 { 0 } else { 1000 };
            assert_eq!(plain(x), expected(x) + mark, "{} of {x}", sample.name);
            assert_eq!(function(hook.original())(x), expected(x), "{}, its original of {x}", sample.name);
        }
        // The gate begins a line, and ends where the original begins.
        let gate = code::start(hook.original()).addr() - len;
        assert_eq!(gate % 64, 0, "{}", sample.name);
        assert!(hook.code().contains(&((gate - way_out(sample.at)) as u64)), "{}", sample.name);
        assert_eq!(code::writable_code(), Vec::<String>::new());
        // SAFETY: one thread.
        unsafe { hook.remove(liveness) }.unwrap();
        assert_eq!(code::bytes(sample.at, 48), before, "{}", sample.name);
        assert_eq!(plain(12345), expected(12345));
        count += 1;
    }
    count
}

pub(super) fn run() {
    assert_eq!(gated(false), samples::all().iter().filter(|sample| sample.expected.is_some()).count());
    refused();
}

pub(super) fn run_live() {
    // Not where a patch can't go in live.
    let count = gated(true);
    let least = if cfg!(target_arch = "x86_64") { samples::all().len() / 2 } else { 1 };
    assert!(count >= least, "{count}");
}

/// One that can't be changes nothing.
fn refused() {
    let sample = &samples::all()[0];
    let before = code::bytes(sample.at, 48);
    let odd = if cfg!(target_arch = "x86_64") { 4097 } else { 5 };
    for len in [4100, odd] {
        let mut transaction = Transaction::new();
        let id = transaction.replace_gated(sample.at, marked as *const (), Options::default(), vec![0; len]);
        match transaction.prepare().original(id) {
            Err(Error::BadGate { len: found, .. }) => assert_eq!(found, len),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(code::bytes(sample.at, 48), before);
}
