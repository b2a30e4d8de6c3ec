//! Functions of AArch64.

use super::Sample;

samples! {
    "0",
    frame: Some(|x| x + 1), "stp x29, x30, [sp, #-32]!; mov x29, sp; str x0, [sp, #24]; ldr x0, [sp, #24]; add x0, x0, #1; ldp x29, x30, [sp], #32; ret";
    landing_pad: Some(|x| x + 2), "hint #34; stp x19, x30, [sp, #-16]!; mov x19, x0; add x0, x19, #2; ldp x19, x30, [sp], #16; ret";
    landing_pad_short: Some(|x| x), "hint #34; ret";
    signed: Some(|x| x + 3), "hint #25; stp x29, x30, [sp, #-16]!; add x0, x0, #3; ldp x29, x30, [sp], #16; hint #29; ret";
    landing_pad_for_all: Some(|x| x + 8), "hint #38; add x0, x0, #8; ret";
    signed_with_the_other_key: Some(|x| x + 9), "hint #27; stp x29, x30, [sp, #-16]!; add x0, x0, #9; ldp x29, x30, [sp], #16; hint #31; ret";
    literal: Some(|x| x + 40), "ldr x1, 9f; add x0, x1, x0; ret; .p2align 3; 9: .quad 40";
    literal_word: Some(|x| x.wrapping_sub(3)), "ldrsw x1, 9f; add x0, x1, x0; ret; 9: .word -3";
    literal_vector: Some(|x| x + 41), "ldr d0, 9f; fmov x1, d0; add x0, x1, x0; ret; .p2align 3; 9: .quad 41";
    prefetch: Some(|x| x + 6), "prfm pldl1keep, 9f; add x0, x0, #6; ret; .p2align 3; 9: .quad 0";
    address: Some(|x| x + 5), "adr x1, 9f; ldr x1, [x1]; add x0, x0, x1; ret; .p2align 3; 9: .quad 5";
    page: Some(|x| x + 7), "adrp x1, 9f; ldr x1, [x1, :lo12:9f]; add x0, x0, x1; ret; .pushsection .rodata.samples, \"a\", %progbits; .p2align 3; 9: .quad 7; .popsection";
    early_branch: Some(|x| if x == 0 { 9 } else { x }), "cbz x0, 8f; ret; 8: mov x0, #9; ret";
    bit_branch: Some(|x| x & !1), "tbz x0, #0, 8f; sub x0, x0, #1; 8: ret";
    nonzero_branch: Some(|x| if x == 0 { 9 } else { x }), "cbnz x0, 8f; mov x0, #9; 8: ret";
    set_bit_branch: Some(|x| x | 1), "tbnz x0, #0, 8f; add x0, x0, #1; 8: ret";
    flags_branch: Some(|x| x), "b.eq 8f; ret; 8: ret";
    jump_first: Some(|x| x + 12), "b 8f; udf #0; 8: add x0, x0, #12; ret";
    call: Some(|x| x + 11), "mov x9, x30; bl 8f; add x0, x0, x10; mov x30, x9; ret; 8: mov x10, #11; ret";
    get_pc: Some(|x| x), "mov x9, x30; bl 8f; 8: adr x10, 8b; sub x10, x10, x30; add x0, x0, x10; mov x30, x9; ret";
    tail_through_memory: Some(|x| x + 1), "adrp x16, 9f; ldr x16, [x16, :lo12:9f]; br x16; .pushsection .data.rel.ro, \"aw\", %progbits; .p2align 3; 9: .quad sample_frame; .popsection";
    system_call: Some(|_| u64::from(std::process::id())), "mov x8, #172; svc #0; ret";
    wide_immediate: Some(|x| x ^ 0x1234_5678_9abc_def0), "movz x1, #0xdef0; movk x1, #0x9abc, lsl #16; movk x1, #0x5678, lsl #32; movk x1, #0x1234, lsl #48; eor x0, x0, x1; ret";
    compact: Some(|x| x + 1), "add x0, x0, #1; ret";
    flags_kept: Some(|x| u64::from(x > 10)), "cmp x0, #10; cset x0, hi; ret";
    veneer_registers: Some(|x| x + 17), "mov x16, #8; mov x17, #9; add x0, x0, x16; add x0, x0, x17; ret";
    just_ret: Some(|x| x), "ret";
    undefined: None, ".word 0x12345";
}
