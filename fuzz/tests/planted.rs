//! The semantic judge sees what it is there to see. Each code here is held against a window that it is right for, and
//! with one fault planted it must be told apart.
#![cfg(feature = "unicorn")]

use grapnel_fuzz::oracle::{
    Verdict,
    semantic::{Machine, Pair},
};
use grapnel_relocator::Isa;

/// A window, and code for another place that does the same.
struct Right<'a> {
    isa: Isa,
    from: u64,
    to: u64,
    source: &'a [u8],
    code_len: usize,
    relocated: &'a [u8],
    relocated_len: usize,
    map: &'a [(usize, usize)],
    clobbers: u32,
}

impl Right<'_> {
    fn pair<'a>(&'a self, relocated: &'a [u8]) -> Pair<'a> {
        Pair {
            isa: self.isa,
            from: self.from,
            to: self.to,
            source: self.source,
            code_len: self.code_len,
            window_len: self.code_len,
            relocated,
            relocated_len: self.relocated_len,
            map: self.map.to_vec(),
            clobbers: self.clobbers,
            entry: true,
        }
    }

    fn verdict(&self, relocated: &[u8]) -> Verdict {
        let mut machine = Machine::new().unwrap();
        let pair = self.pair(relocated);
        let verdicts = (0..48).map(|seed| machine.judge_pair(&pair, seed).unwrap());
        let mut last = Verdict::Unjudged("never run");
        for verdict in verdicts {
            match verdict {
                Verdict::Mismatch(_) => return verdict,
                Verdict::Same => last = verdict,
                Verdict::Unjudged(_) => {}
            }
        }
        last
    }

    /// The right code is right.
    #[track_caller]
    fn holds(&self) -> &Self {
        assert_eq!(self.verdict(self.relocated), Verdict::Same);
        self
    }

    /// It is wrong with these bytes at this offset.
    #[track_caller]
    fn fault(&self, at: usize, bytes: &[u8]) -> &Self {
        let mut wrong = self.relocated.to_vec();
        wrong[at..at + bytes.len()].copy_from_slice(bytes);
        assert_ne!(wrong, self.relocated, "no fault was planted");
        let verdict = self.verdict(&wrong);
        assert!(matches!(verdict, Verdict::Mismatch(_)), "{verdict:?} for {bytes:02x?} at {at}");
        self
    }

    #[track_caller]
    fn word(&self, at: usize, word: u32) -> &Self {
        self.fault(at, &word.to_le_bytes())
    }

    #[track_caller]
    fn half(&self, at: usize, half: u16) -> &Self {
        self.fault(at, &half.to_le_bytes())
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn halves(halves: &[u16]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_le_bytes()).collect()
}

/// What follows a window.
fn and_nops(mut window: Vec<u8>, nop: &[u8]) -> Vec<u8> {
    for _ in 0..16 {
        window.extend(nop);
    }
    window
}

mod aarch64 {
    use super::*;

    const NOP: u32 = 0xd503_201f;

    fn right<'a>(source: &'a [u8], relocated: &'a [u8], len: usize, map: &'a [(usize, usize)]) -> Right<'a> {
        Right {
            isa: Isa::Aarch64,
            from: 0x5500_0000_1000,
            to: 0x5500_0010_0000,
            source,
            code_len: map.last().map_or(0, |&(from, _)| from),
            relocated,
            relocated_len: len,
            map,
            clobbers: 0,
        }
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
        let source =
            and_nops(words(&[0x5400_0400, 0x9400_003f, 0x361f_ffc2, 0xaa1e_03e4]), &NOP.to_le_bytes());
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
}

mod a32 {
    use super::*;

    const NOP: u32 = 0xe320_f000;

    fn right<'a>(source: &'a [u8], relocated: &'a [u8], len: usize, map: &'a [(usize, usize)]) -> Right<'a> {
        Right {
            isa: Isa::A32,
            from: 0x1000_1000,
            to: 0x1010_0000,
            source,
            code_len: map.last().map_or(0, |&(from, _)| from),
            relocated,
            relocated_len: len,
            map,
            clobbers: 0,
        }
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
}

mod t32 {
    use super::*;

    const NOP: u16 = 0xbf00;

    fn right<'a>(source: &'a [u8], relocated: &'a [u8], len: usize, map: &'a [(usize, usize)]) -> Right<'a> {
        Right {
            isa: Isa::T32,
            from: 0x1000_1000,
            to: 0x1000_2000,
            source,
            code_len: map.last().map_or(0, |&(from, _)| from),
            relocated,
            relocated_len: len,
            map,
            clobbers: 0,
        }
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
}

mod x86_64 {
    use super::*;

    const FROM: u64 = 0x7f00_0000_1000;

    fn right<'a>(source: &'a [u8], relocated: &'a [u8], len: usize, map: &'a [(usize, usize)]) -> Right<'a> {
        Right {
            isa: Isa::X86_64,
            from: FROM,
            to: FROM + 0x10_0000,
            source,
            code_len: map.last().map_or(0, |&(from, _)| from),
            relocated,
            relocated_len: len,
            map,
            clobbers: 0,
        }
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
}
