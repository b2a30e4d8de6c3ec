//! What callers of AArch64 rely on beyond the bytes of single cases, which are in the filetests.

use grapnel_relocator::{
    CodeAddr, Error, Isa, MAX_EMITTED, Origin, RelocationPlan, Window, WindowOptions,
    flow::{self, Reason, Surroundings, Verdict},
    redirect,
};

const FROM: CodeAddr = CodeAddr(0x7f00_0000_1000);
const NEAR: CodeAddr = CodeAddr(0x7f00_0200_0000);
const FAR: CodeAddr = CodeAddr(0x1000_0000_0000);
const RET: u32 = 0xd65f_03c0;

fn code(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn plan(words: &[u32], min_len: usize, entry: bool) -> RelocationPlan {
    let options = WindowOptions { entry, ..WindowOptions::default() };
    RelocationPlan::new(&Window::decode_with(Isa::Aarch64, FROM, &code(words), min_len, options).unwrap())
        .unwrap()
}

#[test]
fn an_ordinary_prologue_is_copied_and_jumps_back() {
    // stp x29, x30, [sp, #-16]!; mov x29, sp
    let relocated = plan(&[0xa9bf_7bfd, 0x9100_03fd, RET], 8, true).emit(NEAR).unwrap();
    // 0x7f0000001008 is 0x1fff000 before the branch.
    assert_eq!(words(relocated.bytes()), [0xa9bf_7bfd, 0x9100_03fd, 0x1780_0400]);
    assert!(relocated.resumes() && relocated.clobbers().is_empty() && relocated.literals().is_empty());
    assert_eq!(relocated.map().iter().collect::<Vec<_>>(), [(0, 0), (4, 4), (8, 8)]);
    assert_eq!(relocated.map().to_original(6), Some(Origin { offset: 4, exact: false }));
}

#[test]
fn every_near_form_suffices_inside_the_reach() {
    // adr x0, #0x2000; ldr x1, #0x4000; b.eq #0x100
    let plan = plan(&[0x1001_0000, 0x5802_0001, 0x5400_0800, RET], 12, true);
    let reach = plan.reach();
    for to in [reach.lo, reach.hi, NEAR] {
        assert!(plan.emit(to).unwrap().literals().is_empty(), "{to}");
    }
    for to in [reach.lo.offset(-0x100), reach.hi.add(0x100)] {
        assert!(!plan.emit(to).unwrap().literals().is_empty(), "{to}");
    }
}

#[test]
fn without_a_free_register_only_near_destinations_are_left() {
    // mov x0, x1; cbz x0, #0x4000; ret
    let plan = plan(&[0xaa01_03e0, 0xb402_0000, RET], 4, false);
    let required = plan.required_reach();
    assert_eq!(required, plan.reach());
    for to in [required.lo, required.hi] {
        plan.emit(to).unwrap();
    }
    assert!(matches!(plan.emit(FAR), Err(Error::NoScratch { culprit }) if culprit.at == FROM));
}

#[test]
fn no_plan_outgrows_its_bound_or_the_buffer() {
    // A vector literal behind a register that can't be had, cbgt, and tbz, as often as a window holds them.
    for grows in [0x9c00_8000, 0x7400_0160, 0x3600_8000] {
        let plan = plan(&[grows; 8], 32, true);
        let len = plan.emit(FAR).unwrap().bytes().len();
        assert!(len <= plan.max_len() && plan.max_len() <= MAX_EMITTED, "{len} {}", plan.max_len());
    }
}

#[test]
fn clobbers_and_landing_pads_are_those_of_the_destination() {
    // bl #0x400; mov x0, x1
    let plan = plan(&[0x9400_0100, 0xaa01_03e0, RET], 8, true);
    assert_eq!(plan.calls().collect::<Vec<_>>(), [0]);
    let near = plan.emit(NEAR).unwrap();
    assert!(near.clobbers().is_empty() && near.landing_pads().is_empty());
    let far = plan.emit(FAR).unwrap();
    assert_eq!(far.clobbers().names().collect::<Vec<_>>(), ["x17"]);
    assert_eq!(far.landing_pads(), [FROM.add(0x400), FROM.add(8)]);
    assert_eq!(far.map().return_to_original(8), Some(4));
}

#[test]
fn redirects_by_reach() {
    let near = redirect::near(Isa::Aarch64, FROM, FROM.add(0x1000)).unwrap();
    assert_eq!(words(&near), [0x1400_0400]);
    assert!(redirect::near(Isa::Aarch64, FROM, FROM.add((128 << 20) - 4)).is_ok());
    assert!(redirect::near(Isa::Aarch64, FROM, FROM.offset(-(128 << 20))).is_ok());
    for to in [FROM.add(128 << 20), FROM.offset(-(128 << 20) - 4), FROM.add(2)] {
        assert!(matches!(redirect::near(Isa::Aarch64, FROM, to), Err(Error::RedirectOutOfReach { .. })));
    }
    // adrp x17, 0x7f0080002000; add x17, x17, #0x10; br x17
    let page = redirect::page(Isa::Aarch64, FROM, CodeAddr(0x7f00_8000_2010)).unwrap();
    assert_eq!(words(&page), [0xb040_0011, 0x9100_4231, 0xd61f_0220]);
    assert!(redirect::page(Isa::Aarch64, FROM, FAR).is_err());
    // ldr x17, #8; br x17
    for redirect in [redirect::near, redirect::page, redirect::absolute] {
        for (from, to) in [(FROM, FROM.add(0x1002)), (FROM.add(2), FROM.add(0x1000))] {
            let refused = redirect(Isa::Aarch64, from, to);
            assert!(matches!(refused, Err(Error::RedirectOutOfReach { .. })), "{refused:?}");
        }
    }
    let absolute = redirect::absolute(Isa::Aarch64, FROM, FAR).unwrap();
    assert_eq!(words(&absolute), [0x5800_0051, 0xd61f_0220, 0, 0x1000]);
    let lengths = redirect::lengths(Isa::Aarch64);
    assert_eq!((near.len(), page.len(), absolute.len()), (lengths.near, 12, lengths.absolute));
    let costs = redirect::costs(Isa::Aarch64);
    assert!(costs.near.is_empty() && costs.page.contains(17) && costs.absolute.contains(17));
}

/// cmp w0, #1; b.hi +32; adrp x1, +0x1000; add x1, x1, #0x20; ldrb w1, [x1, w0, uxtw]; adr x2, #12;
/// add x1, x2, w1, sxtb #2; br x1; mov x0, x1; ret; ret
const SWITCH: [u32; 11] = [
    0x7100_041f,
    0x5400_0108,
    0xb000_0001,
    0x9100_8021,
    0x3860_4821,
    0x1000_0062,
    0x8b21_8841,
    0xd61f_0020,
    0xaa01_03e0,
    RET,
    RET,
];

fn check_switch(table: [u8; 2]) -> Verdict {
    let read = |at: CodeAddr, out: &mut [u8]| {
        let whole = at == FROM.add(0x1020) && out.len() == table.len();
        if whole {
            out.copy_from_slice(&table);
        }
        whole
    };
    let around = Surroundings { read: Some(&read), ..Surroundings::default() };
    flow::check_with(Isa::Aarch64, &code(&SWITCH), FROM, 8, &around)
}

#[test]
fn a_jump_table_is_followed() {
    assert_eq!(check_switch([0, 2]), Verdict::Proven);
    // 7 instructions back from behind the jump: the second of the function.
    assert!(matches!(check_switch([0, 0xf9]), Verdict::Refused(jump) if jump.at == FROM.add(28)));
    assert!(matches!(check_switch([0, 0xf8]), Verdict::Assumed(Reason::LoopsToStart(_))));
    let unread = flow::check(Isa::Aarch64, &code(&SWITCH), FROM, 8);
    assert!(matches!(unread, Verdict::Assumed(Reason::IndirectJump(jump)) if jump.at == FROM.add(28)));
}

#[test]
fn an_entry_from_elsewhere_into_the_window_is_refused() {
    let function = code(&[0xaa01_03e0, 0xaa01_03e0, RET]);
    let check = |entry: u64| {
        let around = Surroundings { entries: &[FROM.add(entry)], read: None };
        flow::check_with(Isa::Aarch64, &function, FROM, 8, &around)
    };
    assert_eq!(check(8), Verdict::Proven);
    assert!(matches!(check(4), Verdict::Refused(culprit) if culprit.at == FROM.add(4)));
}

#[test]
fn a_window_in_the_middle_of_a_function_is_checked_on_both_sides() {
    // cbz x0, #12; mov x1, x0; mov x0, x1; mov x0, x1; cbnz x0, #-8; ret
    let function = code(&[0xb400_0060, 0xaa00_03e1, 0xaa01_03e0, 0xaa01_03e0, 0xb5ff_ffc0, RET]);
    let check = |window| flow::check_inside(Isa::Aarch64, &function, FROM, window, &Surroundings::default());
    assert_eq!(check(4..8), Verdict::Proven);
    assert!(matches!(check(4..12), Verdict::Refused(branch) if branch.at == FROM.add(16)));
    assert!(matches!(check(8..16), Verdict::Refused(branch) if branch.at == FROM));
    assert!(matches!(check(12..16), Verdict::Assumed(Reason::LoopsToStart(branch)) if branch.at == FROM));
}

#[test]
fn a_register_is_looked_for_as_far_as_512_words() {
    const CMP: u32 = 0xeb01_001f;
    const NOP: u32 = 0xd503_201f;
    const MOV_X17: u32 = 0xd280_0011;
    let emit = |nops| {
        let code: Vec<u32> = [&[CMP][..], &vec![NOP; nops], &[MOV_X17]].concat();
        plan(&code, 4, false).emit(FAR)
    };
    for nops in [0, 29, 31, 127, 510] {
        assert!(emit(nops).unwrap().clobbers().contains(17), "{nops}");
    }
    assert_eq!(emit(511).unwrap_err().kind(), "no-scratch");
}
