//! Faults planted in A32 code.

use super::*;

const NOP: u32 = 0xe320_f000;

fn right<'a>(source: &'a [u8], relocated: &'a [u8], len: usize, map: &'a [(usize, usize)]) -> Right<'a> {
    Right::new(Isa::A32, (0x1000_1000, 0x1010_0000), source, (relocated, len), map)
}

#[test]
fn a_conditional_literal_through_a_spilled_register() {
    // strne r1, [pc, #0xf8]: to 0x1100; adds r3, r3, #1
    let source = and_nops(words(&[0x158f_10f8, 0xe293_3001]), &NOP.to_le_bytes());
    let relocated = words(&[
        0x152d_0004, // pushne {r0}
        0x159f_0010, // ldrne r0, literal
        0x1580_1000, // strne r1, [r0]
        0x149d_0004, // popne {r0}
        0xe293_3001, // adds r3, r3, #1
        0xeafc_03fb, // b 0x1008
        NOP,
        0x1000_1100,
    ]);
    right(&source, &relocated, 28, &[(0, 0), (4, 16), (8, 20)])
        .holds()
        .word(0, 0xe52d_0004) // pushed under no condition
        .word(0, 0x150d_0004) // below the stack pointer
        .word(12, NOP) // not restored
        .word(12, 0x049d_0004) // the condition is inverted
        .word(8, 0xe580_1000) // the condition is lost
        .word(8, 0x1580_2000) // another register
        .word(8, 0x15c0_1000) // a byte only
        .word(8, 0x1580_1004) // 4 bytes too far
        .word(28, 0x1000_1104) // another literal
        .word(16, 0xe283_3001) // flags not set
        .word(16, 0x0293_3001) // a condition too many
        .word(20, 0xeafc_03fc) // back to 4 bytes behind the window's end
        .word(20, 0xebfc_03fb); // a call for a jump
}

#[test]
fn calls_and_interworking() {
    // blx 0x1100 (T32); mov r0, pc; bleq 0x1200
    let source = and_nops(words(&[0xfa00_003e, 0xe1a0_000f, 0x0b00_007c]), &NOP.to_le_bytes());
    let relocated = words(&[
        0xfafc_043e, // blx 0x1100
        0xe59f_0008, // ldr r0, literal
        0x0bfc_047c, // bleq 0x1200
        0xeafc_03fe, // b 0x100c
        NOP,
        0x1000_100c,
    ]);
    right(&source, &relocated, 20, &[(0, 0), (4, 4), (8, 8), (12, 12)])
        .holds()
        .word(0, 0xebfc_043e) // stays in A32
        .word(0, 0xfbfc_043e) // 2 bytes too far
        .word(0, 0xfafc_043f) // another callee
        .word(20, 0x1000_1008) // the address of the instruction, not 8 more
        .word(20, 0x1010_000c) // the PC of the other place
        .word(4, 0xe1a0_000f) // the PC of the other place
        .word(8, 0xebfc_047c) // the condition is lost
        .word(8, 0x1bfc_047c) // and inverted
        .word(8, 0x0afc_047c) // no link
        .word(12, 0xeafc_03fd) // back to the window's last instruction
        .word(4, 0xe59f_1008) // another register
        .word(0, 0xeafc_043e); // no link
}

#[test]
fn a_call_to_the_end() {
    // mov r4, pc; blx r4
    let source = and_nops(words(&[0xe1a0_400f, 0xe12f_ff34]), &NOP.to_le_bytes());
    let relocated = words(&[
        0xe59f_4008, // ldr r4, literal
        0xe12f_ff34, // blx r4
        0xeafc_03fe, // b 0x1008
        NOP,
        0x1000_1008,
    ]);
    right(&source, &relocated, 16, &[(0, 0), (4, 4), (8, 8)])
        .holds()
        .word(4, 0xe12f_ff14) // no link
        .word(4, 0xe12f_ff33) // another register
        .word(16, 0x1000_100c) // behind the window's end
        .fault(4, &words(&[0xe28f_e000, 0xe12f_ff14])) // LR is 4 too far
        .fault(4, &words(&[0xe1a0_e004, 0xe12f_ff14])); // LR is not where the other code goes on
}

#[test]
fn vectors_and_saturation() {
    // vadd.i32 q0, q1, q2; qadd r0, r1, r2; sadd8 r3, r4, r5
    let source = and_nops(words(&[0xf222_0844, 0xe102_0051, 0xe614_3f95]), &NOP.to_le_bytes());
    let relocated = words(&[0xf222_0844, 0xe102_0051, 0xe614_3f95, 0xeafc_03fe]);
    right(&source, &relocated, 16, &[(0, 0), (4, 4), (8, 8), (12, 12)])
        .holds()
        .word(0, 0xf222_2844) // another destination
        .word(0, NOP)
        .word(4, 0xe122_0051) // a subtraction
        .word(8, 0xe654_3f95); // GE unsigned
}

#[test]
fn a_branch_inside_the_window() {
    // beq 0x1008; adds r0, r0, #1; adds r1, r1, #1
    let window = words(&[0x0a00_0000, 0xe290_0001, 0xe291_1001]);
    let source = and_nops(window.clone(), &NOP.to_le_bytes());
    // b 0x100c
    let relocated = [window, words(&[0xeafc_03fe])].concat();
    right(&source, &relocated, 16, &[(0, 0), (4, 4), (8, 8), (12, 12)])
        .holds()
        .word(0, 0x0aff_ffff) // to the next instruction
        .word(0, 0x0afc_0400); // to the original's place, which is patched
}
