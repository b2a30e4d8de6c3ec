//! What callers of A32 rely on beyond the bytes of single cases, which are in the filetests.

use grapnel_relocator::{
    CodeAddr, Error, Isa, MAX_EMITTED, Origin, RelocationPlan, Window,
    flow::{self, Reason, Surroundings, Verdict},
    redirect,
};

const FROM: CodeAddr = CodeAddr(0x1000_0000);
const NEAR: CodeAddr = CodeAddr(0x1010_0000);
const FAR: CodeAddr = CodeAddr(0x8000_0000);

fn code(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn plan(words: &[u32], min_len: usize) -> RelocationPlan {
    RelocationPlan::new(&Window::decode(Isa::A32, FROM, &code(words), min_len).unwrap()).unwrap()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn an_ordinary_prologue_is_copied_and_jumps_back() {
    // push {r4, lr}; sub sp, sp, #8
    let relocated = plan(&[0xe92d_4010, 0xe24d_d008], 8).emit(NEAR).unwrap();
    // 0x10000008 is 0x100008 before the branch, and 0x100010 before what it counts from.
    assert_eq!(words(relocated.bytes()), [0xe92d_4010, 0xe24d_d008, 0xeafb_fffe]);
    assert!(relocated.resumes() && relocated.clobbers().is_empty() && relocated.literals().is_empty());
    assert_eq!(relocated.map().iter().collect::<Vec<_>>(), [(0, 0), (4, 4), (8, 8)]);
    assert_eq!(relocated.map().to_original(6), Some(Origin { offset: 4, exact: false }));
}

#[test]
fn the_reach_is_exactly_what_emits_near_forms() {
    // push {r4, lr}; bl .+0x100; nop
    let plan = plan(&[0xe92d_4010, 0xeb00_003e, 0xe1a0_0000], 12);
    let reach = plan.reach();
    assert_eq!((reach.lo.0 % 4, reach.hi.0 % 4), (0, 0));
    for to in [reach.lo, reach.hi] {
        let relocated = plan.emit(to).unwrap();
        assert!(relocated.literals().is_empty(), "{to}");
    }
    for to in [reach.lo.offset(-4), reach.hi.add(4)] {
        assert!(!plan.emit(to).unwrap().literals().is_empty(), "{to}");
    }
}

#[test]
fn no_plan_outgrows_its_bound_or_the_buffer() {
    // push {fp, pc} and addls pc, pc, r3, lsl #2, the instructions that grow most.
    for grows in [0xe92d_8800, 0x908f_f103, 0x115f_0000] {
        let plan = plan(&[grows; 8], 4);
        let len = plan.emit(FAR).unwrap().bytes().len();
        assert!(len <= plan.max_len(), "{len} {}", plan.max_len());
        assert!(plan.max_len() * 8 <= MAX_EMITTED, "{}", plan.max_len());
    }
}

#[test]
fn code_is_at_multiples_of_four_below_four_gib() {
    let refused = Window::decode(Isa::A32, FROM.add(2), &code(&[0xe1a0_0000; 4]), 4).unwrap_err();
    assert_eq!((refused.kind(), refused.at()), ("misaligned", FROM.add(2)));
    let plan = plan(&[0xe92d_4010], 4);
    assert!(matches!(plan.emit(NEAR.add(1)), Err(Error::Misaligned { .. })));
    for to in [CodeAddr(1 << 32), CodeAddr((1 << 32) - 4)] {
        assert!(matches!(plan.emit(to), Err(Error::BeyondAddressSpace { .. })), "{to}");
    }
    assert!(plan.emit(plan.required_reach().hi).is_ok());
}

#[test]
fn redirects_reach_what_their_fields_hold() {
    let near = |to| redirect::near(Isa::A32, FROM, to).map(|bytes| words(&bytes));
    assert_eq!(near(FROM.add(8)).unwrap(), [0xea00_0000]);
    assert_eq!(near(FROM.add(8 + (1 << 25) - 4)).unwrap(), [0xea7f_ffff]);
    assert_eq!(near(FROM.offset(8 - (1 << 25))).unwrap(), [0xea80_0000]);
    assert!(near(FROM.add(8 + (1 << 25))).is_err() && near(FROM.add(2)).is_err() && near(FAR).is_err());
    let far = redirect::absolute(Isa::A32, FROM, FAR).unwrap();
    assert_eq!(words(&far), [0xe51f_f004, 0x8000_0000]);
    assert!(redirect::absolute(Isa::A32, FROM, CodeAddr(1 << 32)).is_err());
    assert!(redirect::absolute(Isa::A32, FROM, FAR.add(1)).is_err());
}

#[test]
fn calls_are_told_and_get_pc_is_none() {
    // bl .+0x100; blx r3; nop; and without the last, where the second returns to the original; bl to the next instruction
    assert_eq!(plan(&[0xeb00_003e, 0xe12f_ff33, 0xe1a0_0000], 12).calls().collect::<Vec<_>>(), [0, 4]);
    assert_eq!(plan(&[0xeb00_003e, 0xe12f_ff33], 8).calls().collect::<Vec<_>>(), [0]);
    assert_eq!(plan(&[0xebff_ffff], 4).calls().count(), 0);
}

fn check(words: &[u32], window_len: usize) -> Verdict {
    flow::check(Isa::A32, &code(words), FROM, window_len)
}

#[test]
fn a_branch_back_into_the_window_is_found() {
    // mov r2, r0; ldrb r3, [r2], #1; cmp r3, #0; bne .-8; sub r0, r2, r0; bx lr
    let words = [0xe1a0_2000, 0xe4d2_3001, 0xe353_0000, 0x1aff_fffc, 0xe042_0000, 0xe12f_ff1e];
    assert_eq!(check(&words, 4), Verdict::Proven);
    assert!(matches!(check(&words, 8), Verdict::Refused(branch) if branch.at == FROM.add(12)));
    assert_eq!(check(&words, 16), Verdict::Proven);
}

#[test]
fn what_can_not_be_seen_is_assumed() {
    // ldr r3, [r0]; bx r3
    let tail = check(&[0xe590_3000, 0xe12f_ff13], 4);
    assert!(matches!(tail, Verdict::Assumed(Reason::IndirectJump(jump)) if jump.at == FROM.add(4)));
    // subs r0, r0, #1; bne to the start; bx lr
    let turn = check(&[0xe250_0001, 0x1aff_fffd, 0xe12f_ff1e], 4);
    assert!(matches!(turn, Verdict::Assumed(Reason::LoopsToStart(_))));
    // bx lr; mov r0, #1; bx lr
    let pad = check(&[0xe12f_ff1e, 0xe3a0_0001, 0xe12f_ff1e], 4);
    assert_eq!(pad, Verdict::Assumed(Reason::Unreached(FROM.add(4))));
}

#[test]
fn constants_that_loads_name_are_no_code() {
    // ldr r0, [pc]; bx lr; a word that would be a branch into the window
    assert_eq!(check(&[0xe59f_0000, 0xe12f_ff1e, 0xeaff_fffd], 8), Verdict::Proven);
    // bl to what does not return, and a constant that was named only later: push {r4, lr}; cmp r0, #0; beq .+12;
    // bl away; the constant; ldr r0, [pc, #-12]; pop {r4, pc}
    let words = [0xe92d_4010, 0xe350_0000, 0x0a00_0001, 0xeb00_0400, 0xeaff_fffb, 0xe51f_000c, 0xe8bd_8010];
    assert_eq!(check(&words, 8), Verdict::Proven);
    // A constant in the window, read from behind it: b .+8; the constant; ldr r0, [pc, #-12]; bx lr
    let inside = [0xea00_0000, 0x1234_5678, 0xe51f_000c, 0xe12f_ff1e];
    assert!(matches!(check(&inside, 8), Verdict::Refused(load) if load.at == FROM.add(8)));
    assert_eq!(check(&inside, 12), Verdict::Proven);
}

#[test]
fn jump_tables_are_followed() {
    // cmp r0, #1; addls pc, pc, r0, lsl #2; b .+16; b .+16; b .+4; mov r0, #0; bx lr
    let words =
        |second: u32| [0xe350_0001, 0x908f_f100, 0xea00_0002, 0xea00_0002, second, 0xe3a0_0000, 0xe12f_ff1e];
    assert_eq!(check(&words(0xeaff_ffff), 8), Verdict::Proven);
    // An entry that branches into the window.
    assert!(matches!(check(&words(0xeaff_fffb), 8), Verdict::Refused(jump) if jump.at == FROM.add(16)));
    // cmp r0, #1; ldrls pc, [pc, r0, lsl #2]; bx lr; two addresses; mov r0, #0; bx lr
    let addresses = |second: CodeAddr| {
        let here = FROM.0 as u32 + 20;
        [0xe350_0001, 0x979f_f100, 0xe12f_ff1e, here, second.0 as u32, 0xe3a0_0000, 0xe12f_ff1e]
    };
    assert_eq!(check(&addresses(FROM.add(24)), 8), Verdict::Proven);
    assert!(matches!(check(&addresses(FROM.add(4)), 8), Verdict::Refused(jump) if jump.at == FROM.add(4)));
    assert!(matches!(check(&addresses(FROM), 8), Verdict::Assumed(Reason::LoopsToStart(_))));
}

#[test]
fn an_old_call_through_a_register_returns() {
    // push {r4, lr}; mov lr, pc; bx r3; pop {r4, pc}
    assert_eq!(check(&[0xe92d_4010, 0xe1a0_e00f, 0xe12f_ff13, 0xe8bd_8010], 4), Verdict::Proven);
}

#[test]
fn a_window_in_the_middle_of_a_function_is_checked_on_both_sides() {
    let check = |words: &[u32], window| {
        flow::check_inside(Isa::A32, &code(words), FROM, window, &Surroundings::default())
    };
    // cmp r0, #0; beq .+12; mov r1, r0; mov r0, r1; mov r0, r1; cmp r0, #0; bne .-12; bx lr
    let words = [
        0xe350_0000,
        0x0a00_0001,
        0xe1a0_1000,
        0xe1a0_0001,
        0xe1a0_0001,
        0xe350_0000,
        0x1aff_fffb,
        0xe12f_ff1e,
    ];
    assert_eq!(check(&words, 8..12), Verdict::Proven);
    assert!(matches!(check(&words, 8..16), Verdict::Refused(branch) if branch.at == FROM.add(24)));
    assert!(matches!(check(&words, 12..20), Verdict::Refused(branch) if branch.at == FROM.add(4)));
    let turn = check(&words, 16..20);
    assert!(matches!(turn, Verdict::Assumed(Reason::LoopsToStart(branch)) if branch.at == FROM.add(4)));
    // ldr r0, [pc, #4]; mov r1, r0; bx lr; its constant
    let words = [0xe59f_0004, 0xe1a0_1000, 0xe12f_ff1e, 0x1234_5678];
    assert_eq!(check(&words, 4..12), Verdict::Proven);
    assert!(matches!(check(&words, 8..16), Verdict::Refused(load) if load.at == FROM));
    // blx .+8; bx lr; mov r0, r0; bx lr: code of the other set can't begin with a patch of this one.
    let words = [0xfa00_0000, 0xe12f_ff1e, 0xe1a0_0000, 0xe12f_ff1e];
    assert!(matches!(check(&words, 8..12), Verdict::Refused(call) if call.at == FROM));
    assert_eq!(check(&words, 4..8), Verdict::Assumed(Reason::Unreached(FROM.add(12))));
}

#[test]
fn the_longest_window_of_far_calls_has_room_for_its_literals() {
    // bl .+0x408, eight times; the last one loads LR and PC, the others what they call.
    let relocated = plan(&[0xeb00_0100; 8], 32).emit(FAR).unwrap();
    assert_eq!(relocated.literals().len(), 10 * 4);
}
