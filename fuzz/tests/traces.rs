//! A bounded run of the targets for traces and for other files that people hand to `grapnel`, from fixed seeds, and every file
//! that one ever stopped at.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use fastrand::Rng;
use grapnel_fuzz::trace::{heaptrack, object_file, trace, unpacked};

/// The files of a folder, in the order of their names.
fn files_in(folder: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut paths: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let files = paths.into_iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>();
    assert!(!files.is_empty(), "nothing in {}", folder.display());
    files
}

/// Gives a target its seeds, and changes of them, so many of each, or as many as there is time for with
/// GRAPNEL_HOSTILE_SECONDS. Asks that many of them are of use.
#[track_caller]
fn run(name: &str, target: fn(&[u8]) -> u64, rounds: usize) {
    let seeds = files_in(&format!("targets/seeds/{name}"));
    assert!(seeds.iter().all(|seed| target(seed) > 0), "a seed is of no use");
    let seconds = std::env::var("GRAPNEL_HOSTILE_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    // Another sequence in each longer run, which is said where it stops.
    let random = if end.is_some() { fastrand::u64(..) } else { 0x7a_6e1 };
    println!("{name}: from {random:#x}");
    let mut rng = Rng::with_seed(random);
    let (mut useful, mut done) = (0, 0);
    while end.map_or(done < rounds, |end| Instant::now() < end) {
        for seed in &seeds {
            let mut input = seed.clone();
            for _ in 0..1 + rng.usize(..4) {
                mutate(&mut input, &mut rng);
            }
            useful += usize::from(target(&input) > 0);
        }
        done += 1;
    }
    assert!(useful > done * seeds.len() / 4, "{useful} of {done} changes of each seed were of use");
}

fn mutate(input: &mut Vec<u8>, rng: &mut Rng) {
    if input.is_empty() {
        return input.push(0);
    }
    let at = rng.usize(..input.len());
    match rng.u8(..6) {
        0 => input[at] = rng.u8(..),
        1 => input[at] ^= 1 << rng.u8(..8),
        2 => input[at] = *rng.choice(&[0, 1, 0x7f, 0x80, 0xff]).unwrap(),
        3 => drop(input.drain(at..(at + rng.usize(1..8)).min(input.len()))),
        4 => {
            let piece = input[at..(at + rng.usize(1..64)).min(input.len())].to_vec();
            let to = rng.usize(..=input.len());
            input.splice(to..to, piece);
        }
        _ => input.insert(at, rng.u8(..)),
    }
}

#[test]
fn traces() {
    run("trace", trace, 50);
}

#[test]
fn heaptracks_files() {
    run("heaptrack", heaptrack, 2000);
}

#[test]
fn object_files() {
    run("object_file", object_file, 400);
}

/// Seeds are not compressed, so that changes reach what they hold.
#[test]
fn seeds_are_unpacked_traces() {
    for seed in files_in("targets/seeds/trace") {
        assert_eq!(unpacked(&seed).as_deref(), Some(&*seed));
    }
}

/// What a target does with bytes: how much of them it made sense of.
type Judge = fn(&[u8]) -> u64;

/// `fuzz/regressions/TARGET/*`: files at which a target once stopped.
#[test]
fn regressions_are_read() {
    let targets: [(&str, Judge); 3] =
        [("trace", trace), ("heaptrack", heaptrack), ("object_file", object_file)];
    for (name, target) in targets {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(name);
        // None was found yet for some.
        let Ok(files) = fs::read_dir(folder) else { continue };
        for file in files {
            target(&fs::read(file.unwrap().path()).unwrap());
        }
    }
}
