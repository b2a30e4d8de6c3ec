//! Bounded runs of the generators through the oracles, and every relocation case of the filetests.

use std::{fs, path::Path};

use arbitrary::Unstructured;
use fastrand::Rng;
use grapnel_fuzz::{
    case::Case,
    generate,
    tally::{EMULATOR_FAILS, Judges, Tally},
};
use grapnel_relocator::Isa;

#[test]
fn random_x86_64_windows_do_the_same_relocated() {
    random(Isa::X86_64, 2000);
}

#[test]
fn random_aarch64_windows_do_the_same_relocated() {
    random(Isa::Aarch64, 3000);
}

#[test]
fn random_a32_windows_do_the_same_relocated() {
    random(Isa::A32, 3000);
}

#[test]
fn random_t32_windows_do_the_same_relocated() {
    random(Isa::T32, 3000);
}

/// Runs windows of an instruction set, and asks that enough of them count.
#[track_caller]
fn random(isa: Isa, windows: u64) {
    let mut judges = Judges::new(1).unwrap();
    let mut tally = Tally::default();
    let mut rng = Rng::with_seed(20);
    for seed in 0..windows {
        let mut entropy = [0; generate::ENTROPY];
        rng.fill(&mut entropy);
        let case = generate::case(isa, &mut Unstructured::new(&entropy)).unwrap();
        tally.add(&case, &mut judges, seed);
    }
    no_objection(&tally);
    assert!(
        tally.accepted * 10 > tally.windows * 3,
        "the generator makes too few windows that count:\n{tally}"
    );
    assert!(tally.ran * 5 > tally.accepted * 4, "too few are run:\n{tally}");
}

/// What no emulator is needed for is done for more windows.
#[test]
fn decoding_has_no_objection_to_many_windows() {
    for isa in [Isa::Aarch64, Isa::A32, Isa::T32] {
        let mut judges = Judges::new(0).unwrap();
        let mut tally = Tally::default();
        let mut rng = Rng::with_seed(21);
        for seed in 0..10_000 {
            let mut entropy = [0; generate::ENTROPY];
            rng.fill(&mut entropy);
            let case = generate::case(isa, &mut Unstructured::new(&entropy)).unwrap();
            tally.add(&case, &mut judges, seed);
        }
        no_objection(&tally);
    }
}

#[test]
fn filetests_do_the_same_relocated() {
    let mut judges = Judges::new(8).unwrap();
    let mut tally = Tally::default();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/filetests");
    for isa in Isa::ALL {
        for file in fs::read_dir(root.join(isa.name())).unwrap() {
            let case: Case = fs::read_to_string(file.unwrap().path()).unwrap().parse().unwrap();
            tally.add(&case, &mut judges, tally.windows);
        }
    }
    no_objection(&tally);

    assert!(tally.windows > 900 && tally.accepted > 700 && tally.ran > 600, "{tally}");
}

#[track_caller]
fn no_objection(tally: &Tally) {
    if let Some((case, difference)) = tally.mismatches.first() {
        panic!("{case}\n{difference}");
    }
    assert!(tally.disputed.is_empty(), "{:?}", tally.disputed);
    assert!(!tally.unjudged.contains_key(EMULATOR_FAILS), "{tally}");
}
