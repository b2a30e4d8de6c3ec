//! The judge that only decodes sees what it is there to see: code relocated from another window than the one it is held
//! against.

use grapnel_fuzz::{
    case::Case,
    oracle::{Subject, Verdict, decoded},
};
use grapnel_relocator::{CodeAddr, Isa, WindowOptions};

/// A window of these bytes, with a return behind it, relocated so far that every operand needs another form.
fn case(isa: Isa, source: &[u8], far: bool) -> Case {
    let (from, to, behind): (u64, u64, &[u8]) = match (isa, far) {
        (Isa::Aarch64, false) => (0x5500_0000_1000, 0x5500_0010_0000, &[0xc0, 0x03, 0x5f, 0xd6]),
        (Isa::Aarch64, true) => (0x5500_0000_1000, 0x7500_0000_0000, &[0xc0, 0x03, 0x5f, 0xd6]),
        (Isa::A32, _) => {
            (0x4000_1000, if far { 0xa000_0000 } else { 0x4010_0000 }, &[0x1e, 0xff, 0x2f, 0xe1])
        }
        _ => (0x4000_1000, if far { 0xa000_0000 } else { 0x4010_0000 }, &[0x70, 0x47]),
    };
    Case {
        about: Vec::new(),
        isa,
        from: CodeAddr(from),
        to: CodeAddr(to),
        min_len: source.len(),
        options: WindowOptions::default(),
        source: source.iter().chain(behind).chain(&[0; 16]).copied().collect(),
    }
}

/// Both are accepted, near and far; each passes for itself, and not for the other.
#[track_caller]
fn told_apart(isa: Isa, right: &[u8], wrong: &[u8]) {
    assert_eq!(right.len(), wrong.len());
    for far in [false, true] {
        let [right, wrong] = [right, wrong].map(|source| case(isa, source, far));
        let (window, relocated) = right.relocate().unwrap();
        let fair = decoded::judge(&Subject { case: &right, window: &window, relocated: &relocated });
        assert_eq!(fair, Verdict::Same);
        let (_, relocated) = wrong.relocate().unwrap();
        let verdict = decoded::judge(&Subject { case: &right, window: &window, relocated: &relocated });
        assert!(matches!(verdict, Verdict::Mismatch(_)), "{verdict:?} far: {far}\n{}", wrong.render());
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn halves(halves: &[u16]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_le_bytes()).collect()
}

#[test]
fn of_aarch64() {
    let pairs: [(u32, u32); 12] = [
        (0x1000_8000, 0x1000_8020), // adr x0: another address
        (0xb000_0000, 0xb000_0001), // adrp x0 and x1
        (0x5800_8000, 0x5800_8020), // ldr x0: another literal
        (0x5800_8000, 0x1800_8000), // ldr x0 and w0
        (0x9800_8000, 0x1800_8000), // ldrsw and ldr w0
        (0x5c00_8000, 0x1c00_8000), // ldr d0 and s0
        (0x5400_8000, 0x5400_8001), // b.eq and b.ne
        (0xb400_8000, 0xb500_8000), // cbz and cbnz
        (0xb600_8000, 0xb608_8000), // tbz: another bit
        (0x9400_1000, 0x9400_1001), // bl: another target
        (0x7400_8000, 0x7420_8000), // cbgt and cbge
        (0x8b01_0000, 0xab01_0000), // add and adds
    ];
    for (right, wrong) in pairs {
        told_apart(Isa::Aarch64, &words(&[right]), &words(&[wrong]));
    }
}

#[test]
fn of_a32() {
    let pairs: [(u32, u32); 10] = [
        (0xe28f_0020, 0xe28f_0024), // adr: another address
        (0xe28f_0020, 0xe28f_1020), // adr r0 and r1
        (0xe59f_0800, 0xe59f_0804), // ldr: another literal
        (0xe59f_0800, 0xe5df_0800), // ldr and ldrb
        (0xe1df_08b0, 0xe1df_08f0), // ldrh and ldrsh
        (0x0a00_1000, 0x1a00_1000), // beq and bne
        (0xea00_1000, 0xea00_1001), // b: another target
        (0xeb00_1000, 0xfa00_1000), // bl and blx
        (0x01a0_0001, 0x11a0_0001), // moveq and movne
        (0x059f_0800, 0xe59f_0800), // ldreq and ldr
    ];
    for (right, wrong) in pairs {
        told_apart(Isa::A32, &words(&[right]), &words(&[wrong]));
    }
}

#[test]
fn of_t32() {
    let pairs: [(&[u16], &[u16]); 11] = [
        (&[0xa010], &[0xa011]),                                 // adr: another address
        (&[0x4840], &[0x4841]),                                 // ldr: another literal
        (&[0xf89f, 0x0100], &[0xf8bf, 0x0100]),                 // ldrb and ldrh
        (&[0xd040], &[0xd140]),                                 // beq and bne
        (&[0xb3f8], &[0xbbf8]),                                 // cbz and cbnz
        (&[0xf001, 0xf800], &[0xf001, 0xf801]),                 // bl: another target
        (&[0xf001, 0xf800], &[0xf001, 0xe800]),                 // bl and blx
        (&[0xbf08, 0x1840], &[0xbf18, 0x1840]),                 // addeq and addne
        (&[0xbf08, 0x4840], &[0xbf18, 0x4840]),                 // ldreq and ldrne of a literal
        (&[0xbf0c, 0x4840, 0x1840], &[0xbf04, 0x4840, 0x1840]), // ite and itt
        (&[0x1840], &[0x1a40]),                                 // adds and subs
    ];
    for (right, wrong) in pairs {
        told_apart(Isa::T32, &halves(right), &halves(wrong));
    }
}
