//! Vector registers: what listeners see of them, and what is kept.

use std::{
    ffi::c_void,
    hint::black_box,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use grapnel_hook::{
    HookSet, Listener, Probe,
    listen::{Entry, Exit, Hit},
};

use crate::{attach, remove};

const NOTHING: *mut c_void = std::ptr::null_mut();

pub(crate) fn run() {
    all_low_halves_are_kept();
    where_nothing_is_saved_nothing_changes();
    wide_vectors_are_kept_on_request();
}

// Calls a function with known values in the vector registers, and hands out what they are afterwards.
std::arch::global_asm!(
    ".pushsection .text.with_vectors, \"ax\", @progbits",
    ".globl with_vectors",
    "with_vectors:", // (function, values: [[u64; 2]; 16], seen: [[u64; 2]; 16])
    ".cfi_startproc",
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    "movups xmm0, [rsi + 0]; movups xmm1, [rsi + 16]; movups xmm2, [rsi + 32]; movups xmm3, [rsi + 48]",
    "movups xmm4, [rsi + 64]; movups xmm5, [rsi + 80]; movups xmm6, [rsi + 96]; movups xmm7, [rsi + 112]",
    "movups xmm8, [rsi + 128]; movups xmm9, [rsi + 144]; movups xmm10, [rsi + 160]; movups xmm11, [rsi + 176]",
    "movups xmm12, [rsi + 192]; movups xmm13, [rsi + 208]; movups xmm14, [rsi + 224]; movups xmm15, [rsi + 240]",
    "call rdi",
    "pop rdx",
    ".cfi_adjust_cfa_offset -8",
    "movups [rdx + 0], xmm0; movups [rdx + 16], xmm1; movups [rdx + 32], xmm2; movups [rdx + 48], xmm3",
    "movups [rdx + 64], xmm4; movups [rdx + 80], xmm5; movups [rdx + 96], xmm6; movups [rdx + 112], xmm7",
    "movups [rdx + 128], xmm8; movups [rdx + 144], xmm9; movups [rdx + 160], xmm10; movups [rdx + 176], xmm11",
    "movups [rdx + 192], xmm12; movups [rdx + 208], xmm13; movups [rdx + 224], xmm14; movups [rdx + 240], xmm15",
    "ret",
    ".cfi_endproc",
    ".popsection",
);

unsafe extern "C" {
    fn with_vectors(function: *const (), values: &[[u64; 2]; 16], seen: &mut [[u64; 2]; 16]);
    fn plain_return();
}

/// A caller that was compiled together with the function may know which registers it leaves alone.
fn all_low_halves_are_kept() {
    fn spoil() {
        // SAFETY: clobbers what it says.
        unsafe {
            std::arch::asm!(
                "pcmpeqd xmm0, xmm0; pcmpeqd xmm1, xmm1; pcmpeqd xmm2, xmm2; pcmpeqd xmm3, xmm3",
                "pcmpeqd xmm4, xmm4; pcmpeqd xmm5, xmm5; pcmpeqd xmm6, xmm6; pcmpeqd xmm7, xmm7",
                "pcmpeqd xmm8, xmm8; pcmpeqd xmm9, xmm9; pcmpeqd xmm10, xmm10; pcmpeqd xmm11, xmm11",
                "pcmpeqd xmm12, xmm12; pcmpeqd xmm13, xmm13; pcmpeqd xmm14, xmm14; pcmpeqd xmm15, xmm15",
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            );
        }
    }
    unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
        spoil();
        assert_eq!(call.vector(7), Some([7, 107]));
    }
    unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
        spoil();
        assert_eq!(call.vector(5), Some([5, 105]));
        assert!(call.set_vector(0, [1, 2]));
    }
    let values = std::array::from_fn(|i| [i as u64, i as u64 + 100]);
    let mut set = HookSet::new();
    let plain = Listener::new(NOTHING).on_enter(enter).on_leave(leave);
    for listener in [plain, plain.guarded(), plain.with_vectors()] {
        let attached = attach(&mut set, |batch| batch.listen(plain_return as *const (), listener)).unwrap();
        let mut seen = [[0; 2]; 16];
        // SAFETY: the function keeps all registers.
        unsafe { with_vectors(plain_return as *const (), &values, &mut seen) };
        let mut expected = values;
        expected[0] = [1, 2];
        assert_eq!(seen, expected);
        remove(&mut set, attached).unwrap();
    }
}

/// Functions that count have no vectors saved for them, whatever else happens on the way: here all return points are taken at
/// some depth.
fn where_nothing_is_saved_nothing_changes() {
    const DEPTH: usize = 5000;
    static COUNTED: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn enter(_: &mut Entry, _: *mut c_void) {
        COUNTED.fetch_add(1, Relaxed);
    }
    unsafe extern "C" fn leave(_: &mut Exit, _: *mut c_void) {
        COUNTED.fetch_add(1, Relaxed);
    }
    unsafe extern "C" fn hit(_: &mut Hit, _: *mut c_void) {
        COUNTED.fetch_add(1, Relaxed);
    }
    fn check() {
        let values = std::array::from_fn(|i| [i as u64 + 1, i as u64 + 1000]);
        let mut seen = [[0; 2]; 16];
        // SAFETY: the function keeps all registers.
        unsafe { with_vectors(plain_return as *const (), &values, &mut seen) };
        assert_eq!(seen, values);
    }
    extern "C" fn deep(left: usize) -> usize {
        check();
        if left == 0 { 0 } else { black_box(deep as extern "C" fn(usize) -> usize)(left - 1) + 1 }
    }
    let mut set = HookSet::new();
    let listener = Listener::new(NOTHING).on_enter(enter).on_leave(leave);
    let here = attach(&mut set, |batch| batch.listen(plain_return as *const (), listener)).unwrap();
    let deeper = attach(&mut set, |batch| batch.listen(deep as *const (), listener)).unwrap();
    COUNTED.store(0, Relaxed);
    let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(|| deep(DEPTH)).unwrap();
    assert_eq!(thread.join().unwrap(), DEPTH);
    let counted = COUNTED.load(Relaxed);
    assert!(counted > 2 * DEPTH && counted < 4 * DEPTH, "some returns had no place: {counted}");
    for attached in [here, deeper] {
        remove(&mut set, attached).unwrap();
    }
    let probed =
        attach(&mut set, |batch| batch.probe(plain_return as *const (), Probe::new(hit, NOTHING))).unwrap();
    COUNTED.store(0, Relaxed);
    check();
    assert_eq!(COUNTED.load(Relaxed), 1);
    remove(&mut set, probed).unwrap();
}

fn wide_vectors_are_kept_on_request() {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi64, _mm256_loadu_si256, _mm256_set1_epi64x, _mm256_storeu_si256,
    };
    if !is_x86_feature_detected!("avx2") {
        println!("  no AVX2: wide vectors were not tried");
        return;
    }
    #[target_feature(enable = "avx2")]
    unsafe fn spoil() {
        // SAFETY: clobbers what it says.
        unsafe {
            std::arch::asm!("vpcmpeqd ymm0, ymm0, ymm0", "vmovdqa ymm1, ymm0", "vmovdqa ymm2, ymm0", "vzeroupper",
                out("ymm0") _, out("ymm1") _, out("ymm2") _);
        }
    }
    unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
        // SAFETY: the processor has AVX2.
        unsafe { spoil() };
        assert_eq!(call.vector(0).unwrap(), [1, 2]);
        assert!(call.vector(15).is_some());
    }
    unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
        // SAFETY: as above.
        unsafe { spoil() };
        assert_eq!(call.vector(0).unwrap(), [11, 12]);
    }
    #[inline(never)]
    #[target_feature(enable = "avx2")]
    #[expect(
        improper_ctypes_definitions,
        reason = "the ABI passes vectors, and the caller is compiled for it"
    )]
    unsafe extern "C" fn add_ten(x: __m256i) -> __m256i {
        _mm256_add_epi64(x, _mm256_set1_epi64x(10))
    }
    #[target_feature(enable = "avx2")]
    unsafe fn call() -> [u64; 4] {
        let f: unsafe extern "C" fn(__m256i) -> __m256i = black_box(add_ten);
        let mut out = [0u64; 4];
        let x = [1u64, 2, 3, 4];
        // SAFETY: the arrays are as long as a vector.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), f(_mm256_loadu_si256(x.as_ptr().cast()))) };
        out
    }
    let mut set = HookSet::new();
    let listener = Listener::new(NOTHING).on_enter(enter).on_leave(leave).with_vectors();
    let attached = attach(&mut set, |batch| batch.listen(add_ten as *const (), listener)).unwrap();
    // SAFETY: the processor has AVX2.
    assert_eq!(unsafe { call() }, [11, 12, 13, 14]);
    remove(&mut set, attached).unwrap();
}
