//! Functions of 32-bit Arm, those whose names begin with `a32` in A32 and the others in T32. `x` is in R0 and R1.

use super::Sample;

samples! {
    "0",
    frame in ".thumb; .thumb_func": Some(|x| x + 1), "push {{r7, lr}}; add r7, sp, #0; adds r0, #1; adc r1, r1, #0; pop {{r7, pc}}";
    half_aligned in ".thumb; nop; .thumb_func": Some(|x| x + 1), "push {{r7, lr}}; add r7, sp, #0; adds r0, #1; adc r1, r1, #0; pop {{r7, pc}}";
    wide in ".thumb; .thumb_func": Some(|x| x + 2), "adds.w r0, r0, #2; adc r1, r1, #0; bx lr";
    literal in ".thumb; .thumb_func": Some(|x| x + 40), "ldr r2, 9f; adds r0, r0, r2; adc r1, r1, #0; bx lr; .p2align 2; 9: .long 40";
    address in ".thumb; .thumb_func": Some(|x| x + 5), "adr r2, 9f; ldr r2, [r2]; adds r0, r0, r2; adc r1, r1, #0; bx lr; nop; .p2align 2; 9: .long 5";
    early_branch in ".thumb; .thumb_func": Some(|x| if x == 0 { 9 } else { x }), "cmp r0, #0; beq 8f; bx lr; 8: movs r0, #9; bx lr";
    compare_and_branch in ".thumb; .thumb_func": Some(|x| if x == 0 { 9 } else { x }), "cbz r0, 8f; nop; bx lr; 8: movs r0, #9; bx lr";
    jump_first in ".thumb; .thumb_func": Some(|x| x + 12), "b.w 8f; udf #0; 8: adds r0, #12; adc r1, r1, #0; bx lr";
    call in ".thumb; .thumb_func": Some(|x| x + 11), "push {{r4, lr}}; bl 8f; adds r0, r0, r4; adc r1, r1, #0; pop {{r4, pc}}; 8: movs r4, #11; bx lr";
    call_of_a32 in ".thumb; .thumb_func": Some(|x| x + 1), "push {{r4, lr}}; blx 8f; pop {{r4, pc}}; .arm; .p2align 2; 8: adds r0, r0, #1; adc r1, r1, #0; bx lr; .thumb";
    get_pc in ".thumb; .thumb_func": Some(|x| x), "mov r2, pc; adr r3, 8f; .p2align 2; 8: subs r2, r2, r3; adds r0, r0, r2; adc r1, r1, #0; bx lr";
    block in ".thumb; .thumb_func": Some(|x| u64::from(x > 10)), "cmp r0, #10; ite hi; movhi r0, #1; movls r0, #0; movs r1, #0; bx lr";
    block_of_branches in ".thumb; .thumb_func": Some(|x| if x > 10 { x } else { 7 }), "cmp r0, #10; it hi; bxhi lr; movs r0, #7; bx lr";
    table in ".thumb; .thumb_func": Some(|x| if x == 0 { 3 } else { x }), "cmp r0, #1; bhs 8f; tbb [pc, r0]; 7: .byte (6f - 7b) / 2, 0; 6: movs r0, #3; 8: bx lr";
    tail_through_memory in ".thumb; .thumb_func": Some(|x| x + 1), "ldr r3, 9f; 7: add r3, pc; ldr r3, [r3]; bx r3; .p2align 2; 9: .long 6f - (7b + 4); .pushsection .data.rel.ro, \"aw\", %progbits; .p2align 2; 6: .long sample_frame; .popsection";
    system_call in ".thumb; .thumb_func": Some(|_| u64::from(std::process::id())), "mov r2, r7; movs r7, #20; svc #0; mov r7, r2; movs r1, #0; bx lr";
    compact in ".thumb; .thumb_func": Some(|x| x + 1), "adds r0, #1; adc r1, r1, #0; bx lr";
    just_ret in ".thumb; .thumb_func": Some(|x| x), "bx lr; nop";
    breakpoint in ".thumb; .thumb_func": None, "bkpt #7; bx lr";
    undefined in ".thumb; .thumb_func": None, ".short 0xb600, 0xb600, 0xb600";
    a32_frame in ".arm": Some(|x| x + 1), "push {{r11, lr}}; add r11, sp, #4; adds r0, r0, #1; adc r1, r1, #0; pop {{r11, pc}}";
    a32_literal in ".arm": Some(|x| x + 41), "ldr r2, 9f; adds r0, r0, r2; adc r1, r1, #0; bx lr; 9: .long 41";
    a32_address in ".arm": Some(|x| x + 6), "adr r2, 9f; ldr r2, [r2]; adds r0, r0, r2; adc r1, r1, #0; bx lr; 9: .long 6";
    a32_get_pc in ".arm": Some(|x| x), "mov r2, pc; adr r3, 8f; 8: sub r2, r2, r3; adds r0, r0, r2; adc r1, r1, #0; bx lr";
    a32_jump_first in ".arm": Some(|x| x + 12), "b 8f; udf #0; 8: adds r0, r0, #12; adc r1, r1, #0; bx lr";
    a32_to_t32 in ".arm": Some(|x| x + 13), "add r12, pc, #1; bx r12; .thumb; adds r0, #13; adc r1, r1, #0; bx lr; .arm";
    a32_far_jump in ".arm": Some(|x| x + 14), "ldr r3, 9f; 7: add r3, pc, r3; bx r3; 9: .long 8f - (7b + 8); 8: adds r0, r0, #14; adc r1, r1, #0; bx lr";
    a32_pc_added in ".arm": Some(|x| x + 15), "add r3, pc, #4; bx r3; udf #0; adds r0, r0, #15; adc r1, r1, #0; bx lr";
    a32_just_ret in ".arm": Some(|x| x), "bx lr";
    a32_breakpoint in ".arm": None, "bkpt #7; bx lr";
}
