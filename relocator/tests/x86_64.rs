//! What callers rely on beyond the bytes of single cases, which are in the filetests.

use grapnel_relocator::{
    CodeAddr, Error, Isa, MAX_EMITTED, Origin, Reach, RelocationPlan, Window, WindowOptions,
    flow::{self, Reason, Surroundings, Verdict},
    redirect,
};

const FROM: CodeAddr = CodeAddr(0x7f00_0000_1000);
const NEAR: CodeAddr = CodeAddr(0x7f00_1000_0000);
const FAR: CodeAddr = CodeAddr(0x1_0000);

fn plan(bytes: &[u8], min_len: usize) -> RelocationPlan {
    RelocationPlan::new(&Window::decode(Isa::X86_64, FROM, bytes, min_len).unwrap()).unwrap()
}

#[test]
fn an_ordinary_prologue_is_copied_and_jumps_back() {
    // push rbp; mov rbp, rsp; push rbx
    let relocated = plan(&[0x55, 0x48, 0x89, 0xe5, 0x53, 0x90, 0x90], 5).emit(NEAR).unwrap();
    assert_eq!(&relocated.bytes()[..5], [0x55, 0x48, 0x89, 0xe5, 0x53]);
    assert_eq!(relocated.bytes()[5], 0xe9);
    assert_eq!(relocated.bytes().len(), 10);
    assert!(relocated.resumes() && relocated.clobbers().is_empty());
    let map: Vec<_> = relocated.map().iter().collect();
    assert_eq!(map, [(0, 0), (1, 1), (4, 4), (5, 5)]);
    assert_eq!(relocated.map().to_original(2), Some(Origin { offset: 1, exact: false }));
    assert_eq!(relocated.map().to_original(4), Some(Origin { offset: 4, exact: true }));
}

#[test]
fn the_reach_is_exactly_what_emits_near_forms() {
    // cmp [rip + 0x100], rax; cmp [rip + 0x100], rsp
    let (kept, stack) = (
        plan(&[0x48, 0x39, 0x05, 0x00, 0x01, 0x00, 0x00], 5),
        plan(&[0x48, 0x39, 0x25, 0x00, 0x01, 0x00, 0x00], 5),
    );
    for plan in [&kept, &stack] {
        let reach = plan.reach();
        assert_eq!(reach, plan.required_reach().intersection(reach));
        for to in [reach.lo, reach.hi] {
            let relocated = plan.emit(to).unwrap();
            assert_eq!(relocated.bytes()[7], 0xe9);
            assert!(relocated.clobbers().is_empty() && relocated.landing_pads().is_empty());
        }
    }
    let anywhere = Reach { lo: CodeAddr(0), hi: CodeAddr(u64::MAX - kept.max_len() as u64) };
    assert_eq!(kept.required_reach(), anywhere);
    assert!(kept.emit(anywhere.hi).is_ok());
    assert!(matches!(kept.emit(anywhere.hi.add(1)), Err(Error::BeyondAddressSpace { .. })));
    assert!(kept.emit(FAR).is_ok());
    assert_ne!(stack.required_reach(), anywhere);
    assert!(matches!(stack.emit(FAR), Err(Error::NoScratch { .. })));
}

#[test]
fn what_is_clobbered_is_listed_where_it_is() {
    // cmp [rip + 0x100], 0; mov eax, 1; ret
    let bytes = [0x83, 0x3d, 0, 1, 0, 0, 0, 0xb8, 1, 0, 0, 0, 0xc3];
    let plan = plan(&bytes, 5);
    assert!(plan.emit(NEAR).unwrap().clobbers().is_empty());
    let far = plan.emit(FAR).unwrap();
    assert_eq!(far.clobbers().names().collect::<Vec<_>>(), ["rax"]);
    assert_eq!(far.landing_pads(), [FROM.add(7)]);
    // Half-way through, the comparison is under way.
    assert_eq!(far.map().to_original(10), Some(Origin { offset: 0, exact: false }));
}

#[test]
fn r11_is_the_linkers_at_an_entry_only() {
    let refused = |bytes: &[u8], min_len, entry| {
        let options = WindowOptions { entry, ..WindowOptions::default() };
        let window = Window::decode_with(Isa::X86_64, FROM, bytes, min_len, options).unwrap();
        match RelocationPlan::new(&window).unwrap().emit(FAR) {
            Ok(relocated) => {
                assert_eq!(relocated.clobbers().names().collect::<Vec<_>>(), ["r11"]);
                false
            }
            Err(error) => matches!(error, Error::NoScratch { .. }),
        }
    };
    let (call, jump) = ([0xff, 0x15, 0, 1, 0, 0], [0xff, 0x25, 0, 1, 0, 0]);
    assert!(!refused(&call, 6, true) && refused(&call, 6, false));
    assert!(!refused(&jump, 6, true) && refused(&jump, 6, false));
    // mov r11d, ebx in front
    assert!(refused(&[&[0x41, 0x89, 0xdb], &call[..]].concat(), 9, true));
}

#[test]
fn no_plan_outgrows_its_bound_or_the_buffer() {
    // loop rel8, the instruction that grows most, as often as a window holds it.
    let bytes: Vec<u8> = [0xe2, 0x70].repeat(16).into_iter().chain([0x90; 15]).collect();
    let plan = plan(&bytes, 32);
    let len = plan.emit(FAR).unwrap().bytes().len();
    assert!(len <= plan.max_len() && plan.max_len() <= MAX_EMITTED, "{len} {}", plan.max_len());
}

#[test]
fn a_one_byte_function_needs_its_padding() {
    // ret; cs nopw; nopl: glibc's _dl_debug_state.
    let bytes = [0xc3, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x0f, 0x1f, 0x40, 0];
    let options = WindowOptions { extent: Some(1), allow_padding: true, ..WindowOptions::default() };
    let window = Window::decode_with(Isa::X86_64, FROM, &bytes, 5, options).unwrap();
    assert_eq!((window.len(), window.code_len()), (5, 1));
    let relocated = RelocationPlan::new(&window).unwrap().emit(NEAR).unwrap();
    assert_eq!(relocated.bytes(), [0xc3]);
    assert!(!relocated.resumes());
    let refused = Window::decode(Isa::X86_64, FROM, &bytes, 5).unwrap_err();
    assert_eq!((refused.kind(), refused.at()), ("ends-early", FROM));
}

#[test]
fn a_branch_back_into_the_window_is_found() {
    // push rbp; push rbx; xor eax, eax; inc eax; jne -4 (to inc eax); pop rbx; pop rbp; ret
    let bytes = [0x55, 0x53, 0x31, 0xc0, 0xff, 0xc0, 0x75, 0xfc, 0x5b, 0x5d, 0xc3];
    assert_eq!(flow::check(Isa::X86_64, &bytes, FROM, 4), Verdict::Proven);
    assert!(
        matches!(flow::check(Isa::X86_64, &bytes, FROM, 5), Verdict::Refused(branch) if branch.at == FROM.add(6))
    );
    assert!(flow::check(Isa::X86_64, &bytes, FROM, 8) == Verdict::Proven);
}

#[test]
fn without_an_extent_jumps_are_followed_and_nothing_else_is() {
    let reached = |bytes: &[u8], window| flow::reached_inside(Isa::X86_64, bytes, FROM, window).map(|c| c.at);
    // jmp +3 (to pop rbx); ret; ret; push rbx; xor eax, eax; jmp -9 (to the start)
    let before = [0xeb, 0x03, 0xc3, 0xc3, 0x53, 0x5b, 0x31, 0xc0, 0xeb, 0xf6, 0xc3];
    assert_eq!(reached(&before, 4..8), Some(FROM));
    // call +3; ret; pop rax; pop rax; jmp -9 (to pop rbx): another function, which nothing says is reached.
    let called = [0x53, 0x5b, 0xe8, 0x01, 0, 0, 0, 0xc3, 0x58, 0xeb, 0xf6, 0xc3];
    assert_eq!(reached(&called, 0..2), None);
    // jne +1; ret; jmp -4 (to pop rbx)
    let branched = [0x53, 0x5b, 0x75, 0x01, 0xc3, 0xeb, 0xfa];
    assert_eq!(reached(&branched, 0..2), Some(FROM.add(5)));
    assert_eq!(reached(&branched[..5], 0..2), None);
}

#[test]
fn a_window_in_the_middle_of_a_function_is_checked_on_both_sides() {
    // push rbp; jmp +4 (to inc eax); xor eax, eax; nop; nop; inc eax; pop rbp; ret
    let bytes = [0x55, 0xeb, 0x04, 0x31, 0xc0, 0x90, 0x90, 0xff, 0xc0, 0x5d, 0xc3];
    let check = |window| flow::check_inside(Isa::X86_64, &bytes, FROM, window, &Surroundings::default());
    assert!(matches!(check(3..8), Verdict::Refused(branch) if branch.at == FROM.add(1)));
    // The branch goes to the window's start, where the patch is.
    assert!(
        matches!(check(7..11), Verdict::Assumed(Reason::LoopsToStart(branch)) if branch.at == FROM.add(1))
    );
    // In the middle of an instruction.
    assert!(matches!(check(8..11), Verdict::Refused(inst) if inst.at == FROM.add(7)));
    assert_eq!(
        flow::check_inside(Isa::X86_64, &bytes[3..], FROM, 4..8, &Surroundings::default()),
        Verdict::Proven
    );
}

#[test]
fn what_can_not_be_seen_is_assumed() {
    // push rbp; push rbx; mov rax, rdi; jmp rax
    let jump = flow::check(Isa::X86_64, &[0x55, 0x53, 0x48, 0x89, 0xf8, 0xff, 0xe0], FROM, 5);
    assert!(matches!(jump, Verdict::Assumed(Reason::IndirectJump(_))));
    // mov rax, rdi; dec rdi; jne -8 (to the start); ret
    let turn = flow::check(Isa::X86_64, &[0x48, 0x89, 0xf8, 0x48, 0xff, 0xcf, 0x75, 0xf8, 0xc3], FROM, 6);
    assert!(matches!(turn, Verdict::Assumed(Reason::LoopsToStart(_))));
    // mov rax, rdi; pop rcx; ret; pop rdi; jmp -2
    let pad = flow::check(Isa::X86_64, &[0x48, 0x89, 0xf8, 0x59, 0x59, 0xc3, 0x5f, 0xeb, 0xfd], FROM, 5);
    assert_eq!(pad, Verdict::Assumed(Reason::Unreached(FROM.add(6))));
}

#[test]
fn redirects_reach_what_their_fields_hold() {
    assert_eq!(redirect::short(Isa::X86_64, FROM, FROM.offset(-126)).unwrap().as_slice(), [0xeb, 0x80]);
    assert!(redirect::short(Isa::X86_64, FROM, FROM.offset(-127)).is_err());
    assert_eq!(redirect::near(Isa::X86_64, FROM, FROM.add(5)).unwrap().as_slice(), [0xe9, 0, 0, 0, 0]);
    assert!(redirect::near(Isa::X86_64, FROM, FAR).is_err());
    let far = redirect::absolute(Isa::X86_64, FROM, FAR).unwrap();
    assert_eq!(far.as_slice(), [0xff, 0x25, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn a_jump_table_is_followed_where_it_can_be_read() {
    // push rbx; cmp edi, 1; ja to the last ret; lea rdx, [rip + 0x100]; mov edi, edi; movsxd rax, [rdx + rdi * 4];
    // add rax, rdx; jmp rax; pop rbx; ret; pop rbx; ret
    let bytes = [
        0x53, 0x83, 0xff, 0x01, 0x77, 0x15, 0x48, 0x8d, 0x15, 0, 1, 0, 0, 0x89, 0xff, 0x48, 0x63, 0x04, 0xba,
        0x48, 0x01, 0xd0, 0xff, 0xe0, 0x5b, 0xc3, 0x5b, 0xc3,
    ];
    let table = FROM.add(13 + 0x100);
    let check = |targets: [u64; 2]| {
        let read = |addr: CodeAddr, out: &mut [u8]| {
            for (entry, target) in out.chunks_mut(4).zip(targets) {
                entry.copy_from_slice(&(FROM.add(target).displacement_from(table) as i32).to_le_bytes());
            }
            addr == table && out.len() == 8
        };
        let around = Surroundings { read: Some(&read), ..Surroundings::default() };
        flow::check_with(Isa::X86_64, &bytes, FROM, 6, &around)
    };
    assert_eq!(check([24, 26]), Verdict::Proven);
    assert!(matches!(check([24, 4]), Verdict::Refused(jump) if jump.at == FROM.add(22)));
    assert!(matches!(check([24, 0]), Verdict::Assumed(Reason::LoopsToStart(_))));
    let blind = flow::check(Isa::X86_64, &bytes, FROM, 6);
    assert!(matches!(blind, Verdict::Assumed(Reason::IndirectJump(_))));
}

#[test]
fn a_landing_pad_that_is_known_is_reached() {
    // mov rax, rdi; pop rcx; pop rcx; ret; pop rdi; ret
    let bytes = [0x48, 0x89, 0xf8, 0x59, 0x59, 0xc3, 0x5f, 0xc3];
    let check = |entry| {
        let around = Surroundings { entries: &[FROM.add(entry)], ..Surroundings::default() };
        flow::check_with(Isa::X86_64, &bytes, FROM, 5, &around)
    };
    assert_eq!(check(6), Verdict::Proven);
    assert!(matches!(check(3), Verdict::Refused(entry) if entry.at == FROM.add(3)));
}

#[test]
fn calls_are_told_and_get_pc_is_none() {
    // push rax; call +0x100; call rax; call to the next; pop rbx
    let bytes = [0x50, 0xe8, 0, 1, 0, 0, 0xff, 0xd0, 0xe8, 0, 0, 0, 0, 0x5b];
    // The call through a register may go to what the last one pushes, so that one is left out of the window.
    let calls = |min_len, shadow_stack| {
        let options = WindowOptions { shadow_stack, ..WindowOptions::default() };
        let window = Window::decode_with(Isa::X86_64, FROM, &bytes, min_len, options).unwrap();
        let plan = RelocationPlan::new(&window).unwrap();
        (plan.calls().collect::<Vec<_>>(), plan.returns_past())
    };
    // At the window's end one returns to the original, unless that is checked.
    assert_eq!(calls(8, false), (vec![1], true));
    assert_eq!(calls(8, true), (vec![1, 6], false));
    assert_eq!(calls(5, false), (vec![], true));
    assert_eq!(calls(5, true), (vec![1], false));
    let next = plan(&bytes[8..], 5);
    assert_eq!((next.calls().count(), next.returns_past()), (0, false));
}

#[test]
fn a_call_at_the_end_stays_where_the_stack_pointer_matters() {
    // push rax, and then: bnd call +0x100; call rsp; call [rax]; call [rsp + 8]; call [rip + 0x100]
    let cases: [(&[u8], bool); 5] = [
        (&[0xf2, 0xe8, 0, 1, 0, 0], false),
        (&[0xff, 0xd4], false),
        (&[0xff, 0x10], false),
        (&[0xff, 0x54, 0x24, 8], false),
        (&[0xff, 0x15, 0, 1, 0, 0], true),
    ];
    for (call, past) in cases {
        let bytes = [&[0x50], call, &[0x90; 15]].concat();
        let plan = plan(&bytes, 2);
        assert_eq!((plan.returns_past(), plan.calls().count()), (past, usize::from(!past)), "{call:x?}");
    }
    // call +0x100 at its function's end: no padding that it would return into becomes part of a window.
    let bytes = [0xe8, 0, 1, 0, 0, 0x90, 0x90, 0x90];
    let options = WindowOptions { extent: Some(5), allow_padding: true, ..WindowOptions::default() };
    assert!(Window::decode_with(Isa::X86_64, FROM, &bytes, 7, options).is_err());
}

#[test]
fn a_constant_inside_the_window_is_found() {
    // jmp over; four bytes of constant; over: mov eax, [rip - 10]; ret
    let load = [0xeb, 0x04, 1, 2, 3, 4, 0x8b, 0x05, 0xf6, 0xff, 0xff, 0xff, 0xc3];
    assert!(
        matches!(flow::check(Isa::X86_64, &load, FROM, 5), Verdict::Refused(load) if load.at == FROM.add(6))
    );
    // The address of the function itself is no such use: lea rax, [rip - 13].
    let own = [0xeb, 0x04, 1, 2, 3, 4, 0x48, 0x8d, 0x05, 0xf3, 0xff, 0xff, 0xff, 0xc3];
    assert!(!matches!(flow::check(Isa::X86_64, &own, FROM, 5), Verdict::Refused(_)));
}
