//! A bounded run of each fuzz target, from fixed seeds, and every case that one ever stopped at.

use std::{fs, path::Path};

use arbitrary::Unstructured;
use fastrand::Rng;
use grapnel_fuzz::{case::Case, generate, tally::Tally, target};
use grapnel_relocator::Isa;

/// Runs windows of an instruction set through its target, and asks that enough of them count.
#[track_caller]
fn run(isa: Isa) {
    const RUNS: u64 = 3000;
    let mut rng = Rng::with_seed(0x7a_6e1);
    let mut entropy = [0; generate::ENTROPY];
    let mut all = Tally::default();
    for _ in 0..RUNS {
        rng.fill(&mut entropy);
        // The fuzzer's inputs are of every length.
        let len = if rng.u8(..) == 0 { rng.usize(..entropy.len()) } else { entropy.len() };
        all.merge(target::relocate(isa, &entropy[..len]));
    }
    assert!(all.accepted > RUNS / 4, "too few are accepted:\n{all}");
    assert!(all.ran > RUNS / 5, "too few are run:\n{all}");
}

#[test]
fn relocate_x86_64() {
    run(Isa::X86_64);
}

#[test]
fn relocate_aarch64() {
    run(Isa::Aarch64);
}

#[test]
fn relocate_a32() {
    run(Isa::A32);
}

#[test]
fn relocate_t32() {
    run(Isa::T32);
}

/// Whole requests, and what becomes of them when bytes are changed, left out and repeated.
#[test]
fn relocate_command() {
    let mut rng = Rng::with_seed(0xc0_33a9d);
    let mut requests = 0;
    for number in 0..3000 {
        let mut entropy = [0; generate::ENTROPY];
        rng.fill(&mut entropy);
        let isa = Isa::ALL[number % Isa::ALL.len()];
        let case = generate::case(isa, &mut Unstructured::new(&entropy)).unwrap();
        let mut input = request(&case).into_bytes();
        requests += target::command(&input);
        for _ in 0..4 {
            mutate(&mut input, &mut rng);
            target::command(&input);
        }
    }
    assert!(requests > 2500, "{requests} of 3000 were requests");
}

fn request(case: &Case) -> String {
    let hex: String = case.source.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{{\"isa\":\"{}\",\"from\":\"{}\",\"to\":{},\"bytes\":\"{hex}\",\"min_len\":{},\"padding\":{}}}\n",
        case.isa, case.from, case.to.0, case.min_len, case.options.allow_padding
    )
}

fn mutate(input: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.usize(..input.len());
    match rng.u8(..5) {
        0 => input[at] = rng.u8(..),
        1 => input[at] = *rng.choice(br#"{}[]",:0x9-e\tn"#).unwrap(),
        2 => drop(input.drain(at..(at + rng.usize(1..8)).min(input.len()))),
        3 => {
            let piece = input[at..(at + rng.usize(1..64)).min(input.len())].to_vec();
            let to = rng.usize(..=input.len());
            input.splice(to..to, piece);
        }
        _ => input.insert(at, b'\n'),
    }
    if input.is_empty() {
        input.push(b'{');
    }
}

/// `fuzz/regressions/ISA/*.txt`: cases that were once relocated wrongly, or stopped the relocator.
#[test]
fn regressions_do_the_same_relocated() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions");
    for isa in Isa::ALL {
        let mut ran = 0;
        for file in fs::read_dir(root.join(isa.name())).unwrap() {
            let path = file.unwrap().path();
            let case: Case = fs::read_to_string(&path).unwrap().parse().unwrap();
            assert_eq!(case.isa, *isa, "{}", path.display());
            for seed in 0..64 {
                ran += target::judged(&case, seed).ran;
            }
        }
        assert!(ran > 0, "no case of {isa} is run");
    }
}
