//! Registers: what listeners see of them, and what is kept.

use std::ffi::c_void;

use grapnel_hook::{
    HookSet, Listener,
    listen::{Entry, Exit},
};

use super::spoil;
use crate::{attach, remove};

const NOTHING: *mut c_void = std::ptr::null_mut();

// Calls a function with known values in all registers but those that the ABI gives to veneers, to the frame and to the
// stack, and hands out what they are afterwards.
std::arch::global_asm!(
    ".pushsection .text.with_registers, \"ax\", %progbits",
    ".p2align 4",
    ".globl with_registers",
    ".type with_registers, %function",
    "with_registers:", // (function, values: [u64; 16 + 64], seen: the same)
    ".cfi_startproc",
    "stp x29, x30, [sp, #-96]!",
    ".cfi_def_cfa_offset 96",
    ".cfi_offset x29, -96",
    ".cfi_offset x30, -88",
    "stp d8, d9, [sp, #16]; stp d10, d11, [sp, #32]; stp d12, d13, [sp, #48]; stp d14, d15, [sp, #64]",
    "str x2, [sp, #80]",
    "mov x17, x0",
    "add x16, x1, #128",
    "ldp q0, q1, [x16, #0]; ldp q2, q3, [x16, #32]; ldp q4, q5, [x16, #64]; ldp q6, q7, [x16, #96]",
    "ldp q8, q9, [x16, #128]; ldp q10, q11, [x16, #160]; ldp q12, q13, [x16, #192]; ldp q14, q15, [x16, #224]",
    "ldp q16, q17, [x16, #256]; ldp q18, q19, [x16, #288]; ldp q20, q21, [x16, #320]; ldp q22, q23, [x16, #352]",
    "ldp q24, q25, [x16, #384]; ldp q26, q27, [x16, #416]; ldp q28, q29, [x16, #448]; ldp q30, q31, [x16, #480]",
    "mov x16, x1",
    "ldp x0, x1, [x16, #0]; ldp x2, x3, [x16, #16]; ldp x4, x5, [x16, #32]; ldp x6, x7, [x16, #48]",
    "ldp x8, x9, [x16, #64]; ldp x10, x11, [x16, #80]; ldp x12, x13, [x16, #96]; ldp x14, x15, [x16, #112]",
    "blr x17",
    "ldr x16, [sp, #80]",
    "stp x0, x1, [x16, #0]; stp x2, x3, [x16, #16]; stp x4, x5, [x16, #32]; stp x6, x7, [x16, #48]",
    "stp x8, x9, [x16, #64]; stp x10, x11, [x16, #80]; stp x12, x13, [x16, #96]; stp x14, x15, [x16, #112]",
    "add x16, x16, #128",
    "stp q0, q1, [x16, #0]; stp q2, q3, [x16, #32]; stp q4, q5, [x16, #64]; stp q6, q7, [x16, #96]",
    "stp q8, q9, [x16, #128]; stp q10, q11, [x16, #160]; stp q12, q13, [x16, #192]; stp q14, q15, [x16, #224]",
    "stp q16, q17, [x16, #256]; stp q18, q19, [x16, #288]; stp q20, q21, [x16, #320]; stp q22, q23, [x16, #352]",
    "stp q24, q25, [x16, #384]; stp q26, q27, [x16, #416]; stp q28, q29, [x16, #448]; stp q30, q31, [x16, #480]",
    "ldp d8, d9, [sp, #16]; ldp d10, d11, [sp, #32]; ldp d12, d13, [sp, #48]; ldp d14, d15, [sp, #64]",
    "ldp x29, x30, [sp], #96",
    ".cfi_def_cfa_offset 0",
    "ret",
    ".cfi_endproc",
    ".size with_registers, . - with_registers",
    // Leaves all as it is.
    ".p2align 4",
    ".globl plain_return",
    ".type plain_return, %function",
    "plain_return:",
    ".cfi_startproc",
    "nop; ret",
    ".cfi_endproc",
    ".size plain_return, . - plain_return",
    ".popsection",
);

#[repr(C, align(16))]
#[derive(Debug, PartialEq, Clone, Copy)]
struct Values {
    general: [u64; 16],
    vectors: [[u64; 2]; 32],
}

unsafe extern "C" {
    fn with_registers(function: *const (), values: &Values, seen: &mut Values);
    fn plain_return();
}

pub(crate) fn run() {
    unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
        spoil();
        let x = call.registers().x;
        assert_eq!(x[..16], std::array::from_fn::<u64, 16, _>(|i| 1000 + i as u64));
        assert_eq!(x[30], call.return_address());
        assert_eq!(call.vector(7), Some([7, 107]));
        assert_eq!(call.vector(20).is_some(), call.vector(8).is_some());
        call.registers_mut().x[10] += 5;
        assert!(call.set_vector(3, [33, 34]));
    }
    unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
        spoil();
        assert_eq!((call.registers().x[10], call.vector(3)), (1015, Some([33, 34])));
        call.registers_mut().x[11] += 7;
        assert!(call.set_vector(0, [1, 2]));
    }
    let values = Values {
        general: std::array::from_fn(|i| 1000 + i as u64),
        vectors: std::array::from_fn(|i| [i as u64, i as u64 + 100]),
    };
    let mut expected = values;
    expected.general[10] += 5;
    expected.general[11] += 7;
    (expected.vectors[0], expected.vectors[3]) = ([1, 2], [33, 34]);
    let mut set = HookSet::new();
    let plain = Listener::new(NOTHING).on_enter(enter).on_leave(leave);
    for listener in [plain, plain.with_vectors(), plain.guarded()] {
        let attached = attach(&mut set, |batch| batch.listen(plain_return as *const (), listener)).unwrap();
        let mut seen = Values { general: [0; 16], vectors: [[0; 2]; 32] };
        // SAFETY: the function keeps all registers.
        unsafe { with_registers(plain_return as *const (), &values, &mut seen) };
        assert_eq!(seen, expected);
        remove(&mut set, attached).unwrap();
    }
}
