//! Code without tables: what its instructions do, and what follows for its frames.

use super::super::code::layout;
use super::super::effect::{Effect, Instruction};
use super::super::layout::Layout;
use super::super::registers::{LR, PC, R7, R11, SP};
use super::super::rule::{PackedRule, RuleKind, UnwindRule};
use super::super::step::step_by_guess;
use super::super::{a32, t32};
use super::{CODE, Image, STACK, random};
use crate::cfi::CfiScratch;
use crate::memo::Words;
use crate::module::ModuleTable;
use crate::resolve::Outcome;
use crate::stack::StackMemory;
use crate::start::Cursor;
use crate::tree::FrameFlags;

const fn mask<const N: usize>(registers: [usize; N]) -> u16 {
    let (mut mask, mut index) = (0, 0);
    while index < N {
        mask |= 1 << registers[index];
        index += 1;
    }
    mask
}

fn push<const N: usize>(registers: [usize; N]) -> Effect {
    Effect::Push { mask: mask(registers), size: 4 * N as i32 }
}

fn pop<const N: usize>(registers: [usize; N]) -> Effect {
    Effect::Pop { mask: mask(registers), size: 4 * N as i32 }
}

fn moved(to: usize, from: usize, add: i32) -> Effect {
    Effect::Move { to, from, add }
}

/// Where the instructions of the tables lie.
const AT: u64 = 0x98;

#[test]
fn t32_instructions_as_an_assembler_makes_them() {
    use Effect::*;
    let cases: &[(&[u16], Effect)] = &[
        (&[0xb530], push([4, 5, LR])),
        (&[0xb403], push([0, 1])),
        (&[0xbd30], pop([4, 5, PC])),
        (&[0xe92d, 0x4110], push([4, 8, LR])),
        (&[0xe8bd, 0x8110], pop([4, 8, PC])),
        (&[0xe8bd, 0x4010], pop([4, LR])),
        // str lr, [sp, #-8]!
        (&[0xf84d, 0xed08], Push { mask: 1 << LR, size: 8 }),
        (&[0xf84d, 0x8d04], push([8])),
        (&[0xf85d, 0xeb04], pop([LR])),
        (&[0xf85d, 0xfb04], pop([PC])),
        (&[0xf8cd, 0xe014], StoreLink(20)),
        (&[0xf8dd, 0xe014], LoadLink(20)),
        // strd r4, lr, [sp, #-16]!
        (&[0xe96d, 0x4e04], Push { mask: mask([4, LR]), size: 16 }),
        (&[0xe8fd, 0x4502], pop([4, 5])),
        (&[0xe9cd, 0x3e02], StoreLink(12)),
        (&[0xe9dd, 0x3e02], LoadLink(12)),
        // vpush {d8-d9}; vpush {s16}
        (&[0xed2d, 0x8b04], Push { mask: 0, size: 16 }),
        (&[0xed2d, 0x8a01], Push { mask: 0, size: 4 }),
        (&[0xecbd, 0x8b04], Pop { mask: 0, size: 16 }),
        (&[0xb086], moved(SP, SP, -24)),
        (&[0xb006], moved(SP, SP, 24)),
        (&[0xf5ad, 0x6d80], moved(SP, SP, -1024)),
        (&[0xf20d, 0x4d04], moved(SP, SP, 1028)),
        (&[0xf2ad, 0x4d04], moved(SP, SP, -1028)),
        (&[0xaf02], moved(R7, SP, 8)),
        (&[0x466f], moved(R7, SP, 0)),
        (&[0x46bd], moved(SP, R7, 0)),
        (&[0x370c], moved(R7, R7, 12)),
        (&[0x3f0c], moved(R7, R7, -12)),
        (&[0xf10d, 0x0b04], moved(R11, SP, 4)),
        (&[0x46dd], moved(SP, R11, 0)),
        // sub.w sp, sp, r3; add sp, r3; mov sp, r2
        (&[0xebad, 0x0d03], LosesSp),
        (&[0x449d], LosesSp),
        (&[0x4695], LosesSp),
        (&[0x4770], Return),
        (&[0x4718], Leave),
        (&[0x4798], Call),
        (&[0x46f7], Return),
        (&[0x469f], Leave),
        (&[0xe8df, 0xf000], Table),
        (&[0xe8df, 0xf010], Table),
        (&[0xf851, 0xf020], Table),
        (&[0xf8d0, 0xf004], Leave),
        (&[0xde00], Trap),
        (&[0xf7f0, 0xa000], Trap),
        // itt ne; movne r0, r1
        (&[0xbf1c], If(2)),
        (&[0x4608], Other),
        (&[0xbf00], Other),
        (&[0x9402], Other),
        (&[0xe7fe], Branch(AT)),
        (&[0xd1fd], Branch(AT - 2)),
        (&[0xb140], Branch(AT + 4 + 16)),
        (&[0xb93f], Branch(AT + 4 + 14)),
        (&[0xf7ff, 0xbffa], Branch(AT - 8)),
        (&[0xf47f, 0xaff8], Branch(AT - 12)),
        (&[0xf7ff, 0xfff6], Call),
        (&[0xf7ff, 0xeff4], Call),
        (&[0x4802], Other),
    ];
    for (halves, effect) in cases {
        let [first, rest @ ..] = halves else { continue };
        let conditional = matches!(halves, [0xd1fd | 0xb140 | 0xb93f | 0xf47f, ..]);
        let expected = Instruction { effect: *effect, len: 2 * halves.len() as u64, conditional };
        assert_eq!(t32::decode(*first, AT, || rest.first().copied()), Some(expected), "{halves:x?}");
        let (before, last) = (if rest.is_empty() { 0 } else { *first }, halves[halves.len() - 1]);
        assert_eq!(t32::is_call(before, last), *effect == Call, "{halves:x?}");
    }
    assert_eq!(t32::decode(0xe92d, AT, || None), None);
    assert_eq!(t32::constant(0x4802, 0), Some(8));
}

#[test]
fn a32_instructions_as_an_assembler_makes_them() {
    use Effect::*;
    let cases = [
        (0xe92d_4030, push([4, 5, LR])),
        (0xe8bd_8030, pop([4, 5, PC])),
        (0x08bd_8010, pop([4, PC])),
        (0xe92d_d800, push([11, 12, LR, PC])),
        // str lr, [sp, #-8]!
        (0xe52d_e008, Push { mask: 1 << LR, size: 8 }),
        (0xe49d_e004, pop([LR])),
        (0xe49d_f004, pop([PC])),
        (0xe58d_e014, StoreLink(20)),
        (0xe59d_e014, LoadLink(20)),
        // strd r4, [sp, #-16]!
        (0xe16d_41f0, Push { mask: mask([4, 5]), size: 16 }),
        (0xe0cd_40d8, pop([4, 5])),
        (0xed2d_8b04, Push { mask: 0, size: 16 }),
        (0xecbd_8b04, Pop { mask: 0, size: 16 }),
        (0xe24d_db01, moved(SP, SP, -1024)),
        (0xe28d_d018, moved(SP, SP, 24)),
        (0xe28d_7008, moved(R7, SP, 8)),
        (0xe1a0_d007, moved(SP, R7, 0)),
        (0xe247_700c, moved(R7, R7, -12)),
        (0xe28d_b004, moved(R11, SP, 4)),
        (0xe24b_d004, moved(SP, R11, -4)),
        // sub sp, sp, r3; bic sp, sp, #7; mov sp, r2
        (0xe04d_d003, LosesSp),
        (0xe3cd_d007, LosesSp),
        (0xe1a0_d002, LosesSp),
        (0xe12f_ff1e, Return),
        (0x012f_ff1e, Return),
        (0xe12f_ff13, Leave),
        (0xe12f_ff33, Call),
        (0x012f_ff33, Call),
        (0xe1a0_f00e, Return),
        (0xe1a0_f003, Leave),
        (0xe79f_f100, Table),
        (0x908f_f100, Table),
        (0xe590_f004, Leave),
        // ldmdb fp, {fp, sp, pc}
        (0xe91b_a800, Leave),
        (0xe7f0_00f0, Trap),
        (0xe320_f000, Other),
        (0xe58d_4008, Other),
        (0xeaff_fffe, Branch(AT)),
        (0x1aff_fffd, Branch(AT - 4)),
        (0xebff_fffa, Call),
        (0xfaff_fff9, Call),
        (0xe59f_0008, Other),
    ];
    for (word, effect) in cases {
        let expected = Instruction { effect, len: 4, conditional: word >> 28 < 14 };
        assert_eq!(a32::decode(word, AT), expected, "{word:x}");
        assert_eq!(a32::is_call(0, word), effect == Call, "{word:x}");
    }
    assert!(a32::is_call(0xe1a0_e00f, 0xe1a0_f003));
    assert_eq!(a32::constant(0xe59f_0008), Some(8));
}

impl Image {
    /// Code that linkers made one entry of.
    fn halves(&self, halves: &[u16]) -> ModuleTable {
        let words =
            halves.chunks(2).map(|two| u32::from(two[0]) | u32::from(*two.get(1).unwrap_or(&0)) << 16);
        self.put(CODE, &words.collect::<Vec<u32>>());
        self.index(&[1])
    }

    fn words(&self, words: &[u32]) -> ModuleTable {
        self.put(CODE, words);
        self.index(&[1])
    }

    fn layout(&self, table: &ModuleTable, pc: u64, is_return_address: bool) -> Option<Layout> {
        let pc = self.0 + CODE + pc;
        layout(pc, is_return_address, &table.arm_entry((pc & !1) - u64::from(is_return_address)).unwrap())
    }

    fn rule_at(&self, table: &ModuleTable, pc: u64) -> UnwindRule {
        super::super::rule(table, &mut CfiScratch::new(), self.0 + CODE + pc, true).0
    }
}

fn sp(pc: u8, r7: u8, r11: u8, cfa_offset: i32) -> UnwindRule {
    UnwindRule { kind: RuleKind::GuessedSp, pc, r7, r11, cfa_offset }
}

#[test]
fn the_way_out_and_the_way_in() {
    let image = Image::new();
    // As gcc makes strdup: push {r4-r6, lr}; mov; bl; cbz r0, 1f; mov; mov; ldmia.w sp!, {r4-r6, lr}; b.w; 1: pop {r4-r6, pc}
    let table = image.halves(&[
        0xb570, 0x4605, 0xf000, 0xf800, 0xb120, 0x4622, 0x4629, 0xe8bd, 0x4070, 0xf000, 0xb800, 0xbd70,
    ]);
    assert_eq!(image.rule_at(&table, 9), sp(1, 0, 0, 16));
    // With arguments that vary, and one instruction between the stores: push {r1-r3}; mov; push {r4, lr}; sub sp, #12; bl; add sp,
    // #12; ldmia.w sp!, {r4, lr}; add sp, #12; bx lr
    let vary = [0xb40e, 0x4604, 0xb510, 0xb083, 0xf000, 0xf800, 0xb003, 0xe8bd, 0x4010, 0xb003, 0x4770];
    let table = image.halves(&vary);
    assert_eq!(image.rule_at(&table, 13), sp(4, 0, 0, 32));
    // The same that ends in a call that doesn't return, behind a function.
    let mut never = vec![0xb510, 0xbd10];
    never.extend(&vary[..6]);
    // What follows is a function that returns.
    never.extend([0xb530, 0xf000, 0xf800, 0xbd30]);
    let table = image.halves(&never);
    assert_eq!(image.rule_at(&table, 17), sp(4, 0, 0, 32));
    // A constant behind it, which looks like `pop {r4, pc}`: ldr r0, [pc, #8]; push {r3, lr}; add r0, pc; bl; nop; .word
    let table = image.halves(&[0x4802, 0xb508, 0x4478, 0xf000, 0xf800, 0xbf00, 0xbd10, 0xbd10]);
    assert_eq!(image.rule_at(&table, 11), sp(1, 0, 0, 8));
    // Without an end: push {r4, lr}; 1: bl; b 1b
    let table = image.halves(&[0xb510, 0xf000, 0xf800, 0xe7fc, 0xb510]);
    assert_eq!(image.rule_at(&table, 7), sp(1, 0, 0, 8));
    // As gcc makes code with frame pointers and memory of alloca: push {r7, lr}; sub sp, #8; add r7, sp, #0; sub.w sp, sp, r3; bl;
    // adds r7, #8; mov sp, r7; pop {r7, pc}
    let framed = [0xb580, 0xb082, 0xaf00, 0xebad, 0x0d03, 0xf000, 0xf800, 0x3708, 0x46bd, 0xbd80];
    let expected = UnwindRule { kind: RuleKind::GuessedR7, pc: 1, r7: 2, r11: 0, cfa_offset: 16 };
    let table = image.halves(&framed);
    assert_eq!(image.rule_at(&table, 15), expected);
    // Without an end, where the prologue says it.
    let table = image.halves(&[&framed[..7], &[0xe7fc]].concat());
    assert_eq!(image.rule_at(&table, 15), expected);
    // As A32 code: push {fp, lr}; add fp, sp, #4; sub sp, sp, r3; bl; sub sp, fp, #4; pop {fp, pc}
    let table = image.words(&[0xe92d_4800, 0xe28d_b004, 0xe04d_d003, 0xeb00_0000, 0xe24b_d004, 0xe8bd_8800]);
    let rule = UnwindRule { kind: RuleKind::GuessedR11, pc: 1, r7: 0, r11: 2, cfa_offset: 4 };
    assert_eq!(image.rule_at(&table, 16), rule);
    // push {r4, r7, r11, lr}; vpush {d8}; bl; vpop {d8}; pop {r4, r7, r11, pc}
    let table = image.words(&[0xe92d_4890, 0xed2d_8b02, 0xeb00_0000, 0xecbd_8b02, 0xe8bd_8890]);
    assert_eq!(image.rule_at(&table, 12), sp(1, 3, 2, 24));
    // lr is any register between: push {r4, lr}; sub sp, #8; str lr, [sp, #4]; bl; ldr lr, [sp, #4]; bl; add sp, #8; pop {r4, pc}
    let table = image.words(&[
        0xe92d_4010,
        0xe24d_d008,
        0xe58d_e004,
        0xeb00_0000,
        0xe59d_e004,
        0xeb00_0000,
        0xe28d_d008,
        0xe8bd_8010,
    ]);
    assert_eq!(image.rule_at(&table, 16), sp(1, 0, 0, 16));
}

#[test]
fn where_nothing_was_stored_a_stack_ends() {
    let image = Image::new();
    // As `_start`, behind a function that ended: push {r3, lr}; pop {r3, pc}; mov fp, #0; mov lr, #0; pop {r1}; mov r2, sp; push
    // {r2}; push {r0}; bl; bl; and behind it a function.
    let table = image.halves(&[
        0xb508, 0xbd08, 0xf04f, 0x0b00, 0xf04f, 0x0e00, 0xbc02, 0x466a, 0xb404, 0xb401, 0xf000, 0xf800,
        0xf000, 0xf800, 0xb508, 0xbd08,
    ]);
    assert_eq!(image.rule_at(&table, 25), UnwindRule::ROOT);
    assert_eq!(image.rule_at(&table, 29), UnwindRule::ROOT);
    // As a thread's first code: ldr r0, [sp, #4]; ldr ip, [sp], #8; blx ip; mov r7, #1; svc 0; and a leaf.
    let table = image.words(&[0xe59d_0004, 0xe49d_c008, 0xe12f_ff3c, 0xe3a0_7001, 0xef00_0000, 0xe12f_ff1e]);
    assert_eq!(image.rule_at(&table, 12), UnwindRule::ROOT);
}

/// push {r4, r7, r11, lr}; bl; pop {r4, r7, r11, pc}; and what calls it: bl
const CALLED: [u32; 4] = [0xe92d_4890, 0xeb00_0000, 0xe8bd_8890, 0xeb00_0000];

#[test]
fn a_guess_is_followed_if_it_leads_behind_a_call() {
    let image = Image::new();
    let table = image.words(&CALLED);
    let rule = PackedRule::new(image.rule_at(&table, 8));
    let (sp, behind_call) = (image.0 + STACK, (image.0 + CODE + 16) as u32);
    // What a signal's handler returns to, as glibc has it for T32 code, and something else: mov.w r7, #173; svc 0; mov.w r7, #172; svc 0
    let trampoline = (image.0 + CODE + 0x101) as u32;
    image.put(CODE + 0x100, &[0x07ad_f04f, 0xdf00, 0x07ac_f04f, 0xdf00]);
    for (pc, leads) in [
        (trampoline, Some((trampoline, Outcome::Next))),
        (trampoline + 8, None),
        (behind_call, Some((behind_call, Outcome::Next))),
        (behind_call - 8, Some((behind_call - 8, Outcome::Next))),
        (behind_call - 4, None),
        (behind_call + 1, None),
        (sp as u32, None),
        (8, None),
        (0xffff_fff0, None),
        (0, Some((0, Outcome::Root))),
    ] {
        image.put(STACK, &[4, 7, 11, pc]);
        let mut stack = StackMemory::new();
        stack.begin(sp);
        let at = Cursor { pc: image.0 + CODE + 8, sp, fp: 0 };
        let fast = step_by_guess(rule, at, &mut stack, &mut Words::none());
        assert_eq!(fast.map(|caller| caller.pc), leads.map(|(pc, _)| pc.into()), "{pc:x}");
        let mut state = image.state(CODE + 8);
        let full = image.full(&table, &mut state);
        assert_eq!(full, (leads.map_or(Outcome::Stuck, |(_, outcome)| outcome), FrameFlags::GUESS), "{pc:x}");
        if let (Some(fast), Outcome::Next) = (fast, full.0) {
            assert_eq!((fast.pc, fast.sp, fast.fp), (state.pc(), state.sp(), state.frame_pointers()));
            assert_eq!((fast.sp, fast.fp), (sp + 16, 11 << 32 | 7));
        }
    }
}

#[test]
fn stopped_at_any_instruction() {
    let image = Image::new();
    let table = image.words(&CALLED);
    // In front of the first instruction, behind it, and at the last one.
    for (at, place) in [(0, None), (4, Some(12)), (8, Some(12))] {
        let layout = image.layout(&table, at, false).unwrap();
        assert_eq!((layout.pc(), layout.cfa), (place, place.map_or(0, |place| place + 4)), "{at}");
    }
    // In a loop without an end: push {r4, lr}; 1: add r0, r0; b 1b
    let table = image.words(&[0xe92d_4010, 0xe080_0000, 0xeaff_fffd]);
    let layout = image.layout(&table, 8, false).unwrap();
    assert_eq!((layout.pc(), layout.cfa), (Some(4), 8));
    // A leaf: add r0, r0; bx lr
    let table = image.words(&[0xe080_0000, 0xe12f_ff1e]);
    let layout = image.layout(&table, 0, false).unwrap();
    assert_eq!((layout.pc(), layout.cfa), (None, 0));
    assert!(image.layout(&table, 4, true).is_none());
}

#[test]
fn code_of_anything_is_read_without_a_fault() {
    let image = Image::new();
    let mut random = random();
    // Halves of instructions that are followed, and any others.
    let known = [
        0xb510, 0xbd10, 0xb570, 0xe92d, 0xe8bd, 0x4010, 0x8010, 0xb082, 0xb002, 0xaf00, 0x46bd, 0xf85d,
        0xeb04, 0xf8dd, 0xe00c, 0x4770, 0x4798, 0xd002, 0xe7fa, 0xbf18, 0xf000, 0xf800, 0xe8df, 0x4010,
        0xe24d, 0xd008, 0xe28d, 0xe12f, 0xff1e, 0x1a00, 0x0002, 0xeb00, 0x0000, 0xeaff, 0xfffa, 0x4802,
        0xe59f,
    ];
    let (mut found, mut steps) = (0, 0);
    for _ in 0..200 {
        let halves: Vec<u16> = (0..0x800)
            .map(|_| match random(8) {
                0 => random(1 << 16) as u16,
                _ => known[random(known.len() as u64) as usize],
            })
            .collect();
        let table = image.halves(&halves);
        let stack: Vec<u32> = (0..0x200)
            .map(|_| match random(3) {
                0 => random(1 << 32) as u32,
                _ => (image.0 + CODE + random(0x1000)) as u32,
            })
            .collect();
        image.put(STACK, &stack);
        for _ in 0..50 {
            let pc = random(0x1000);
            for is_return_address in [false, true] {
                found += u32::from(image.layout(&table, pc.max(2), is_return_address).is_some());
            }
            let mut state = image.state(CODE + pc.max(2));
            for _ in 0..64 {
                let (outcome, _) = image.full(&table, &mut state);
                if outcome != Outcome::Next {
                    break;
                }
                steps += 1;
            }
        }
    }
    assert!(found > 1000 && steps > 100, "{found} {steps}");
}
