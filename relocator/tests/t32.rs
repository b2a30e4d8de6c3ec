//! What callers of T32 rely on beyond the bytes of single cases, which are in the filetests.

use grapnel_relocator::{
    CodeAddr, Error, Isa, MAX_EMITTED, Origin, RelocationPlan, Window, WindowOptions,
    flow::{self, Reason, Surroundings, Verdict},
    redirect,
};

const FROM: CodeAddr = CodeAddr(0x1000_0000);
const NEAR: CodeAddr = CodeAddr(0x1010_0000);
const FAR: CodeAddr = CodeAddr(0x8000_0000);

fn code(halfwords: &[u16]) -> Vec<u8> {
    halfwords.iter().flat_map(|halfword| halfword.to_le_bytes()).collect()
}

fn plan_at(from: CodeAddr, halfwords: &[u16], min_len: usize) -> RelocationPlan {
    RelocationPlan::new(&Window::decode(Isa::T32, from, &code(halfwords), min_len).unwrap()).unwrap()
}

fn plan(halfwords: &[u16], min_len: usize) -> RelocationPlan {
    plan_at(FROM, halfwords, min_len)
}

fn halfwords(bytes: &[u8]) -> Vec<u16> {
    bytes.chunks_exact(2).map(|halfword| u16::from_le_bytes(halfword.try_into().unwrap())).collect()
}

#[test]
fn an_ordinary_prologue_is_copied_and_jumps_back() {
    // push {r4, lr}; sub.w sp, sp, #256
    let relocated = plan(&[0xb510, 0xf5ad, 0x7d80], 4).emit(NEAR).unwrap();
    // 0x10000006 is 0x100000 before the branch, and 0x100004 before what it counts from.
    assert_eq!(halfwords(relocated.bytes()), [0xb510, 0xf5ad, 0x7d80, 0xf6ff, 0xbffe]);
    assert!(relocated.resumes() && relocated.clobbers().is_empty() && relocated.literals().is_empty());
    assert_eq!(relocated.map().iter().collect::<Vec<_>>(), [(0, 0), (2, 2), (6, 6)]);
    assert_eq!(relocated.map().to_original(4), Some(Origin { offset: 2, exact: false }));
}

#[test]
fn the_reach_is_exactly_what_emits_near_forms() {
    // push {r4, lr}; bl .+0x100; beq .+0x40; cbz r0, .+0x20; nop, each with and without BLX in front
    for window in [&[0xb510, 0xf000, 0xf87e, 0xd01e, 0xb170][..], &[0xf000, 0xe880, 0xd01e, 0xb170]] {
        let plan = plan(window, 8);
        let reach = plan.reach();
        assert_eq!((reach.lo.0 % 2, reach.hi.0 % 2), (0, 0));
        for to in [reach.lo, reach.hi] {
            assert!(plan.emit(to).unwrap().literals().is_empty(), "{to}");
        }
        for to in [reach.lo.offset(-2), reach.hi.add(2)] {
            assert!(!plan.emit(to).unwrap().literals().is_empty(), "{to}");
        }
    }
}

/// Everything that grows, alone and in an IT block, at both alignments, to both alignments.
#[test]
fn no_plan_outgrows_its_bound_or_the_buffer() {
    let grown: [&[u16]; 12] = [
        &[0x447b],         // add r3, pc
        &[0x4810],         // ldr r0, [pc, #64]
        &[0xa010],         // adr r0, +64
        &[0xb110],         // cbz r0, +8
        &[0xd110],         // bne +0x24
        &[0x4487],         // add pc, r0
        &[0xed9f, 0x0b40], // vldr d0, [pc, #256]
        &[0xf8df, 0xf100], // ldr.w pc, [pc, #256]
        &[0xe8d1, 0xf010], // tbh [r1, r0, lsl #1]
        &[0xf000, 0xfc00], // bl +0x804
        &[0xf000, 0xec00], // blx +0x804
        &[0xf43f, 0xaf00], // beq.w -0x200
    ];
    for (grows, from) in grown.iter().flat_map(|grows| [(grows, FROM), (grows, CodeAddr(0x2345_6ffe))]) {
        for block in [&[][..], &[0xbf08]] {
            let unit = [block, grows].concat();
            // What such a jump leads to, or its table, is behind it at the nearest, and not in the window.
            let source = match matches!(grows[0], 0x4487 | 0xe8d1) {
                true => [[0xbf00].repeat(16 - unit.len()), unit].concat(),
                false => unit.repeat(40),
            };
            let options = WindowOptions { extent: Some(200), ..WindowOptions::default() };
            let Ok(window) = Window::decode_with(Isa::T32, from, &code(&source), 32, options) else {
                // A branch with a condition of its own in an IT block.
                assert!(!block.is_empty() && matches!(grows[0] >> 12, 0xb | 0xd | 0xf));
                continue;
            };
            let plan = RelocationPlan::new(&window).unwrap();
            for to in [FAR, FAR.add(2), from.add(0x1000), from.add(0x1002)] {
                let len = plan.emit(to).unwrap().bytes().len();
                assert!(len <= plan.max_len() && plan.max_len() <= MAX_EMITTED, "{len} {}", plan.max_len());
            }
        }
    }
}

#[test]
fn code_is_at_even_addresses_below_four_gib() {
    let nops = code(&[0xbf00; 4]);
    let refused = Window::decode(Isa::T32, FROM.add(1), &nops, 4).unwrap_err();
    assert_eq!((refused.kind(), refused.at()), ("misaligned", FROM.add(1)));
    assert!(matches!(
        Window::decode(Isa::T32, CodeAddr(1 << 32), &nops, 4),
        Err(Error::BeyondAddressSpace { .. })
    ));
    let plan = plan(&[0xbf00; 4], 4);
    assert!(matches!(plan.emit(NEAR.add(1)), Err(Error::Misaligned { .. })));
    for to in [CodeAddr(1 << 32), CodeAddr((1 << 32) - 2)] {
        assert!(matches!(plan.emit(to), Err(Error::BeyondAddressSpace { .. })), "{to}");
    }
    assert!(plan.emit(plan.required_reach().hi).is_ok());
}

#[test]
fn a_window_ends_outside_an_it_block() {
    // cmp r0, #0; itet eq; moveq; movne; moveq; nop
    let code = code(&[0x2800, 0xbf0a, 0x2001, 0x2002, 0x2003, 0xbf00, 0xbf00]);
    for (min_len, expected) in [(2, 2), (4, 10), (6, 10), (8, 10), (10, 10), (12, 12)] {
        assert_eq!(Window::decode(Isa::T32, FROM, &code, min_len).unwrap().len(), expected);
    }
}

#[test]
fn a_split_block_is_entered_at_its_it_only() {
    // itt eq; ldreq r0, [pc, #64]; moveq r1, #1; nop
    let relocated = plan(&[0xbf04, 0x4810, 0x2101, 0xbf00], 8).emit(NEAR).unwrap();
    let map = relocated.map();
    assert_eq!((map.to_relocated(0), map.to_relocated(2), map.to_relocated(4)), (Some(0), None, None));
    // it eq; moveq r1, #1 behind bne, ldr.w and ldr.w
    assert_eq!(map.to_original(10), Some(Origin { offset: 0, exact: false }));
    assert_eq!(map.to_original(14), Some(Origin { offset: 6, exact: true }));
}

#[test]
fn redirects_reach_what_their_fields_hold() {
    let short = |to| redirect::short(Isa::T32, FROM, to).map(|bytes| halfwords(&bytes));
    assert_eq!(short(FROM.add(4 + 2046)).unwrap(), [0xe3ff]);
    assert_eq!(short(FROM.offset(4 - 2048)).unwrap(), [0xe400]);
    assert!(short(FROM.add(4 + 2048)).is_err() && short(FROM.offset(4 - 2050)).is_err());
    let near = |to| redirect::near(Isa::T32, FROM, to).map(|bytes| halfwords(&bytes));
    assert_eq!(near(FROM.add(4 + (1 << 24) - 2)).unwrap(), [0xf3ff, 0x97ff]);
    assert_eq!(near(FROM.offset(4 - (1 << 24))).unwrap(), [0xf400, 0x9000]);
    assert!(near(FROM.add(4 + (1 << 24))).is_err() && near(FROM.add(5)).is_err() && near(FAR).is_err());
    let absolute = |from, to| redirect::absolute(Isa::T32, from, to).map(|bytes| halfwords(&bytes));
    assert_eq!(absolute(FROM, FAR).unwrap(), [0xf8df, 0xf000, 0x0001, 0x8000]);
    // The literal is at a multiple of 4.
    assert_eq!(absolute(FROM.add(2), FAR).unwrap(), [0xbf00, 0xf8df, 0xf000, 0x0001, 0x8000]);
    assert!(absolute(FROM, CodeAddr(1 << 32)).is_err() && absolute(FROM, FAR.add(1)).is_err());
    let lengths = redirect::lengths(Isa::T32);
    assert_eq!((lengths.short, lengths.near, lengths.page, lengths.absolute), (2, 4, None, 10));
    assert!(redirect::page(Isa::T32, FROM, NEAR).is_err());
    assert!(redirect::costs(Isa::T32).absolute.is_empty());
}

#[test]
fn calls_are_told_and_get_pc_is_none() {
    // push {r4, lr}; bl +0x100; blx r3; itt ne; nop; blne +0x100; bl to the next. At the window's end one returns to the
    // original.
    let window = [0xb510, 0xf000, 0xf880, 0x4798, 0xbf1c, 0xbf00, 0xf000, 0xf880, 0xf000, 0xf800, 0xbf00];
    assert_eq!(plan(&window, 20).calls().collect::<Vec<_>>(), [2, 6, 12]);
    assert_eq!(plan(&window, 16).calls().collect::<Vec<_>>(), [2, 6]);
    assert_eq!(plan(&window[8..], 4).calls().count(), 0);
}

#[test]
fn what_is_left_through_literals_is_told() {
    // cbz r0, +8; bl +0x100
    let plan = plan(&[0xb110, 0xf000, 0xf880, 0xbf00], 6);
    assert_eq!(plan.emit(FAR).unwrap().landing_pads(), [FROM.add(8), FROM.add(0x106), FROM.add(6)]);
    assert!(plan.emit(NEAR).unwrap().landing_pads().is_empty());
}

#[test]
fn a_table_outside_the_function_is_read_where_it_can_be() {
    // push {r4, lr}; cmp r0, #1; bhi; adr r1, +0x200; ldr.w pc, [r1, r0, lsl #2]; movs r0, #1; pop; pop {r4, pc}
    let bytes = code(&[0xb510, 0x2801, 0xd805, 0xf20f, 0x2100, 0xf851, 0xf020, 0x2001, 0xbd10, 0xbd10]);
    let table = CodeAddr((FROM.0 + 10) & !3).add(0x200);
    let check = |targets: [u64; 2]| {
        let entries = targets.map(|target| (FROM.add(target | 1).0 as u32).to_le_bytes());
        let read = |addr: CodeAddr, out: &mut [u8]| {
            let Some(start) = addr.offset_within(table, 8) else { return false };
            let read = entries.as_flattened().get(start as usize..start as usize + out.len());
            read.is_some_and(|read| {
                out.copy_from_slice(read);
                true
            })
        };
        let around = Surroundings { read: Some(&read), ..Surroundings::default() };
        flow::check_with(Isa::T32, &bytes, FROM, 4, &around)
    };
    assert_eq!(check([14, 18]), Verdict::Proven);
    assert!(matches!(check([14, 2]), Verdict::Refused(jump) if jump.at == FROM.add(10)));
    assert!(matches!(check([14, 0]), Verdict::Assumed(Reason::LoopsToStart(_))));
    let blind = flow::check(Isa::T32, &bytes, FROM, 4);
    assert!(matches!(blind, Verdict::Assumed(Reason::IndirectJump(_))));
}

#[test]
fn an_entry_that_is_known_is_reached() {
    // push {r4, lr}; nop; pop {r4, pc}; movs r0, #1; pop {r4, pc}
    let bytes = code(&[0xb510, 0xbf00, 0xbd10, 0x2001, 0xbd10]);
    let check = |entry| {
        let around = Surroundings { entries: &[FROM.add(entry)], ..Surroundings::default() };
        flow::check_with(Isa::T32, &bytes, FROM, 4, &around)
    };
    assert_eq!(check(6), Verdict::Proven);
    assert!(matches!(check(2), Verdict::Refused(entry) if entry.at == FROM.add(2)));
}

fn check_inside(halfwords: &[u16], window: core::ops::Range<usize>) -> Verdict {
    flow::check_inside(Isa::T32, &code(halfwords), FROM, window, &Surroundings::default())
}

#[test]
fn a_window_in_the_middle_of_a_function_is_checked_on_both_sides() {
    // cbz r0, .+8; mov r1, r0; mov r0, r1; nop; mov r0, r1; cmp r0, #0; bne .-8; bx lr
    let halfwords = [0xb110, 0x4601, 0x4608, 0xbf00, 0x4608, 0x2800, 0xd1fa, 0x4770];
    assert_eq!(check_inside(&halfwords, 2..4), Verdict::Proven);
    assert!(matches!(check_inside(&halfwords, 2..6), Verdict::Refused(branch) if branch.at == FROM.add(12)));
    assert!(matches!(check_inside(&halfwords, 6..10), Verdict::Refused(branch) if branch.at == FROM));
    let turn = check_inside(&halfwords, 8..10);
    assert!(matches!(turn, Verdict::Assumed(Reason::LoopsToStart(branch)) if branch.at == FROM));
    // ldr r0, [pc, #4]; mov r1, r0; bx lr; nop; its constant
    let halfwords = [0x4801, 0x4601, 0x4770, 0xbf00, 0x1234, 0x5678];
    assert_eq!(check_inside(&halfwords, 2..6), Verdict::Proven);
    assert!(matches!(check_inside(&halfwords, 4..10), Verdict::Refused(load) if load.at == FROM));
}

#[test]
fn without_an_extent_jumps_are_followed() {
    // movs r0, #0; adds r0, #1; cmp r0, #10; blt +0 (to b); bx lr; b to adds
    let function = code(&[0x2000, 0x3001, 0x280a, 0xdb00, 0x4770, 0xe7fa]);
    let found = flow::reached_inside(Isa::T32, &function, FROM, 0..4);
    assert_eq!(found.map(|culprit| culprit.at), Some(FROM.add(10)));
    assert_eq!(flow::reached_inside(Isa::T32, &function[..10], FROM, 0..4), None);
}

#[test]
fn a_window_in_a_table_is_refused() {
    // cmp r0, #1; bhi .+12; tbb [pc, r0]; its table; bx lr; bx lr; bx lr
    let halfwords = [0x2801, 0xd804, 0xe8df, 0xf000, 0x0201, 0x4770, 0x4770, 0x4770];
    assert_eq!(check_inside(&halfwords, 0..4), Verdict::Proven);
    assert!(matches!(check_inside(&halfwords, 8..10), Verdict::Refused(jump) if jump.at == FROM.add(4)));
    assert!(matches!(check_inside(&halfwords, 8..12), Verdict::Refused(jump) if jump.at == FROM.add(4)));
    assert!(matches!(check_inside(&halfwords, 4..10), Verdict::Refused(jump) if jump.at == FROM.add(4)));
    let of_the_table = check_inside(&halfwords, 10..12);
    assert!(matches!(of_the_table, Verdict::Assumed(Reason::LoopsToStart(jump)) if jump.at == FROM.add(4)));
}

#[test]
fn a_window_that_begins_in_an_instruction_or_an_it_block_is_refused() {
    // ldr.w r1, [r0, #8]; bx lr
    let halfwords = [0xf8d0, 0x1008, 0x4770];
    assert!(matches!(check_inside(&halfwords, 2..6), Verdict::Refused(inst) if inst.at == FROM));
    // cmp r0, #0; itt eq; moveq r1, #1; ldr.w r1, [r0, #8] under eq; bx lr
    let halfwords = [0x2800, 0xbf04, 0x2101, 0xf8d0, 0x1008, 0x4770];
    assert_eq!(check_inside(&halfwords, 0..2), Verdict::Proven);
    assert_eq!(check_inside(&halfwords, 2..10), Verdict::Proven);
    assert!(matches!(check_inside(&halfwords, 4..10), Verdict::Refused(it) if it.at == FROM.add(2)));
    assert!(matches!(check_inside(&halfwords, 6..12), Verdict::Refused(it) if it.at == FROM.add(2)));
    assert_eq!(check_inside(&halfwords, 10..12), Verdict::Proven);
}
