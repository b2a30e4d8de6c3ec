//! The probe, code without CFI, and what only this instruction set has.

use crate::common::{Fixture, State, check, grapnel_test_probe, with_probe};
use grapnel_unwind::{Config, FrameFlags, Registers, RuleKind};

core::arch::global_asm!(
    ".globl grapnel_test_probe",
    ".type grapnel_test_probe, @function",
    "grapnel_test_probe:",
    ".cfi_startproc",
    "mov rax, [rsp]",
    "sub rsp, 72",
    ".cfi_adjust_cfa_offset 72",
    "mov [rsp], rax",
    "lea rax, [rsp + 80]",
    "mov [rsp + 8], rax",
    "mov [rsp + 16], rbp",
    "mov [rsp + 24], rbx",
    "mov [rsp + 32], r12",
    "mov [rsp + 40], r13",
    "mov [rsp + 48], r14",
    "mov [rsp + 56], r15",
    "mov rdi, rsp",
    "call {on_probe}",
    "add rsp, 72",
    ".cfi_adjust_cfa_offset -72",
    "ret",
    ".cfi_endproc",
    ".size grapnel_test_probe, . - grapnel_test_probe",
    on_probe = sym crate::common::on_probe,
);

/// Whether libgcc's unwinder tells a stopped instruction from a return address.
pub(crate) const LIBGCC_TELLS_EXACT: bool = true;

/// Whether libgcc's unwinder shows the outermost frame.
pub(crate) const LIBGCC_SHOWS_ROOT: bool = true;

/// Whether `_dl_runtime_resolve` has unwind information that is right.
pub(crate) const RESOLVER_HAS_CFI: bool = true;

/// More options for the compiler of fixtures.
pub(crate) const FLAGS: &[&str] = &[];

/// Options by which functions of fixtures have frame pointers.
pub(crate) const WITH_FRAME_POINTERS: &[&str] = &["-fno-omit-frame-pointer"];

/// What a walk that starts there takes for the address.
pub(crate) fn address(pc: u64) -> u64 {
    pc
}

/// Registers of a walk that may start anywhere.
pub(crate) fn registers(pc: u64, sp: u64, fp: u64) -> Registers {
    Registers { pc, sp, bp: fp, ..Default::default() }
}

/// What to call to run the code at this address.
pub(crate) fn entry(code: u64) -> u64 {
    code
}

/// Makes a frame, and calls its second argument with the first.
pub(crate) fn with_frame() -> Vec<u8> {
    // push rbp; mov rbp, rsp; call rsi; pop rbp; ret
    vec![0x55, 0x48, 0x89, 0xe5, 0xff, 0xd6, 0x5d, 0xc3]
}

/// Makes a frame, and calls its first argument.
pub(crate) fn with_frame_last() -> Vec<u8> {
    // push rbp; mov rbp, rsp; call rdi; pop rbp; ret
    vec![0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3]
}

/// Makes no frame, and calls its first argument.
pub(crate) fn without_frame() -> Vec<u8> {
    // sub rsp, 8; call rdi; add rsp, 8; ret
    vec![0x48, 0x83, 0xec, 0x08, 0xff, 0xd7, 0x48, 0x83, 0xc4, 0x08, 0xc3]
}

/// Calls its first argument with this in the frame pointer's register.
pub(crate) fn with_frame_pointer(value: u64) -> Vec<u8> {
    // push rbp; mov rbp, imm64; call rdi; pop rbp; ret
    let mut code = vec![0x55, 0x48, 0xbd];
    code.extend(value.to_le_bytes());
    code.extend([0xff, 0xd7, 0x5d, 0xc3]);
    code
}

#[test]
fn realigned_stacks() {
    if !std::arch::is_x86_feature_detected!("avx2") {
        return;
    }
    for (tag, flags) in [
        ("avx-plain", ["-mavx2", "-fomit-frame-pointer"]),
        ("avx-framed", ["-mavx2", "-fno-omit-frame-pointer"]),
    ] {
        let f = Fixture::new("drap.c", tag, &flags);
        check(21, || f.call(c"aligned", 20));
        check(21, || f.call(c"aligned_alloca", 20));
        check(21, || f.call(c"aligned_busy", 20));
        let mut state = check(21, || f.call(c"drap", 20));
        let State { table, scratch, last, .. } = &mut state;
        let kinds = last.iter().map(|f| table.rule(scratch, f.pc, true).rule.kind);
        assert_eq!(kinds.filter(|kind| *kind == RuleKind::BpDeref).count(), 21);
    }
}

core::arch::global_asm!(
    ".globl grapnel_test_restorer",
    ".globl grapnel_test_short_restorer",
    ".globl grapnel_test_next_restorer",
    "nop",
    "grapnel_test_restorer:",
    "mov rax, 15",
    "syscall",
    "nop",
    "grapnel_test_short_restorer:",
    "mov eax, 15",
    "syscall",
    // Behind a function with CFI, which the byte before the return address is part of.
    ".cfi_startproc",
    "ud2",
    ".cfi_endproc",
    "grapnel_test_next_restorer:",
    "mov rax, 15",
    "syscall",
);

unsafe extern "C" {
    fn grapnel_test_restorer();
    fn grapnel_test_short_restorer();
    fn grapnel_test_next_restorer();
}

unsafe extern "C-unwind" fn on_signal(_: i32) {
    // SAFETY: the probe takes nothing.
    unsafe { grapnel_test_probe() };
}

/// What musl has, and programs that ask the kernel for themselves.
#[test]
fn handlers_that_return_by_code_without_cfi() {
    /// `struct kernel_sigaction`
    #[repr(C)]
    struct Action(usize, u64, usize, u64);
    const SA_RESTORER: u64 = 0x0400_0000;
    for (restorer, known_to_libgcc) in [
        (grapnel_test_restorer as *const () as usize, true),
        (grapnel_test_short_restorer as *const () as usize, false),
        (grapnel_test_next_restorer as *const () as usize, false),
    ] {
        let action = Action(on_signal as *const () as usize, SA_RESTORER, restorer, 0);
        // SAFETY: the handler and the restorer are what the kernel asks for.
        let set = unsafe {
            libc::syscall(libc::SYS_rt_sigaction, libc::SIGUSR2, &raw const action, 0usize, 8usize)
        };
        assert_eq!(set, 0);
        let on_probe = move |state: &mut State, registers: &Registers| {
            if known_to_libgcc {
                state.check(registers);
            } else {
                state.check_walks(registers);
            }
        };
        let state = with_probe(Config::default(), on_probe, || {
            // SAFETY: a signal to this thread, which has a handler.
            unsafe { libc::raise(libc::SIGUSR2) };
        });
        assert_eq!((state.probes, state.last_end), (1, grapnel_unwind::End::Root));
        let at = state.last.iter().position(|frame| frame.pc == restorer as u64).expect("it is a frame");
        assert_eq!(state.last[at].flags, FrameFlags::SIGNAL);
        assert_eq!(state.last[at + 1].flags, FrameFlags::EXACT);
        assert!(state.last.len() > at + 5);
    }
}
