//! That none of the state is lost, whatever of it is in use.

use std::{ffi::c_void, ops::Range, sync::atomic::AtomicU64};

use super::*;
use crate::{
    Batch, BatchId, HookSet, Listener, Liveness, Probe,
    listen::{Entry, Exit, Hit},
};

const NOTHING: *mut c_void = std::ptr::null_mut();

// Calls a function with the state of one image, writes what it is afterwards to another, and then loads a third.
std::arch::global_asm!(
    ".pushsection .text.with_state, \"ax\", @progbits",
    ".globl with_state",
    "with_state:", // (function, before, after, initial)
    ".cfi_startproc",
    "push rbx; push r12; push r13; push r14; push r15",
    ".cfi_adjust_cfa_offset 40",
    "mov rbx, rdi; mov r12, rsi; mov r13, rdx; mov r14, rcx",
    "xor edx, edx; mov eax, 0xe7; xrstor64 [r12]",
    "call rbx",
    "xor edx, edx; mov eax, 0xe7; xsave64 [r13]",
    "xor edx, edx; mov eax, 0xe7; xrstor64 [r14]",
    "pop r15; pop r14; pop r13; pop r12; pop rbx",
    ".cfi_adjust_cfa_offset -40",
    "ret",
    ".cfi_endproc",
    ".p2align 4",
    ".globl keeps_state, keeps_state_middle",
    ".type keeps_state, @function",
    "keeps_state:",
    ".cfi_startproc",
    ".nops 8, 1",
    "keeps_state_middle:",
    ".nops 8, 1",
    "ret",
    ".cfi_endproc",
    ".size keeps_state, . - keeps_state",
    // Leaves ones in all vector and mask registers, and the x87 stack full.
    ".p2align 4",
    ".globl spoils_state_512, spoils_state_256, spoils_state_128",
    "spoils_state_512:",
    ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
    "vpternlogq zmm\\i, zmm\\i, zmm\\i, 255",
    ".endr",
    ".irp i,0,1,2,3,4,5,6,7",
    "kxnorw k\\i, k\\i, k\\i",
    ".endr",
    "jmp 2f",
    "spoils_state_256:",
    ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "vcmpps ymm\\i, ymm\\i, ymm\\i, 15",
    ".endr",
    "jmp 2f",
    "spoils_state_128:",
    ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15",
    "pcmpeqd xmm\\i, xmm\\i",
    ".endr",
    "2: fninit",
    "mov dword ptr [rsp - 4], 0x5fa5", // rounds up; flags are set
    "ldmxcsr [rsp - 4]",
    "mov word ptr [rsp - 4], 0x0e7f", // rounds to zero
    "fldcw [rsp - 4]",
    "fldpi; fldpi; fldpi; fldpi; fldpi; fldpi; fldpi; fldpi; fldpi",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn with_state(function: *const (), before: &Image, after: &mut Image, initial: &Image);
    fn keeps_state();
    fn keeps_state_middle();
    fn spoils_state_512();
    fn spoils_state_256();
    fn spoils_state_128();
}

/// What XSAVE writes (SDM volume 1, 13.4).
#[repr(C, align(64))]
struct Image([u8; 16 << 10]);

const IN_USE: usize = 512;
const MXCSR: usize = 24;

/// The parts of the state, as XSAVE numbers them, and where they are. Of x87 without what tells of the last instruction.
fn parts() -> Vec<(u32, Vec<Range<usize>>)> {
    let enabled = __cpuid_count(0xd, 0).eax;
    let stack = (0..8).map(|i| 32 + 16 * i..42 + 16 * i);
    let x87 = std::iter::once(0..5).chain(stack).collect();
    let wide = (2..8).filter(|i| enabled >> i & 1 != 0 && ![3, 4].contains(i)).map(|i| {
        let place = __cpuid_count(0xd, i);
        let start = place.ebx as usize;
        (i, std::iter::once(start..start + place.eax as usize).collect())
    });
    [(0, x87), (1, std::iter::once(160..416).collect())].into_iter().chain(wide).collect()
}

impl Image {
    /// The initial state.
    fn new() -> Box<Self> {
        let mut image = Box::new(Self([0; _]));
        image.0[MXCSR..MXCSR + 4].copy_from_slice(&0x1f80u32.to_le_bytes());
        image.0[..2].copy_from_slice(&0x37fu16.to_le_bytes());
        image
    }

    /// Puts a pattern into a part.
    fn fill(&mut self, part: u32, places: &[Range<usize>]) {
        self.0[IN_USE] |= 1 << part;
        for at in places.iter().cloned().flatten() {
            self.0[at] = (at * 7 + at / 64 + 1) as u8;
        }
        if part == 0 {
            // 64 bits, rounds down; the stack begins at 3, with condition codes; five registers are in use.
            self.0[..5].copy_from_slice(&[0x7f, 0x07, 0x00, 0x1d, 0b0001_1111]);
        }
    }
}

static TOLD: AtomicU64 = AtomicU64::new(0);
static SPOILED: AtomicU32 = AtomicU32::new(0);

fn spoil() {
    TOLD.fetch_add(1, Relaxed);
    let state = SPOILED.load(Relaxed);
    let spoil = match (state & AVX_512 != 0, state & AVX != 0) {
        (true, _) => spoils_state_512,
        (_, true) => spoils_state_256,
        _ => spoils_state_128,
    };
    // SAFETY: it changes only what is said here. The compiler believes the stack to be empty and the modes to be as
    // before, but nothing here uses either.
    unsafe { std::arch::asm!("call {}", in(reg) spoil, clobber_abi("C")) };
}

unsafe extern "C" fn enter(_: &mut Entry, _: *mut c_void) {
    spoil();
}

unsafe extern "C" fn leave(_: &mut Exit, _: *mut c_void) {
    spoil();
}

unsafe extern "C" fn hit(_: &mut Hit, _: *mut c_void) {
    spoil();
}

/// What an older processor, or one with a system that has less of it switched on, has of this one's state.
static STATES: [u32; 4] = [!0, !KNOWN, !(KNOWN | AVX_512), !(KNOWN | AVX_512 | AVX)];

#[test]
fn nothing_is_lost_whatever_is_in_use() {
    const OSXSAVE: u32 = 1 << 27;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return;
    }
    let (function, middle) = (keeps_state as *const (), keeps_state_middle as *const ());
    let listener = Listener::new(NOTHING).on_enter(enter).on_leave(leave).with_vectors();
    hooked(|batch| batch.probe(middle, Probe::new(hit, NOTHING)), || check_all(function, 1, "a probe"));
    hooked(|batch| batch.listen(function, listener), || check_all(function, 2, "a listener"));
}

fn hooked(ask: impl for<'a> FnOnce(&mut Batch<'a>) -> BatchId, check: impl FnOnce()) {
    let mut set = HookSet::new();
    let mut batch = set.begin();
    ask(&mut batch);
    // SAFETY: this thread alone calls the function, which is assembly, as its listeners want it.
    let attached = unsafe { batch.commit(Liveness::SingleThreaded) }.remove(0).unwrap();
    check();
    // SAFETY: as above.
    unsafe { set.remove(attached, Liveness::SingleThreaded) }.unwrap();
}

fn check_all(function: *const (), told: u64, by: &str) {
    let all = STATE.load(Relaxed);
    let least = X87 | SSE;
    for state in STATES.map(|state| all & state | least) {
        STATE.store(state, Relaxed);
        check(function, told, state, by);
    }
    STATE.store(all, Relaxed);
}

/// With every choice of parts in use.
fn check(function: *const (), told: u64, state: u32, by: &str) {
    SPOILED.store(state, Relaxed);
    let parts: Vec<_> = parts().into_iter().filter(|(part, _)| state >> part & 1 != 0).collect();
    for choice in 0..1u32 << parts.len() {
        let mut before = Image::new();
        let mut after = Image::new();
        for (i, (part, places)) in parts.iter().enumerate() {
            if choice >> i & 1 != 0 {
                before.fill(*part, places);
            }
        }
        // Not what the listener sets; loaded with the second and the third part, whether these are in use or not.
        before.0[MXCSR..MXCSR + 4].copy_from_slice(&0x3f82u32.to_le_bytes());
        TOLD.store(0, Relaxed);
        // SAFETY: the images are of the form that XSAVE has, and the function leaves the state alone.
        unsafe { with_state(function, &before, &mut after, &Image::new()) };
        assert_eq!(TOLD.load(Relaxed), told);
        for (part, places) in &parts {
            // What is in empty registers of the x87 stack, nobody can tell.
            let shown = if *part == 0 && choice & 1 == 0 { 1 } else { places.len() };
            for place in &places[..shown] {
                let (was, is) = (&before.0[place.clone()], &after.0[place.clone()]);
                assert!(
                    was == is,
                    "{by} with {state:#x}, in use {:#x}, part {part} at {place:?}: {was:?}, {is:?}",
                    before.0[IN_USE]
                );
            }
        }
        assert_eq!(before.0[MXCSR..MXCSR + 4], after.0[MXCSR..MXCSR + 4]);
    }
}
