//! The probe, code without CFI, and what only this instruction set has.

use crate::common::{Fixture, State, check};
use grapnel_unwind::{Registers, RuleKind};

core::arch::global_asm!(
    ".globl grapnel_test_probe",
    ".type grapnel_test_probe, @function",
    "grapnel_test_probe:",
    ".cfi_startproc",
    "sub sp, sp, #128",
    ".cfi_def_cfa_offset 128",
    "str x30, [sp, #112]",
    ".cfi_offset x30, -16",
    "add x9, sp, #128",
    "stp x30, x9, [sp]",
    "stp x29, x19, [sp, #16]",
    "stp x20, x21, [sp, #32]",
    "stp x22, x23, [sp, #48]",
    "stp x24, x25, [sp, #64]",
    "stp x26, x27, [sp, #80]",
    "str x28, [sp, #96]",
    "mov x0, sp",
    "bl {on_probe}",
    "ldr x30, [sp, #112]",
    "add sp, sp, #128",
    "ret",
    ".cfi_endproc",
    ".size grapnel_test_probe, . - grapnel_test_probe",
    on_probe = sym crate::common::on_probe,
);

/// Whether libgcc's unwinder tells a stopped instruction from a return address.
pub(crate) const LIBGCC_TELLS_EXACT: bool = true;

/// Whether libgcc's unwinder shows the outermost frame.
pub(crate) const LIBGCC_SHOWS_ROOT: bool = true;

/// Whether `_dl_runtime_resolve` has unwind information that is right: glibc's leaves out the 16 bytes that a PLT's first entry pushed.
pub(crate) const RESOLVER_HAS_CFI: bool = false;

/// More options for the compiler of fixtures.
pub(crate) const FLAGS: &[&str] = &[];

/// Options by which functions of fixtures have frame pointers.
pub(crate) const WITH_FRAME_POINTERS: &[&str] = &["-fno-omit-frame-pointer"];

/// What a walk that starts there takes for the address.
pub(crate) fn address(pc: u64) -> u64 {
    pc & 0xffff_ffff_ffff
}

/// Registers of a walk that may start anywhere.
pub(crate) fn registers(pc: u64, sp: u64, fp: u64) -> Registers {
    Registers { pc, sp, fp, ..Default::default() }
}

/// What to call to run the code at this address.
pub(crate) fn entry(code: u64) -> u64 {
    code
}

fn code(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Makes a frame, and calls its second argument with the first.
pub(crate) fn with_frame() -> Vec<u8> {
    // stp x29, x30, [sp, #-16]!; mov x29, sp; blr x1; ldp x29, x30, [sp], #16; ret
    code(&[0xa9bf_7bfd, 0x9100_03fd, 0xd63f_0020, 0xa8c1_7bfd, 0xd65f_03c0])
}

/// Makes a frame, and calls its first argument.
pub(crate) fn with_frame_last() -> Vec<u8> {
    // the same with blr x0
    code(&[0xa9bf_7bfd, 0x9100_03fd, 0xd63f_0000, 0xa8c1_7bfd, 0xd65f_03c0])
}

/// Makes no frame, and calls its first argument.
pub(crate) fn without_frame() -> Vec<u8> {
    // str x30, [sp, #-16]!; blr x0; ldr x30, [sp], #16; ret
    code(&[0xf81f_0ffe, 0xd63f_0000, 0xf841_07fe, 0xd65f_03c0])
}

/// Calls its first argument with this in the frame pointer's register.
pub(crate) fn with_frame_pointer(value: u64) -> Vec<u8> {
    // stp x29, x30, [sp, #-16]!; mov x29, imm64; blr x0; ldp x29, x30, [sp], #16; ret
    let part = |n: u32| (value >> (16 * n)) as u32 & 0xffff;
    code(&[
        0xa9bf_7bfd,
        0xd280_001d | part(0) << 5,
        0xf2a0_001d | part(1) << 5,
        0xf2c0_001d | part(2) << 5,
        0xf2e0_001d | part(3) << 5,
        0xd63f_0000,
        0xa8c1_7bfd,
        0xd65f_03c0,
    ])
}

#[test]
fn signed_return_addresses() {
    for (tag, flags) in [
        ("pac-plain", ["-march=armv8.3-a", "-mbranch-protection=pac-ret", "-fomit-frame-pointer"]),
        ("pac-framed", ["-march=armv8.3-a", "-mbranch-protection=standard", "-fno-omit-frame-pointer"]),
        ("pac-leaf", ["-march=armv8.3-a", "-mbranch-protection=pac-ret+leaf", "-fomit-frame-pointer"]),
    ] {
        let f = Fixture::new("stacks.c", tag, &flags);
        check(1, || f.call(c"recurse", 100));
        check(41, || f.call(c"vla", 40));
        let mut state = check(31, || f.call(c"saved_registers", 30));
        let State { table, scratch, last, .. } = &mut state;
        let kinds = last.iter().map(|f| table.rule(scratch, f.pc, true).rule.kind);
        assert!(kinds.filter(|kind| *kind == RuleKind::Full).count() == 0, "{tag}");
    }
}
