//! Probes: what they see, change and keep.

use std::{ffi::c_void, sync::atomic::Ordering::Relaxed};

use grapnel_hook::{HookSet, Probe, listen::Hit};

use crate::{
    at, attach, function,
    probes::{HITS, PROBE},
    remove,
};

std::arch::global_asm!(
    ".pushsection .text.vector_sum, \"ax\", %progbits",
    ".p2align 4",
    ".globl vector_sum",
    ".type vector_sum, %function",
    "vector_sum:", // x -> 3 * x through registers that no call keeps, and 0 if the flags were lost
    ".cfi_startproc",
    "fmov d0, x0",
    "fmov d5, x0",
    "fmov d31, x0",
    "mov x16, x0",
    "mov x17, #1",
    "cmp x17, #1",
    ".globl vector_sum_middle",
    "vector_sum_middle:",
    "add v0.2d, v0.2d, v5.2d",
    "csel x16, x16, xzr, eq",
    "cmp x17, #1",
    "csel x16, x16, xzr, eq",
    "add v0.2d, v0.2d, v31.2d",
    "fmov x0, d0",
    "cmp x16, #0",
    "csel x0, xzr, x0, eq",
    "ret",
    ".cfi_endproc",
    ".size vector_sum, . - vector_sum",
    ".popsection",
);

unsafe extern "C" {
    pub(crate) fn vector_sum(x: u64) -> u64;
    pub(crate) fn vector_sum_middle();
}

pub(crate) fn run() {
    everything_is_kept();
    registers_are_changed();
}

fn everything_is_kept() {
    let mut set = HookSet::new();
    for probes in 1..4 {
        let attached: Vec<_> = (0..probes)
            .map(|_| attach(&mut set, |batch| batch.probe(vector_sum_middle as *const (), PROBE)).unwrap())
            .collect();
        HITS.store(0, Relaxed);
        assert_eq!(function(vector_sum as *const ())(14), 42);
        assert_eq!(HITS.load(Relaxed), probes);
        for attached in attached {
            remove(&mut set, attached).unwrap();
        }
    }
}

fn registers_are_changed() {
    // add x0, x0, #12 behind a jump.
    let place = at("jump_first").wrapping_byte_add(8);
    unsafe extern "C" fn change(hit: &mut Hit, _: *mut c_void) {
        assert!(hit.registers().sp.is_multiple_of(16));
        hit.registers_mut().x[0] *= 2;
    }
    let mut set = HookSet::new();
    let change = Probe::new(change, std::ptr::null_mut());
    // SAFETY: the function above uses general registers only.
    for probe in [change, change.guarded(), unsafe { change.general_only() }] {
        let first = attach(&mut set, |batch| batch.probe(place, probe)).unwrap();
        let second = attach(&mut set, |batch| batch.probe(place, probe)).unwrap();
        assert_eq!(function(at("jump_first"))(5), 32);
        remove(&mut set, first).unwrap();
        assert_eq!(function(at("jump_first"))(5), 22);
        remove(&mut set, second).unwrap();
        assert_eq!(function(at("jump_first"))(5), 17);
    }
}
