//! Probes at every instruction of many functions.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use grapnel_arch::CodeAddr;
use grapnel_hook::{Error, HookSet, Probe, Proof, listen::Hit};
use grapnel_relocator::flow::Reason;

use crate::{at, attach, code, function, isa, remove, samples, unwinding};

pub(crate) static HITS: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicU64 = AtomicU64::new(0);

/// Counts, and leaves nothing in its registers as it was.
unsafe extern "C" fn count(hit: &mut Hit, data: *mut c_void) {
    HITS.fetch_add(1, Relaxed);
    LAST.store(hit.address(), Relaxed);
    assert_eq!(data as u64, 5);
    isa::spoil();
}

pub(crate) const PROBE: Probe = Probe::new(count, 5 as *mut c_void);

pub(crate) fn run() {
    every_instruction();
    backtraces_pass();
}

/// The offsets of a function's instructions, up to its first byte that no unwind entry covers.
pub(crate) fn instructions(start: *const ()) -> Vec<usize> {
    let bytes = code::bytes(start, 64);
    let (mut at, mut offsets) = (0, Vec::new());
    while let Some(len) = isa::instruction_len(start as u64 + at as u64, &bytes[at..]) {
        offsets.push(at);
        at += len;
        if at > 48 {
            break;
        }
    }
    offsets
}

fn every_instruction() {
    let mut set = HookSet::new();
    let (mut probed, mut hit, mut refused) = (0, 0, 0);
    for sample in samples::all() {
        let Some(plain) = sample.expected else { continue };
        let before = code::bytes(sample.at, 64);
        for offset in instructions(sample.at) {
            let place = sample.at.wrapping_byte_add(offset);
            let attached = match attach(&mut set, |batch| batch.probe(place, PROBE)) {
                Ok(attached) => attached,
                Err(
                    Error::Relocation { .. }
                    | Error::Clobbers { .. }
                    | Error::InboundBranch { .. }
                    | Error::NoFunction { .. },
                ) => {
                    refused += 1;
                    continue;
                }
                Err(error) => panic!("{} + {offset}: {error}", sample.name),
            };
            // Constants behind the function's code are no instructions.
            let proof = set.patch(CodeAddr(place as u64)).unwrap().proof().clone();
            if matches!(proof, Proof::Assumed(Reason::Unreached(_) | Reason::Undecodable(_))) {
                remove(&mut set, attached).unwrap();
                continue;
            }
            HITS.store(0, Relaxed);
            for x in [0, 7, 12345] {
                assert_eq!(function(sample.at)(x), plain(x), "{} + {offset}", sample.name);
            }
            probed += 1;
            if HITS.load(Relaxed) > 0 {
                hit += 1;
                assert_eq!(LAST.load(Relaxed), place as u64);
            }
            if offset == 0 {
                assert!(HITS.load(Relaxed) >= 3, "{}", sample.name);
            }
            remove(&mut set, attached).unwrap();
            assert_eq!(code::bytes(sample.at, 64), before, "{} + {offset}", sample.name);
        }
    }
    println!("  {probed} instructions probed, {hit} of them hit, {refused} refused");
    assert!(probed > 60 && hit > 45, "{probed} {hit}");
}

fn backtraces_pass() {
    static FRAMES: AtomicU64 = AtomicU64::new(0);
    static OUTERMOST: AtomicU64 = AtomicU64::new(0);
    unsafe extern "C" fn look(_: &mut Hit, _: *mut c_void) {
        let frames = unwinding::frames();
        FRAMES.store(frames.len() as u64, Relaxed);
        OUTERMOST.store(*frames.last().unwrap() as u64, Relaxed);
    }
    let mut set = HookSet::new();
    let here = unwinding::frames();
    // Their unwind tables are right at these places.
    for (target, place) in [
        (at("frame"), at("frame")),
        (isa::vector_sum as *const (), isa::vector_sum_middle as *const ()),
        (isa::vector_sum as *const (), isa::vector_sum as *const ()),
    ] {
        let probe = Probe::new(look, std::ptr::null_mut());
        let attached = attach(&mut set, |batch| batch.probe(place, probe)).unwrap();
        let plain = function(target)(1);
        assert!(plain == 2 || plain == 3);
        assert_eq!(OUTERMOST.load(Relaxed), *here.last().unwrap() as u64);
        assert!(FRAMES.swap(0, Relaxed) > here.len() as u64);
        remove(&mut set, attached).unwrap();
    }
}
