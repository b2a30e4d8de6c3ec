//! The judges see what they are there to see: code relocated from another window than the one it is held against.
#![cfg(feature = "unicorn")]

use grapnel_fuzz::{
    case::Case,
    oracle::{Subject, Verdict},
    tally::Judges,
};
use grapnel_relocator::{CodeAddr, Isa, WindowOptions};

fn case(source: &[u8], min_len: usize) -> Case {
    Case {
        about: Vec::new(),
        isa: Isa::X86_64,
        from: CodeAddr(0x7f00_0000_1000),
        to: CodeAddr(0x7f00_0010_0000),
        min_len,
        options: WindowOptions::default(),
        source: source.iter().copied().chain([0x90; 16]).collect(),
    }
}

#[track_caller]
fn told_apart(right: &[u8], wrong: &[u8]) {
    assert_eq!(right.len(), wrong.len());
    let [right, wrong] = [right, wrong].map(|source| case(source, source.len()));
    let mut judges = Judges::new(32).unwrap();
    let (window, relocated) = right.relocate().unwrap();
    let fair = judges.judge(&Subject { case: &right, window: &window, relocated: &relocated }, 7);
    assert_eq!(fair, Verdict::Same);
    let (_, relocated) = wrong.relocate().unwrap();
    let verdict = judges.judge(&Subject { case: &right, window: &window, relocated: &relocated }, 7);
    assert!(matches!(verdict, Verdict::Mismatch(_)), "{verdict:?}");
}

#[test]
fn a_condition_that_is_not_the_original_one() {
    told_apart(&[0xe2, 0x40, 0x90, 0x90, 0x90], &[0xe1, 0x40, 0x90, 0x90, 0x90]);
    told_apart(&[0x74, 0x40, 0x90, 0x90, 0x90], &[0x75, 0x40, 0x90, 0x90, 0x90]);
    told_apart(&[0xe3, 0x40, 0x90, 0x90, 0x90], &[0xe2, 0x40, 0x90, 0x90, 0x90]);
}

#[test]
fn a_target_that_is_not_the_original_one() {
    told_apart(&[0xe8, 0x40, 0, 0, 0], &[0xe8, 0x41, 0, 0, 0]);
    told_apart(&[0x53, 0xff, 0xd0], &[0x53, 0xff, 0xd3]);
    told_apart(&[0x53, 0xff, 0x15, 0, 1, 0, 0], &[0x53, 0xff, 0x15, 8, 1, 0, 0]);
    told_apart(&[0x74, 0x40, 0x90, 0x90, 0x90], &[0x74, 0x41, 0x90, 0x90, 0x90]);
    told_apart(&[0x74, 0x01, 0x53, 0x54, 0x55], &[0x74, 0x02, 0x53, 0x54, 0x55]);
}

#[test]
fn an_operand_that_is_not_the_original_one() {
    told_apart(&[0x8b, 0x05, 0, 0x10, 0, 0], &[0x8b, 0x05, 1, 0x10, 0, 0]);
    told_apart(&[0xf0, 0xff, 0x05, 0, 0x10, 0, 0], &[0x3e, 0xff, 0x05, 0, 0x10, 0, 0]);
}

#[test]
fn an_instruction_that_is_not_the_original_one() {
    told_apart(&[0x50, 0x53, 0x31, 0xc0, 0x90], &[0x50, 0x53, 0x33, 0xc9, 0x90]);
    // A flag: `lea ecx, [rcx + 1]` for `add ecx, 1`.
    told_apart(&[0x83, 0xc1, 0x01, 0x90, 0x90], &[0x8d, 0x49, 0x01, 0x90, 0x90]);
}

#[test]
fn running_alone_tells_them_apart() {
    use grapnel_fuzz::oracle::semantic::Machine;

    let mut machine = Machine::new().unwrap();
    let pairs: [[&[u8]; 2]; 4] = [
        // loop, loopne
        [&[0xe2, 0x40, 0x90, 0x90, 0x90], &[0xe0, 0x40, 0x90, 0x90, 0x90]],
        // add ecx, 1; lea ecx, [rcx + 1]
        [&[0x83, 0xc1, 0x01, 0x90, 0x90], &[0x8d, 0x49, 0x01, 0x90, 0x90]],
        // push rax; push rbx
        [&[0x50, 0x58, 0x90, 0x90, 0x90], &[0x53, 0x5b, 0x90, 0x90, 0x90]],
        // call to the next instruction, or to elsewhere
        [&[0xe8, 0, 0, 0, 0], &[0xe8, 0x10, 0, 0, 0]],
    ];
    for pair in pairs {
        let [right, wrong] = pair.map(|source| case(source, 5));
        let (window, _) = right.relocate().unwrap();
        let (_, relocated) = wrong.relocate().unwrap();
        let subject = Subject { case: &right, window: &window, relocated: &relocated };
        let seen = (0..32).any(|seed| matches!(machine.judge(&subject, seed), Ok(Verdict::Mismatch(_))));
        assert!(seen, "{:x?} for {:x?}", pair[1], pair[0]);
    }
}
