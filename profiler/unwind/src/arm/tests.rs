//! Tables, stacks and code as they lie in a 32-bit process, at addresses that such a process can have.

mod against_tables;
mod code;

use super::compile::compile;
use super::frame_pointers::FramePointer;
use super::full::{FullState, full_step};
use super::opcode::{NoOpcode, Opcode, next};
use super::plain;
use super::registers::Registers;
use super::rule::{PackedRule, RuleKind, UnwindRule};
use super::step::{step, step_by_frame_pointer};
use super::table::Entry;
use crate::cfi::CfiScratch;
use crate::memo::Words;
use crate::module::{ModuleInfo, ModuleTable, ProgramHeader};
use crate::resolve::Outcome;
use crate::stack::StackMemory;
use crate::start::Cursor;
use crate::tree::FrameFlags;
use std::sync::atomic::{AtomicU64, Ordering};

/// A mapping below 4 GiB: code, an index, a table and a stack.
struct Image(u64);

const LEN: u64 = 0x1_0000;
const CODE: u64 = 0;
const INDEX: u64 = 0x1000;
const TABLE: u64 = 0x2000;
const TABLE_END: u64 = 0x3000;
const STACK: u64 = 0x8000;

impl Image {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0x3000_0000);
        let wish = NEXT.fetch_add(2 * LEN, Ordering::Relaxed) as usize as *mut _;
        // SAFETY: a fresh mapping, where nothing else is.
        let at = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(wish, LEN as usize, protection, flags, -1, 0)
        };
        assert_eq!(at, wish, "the address is taken");
        Image(at as u64)
    }

    fn put(&self, at: u64, words: &[u32]) {
        for (word, at) in words.iter().zip((self.0 + at..).step_by(4)) {
            // SAFETY: the mapping is ours.
            unsafe { (at as *mut u32).write_volatile(*word) };
        }
    }

    fn prel31(&self, place: u64, to: u64) -> u32 {
        (to.wrapping_sub(place) as u32) & 0x7fff_ffff
    }

    /// An index of functions at these places of the code, 16 bytes from one to the next, with these second words.
    fn index(&self, seconds: &[u32]) -> ModuleTable {
        for (number, second) in (0..).zip(seconds) {
            let place = INDEX + 8 * number;
            self.put(place, &[self.prel31(place, CODE + 16 * number), *second]);
        }
        let load = |start: u64, end: u64, flags| ProgramHeader {
            p_type: 1,
            p_flags: flags,
            p_vaddr: start,
            p_filesz: end - start,
            p_memsz: end - start,
            ..Default::default()
        };
        let exidx = ProgramHeader {
            p_type: 0x7000_0001,
            p_memsz: 8 * seconds.len() as u64,
            p_vaddr: INDEX,
            ..Default::default()
        };
        let headers = [exidx, load(CODE, INDEX, 5), load(INDEX, TABLE_END, 4)];
        // SAFETY: the mapping stays.
        unsafe { ModuleTable::build([ModuleInfo { id: 5, bias: self.0, phdrs: &headers }]) }
    }

    /// An index of one function whose instructions are these, in the table.
    fn program(&self, bytes: &[u8]) -> ModuleTable {
        let mut bytes = bytes.to_vec();
        bytes.resize(2 + 4 * (bytes.len().saturating_sub(2).div_ceil(4)), 0xb0);
        let more = (bytes.len() - 2) / 4;
        let mut words =
            vec![0x81 << 24 | (more as u32) << 16 | u32::from(bytes[0]) << 8 | u32::from(bytes[1])];
        words.extend(bytes[2..].as_chunks().0.iter().map(|four| u32::from_be_bytes(*four)));
        self.put(TABLE, &words);
        self.index(&[self.prel31(INDEX + 4, TABLE)])
    }

    fn state(&self, pc: u64) -> FullState {
        FullState::new(&Registers {
            pc: (self.0 + pc) as u32,
            sp: (self.0 + STACK) as u32,
            r4: [
                0x44,
                0x55,
                0x66,
                (self.0 + STACK + 0x80) as u32,
                0x88,
                0x99,
                0xaa,
                (self.0 + STACK + 0x100) as u32,
            ],
        })
    }

    fn full(&self, table: &ModuleTable, state: &mut FullState) -> (Outcome, FrameFlags) {
        let stack = &mut StackMemory::new();
        stack.begin(state.sp());
        let step = full_step(table, &mut CfiScratch::new(), state, stack);
        (step.outcome, step.flags)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        unsafe { libc::munmap(self.0 as *mut _, LEN as usize) };
    }
}

/// Numbers below a bound, the same in each run.
fn random() -> impl FnMut(u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(7);
    move |below| random.u64(..below)
}

fn decoded(bytes: &[u8]) -> (Result<Opcode, NoOpcode>, usize) {
    let mut rest = bytes.iter().copied();
    (next(&mut rest), bytes.len() - rest.len())
}

#[test]
fn every_instruction_of_the_specification() {
    use NoOpcode::*;
    use Opcode::*;
    let cases: &[(&[u8], Result<Opcode, NoOpcode>)] = &[
        (&[0x00], Ok(Add(4))),
        (&[0x3f], Ok(Add(0x100))),
        (&[0x40], Ok(Add(-4))),
        (&[0x7f], Ok(Add(-0x100))),
        (&[0x80, 0x00], Err(Refused)),
        (&[0x80, 0x01], Ok(Pop(1 << 4))),
        (&[0x84, 0x08], Ok(Pop(1 << 14 | 1 << 7))),
        (&[0x8f, 0xff], Ok(Pop(0xfff0))),
        (&[0x90], Ok(Set(0))),
        (&[0x97], Ok(Set(7))),
        (&[0x9b], Ok(Set(11))),
        (&[0x9c], Ok(Set(12))),
        (&[0x9d], Err(Unknown)),
        (&[0x9e], Ok(Set(14))),
        (&[0x9f], Err(Unknown)),
        (&[0xa0], Ok(Pop(0x0010))),
        (&[0xa7], Ok(Pop(0x0ff0))),
        (&[0xa8], Ok(Pop(0x4010))),
        (&[0xaf], Ok(Pop(0x4ff0))),
        (&[0xb0], Ok(Finish)),
        (&[0xb1, 0x00], Err(Unknown)),
        (&[0xb1, 0x01], Ok(Pop(1))),
        (&[0xb1, 0x0f], Ok(Pop(0xf))),
        (&[0xb1, 0x10], Err(Unknown)),
        (&[0xb1, 0xff], Err(Unknown)),
        (&[0xb2, 0x00], Ok(Add(0x204))),
        (&[0xb2, 0x7f], Ok(Add(0x204 + 0x7f * 4))),
        (&[0xb2, 0x81, 0x02], Ok(Add(0x204 + 0x101 * 4))),
        (&[0xb2, 0x80, 0x80, 0x80, 0x80, 0x01], Ok(Add(0x204 + 0x4000_0000))),
        (&[0xb2, 0x80, 0x80, 0x80, 0x80, 0x02], Err(Unknown)),
        (&[0xb2, 0xff, 0xff, 0xff, 0xff, 0xff], Err(Unknown)),
        (&[0xb3, 0x00], Ok(Skip(12))),
        (&[0xb3, 0x87], Ok(Skip(68))),
        (&[0xb3, 0x88], Err(Unknown)),
        (&[0xb4], Ok(Skip(4))),
        (&[0xb5], Ok(Nothing)),
        (&[0xb6], Err(Unknown)),
        (&[0xb7], Err(Unknown)),
        (&[0xb8], Ok(Skip(12))),
        (&[0xbf], Ok(Skip(68))),
        (&[0xc0], Ok(Skip(8))),
        (&[0xc5], Ok(Skip(48))),
        (&[0xc6, 0x31], Ok(Skip(16))),
        (&[0xc6, 0xf1], Err(Unknown)),
        (&[0xc7, 0x00], Err(Unknown)),
        (&[0xc7, 0x05], Ok(Skip(8))),
        (&[0xc7, 0x10], Err(Unknown)),
        (&[0xc8, 0x0f], Ok(Skip(128))),
        (&[0xc8, 0x1f], Err(Unknown)),
        (&[0xc9, 0x83], Ok(Skip(32))),
        (&[0xc9, 0xff], Err(Unknown)),
        (&[0xca], Err(Unknown)),
        (&[0xcf], Err(Unknown)),
        (&[0xd0], Ok(Skip(8))),
        (&[0xd7], Ok(Skip(64))),
        (&[0xd8], Err(Unknown)),
        (&[0xff], Err(Unknown)),
    ];
    for (bytes, expected) in cases {
        assert_eq!(decoded(bytes), (*expected, bytes.len()), "{bytes:x?}");
    }
    assert_eq!(decoded(&[]), (Ok(Finish), 0));
    for cut in [&[0x80][..], &[0xb1], &[0xb2], &[0xb2, 0x80], &[0xb3], &[0xc6], &[0xc7], &[0xc8], &[0xc9]] {
        assert_eq!(decoded(cut).0, Err(Unknown), "{cut:x?}");
    }
}

#[test]
fn an_entry_is_found_in_each_of_its_forms() {
    let image = Image::new();
    let to_table = |entry: u64, at: u64| image.prel31(INDEX + 8 * entry + 4, TABLE + at);
    // vsp += 8, pop {r4, lr}.
    let table = image.index(&[
        1,
        0x8001_a8b0,
        to_table(2, 0),
        to_table(3, 0x10),
        to_table(4, 0x20),
        to_table(5, 0x30),
        0x8101_a8b0,
        to_table(7, 0x40),
        to_table(8, TABLE_END - TABLE - 4),
        TABLE_END as u32,
    ]);
    image.put(TABLE, &[0x8001_a8b0]);
    image.put(TABLE + 0x10, &[0x8101_01a8, 0xb0b0_b0b0]);
    image.put(TABLE + 0x20, &[0x8201_01a8, 0xb0b0_b0b0]);
    // A personality routine of the language's own, then its data.
    image.put(TABLE + 0x30, &[0x0000_1000, 0x0101_a8b0, 0xb0b0_b0b0]);
    image.put(TABLE + 0x40, &[0x8301_a8b0]);
    image.put(TABLE_END - 4, &[0x81ff_01a8]);
    let found = |number: u64| {
        let found = table.arm_entry(image.0 + 16 * number + 15).unwrap();
        assert_eq!(found.module.id, 5);
        found.entry.unwrap()
    };
    assert!(matches!(found(0), Entry::CantUnwind));
    for number in [1, 2, 3, 4, 5] {
        let Entry::Program(program) = found(number) else { panic!("{number}") };
        let bytes: Vec<u8> = program.bytes().collect();
        assert_eq!(bytes[..2], [0x01, 0xa8], "{number}");
        assert!(bytes[2..].iter().all(|byte| *byte == 0xb0), "{number}");
        let rule = compile(&program).unwrap();
        assert_eq!(rule, UnwindRule { kind: RuleKind::Sp, pc: 1, r7: 0, r11: 0, cfa_offset: 16 });
    }
    for number in [6, 7, 8, 9] {
        assert!(matches!(found(number), Entry::Unknown), "{number}");
    }
    assert!(table.arm_entry(image.0 + INDEX).is_none(), "no code");
}

#[test]
fn a_rule_does_what_the_instructions_do() {
    let image = Image::new();
    let mut random = random();
    let stack: Vec<u32> = (0..0x3000).map(|_| random(1 << 32) as u32 | 2).collect();
    image.put(TABLE_END, &stack);
    let (mut fast, mut ended) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = Vec::new();
        for _ in 0..=random(5) {
            match random(10) {
                0 => bytes.push(0x97),
                1 => bytes.push(0x9b),
                2 | 3 => bytes.push(0xa8 + random(8) as u8),
                4 => bytes.extend([0x80 | random(16) as u8 & 0xd, random(255) as u8 + 1]),
                5 => bytes.extend([0xb1, random(15) as u8 + 1]),
                6 => bytes.extend([0xb2, random(128) as u8]),
                7 => bytes.extend([0xc9, random(8) as u8 | 0x40]),
                _ => bytes.push(random(256) as u8),
            }
        }
        let table = image.program(&bytes);
        let mut state = image.state(9);
        let start = state;
        let full = image.full(&table, &mut state);
        let (rule, id) = super::rule(&table, &mut CfiScratch::new(), image.0 + 9, true);
        assert_eq!(id, 5);
        if rule.kind == RuleKind::Full {
            continue;
        }
        let mut memory = StackMemory::new();
        memory.begin(start.sp());
        let mut fp = FramePointer::known(FramePointer::pair(
            (image.0 + STACK + 0x80) as u32,
            (image.0 + STACK + 0x100) as u32,
        ));
        let caller = step(PackedRule::new(rule), start.sp(), &mut fp, &mut memory, &mut Words::none());
        match caller {
            Some((pc, sp)) => {
                // A caller at 0 is the end, and lies behind what was put there.
                let outcome = if plain(pc) == 0 { Outcome::Root } else { Outcome::Next };
                assert_eq!(full.0, outcome, "{bytes:x?}");
                assert_eq!(
                    (pc, sp, fp.value()),
                    (state.pc(), state.sp(), state.frame_pointers()),
                    "{bytes:x?}"
                );
                fast += 1;
            }
            None => {
                assert_eq!(full.0, Outcome::Stuck, "{bytes:x?} {rule:?}");
                ended += 1;
            }
        }
    }
    assert!(fast > 1000 && ended > 50, "{fast} {ended}");
}

#[test]
fn what_is_refused_ends_the_stack_and_what_is_unknown_is_no_caller() {
    let image = Image::new();
    for (bytes, outcome) in [
        (&[0x80, 0x00][..], Outcome::Root),
        (&[0x9d], Outcome::Stuck),
        (&[0xff], Outcome::Stuck),
        // Nothing saved, and the register that has the return address isn't known.
        (&[0xb0], Outcome::Stuck),
        // Down, and nowhere.
        (&[0x40, 0x84, 0x00], Outcome::Stuck),
        (&[0x90, 0x84, 0x00], Outcome::Stuck),
        (&[0xb2, 0x80, 0x80, 0x80, 0x10, 0x84, 0x00], Outcome::Stuck),
    ] {
        let table = image.program(bytes);
        let mut state = image.state(9);
        assert_eq!(image.full(&table, &mut state), (outcome, FrameFlags::NONE), "{bytes:x?}");
    }
    let table = image.index(&[1]);
    assert_eq!(image.full(&table, &mut image.state(9)), (Outcome::Root, FrameFlags::NONE));
    assert_eq!(image.full(&table, &mut image.state(TABLE)), (Outcome::NotCode, FrameFlags::NONE));
}

#[test]
fn a_trampoline_that_gives_all_registers_back_is_a_signal() {
    let image = Image::new();
    // As glibc's: vsp += 0x20, pop {r0-r3}, pop {r4-r15}.
    let table = image.program(&[0x07, 0xb1, 0x0f, 0x8f, 0xff]);
    let registers: Vec<u32> = (0..16).map(|n| 0x1000 * n + 8).collect();
    image.put(STACK + 0x20, &registers);
    let mut state = image.state(9);
    assert_eq!(image.full(&table, &mut state), (Outcome::Next, FrameFlags::SIGNAL));
    assert_eq!((state.pc(), state.sp(), state.is_exact()), (0xf008, 0xd008, true));

    // The kernel's own code, in a module without tables and outside of modules.
    for (code, bit, siginfo) in [
        (&[0xe3a0_70ad, 0xef00_0000][..], 0, 128),
        (&[0xdf00_27ad], 1, 128),
        (&[0xe3a0_7077, 0xef90_0077], 0, 0),
        (&[0xdf00_2777], 1, 0),
        (&[0x07ad_f04f, 0xbf00_df00], 1, 128),
        (&[0x0777_f04f, 0xbf00_df00], 1, 0),
    ] {
        image.put(CODE + 0x100, code);
        image.put(0x7000, code);
        image.put(STACK + siginfo + 32, &registers);
        image.put(STACK + siginfo + 32 + 64, &[0x20]);
        for at in [CODE + 0x100, 0x7000] {
            let table = image.index(&[1]);
            let pc = at + bit;
            let (rule, _) = super::rule(&table, &mut CfiScratch::new(), image.0 + pc, true);
            assert_eq!(rule, UnwindRule::FULL, "{code:x?}");
            let mut state = image.state(pc);
            assert_eq!(image.full(&table, &mut state), (Outcome::Next, FrameFlags::SIGNAL));
            assert_eq!((state.pc(), state.sp(), state.is_exact()), (0xf009, 0xd008, true));
        }
    }
}

#[test]
fn frame_pointers_of_both_instruction_sets_and_compilers() {
    let image = Image::new();
    let at = |words: u64| (image.0 + STACK + 4 * words) as u32;
    image.put(STACK, &[0x11, at(9), 0x40_0001, 0x22, at(10), 0x50_0000, 0, 0x60_0000, 0x33]);
    let step = |pc: u64, r7, r11| {
        let mut stack = StackMemory::new();
        stack.begin(image.0 + STACK);
        let fp = FramePointer::pair(r7, r11);
        step_by_frame_pointer(Cursor { pc, sp: at(0).into(), fp }, &mut stack, &mut Words::none())
    };
    let found = |pc, sp: u32, r7, r11| Some(Cursor { pc, sp: sp.into(), fp: FramePointer::pair(r7, r11) });
    // T32: r7 points at a record. A32: r11 does, or, of gcc, at the word above.
    assert_eq!(step(1, at(1), 7), found(0x40_0001, at(3), at(9), 7));
    assert_eq!(step(0, 7, at(4)), found(0x50_0000, at(6), 7, at(10)));
    assert_eq!(step(0, 7, at(5)), found(0x50_0000, at(6), 7, at(10)));
    assert_eq!(step(0, 7, at(6)), found(0x60_0000, at(8), 7, 0));
    assert_eq!(step(0, 7, 0).map(|caller| caller.pc), Some(0));
    for bad in [1, 8, at(1) + 2, at(0) - 4, 0xffff_fffc, 0x8000_0000, at(0) + (2 << 20)] {
        assert_eq!(step(0, bad, bad), None, "{bad:x}");
        assert_eq!(step(1, bad, bad), None, "{bad:x}");
    }
    // The end of what is mapped.
    let end = (image.0 + LEN) as u32;
    assert_eq!(step(1, end - 4, 0), None);
    assert_eq!(step(1, end, 0), None);
}

#[test]
fn tables_of_anything_on_stacks_of_anything_are_left_without_a_fault() {
    let image = Image::new();
    let mut random = random();
    let (mut steps, mut signals) = (0, 0);
    for _ in 0..400 {
        // Words that could be an address of code or of the image, three instructions, or the head of a table, and others.
        let base = image.0;
        let mut word = || match random(8) {
            0..3 => (base + random(INDEX)) as u32,
            3 => (base + random(LEN)) as u32,
            4 => {
                let mut one = || match random(8) {
                    0..4 => 0xa8 | random(8) as u8,
                    4 | 5 => random(0x20) as u8,
                    6 => 0x8d,
                    _ => random(256) as u8,
                };
                u32::from_be_bytes([0x80, one(), one(), one()])
            }
            5 => 0x8100_0000 | random(1 << 18) as u32,
            6 => random(0x2000) as u32,
            _ => random(1 << 32) as u32,
        };
        let words: Vec<u32> = (0..(LEN - INDEX) / 4).map(|_| word()).collect();
        let mut seconds: Vec<u32> = (0..255).map(|_| word()).collect();
        for (number, second) in (0..).zip(&mut seconds).step_by(2) {
            *second = image.prel31(INDEX + 8 * number + 4, TABLE + random(TABLE_END - TABLE));
        }
        image.put(INDEX, &words);
        let table = image.index(&seconds);
        for _ in 0..50 {
            let mut state = image.state(CODE + random(INDEX));
            for _ in 0..64 {
                let (outcome, flags) = image.full(&table, &mut state);
                signals += u32::from(flags.contains(FrameFlags::SIGNAL));
                if outcome != Outcome::Next {
                    break;
                }
                steps += 1;
            }
        }
    }
    assert!(steps > 1000 && signals > 10, "{steps} {signals}");
}
