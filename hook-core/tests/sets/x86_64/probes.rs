//! Probes: what they see, change and keep, and where there can be none.

use std::{ffi::c_void, sync::atomic::Ordering::Relaxed};

use grapnel_arch::CodeAddr;
use grapnel_hook::{
    Error, HookSet, Listener, Options, Probe, Proof,
    listen::{Exit, Hit},
};

use crate::{
    at, attach, code, function,
    probes::{HITS, PROBE, instructions},
    remove,
};

pub(crate) fn run() {
    registers_are_changed();
    vectors_are_kept();
    beside_other_hooks();
    refusals();
}

fn registers_are_changed() {
    // lea rax, [rdi + 12] behind a jump.
    let place = instructions(at("jump_first"))
        .into_iter()
        .map(|offset| at("jump_first").wrapping_byte_add(offset))
        .find(|place| code::bytes(*place, 4) == [0x48, 0x8d, 0x47, 0x0c])
        .unwrap();
    unsafe extern "C" fn change(hit: &mut Hit, _: *mut c_void) {
        let stack = hit.registers().rsp as *const u64;
        // SAFETY: the function has not moved the stack pointer since it was called.
        assert_ne!(unsafe { *stack }, 0);
        hit.registers_mut().rdi *= 2;
    }
    let mut set = HookSet::new();
    // SAFETY: the function above uses general registers only.
    let probes = [Probe::new(change, std::ptr::null_mut()), unsafe { PROBE.general_only() }];
    let [change, _] = probes;
    // SAFETY: as above.
    for probe in [change, change.guarded(), unsafe { change.general_only() }] {
        // Two on one place: the last attached sees what it is first.
        let first = attach(&mut set, |batch| batch.probe(place, probe)).unwrap();
        let second = attach(&mut set, |batch| batch.probe(place, probe)).unwrap();
        assert_eq!(function(at("jump_first"))(5), 32);
        remove(&mut set, first).unwrap();
        assert_eq!(function(at("jump_first"))(5), 22);
        remove(&mut set, second).unwrap();
        assert_eq!(function(at("jump_first"))(5), 17);
    }
}

std::arch::global_asm!(
    ".pushsection .text.vector_sum, \"ax\", @progbits",
    ".p2align 4",
    ".globl vector_sum",
    ".type vector_sum, @function",
    "vector_sum:", // x -> 3 * x through the vector registers that no call keeps
    ".cfi_startproc",
    "movq xmm0, rdi",
    "movq xmm5, rdi",
    "movq xmm9, rdi",
    "vector_sum_middle:",
    "paddq xmm0, xmm5",
    "paddq xmm0, xmm9",
    "movq rax, xmm0",
    "ret",
    ".cfi_endproc",
    ".size vector_sum, . - vector_sum",
    ".globl vector_sum_middle",
    ".popsection",
);

unsafe extern "C" {
    pub(crate) fn vector_sum(x: u64) -> u64;
    pub(crate) fn vector_sum_middle();
}

fn vectors_are_kept() {
    let mut set = HookSet::new();
    let attached = attach(&mut set, |batch| batch.probe(vector_sum_middle as *const (), PROBE)).unwrap();
    HITS.store(0, Relaxed);
    assert_eq!(function(vector_sum as *const ())(14), 42);
    assert_eq!(HITS.load(Relaxed), 1);
    remove(&mut set, attached).unwrap();
}

fn beside_other_hooks() {
    unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
        call.set_result(call.result() + 1000);
    }
    let target = at("frame");
    let before = code::bytes(target, 32);
    let mut set = HookSet::new();
    let listener = Listener::new(std::ptr::null_mut()).on_leave(leave);
    let offsets = instructions(target);
    // The patch at the start takes the first three of `push rbp; mov rbp, rsp; sub rsp, 32`.
    let (inside, behind) = (target.wrapping_byte_add(offsets[1]), target.wrapping_byte_add(offsets[3]));
    let listened = attach(&mut set, |batch| batch.listen(target, listener)).unwrap();
    let error = attach(&mut set, |batch| batch.probe(inside, PROBE)).unwrap_err();
    assert!(matches!(error, Error::Taken { standing, .. } if standing.0 == target as u64), "{error}");
    let error = attach(&mut set, |batch| batch.probe(target, PROBE)).unwrap_err();
    assert!(matches!(error, Error::Taken { .. }), "{error}");
    let probed = attach(&mut set, |batch| batch.probe(behind, PROBE)).unwrap();
    HITS.store(0, Relaxed);
    assert_eq!(function(target)(1), 1002);
    assert_eq!(HITS.load(Relaxed), 1);
    remove(&mut set, listened).unwrap();
    assert_eq!(function(target)(1), 2);
    // What is looked at for branches is the function as it was, without the patch of the probe.
    let listened = attach(&mut set, |batch| batch.listen(target, listener)).unwrap();
    assert!(set.patch(CodeAddr(target as u64)).unwrap().proof() == &Proof::Proven);
    assert_eq!(function(target)(1), 1002);
    remove(&mut set, probed).unwrap();
    remove(&mut set, listened).unwrap();
    assert_eq!(code::bytes(target, 32), before);

    // In one batch, one of the two is refused.
    let mut batch = set.begin();
    let first = batch.probe(inside, PROBE);
    let second = batch.listen(target, listener);
    let prepared = batch.prepare();
    assert!(prepared.original(first).is_ok());
    assert!(matches!(prepared.original(second), Err(Error::Taken { .. })));
}

fn refusals() {
    let mut set = HookSet::new();
    let mut refused = |place: *const (), function: Option<std::ops::Range<u64>>| {
        let kept = set.kept();
        let mut batch = set.begin();
        let id = batch.probe_with(place, function, PROBE, Options::default());
        let error = batch.prepare().original(id).unwrap_err();
        assert!(set.kept() - kept <= 32);
        println!("  {error}\n    {}", error.remedy());
        error
    };
    let start = at("frame") as u64;
    let third = at("frame").wrapping_byte_add(instructions(at("frame"))[3]);
    assert!(matches!(refused(third, Some(start..start + 3)), Error::NoFunction { .. }));
    // In the middle of an instruction.
    let inside = third.wrapping_byte_add(1);
    assert!(matches!(refused(inside, None), Error::InboundBranch { .. } | Error::Relocation { .. }));
    // The loop of this one comes back behind its `nop`.
    assert!(matches!(refused(at("inbound"), None), Error::InboundBranch { .. }));
    let data = 0u64;
    assert!(matches!(refused((&raw const data).cast(), None), Error::NotExecutable { .. }));
}
