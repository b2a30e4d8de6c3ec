//! What relocated code changes is read by nobody: the judge of this sees a read that the relocator could not know of.
//! Code is relocated where a register is overwritten ahead, and is then held against the same window where it is read.
#![cfg(feature = "capstone")]

use grapnel_fuzz::{
    case::Case,
    oracle::{Subject, Verdict, second::Second},
};
use grapnel_relocator::{CodeAddr, Isa, WindowOptions};

const A64_RET: u32 = 0xd65f_03c0;
const A32_BX_LR: u32 = 0xe12f_ff1e;

fn case(isa: Isa, window: &[u32], ahead: &[u32]) -> Case {
    let source = window.iter().chain(ahead).flat_map(|word| word.to_le_bytes()).collect();
    let (from, to) =
        if isa == Isa::Aarch64 { (0x5500_0000_1000, 0x7f00_0000_0000) } else { (0x2000_1000, 0x6000_1000) };
    Case {
        about: Vec::new(),
        isa,
        from: CodeAddr(from),
        to: CodeAddr(to),
        min_len: window.len() * 4,
        options: WindowOptions { entry: false, ..WindowOptions::default() },
        source,
    }
}

/// A register is dead in the code ahead, and holds something in each of the others.
#[track_caller]
fn told_apart(isa: Isa, window: &[u32], dead: &[u32], live: &[&[u32]]) {
    let second = Second::new().unwrap();
    let dead = case(isa, window, dead);
    let (own, relocated) = dead.relocate().unwrap();
    assert!(!relocated.clobbers().is_empty(), "no register is changed");
    let right = Subject { case: &dead, window: &own, relocated: &relocated };
    assert_eq!(second.judge_changed(&right), Verdict::Same);
    for ahead in live {
        let live = case(isa, window, ahead);
        let verdict = second.judge_changed(&Subject { case: &live, ..right });
        assert!(matches!(verdict, Verdict::Mismatch(_)), "{verdict:?} for {ahead:08x?}");
    }
}

#[test]
fn a_jump_of_aarch64_through_a_register() {
    // add x1, x1, #1; ahead mov x17, #1
    told_apart(
        Isa::Aarch64,
        &[0x9100_0421],
        &[0xd280_0031, A64_RET],
        &[
            &[0xaa11_03e0, 0xd280_0031, A64_RET],              // mov x0, x17
            &[0xf900_03f1, 0xd280_0031, A64_RET],              // str x17, [sp]
            &[0xf280_0031, 0xd280_0031, A64_RET],              // movk x17, #1
            &[0xf940_0220, 0xd280_0031, A64_RET],              // ldr x0, [x17]
            &[0x9a80_0220, 0xd280_0031, A64_RET],              // csel x0, x17, x0, eq
            &[0x5400_0040, 0xd280_0031, 0xaa11_03e0, A64_RET], // b.eq past the mov, mov x0, x17
            &[0xb400_0052, 0xd280_0031, 0xd61f_0060],          // cbz x18 past the mov, br x3
            &[0xd63f_0060, 0xd280_0031, A64_RET],              // blr x3
            &[0xd61f_0060],                                    // br x3
            &[0x97ff_ffff, 0xd280_0031, A64_RET],              // bl to the window
            &[0xd503_201f],                                    // nop, and nothing more is seen
        ],
    );
}

/// BRKA of SVE begins like a branch's name, and goes on.
#[test]
fn a_name_that_begins_like_a_branch() {
    // add x1, x1, #1; ahead brka p10.b, p1/m, p14.b
    told_apart(
        Isa::Aarch64,
        &[0x9100_0421],
        &[0x2510_45da, 0xd280_0031, A64_RET],
        &[&[0x2510_45da, 0xaa11_03e0, 0xd280_0031, A64_RET]],
    );
}

#[test]
fn a_literal_of_aarch64_through_a_register() {
    // ldr d0, 0x1100; ret; ahead of it x3 alone is dead: mov x3, #1 on the way, and all others are passed on
    let passes_on = 0xd61f_0060;
    told_apart(
        Isa::Aarch64,
        &[0x5c00_0800],
        &[0xd280_0023, passes_on],
        &[
            &[0xb100_0463, passes_on],              // adds x3, x3, #1
            &[0xb340_0c03, passes_on],              // bfxil x3, x0, #0, #4
            &[0xf821_0063, passes_on],              // ldadd x1, x3, [x3]
            &[0xd400_0001, 0xd280_0023, passes_on], // svc #0
            &[A64_RET],
        ],
    );
}

#[test]
fn a_store_of_a32_through_a_register() {
    // str r1, [pc, #0x942]; ahead mov r12, #1
    let passes_on = 0xe12f_ff13;
    told_apart(
        Isa::A32,
        &[0xe58f_1942],
        &[0xe3a0_c001, passes_on],
        &[
            &[0xe1a0_000c, 0xe3a0_c001, passes_on], // mov r0, r12
            &[0x03a0_c001, passes_on],              // moveq r12, #1
            &[0xe92d_1000, 0xe3a0_c001, passes_on], // push {r12}
            &[0xe79c_0100, 0xe3a0_c001, passes_on], // ldr r0, [r12, r0, lsl #2]
            &[0xe340_c001, passes_on],              // movt r12, #1
            &[0x0a00_0000, 0xe3a0_c001, passes_on], // beq past the mov
            &[passes_on],                           // bx r3
            &[0xe320_f000],                         // nop, and nothing more is seen
        ],
    );
}

/// QADD and its kin have no register in the field that holds the amount of a shift.
#[test]
fn a_saturating_sum_of_a32_has_two_operands() {
    let passes_on = 0xe12f_ff13;
    // str r1, [pc, #0x942]; ahead qdsub r11, r6, r4, of which the field is 0, and eor r11, r6, r4, lsl r0
    told_apart(
        Isa::A32,
        &[0xe58f_1942],
        &[0xe164_b056, 0xe3a0_0001, 0xe3a0_c001, passes_on],
        &[&[0xe164_bc56, passes_on], &[0xe026_bc14, 0xe3a0_c001, passes_on]],
    );
}

#[test]
fn a_call_or_return_of_a32_passes_nothing_in_r12() {
    let window = [0xe58f_1942];
    let second = Second::new().unwrap();
    let dead = case(Isa::A32, &window, &[0xe3a0_c001, A32_BX_LR]);
    let (own, relocated) = dead.relocate().unwrap();
    for passes in [A32_BX_LR, 0xeb00_0100, 0xe49d_f004] {
        let case = case(Isa::A32, &window, &[passes]);
        let subject = Subject { case: &case, window: &own, relocated: &relocated };
        let verdict = second.judge_changed(&subject);
        // ldr pc, [sp], #4 is a return as pop is.
        assert_eq!(verdict, Verdict::Same, "{passes:08x}");
    }
}

/// Nothing in T32 needs a register for itself, so none may be declared.
#[test]
fn any_register_of_t32() {
    let dead = case(Isa::Aarch64, &[0x9100_0421], &[0xd280_0031, A64_RET]);
    let (_, relocated) = dead.relocate().unwrap();
    let t32 = Case { isa: Isa::T32, from: CodeAddr(0x2000_1000), to: CodeAddr(0x6000_1000), ..dead };
    let (window, own) = t32.relocate().unwrap();
    let second = Second::new().unwrap();
    let verdict = |relocated| second.judge_changed(&Subject { case: &t32, window: &window, relocated });
    assert_eq!(verdict(&own), Verdict::Same);
    assert!(matches!(verdict(&relocated), Verdict::Mismatch(_)));
}
