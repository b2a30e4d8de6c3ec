//! General registers: what listeners see of them, and what is kept.

use std::ffi::c_void;

use grapnel_hook::{
    HookSet, Listener,
    listen::{Entry, Exit},
};

use crate::{attach, remove};

const NOTHING: *mut c_void = std::ptr::null_mut();

// Calls a function with known values in all registers, and hands out what they are afterwards.
std::arch::global_asm!(
    ".pushsection .text.with_registers, \"ax\", @progbits",
    "with_registers:", // (function, values: [u64; 15], seen: [u64; 15])
    ".cfi_startproc",
    "push rbx; push rbp; push r12; push r13; push r14; push r15; push rdx; push rdi",
    ".cfi_adjust_cfa_offset 64",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "mov rax, [rsi]; mov rcx, [rsi + 8]; mov rdx, [rsi + 16]; mov rbx, [rsi + 24]; mov rbp, [rsi + 32]",
    "mov rdi, [rsi + 48]; mov r8, [rsi + 56]; mov r9, [rsi + 64]; mov r10, [rsi + 72]; mov r11, [rsi + 80]",
    "mov r12, [rsi + 88]; mov r13, [rsi + 96]; mov r14, [rsi + 104]; mov r15, [rsi + 112]; mov rsi, [rsi + 40]",
    "call [rsp + 8]",
    "xchg rax, [rsp + 16]",
    "mov [rax + 8], rcx; mov [rax + 16], rdx; mov [rax + 24], rbx; mov [rax + 32], rbp; mov [rax + 40], rsi",
    "mov [rax + 48], rdi; mov [rax + 56], r8; mov [rax + 64], r9; mov [rax + 72], r10; mov [rax + 80], r11",
    "mov [rax + 88], r12; mov [rax + 96], r13; mov [rax + 104], r14; mov [rax + 112], r15",
    "mov rcx, [rsp + 16]; mov [rax], rcx",
    "add rsp, 24; pop r15; pop r14; pop r13; pop r12; pop rbp; pop rbx",
    "ret",
    ".cfi_endproc",
    // Leaves all as it is.
    ".p2align 4",
    ".globl plain_return",
    ".type plain_return, @function",
    "plain_return:",
    ".cfi_startproc",
    "nop; nop; nop; nop; nop; nop; ret",
    ".cfi_endproc",
    ".size plain_return, . - plain_return",
    ".globl with_registers",
    ".popsection",
);

unsafe extern "C" {
    fn with_registers(function: *const (), values: &[u64; 15], seen: &mut [u64; 15]);
    fn plain_return();
}

/// Uses many registers, and the stack above and below.
fn clobber() {
    std::hint::black_box((0..50).map(|i| format!("{i}").len() as f64 * 1.5).sum::<f64>());
}

pub(crate) fn all_are_kept() {
    unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
        clobber();
        let r = *call.registers();
        let values = [
            r.rax, r.rcx, r.rdx, r.rbx, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14,
            r.r15,
        ];
        assert_eq!(values, std::array::from_fn(|i| 1000 + i as u64));
        // SAFETY: the stack pointer points to the return address.
        assert_eq!(unsafe { *(r.rsp as *const u64) }, call.return_address());
        call.registers_mut().r10 += 5;
    }
    unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
        clobber();
        assert_eq!(call.registers().r10, 1014);
        call.registers_mut().r11 += 7;
    }
    let values: [u64; 15] = std::array::from_fn(|i| 1000 + i as u64);
    let mut set = HookSet::new();
    let plain = Listener::new(NOTHING).on_enter(enter).on_leave(leave);
    for listener in [plain, plain.with_vectors(), plain.guarded()] {
        let attached = attach(&mut set, |batch| batch.listen(plain_return as *const (), listener)).unwrap();
        let mut seen = [0; 15];
        // SAFETY: the function keeps all registers.
        unsafe { with_registers(plain_return as *const (), &values, &mut seen) };
        let mut expected = values;
        expected[9] += 5;
        expected[10] += 7;
        assert_eq!(seen, expected);
        remove(&mut set, attached).unwrap();
    }
}
