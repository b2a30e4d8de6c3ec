//! The judges see what goes wrong beyond reach: another operation, another operand, a register that is read after all.
#![cfg(feature = "unicorn")]

use grapnel_fuzz::{
    case::Case,
    oracle::{Subject, Verdict},
    tally::Judges,
};
use grapnel_relocator::{CodeAddr, Isa, Relocated, Window, WindowOptions};

fn case(source: &[u8], min_len: usize) -> Case {
    Case {
        about: Vec::new(),
        isa: Isa::X86_64,
        from: CodeAddr(0x1000_0000_1000),
        to: CodeAddr(0x500_0000_1000),
        min_len,
        options: WindowOptions::default(),
        source: source.iter().copied().chain([0xc3; 16]).collect(),
    }
}

fn judge(case: &Case, window: &Window, relocated: &Relocated) -> Verdict {
    Judges::new(32).unwrap().judge(&Subject { case, window, relocated }, 7)
}

/// Both are relocated truly, and neither is taken for the other. The window is the first `min_len` bytes.
#[track_caller]
fn told_apart(right: &[u8], wrong: &[u8], min_len: usize) {
    let [right, wrong] = [right, wrong].map(|source| case(source, min_len));
    let (window, relocated) = right.relocate().unwrap();
    assert_eq!(judge(&right, &window, &relocated), Verdict::Same);
    let (_, relocated) = wrong.relocate().unwrap();
    let verdict = judge(&right, &window, &relocated);
    assert!(matches!(verdict, Verdict::Mismatch(_)), "{verdict:?}");
}

#[test]
fn another_operation_between_push_and_pop() {
    // add [], ecx; or [], ecx
    told_apart(&[0x01, 0x0d, 0, 0x10, 0, 0], &[0x09, 0x0d, 0, 0x10, 0, 0], 6);
    // cmp [], 1; cmp [], 2
    told_apart(&[0x83, 0x3d, 0, 0x10, 0, 0, 1], &[0x83, 0x3d, 0, 0x10, 0, 0, 2], 7);
    // LOCK or not
    told_apart(&[0xf0, 0x01, 0x0d, 0, 0x10, 0, 0], &[0x3e, 0x01, 0x0d, 0, 0x10, 0, 0], 7);
}

#[test]
fn another_operand() {
    told_apart(&[0x01, 0x0d, 0, 0x10, 0, 0], &[0x01, 0x0d, 4, 0x10, 0, 0], 6);
    // push []; pop []
    told_apart(&[0xff, 0x35, 0, 0x10, 0, 0], &[0xff, 0x35, 8, 0x10, 0, 0], 6);
    told_apart(&[0x8f, 0x05, 0, 0x10, 0, 0], &[0x8f, 0x05, 8, 0x10, 0, 0], 6);
    // call []
    told_apart(&[0xff, 0x15, 0, 0x10, 0, 0], &[0xff, 0x15, 8, 0x10, 0, 0], 6);
}

#[test]
fn a_clobber_that_is_read_ahead() {
    // add [], ecx; then mov eax, 1; or mov edx, eax
    let add = [0x01, 0x0d, 0, 0x10, 0, 0];
    let dead = [&add[..], &[0xb8, 1, 0, 0, 0]].concat();
    let read = [&add[..], &[0x89, 0xc2]].concat();
    let [dead, read] = [dead, read].map(|source| case(&source, 6));
    let (window, relocated) = dead.relocate().unwrap();
    assert!(!relocated.clobbers().is_empty());
    assert_eq!(judge(&dead, &window, &relocated), Verdict::Same);
    let (window, _) = read.relocate().unwrap();
    assert!(matches!(judge(&read, &window, &relocated), Verdict::Mismatch(_)));
}
