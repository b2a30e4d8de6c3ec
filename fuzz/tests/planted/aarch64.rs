//! Faults planted in AArch64 code.

use super::*;

const NOP: u32 = 0xd503_201f;

fn right<'a>(source: &'a [u8], relocated: &'a [u8], len: usize, map: &'a [(usize, usize)]) -> Right<'a> {
    Right::new(Isa::Aarch64, (0x5500_0000_1000, 0x5500_0010_0000), source, (relocated, len), map)
}

#[test]
fn a_literal_through_a_spilled_register() {
    // ldr x0, 0x1100; subs x3, x3, #1
    let source = and_nops(words(&[0x5800_0800, 0xf100_0463]), &NOP.to_le_bytes());
    let relocated = words(&[
        0xf81f_0fe1, // str x1, [sp, #-16]!
        0x5800_00c1, // ldr x1, literal
        0xf940_0020, // ldr x0, [x1]
        0xf841_07e1, // ldr x1, [sp], #16
        0xf100_0463, // subs x3, x3, #1
        0x17fc_03fd, // b 0x1008
        NOP,
        0x0000_1100, // 0x5500_0000_1100
        0x0000_5500,
    ]);
    right(&source, &relocated, 28, &[(0, 0), (4, 16), (8, 20)])
        .holds()
        .word(0, 0xf81f_03e1) // below the stack pointer: stur x1, [sp, #-16]
        .word(0, NOP) // restored, but not kept
        .word(12, NOP) // kept, but not restored
        .word(12, 0xf840_07e1) // the stack pointer stays moved
        .word(8, 0xaa01_03e0) // the address instead of the value
        .word(8, 0xb940_0020) // 32 bits only
        .word(8, 0xf940_0420) // 8 bytes too far
        .word(28, 0x0000_1104) // another literal
        .word(32, 0) // no high bits
        .word(16, 0xd100_0463) // flags not set
        .word(16, 0xf100_0863) // another operand
        .word(20, 0x17fc_03fe) // back to 4 bytes behind the window's end
        .word(20, 0x17fc_03fc) // back to its last instruction
        .fault(8, &words(&[0x5800_00a0, 0xf841_07e1])); // the value of a literal of its own
}

#[test]
fn conditions_and_calls() {
    // b.eq 0x1080; bl 0x1100; tbz w2, #3, 0x1000; mov x4, x30
    let source = and_nops(words(&[0x5400_0400, 0x9400_003f, 0x361f_ffc2, 0xaa1e_03e4]), &NOP.to_le_bytes());
    let relocated = words(&[
        0x5400_0041, // b.ne +8
        0x17fc_041f, // b 0x1080
        0x97fc_043e, // bl 0x1100
        0x361f_ffa2, // tbz w2, #3, start
        0xaa1e_03e4, // mov x4, x30
        0x17fc_03ff, // b 0x1010
    ]);
    right(&source, &relocated, 24, &[(0, 0), (4, 8), (8, 12), (12, 16), (16, 20)])
        .holds()
        .word(0, 0x5400_0040) // the condition is not inverted
        .word(0, NOP) // no condition
        .word(4, 0x17fc_0420) // 4 bytes too far
        .word(8, 0x17fc_043e) // no link
        .word(8, 0x97fc_043f) // another callee
        .word(12, 0x371f_ffa2) // tbnz
        .word(12, 0x3617_ffa2) // another bit
        .word(12, 0x361f_ffc2) // another target
        .word(12, 0x36ff_ffa2) // bit 31
        .word(16, 0xaa1e_03e5) // another register
        .word(20, 0x97fc_03ff) // a call for a jump
        .fault(8, &words(&[0x5800_009e, 0x17fc_043d, 0x361f_ff82])); // the link register from elsewhere
}

#[test]
fn a_declared_clobber_is_all_that_may_change() {
    // cbz x0, 0x1080
    let source = and_nops(words(&[0xb400_0400]), &NOP.to_le_bytes());
    let relocated = words(&[
        0xb500_0060, // cbnz x0, +12
        0x5800_00b1, // ldr x17, 0x1080
        0xd61f_0220, // br x17
        0x5800_00b1, // ldr x17, 0x1004
        0xd61f_0220, // br x17
        NOP,
        0x0000_1080,
        0x0000_5500,
        0x0000_1004,
        0x0000_5500,
    ]);
    let mut right = right(&source, &relocated, 24, &[(0, 0), (4, 12)]);
    right.clobbers = 1 << 17;
    right
        .holds()
        .fault(4, &words(&[0x5800_00b0, 0xd61f_0200])) // x16
        .word(0, 0xb500_0061) // another register
        .word(0, 0xb400_0060) // the other way
        .word(28, 0) // no high bits
        .word(24, 0x0000_1081) // not aligned
        .word(8, 0xd63f_0220); // a call
    right.clobbers = 0;
    assert!(matches!(right.verdict(&relocated), Verdict::Mismatch(_)));
}

#[test]
fn vectors_and_control() {
    // fadd v0.4s, v1.4s, v2.4s
    let source = and_nops(words(&[0x4e22_d420]), &NOP.to_le_bytes());
    let relocated = words(&[0x4e22_d420, 0x17fc_0400]);
    right(&source, &relocated, 8, &[(0, 0), (4, 4)])
        .holds()
        .word(0, 0x4e22_d423) // another destination
        .word(0, 0x0e22_d420) // half of it
        .word(0, NOP);
}

#[test]
fn a_branch_inside_the_window() {
    // b.eq 0x1008; adds x0, x0, #1; adds x1, x1, #1
    let window = words(&[0x5400_0040, 0xb100_0400, 0xb100_0421]);
    let source = and_nops(window.clone(), &NOP.to_le_bytes());
    // b 0x100c
    let relocated = [window, words(&[0x17fc_0400])].concat();
    right(&source, &relocated, 16, &[(0, 0), (4, 4), (8, 8), (12, 12)])
        .holds()
        .word(0, 0x5400_0020) // to the next instruction
        .word(0, 0x5480_8040); // to the original's place, which is patched
}
