//! The probe, and code without tables, which is A32 or T32 code as Rust's is.

use grapnel_unwind::Registers;

core::arch::global_asm!(
    ".pushsection .text.grapnel_test_probe, \"ax\", %progbits",
    ".p2align 2",
    ".arm",
    ".globl grapnel_test_probe",
    ".type grapnel_test_probe, %function",
    "grapnel_test_probe:",
    ".fnstart",
    "push {{r4, lr}}",
    ".save {{r4, lr}}",
    "sub sp, sp, #48",
    ".pad #48",
    "str lr, [sp]",
    "add r0, sp, #56",
    "str r0, [sp, #4]",
    "add r0, sp, #8",
    "stm r0, {{r4-r11}}",
    "mov r0, sp",
    "bl {on_probe}",
    "add sp, sp, #48",
    "pop {{r4, pc}}",
    ".fnend",
    ".size grapnel_test_probe, . - grapnel_test_probe",
    ".popsection",
    on_probe = sym crate::common::on_probe,
);

/// Whether libgcc's unwinder tells a stopped instruction from a return address.
pub(crate) const LIBGCC_TELLS_EXACT: bool = false;

/// Whether libgcc's unwinder shows the outermost frame: not one that its table says can't be unwound.
pub(crate) const LIBGCC_SHOWS_ROOT: bool = false;

/// Whether `_dl_runtime_resolve` has unwind information that is right.
pub(crate) const RESOLVER_HAS_CFI: bool = true;

/// More options for the compiler of fixtures: C code has no tables by itself.
pub(crate) const FLAGS: &[&str] = &["-funwind-tables"];

/// Options by which functions of fixtures have frame pointers: gcc's T32 code has none that lead anywhere.
pub(crate) const WITH_FRAME_POINTERS: &[&str] = &["-fno-omit-frame-pointer", "-marm"];

/// What a walk that starts there takes for the address.
pub(crate) fn address(pc: u64) -> u64 {
    pc & 0xffff_fffe
}

/// Registers of a walk that may start anywhere.
pub(crate) fn registers(pc: u64, sp: u64, fp: u64) -> Registers {
    Registers { pc: pc as u32, sp: sp as u32, r4: [fp as u32; 8] }
}

fn is_t32() -> bool {
    crate::common::loaded_modules as *const () as usize & 1 != 0
}

/// What to call to run the code at this address.
pub(crate) fn entry(code: u64) -> u64 {
    code | u64::from(is_t32())
}

fn code(t32: &[u16], a32: &[u32]) -> Vec<u8> {
    if is_t32() {
        t32.iter().flat_map(|half| half.to_le_bytes()).collect()
    } else {
        a32.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// Makes a frame, and calls its second argument with the first.
pub(crate) fn with_frame() -> Vec<u8> {
    // push {fp, lr}; mov fp, sp; blx r1; pop {fp, pc}
    code(&[0xb580, 0x466f, 0x4788, 0xbd80], &[0xe92d_4800, 0xe1a0_b00d, 0xe12f_ff31, 0xe8bd_8800])
}

/// Makes a frame, and calls its first argument.
pub(crate) fn with_frame_last() -> Vec<u8> {
    // the same with blx r0; in A32 code with r11 where gcc has it: add fp, sp, #4
    code(&[0xb580, 0x466f, 0x4780, 0xbd80], &[0xe92d_4800, 0xe28d_b004, 0xe12f_ff30, 0xe8bd_8800])
}

/// Makes no frame, and calls its first argument.
pub(crate) fn without_frame() -> Vec<u8> {
    // push {r3, lr}; blx r0; pop {r3, pc}
    code(&[0xb508, 0x4780, 0xbd08], &[0xe92d_4008, 0xe12f_ff30, 0xe8bd_8008])
}

/// Calls its first argument with this in the frame pointer's register.
pub(crate) fn with_frame_pointer(value: u64) -> Vec<u8> {
    // push {fp, lr}; movw fp, #low; movt fp, #high; blx r0; pop {fp, pc}
    let (low, high) = (value as u32 & 0xffff, value as u32 >> 16);
    let t32 = |half: u32, first: u16| {
        let first = first | (half >> 12) as u16 | ((half >> 11 & 1) << 10) as u16;
        [first, ((half >> 8 & 7) << 12) as u16 | 7 << 8 | (half & 0xff) as u16]
    };
    let a32 = |half: u32, word: u32| word | (half >> 12) << 16 | 11 << 12 | half & 0xfff;
    let ([a, b], [c, d]) = (t32(low, 0xf240), t32(high, 0xf2c0));
    code(
        &[0xb580, a, b, c, d, 0x4780, 0xbd80],
        &[0xe92d_4800, a32(low, 0xe300_0000), a32(high, 0xe340_0000), 0xe12f_ff30, 0xe8bd_8800],
    )
}
