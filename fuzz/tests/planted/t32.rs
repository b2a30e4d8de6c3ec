//! Faults planted in T32 code.

use super::*;

const NOP: u16 = 0xbf00;

fn right<'a>(source: &'a [u8], relocated: &'a [u8], len: usize, map: &'a [(usize, usize)]) -> Right<'a> {
    Right::new(Isa::T32, (0x1000_1000, 0x1000_2000), source, (relocated, len), map)
}

#[test]
fn an_it_block() {
    // itte eq; addeq r0, r0, #1; ldreq r1, 0x1100; movne r2, #7
    let source = and_nops(halves(&[0xbf06, 0x1c40, 0x493e, 0x2207]), &NOP.to_le_bytes());
    let relocated = halves(&[
        0xbf06, // itte eq
        0x1c40, // addeq r0, r0, #1
        0x4902, // ldreq r1, literal
        0x2207, // movne r2, #7
        0xbf08, // it eq
        0x6809, // ldreq r1, [r1]
        0xf7fe, // b.w 0x1008
        0xbffc, //
        0x1100, 0x1000,
    ]);
    right(&source, &relocated, 16, &[(0, 0), (2, 0), (4, 0), (6, 0), (8, 12)])
        .holds()
        .half(0, 0xbf0a) // the other way round for the second
        .half(0, NOP) // no block: flags change
        .half(0, 0xbf16) // ne first
        .half(2, 0x1c80) // another operand
        .half(4, 0x4903) // another literal
        .half(6, 0x2208) // another value
        .half(8, NOP) // the condition of the load is lost
        .half(8, 0xbf18) // and inverted
        .half(10, 0x6849) // 4 bytes too far
        .half(10, 0x7809) // a byte only
        .half(16, 0x1104) // another literal
        .half(14, 0xbffb) // back to 2 bytes before the window's end
        .half(14, 0xbffd); // and behind it
}

#[test]
fn calls_and_interworking() {
    // blx r3; bl 0x1100; bx r4
    let source = and_nops(halves(&[0x4798, 0xf000, 0xf87d, 0x4720]), &NOP.to_le_bytes());
    let relocated = halves(&[0x4798, 0xf7ff, 0xf87d, 0x4720, 0xf7fe, 0xbffe]);
    right(&source, &relocated, 12, &[(0, 0), (2, 2), (6, 6), (8, 8)])
        .holds()
        .half(0, 0x4790) // another register
        .half(0, 0x4718) // no link
        .half(4, 0xf87e) // 2 bytes too far
        .half(4, 0xe87c) // to A32
        .half(4, 0xb87d) // no link
        .half(6, 0x4728) // another register
        .half(6, 0x46a7); // mov pc, r4: stays in T32
}

#[test]
fn spills_and_flags() {
    // ldrh r0, 0x1080; cmp r0, #4
    let source = and_nops(halves(&[0xf8bf, 0x007c, 0x2804]), &NOP.to_le_bytes());
    let relocated = halves(&[
        0xb402, // push {r1}
        0x4903, // ldr r1, literal
        0x8808, // ldrh r0, [r1]
        0xbc02, // pop {r1}
        0x2804, // cmp r0, #4
        0xf7fe, // b.w 0x1006
        0xbffc, //
        NOP, 0x1080, 0x1000,
    ]);
    right(&source, &relocated, 16, &[(0, 0), (4, 8), (6, 10)])
        .holds()
        .half(0, 0xb404) // another register is kept
        .half(0, NOP) // nothing is kept
        .half(6, NOP) // nothing is restored
        .half(6, 0xb001) // the stack pointer alone
        .half(4, 0x8848) // 2 bytes too far
        .half(4, 0x5e48) // signed, with an index
        .half(4, 0x7808) // a byte only
        .half(8, 0x4288) // other flags
        .half(8, 0x3804) // a subtraction
        .half(12, 0xbffd) // 2 bytes too far
        .half(16, 0x1082); // another literal
}

#[test]
fn a_branch_inside_the_window() {
    // beq 0x1004; adds r0, r0, #1; adds r1, r1, #1
    let source = and_nops(halves(&[0xd000, 0x1c40, 0x1c49]), &NOP.to_le_bytes());
    // beq.w 0x2006; adds r0, r0, #1; adds r1, r1, #1; b.w 0x1006
    let relocated = halves(&[0xf000, 0x8001, 0x1c40, 0x1c49, 0xf7fe, 0xbffd]);
    right(&source, &relocated, 12, &[(0, 0), (2, 4), (4, 6), (6, 8)])
        .holds()
        .half(2, 0x8000) // 2 bytes short
        .fault(0, &halves(&[0xf43f, 0xa800])); // to the original's place, which is patched
}
