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
    nonzero_branch in ".thumb; .thumb_func": Some(|x| if x == 0 { 9 } else { x }), "cbnz r0, 8f; nop; movs r0, #9; bx lr; 8: bx lr";
    wide_branch in ".thumb; .thumb_func": Some(|x| x), "beq.w 8f; bx lr; nop; 8: bx lr";
    literal_wide in ".thumb; .thumb_func": Some(|x| x + 42), "ldr.w r2, 9f; adds r0, r0, r2; adc r1, r1, #0; bx lr; .p2align 2; 9: .long 42";
    literal_pair in ".thumb; .thumb_func": Some(|x| x + 43), "ldrd r2, r3, 9f; adds r0, r0, r2; adcs r1, r3; bx lr; .p2align 2; 9: .long 43, 0";
    literal_vector in ".thumb; .fpu neon; .thumb_func": Some(|x| x + 44), "vldr d16, 9f; vmov r2, r3, d16; adds r0, r0, r2; adcs r1, r3; bx lr; .p2align 2; 9: .long 44, 0";
    pc_added in ".thumb; .thumb_func": Some(|x| x + 45), "ldr r3, 9f; 7: add r3, pc; bx r3; .p2align 2; 9: .long 8f - (7b + 4) + 1; 8: adds r0, #45; adc r1, r1, #0; bx lr";
    to_a32 in ".thumb; .thumb_func": Some(|x| x + 46), "bx pc; nop; .arm; adds r0, r0, #46; adc r1, r1, #0; bx lr; .thumb";
    block_of_four in ".thumb; .thumb_func": Some(|x| if x > 10 { 3 } else { 7 }), "cmp r0, #10; ittee hi; movhi r2, #1; movhi r3, #2; movls r2, #3; movls r3, #4; adds r0, r2, r3; movs r1, #0; bx lr";
    block_with_literal in ".thumb; .thumb_func": Some(|x| if x > 10 { x + 47 } else { x }), "cmp r0, #10; ite hi; ldrhi r2, 9f; movls r2, #0; adds r0, r0, r2; adc r1, r1, #0; bx lr; .p2align 2; 9: .long 47";
    block_with_jump in ".thumb; .thumb_func": Some(|x| if x > 10 { x } else { 7 }), "cmp r0, #10; it hi; bhi.w 8f; movs r0, #7; bx lr; 8: bx lr";
    block_with_call in ".thumb; .thumb_func": Some(|x| if x > 10 { x + 1 } else { x }), "cmp r0, #10; itt hi; movhi r3, lr; blhi 8f; it hi; movhi lr, r3; bx lr; 8: add.w r0, r0, #1; bx lr";
    table_of_halfwords in ".thumb; .thumb_func": Some(|x| if x == 0 { 3 } else { x }), "cmp r0, #1; bhs 8f; tbh [pc, r0, lsl #1]; 7: .short (6f - 7b) / 2, 0; 6: movs r0, #3; 8: bx lr";
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
    a32_literal_pair in ".arm": Some(|x| x + 50), "ldrd r2, r3, 9f; adds r0, r0, r2; adc r1, r1, r3; bx lr; 9: .long 50, 0";
    a32_literal_halfword in ".arm": Some(|x| x + 51), "ldrh r2, 9f; adds r0, r0, r2; adc r1, r1, #0; bx lr; 9: .long 51";
    a32_literal_vector in ".arm; .fpu neon": Some(|x| x + 52), "vldr d16, 9f; vmov r2, r3, d16; adds r0, r0, r2; adc r1, r1, r3; bx lr; 9: .long 52, 0";
    a32_condition in ".arm": Some(|x| x + 53), "ldrhi r2, 9f; ldrls r2, 9f; adds r0, r0, r2; adc r1, r1, #0; bx lr; 9: .long 53";
    a32_flags_branch in ".arm": Some(|x| x), "beq 8f; bx lr; 8: bx lr";
    a32_call in ".arm": Some(|x| x + 54), "push {{r4, lr}}; mov r4, #0; bl 8f; adds r0, r0, r4; adc r1, r1, #0; pop {{r4, pc}}; 8: mov r4, #54; bx lr";
    a32_call_of_t32 in ".arm": Some(|x| x + 55), "push {{r4, lr}}; mov r4, #0; blx 8f; adds r0, r0, r4; adc r1, r1, #0; pop {{r4, pc}}; .thumb; 8: movs r4, #55; bx lr; .arm";
    a32_system_call in ".arm": Some(|_| u64::from(std::process::id())), "mov r2, r7; mov r7, #20; mov r1, #0; svc #0; mov r7, r2; mov r1, #0; bx lr";
    a32_breakpoint in ".arm": None, "bkpt #7; bx lr";
}
