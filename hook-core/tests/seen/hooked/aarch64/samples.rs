//! Functions of AArch64.

use super::Sample;

// A sample that has nothing to be probed has its label for it at its end.
samples! {
    frame: "stp x29, x30, [sp, #-32]!; .cfi_def_cfa_offset 32; .cfi_offset x29, -32; .cfi_offset x30, -24; mov x29, sp
        .cfi_def_cfa_register x29; str x0, [sp, #24]; seen_frame_probed: ldr x0, [sp, #24]; add x0, x0, #1
        ldp x29, x30, [sp], #32; .cfi_def_cfa sp, 0; .cfi_restore x29; .cfi_restore x30; ret";
    landing_pad: "hint #34; stp x19, x30, [sp, #-16]!; .cfi_def_cfa_offset 16; .cfi_offset x19, -16; .cfi_offset x30, -8
        mov x19, x0; add x0, x19, #1; seen_landing_pad_probed: nop; ldp x19, x30, [sp], #16; .cfi_def_cfa_offset 0
        .cfi_restore x19; .cfi_restore x30; ret";
    signed: "hint #25; .cfi_negate_ra_state; stp x29, x30, [sp, #-16]!; .cfi_def_cfa_offset 16; .cfi_offset x29, -16
        .cfi_offset x30, -8; add x0, x0, #1; seen_signed_probed: nop; ldp x29, x30, [sp], #16; .cfi_def_cfa_offset 0
        .cfi_restore x29; .cfi_restore x30; hint #29; .cfi_negate_ra_state; ret";
    literal: "ldr x1, 9f; nop; nop; seen_literal_probed: prfm pldl1keep, 9f; add x0, x0, x1; ret; .p2align 3; 9: .quad 1";
    early_branch: "cbnz x0, 8f; mov x0, #1; ret; 8: add x0, x0, #1; ret; seen_early_branch_probed:";
    call: "stp x29, x30, [sp, #-16]!; .cfi_def_cfa_offset 16; .cfi_offset x29, -16; .cfi_offset x30, -8; mov x29, sp; nop
        seen_call_probed: bl 8f; add x0, x0, x9; ldp x29, x30, [sp], #16; .cfi_def_cfa_offset 0; .cfi_restore x29
        .cfi_restore x30; ret; .cfi_endproc; .cfi_startproc; 8: mov x9, #1; ret";
    tail: "b seen_tail_to; seen_tail_probed: .cfi_endproc; .cfi_startproc; seen_tail_to: add x0, x0, #1; ret";
}
