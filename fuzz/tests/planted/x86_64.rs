//! Faults planted in x86-64 code.

use super::*;

const FROM: u64 = 0x7f00_0000_1000;

fn right<'a>(source: &'a [u8], relocated: &'a [u8], len: usize, map: &'a [(usize, usize)]) -> Right<'a> {
    Right::new(Isa::X86_64, (FROM, FROM + 0x10_0000), source, (relocated, len), map)
}

#[test]
fn a_spill_beyond_the_red_zone() {
    // xor [rip + 0x1000], eax; add ecx, 1
    let source = and_nops(vec![0x31, 0x05, 0x00, 0x10, 0x00, 0x00, 0x83, 0xc1, 0x01], &[0x90]);
    #[rustfmt::skip]
    let relocated = [
        0x48, 0x8d, 0x64, 0x24, 0x80, // 0: lea rsp, [rsp - 128]
        0x52, // 5: push rdx
        0x48, 0xba, 0x06, 0x20, 0x00, 0x00, 0x00, 0x7f, 0x00, 0x00, // 6: mov rdx, 0x7f0000002006
        0x31, 0x02, // 16: xor [rdx], eax
        0x5a, // 18: pop rdx
        0x48, 0x8d, 0xa4, 0x24, 0x80, 0x00, 0x00, 0x00, // 19: lea rsp, [rsp + 128]
        0x83, 0xc1, 0x01, // 27: add ecx, 1
        0xe9, 0xe6, 0xff, 0xef, 0xff, // 30: jmp 0x7f0000001009
    ];
    let mut shallow = relocated;
    (shallow[4], shallow[23]) = (0x90, 0x70);
    right(&source, &relocated, 35, &[(0, 0), (6, 27), (9, 30)])
        .holds()
        .fault(0, &shallow) // in the red zone
        .fault(5, &[0x90]) // not kept
        .fault(5, &[0x50]) // another register is kept
        .fault(18, &[0x90]) // not restored
        .fault(18, &[0x58]) // to another register
        .fault(23, &[0x78]) // the stack pointer stays moved
        .fault(8, &[0x07]) // another operand
        .fault(13, &[0x7e]) // other high bits
        .fault(16, &[0x33]) // the other direction
        .fault(16, &[0x30]) // a byte only
        .fault(16, &[0x89]) // no xor
        .fault(27, &[0x8d, 0x49, 0x01]) // flags not set
        .fault(28, &[0xc2]) // another register
        .fault(31, &[0xe7]) // a byte too far
        .fault(30, &[0xe8]); // a call for a jump
}

#[test]
fn a_call_that_returns_past() {
    // push rbx; call +0x1fa
    let source = and_nops(vec![0x53, 0xe8, 0xfa, 0x01, 0x00, 0x00], &[0x90]);
    #[rustfmt::skip]
    let relocated = [
        0x53, // 0: push rbx
        0xeb, 0x14, // 1: jmp 23
        0xc7, 0x04, 0x24, 0x06, 0x10, 0x00, 0x00, // 3: mov dword [rsp], 0x1006
        0xc7, 0x44, 0x24, 0x04, 0x00, 0x7f, 0x00, 0x00, // 10: mov dword [rsp + 4], 0x7f00
        0xe9, 0xe9, 0x01, 0xf0, 0xff, // 18: jmp 0x7f0000001200
        0xe8, 0xe7, 0xff, 0xff, 0xff, // 23: call 3
        0xe9, 0xe5, 0xff, 0xef, 0xff, // 28: jmp 0x7f0000001006
    ];
    right(&source, &relocated, 33, &[(0, 0), (1, 1), (6, 28)])
        .holds()
        .fault(6, &[0x07]) // another return address
        .fault(15, &[0x7e]) // other high bits
        .fault(13, &[0x08]) // above the return address
        .fault(19, &[0xea]) // another callee
        .fault(18, &[0xe8]) // called twice
        .fault(23, &[0xe9]) // never called
        .fault(0, &[0x55]); // another register
}

fn copied<'a>(source: &'a [u8], relocated: &'a [u8], map: &'a [(usize, usize)]) -> Right<'a> {
    right(source, relocated, relocated.len(), map)
}

#[test]
fn flags_that_are_undefined() {
    // bts eax, 5; nop
    let source = and_nops(vec![0x0f, 0xba, 0xe8, 0x05, 0x90], &[0x90]);
    let relocated = [0x0f, 0xba, 0xe8, 0x05, 0x90, 0xe9, 0xfb, 0xff, 0xef, 0xff];
    copied(&source, &relocated, &[(0, 0), (4, 4), (5, 5)])
        .holds()
        .fault(4, &[0xf5]) // CF is defined: cmc
        .fault(4, &[0xfc]) // so is DF: cld
        .fault(3, &[0x06]) // another bit
        .fault(2, &[0xe0]); // bt
    // bt eax, 5; adc ecx, 1: no flag is undefined behind it
    let source = and_nops(vec![0x0f, 0xba, 0xe0, 0x05, 0x83, 0xd1, 0x01], &[0x90]);
    let relocated = [0x0f, 0xba, 0xe0, 0x05, 0x83, 0xd1, 0x01, 0xe9, 0xfb, 0xff, 0xef, 0xff];
    copied(&source, &relocated, &[(0, 0), (4, 4), (7, 7)])
        .holds()
        .fault(5, &[0xc1]) // add
        .fault(3, &[0x07]) // another bit
        .fault(4, &[0x8d, 0x49, 0x01]); // lea ecx, [rcx + 1]: no flags
}

#[test]
fn what_precedes_a_guess() {
    // mov [rsi], al; mul ecx; sete dl
    let source = and_nops(vec![0x88, 0x06, 0xf7, 0xe1, 0x0f, 0x94, 0xc2], &[0x90]);
    let relocated = [0x88, 0x06, 0xf7, 0xe1, 0x0f, 0x94, 0xc2, 0xe9, 0xfb, 0xff, 0xef, 0xff];
    let right = copied(&source, &relocated, &[(0, 0), (2, 2), (4, 4), (7, 7)]);
    let verdict = Machine::new().unwrap().judge_pair(&right.pair(&relocated), 1).unwrap();
    assert_eq!(verdict, Verdict::Unjudged("it reads flags that are undefined"));
    right
        .fault(0, &[0x88, 0x26]) // mov [rsi], ah
        .fault(0, &[0x8a]); // a load
}

#[test]
fn an_exception_in_a_loop() {
    // start: div dword ptr [rdi]; loop start
    let source = and_nops(vec![0xf7, 0x37, 0xe2, 0xfc], &[0x90]);
    let relocated = [0xf7, 0x37, 0xe2, 0xfc, 0xe9, 0xfb, 0xff, 0xef, 0xff];
    copied(&source, &relocated, &[(0, 0), (2, 2), (4, 4)])
        .holds()
        .fault(1, &[0x36]) // [rsi]
        .fault(1, &[0x3f]) // idiv
        .fault(3, &[0xfe]); // the load is not done again
}

#[test]
fn an_instruction_that_crosses_a_page() {
    // sar r14d, cl; sar edi, cl
    let source = and_nops(vec![0x41, 0xd3, 0xfe, 0xd3, 0xff], &[0x90]);
    let relocated = [0x41, 0xd3, 0xfe, 0xd3, 0xff, 0xe9, 0xfb, 0xff, 0xef, 0xff];
    let mut machine = Machine::new().unwrap();
    // The first window ends where the second starts, at the last byte of a page.
    for from in [FROM + 0xffa, FROM + 0xfff] {
        let mut right = copied(&source, &relocated, &[(0, 0), (3, 3), (5, 5)]);
        (right.from, right.to) = (from, from + 0x10_0000);
        let verdict = machine.judge_pair(&right.pair(&relocated), 1).unwrap();
        assert_eq!(verdict, Verdict::Same);
    }
}

#[test]
fn a_branch_inside_the_window() {
    // je +3; add ecx, 1; add edx, 1
    let source = and_nops(vec![0x74, 0x03, 0x83, 0xc1, 0x01, 0x83, 0xc2, 0x01], &[0x90]);
    #[rustfmt::skip]
    let relocated = [
        0x0f, 0x84, 0x03, 0x00, 0x00, 0x00, // 0: je 9
        0x83, 0xc1, 0x01, // 6: add ecx, 1
        0x83, 0xc2, 0x01, // 9: add edx, 1
        0xe9, 0xf7, 0xff, 0xef, 0xff, // 12: jmp 0x7f0000001008
    ];
    copied(&source, &relocated, &[(0, 0), (2, 6), (5, 9), (8, 12)])
        .holds()
        .fault(2, &[0x00]) // to the next instruction
        .fault(2, &[0xff, 0xff, 0xef, 0xff]); // to the original's place, which is patched
}
