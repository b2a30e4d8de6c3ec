//! Counts the turns of a loop by a probe at one of its instructions, which sees all registers.

use std::{
    arch::global_asm,
    ffi::c_void,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use grapnel_hook::{Error, HookSet, Liveness, Options, Probe, listen::Hit};

// In assembly, so that this example knows where the loop is. A tool gets such addresses from debug information.
global_asm!(
    ".globl sum_to",
    "sum_to: xor eax, eax",
    ".globl sum_to_turn",
    "sum_to_turn: add rax, rdi",
    "dec rdi",
    "jnz sum_to_turn",
    "ret",
    ".globl sum_to_end",
    "sum_to_end: nop",
);

unsafe extern "C" {
    safe fn sum_to(n: u64) -> u64;
    fn sum_to_turn();
    fn sum_to_end();
}

static TURNS: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn turn(hit: &mut Hit, _: *mut c_void) {
    TURNS.fetch_add(1, Relaxed);
    // The last number is counted ten times.
    if hit.registers().rdi == 1 {
        hit.registers_mut().rax += 9;
    }
}

fn main() -> Result<(), Error> {
    let probe = Probe::new(turn, std::ptr::null_mut());
    let function = sum_to as *const () as u64..sum_to_end as *const () as u64;

    let mut hooks = HookSet::new();
    let mut batch = hooks.begin();
    batch.probe_with(sum_to_turn as *const (), Some(function), probe, Options::default());
    // SAFETY: one thread runs, an instruction begins there, and nothing else branches into the function.
    let attached = unsafe { batch.commit(Liveness::SingleThreaded) }.remove(0)?;
    assert_eq!(sum_to(100), 5050 + 9);
    // SAFETY: as above.
    unsafe { hooks.remove(attached, Liveness::SingleThreaded) }?;

    assert_eq!(sum_to(100), 5050);
    assert_eq!(TURNS.load(Relaxed), 100);
    println!("{} turns", TURNS.load(Relaxed));
    Ok(())
}
