//! Relocates many windows, judges each, and prints a table.

use std::{error::Error, path::PathBuf, process::ExitCode};

use arbitrary::Unstructured;
use clap::{Parser, Subcommand};
use fastrand::Rng;
use grapnel_fuzz::{
    case::Case,
    corpus::{self, Function, Library},
    generate,
    tally::{Judges, Tally},
};
use grapnel_relocator::{
    Isa, WindowOptions,
    flow::{self, Surroundings, Verdict},
    redirect,
};

/// Relocates many windows, runs each against its original, and prints what became of them.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The start of every function of ELF files, for the near and the absolute redirect, to near and far destinations.
    Corpus {
        /// The instruction set.
        #[arg(long, default_value = "x86_64")]
        isa: Isa,
        /// How many random states each window is run from.
        #[arg(long, default_value_t = 2)]
        states: u64,
        /// The files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Random windows.
    Random {
        /// The instruction set.
        #[arg(long, default_value = "x86_64")]
        isa: Isa,
        /// How many random states each window is run from.
        #[arg(long, default_value_t = 2)]
        states: u64,
        /// Where the random numbers start.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// How many windows.
        windows: u64,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Corpus { isa, states, files } => run_corpus(isa, states, &files),
        Command::Random { isa, states, seed, windows } => run_random(isa, states, seed, windows),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("grapnel-fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_corpus(isa: Isa, states: u64, files: &[PathBuf]) -> Result<bool, Box<dyn Error>> {
    let mut judges = Judges::new(states)?;
    let lengths = redirect::lengths(isa);
    let settings = [("near", lengths.near, 0x1000_0000), ("far", lengths.absolute, 0x2000_0000_0000)];
    let mut tallies = [Tally::default(), Tally::default()];
    let mut flows = Flows::default();
    for file in files {
        let library = corpus::library(file)?;
        println!("{}: {} functions", file.display(), library.functions.len());
        for function in &library.functions {
            flows.add(isa, &library, function, lengths.near);
            for ((_, min_len, distance), tally) in settings.iter().zip(&mut tallies) {
                // Shorter functions have no room for this redirect, padding or not.
                if function.len >= *min_len {
                    tally.add(&case(isa, function, *min_len, *distance), &mut judges, function.addr.0);
                }
            }
        }
    }
    for ((name, min_len, _), tally) in settings.iter().zip(&tallies) {
        println!("\n{name} destinations, windows of at least {min_len} bytes\n{tally}");
        print_mismatches(tally);
    }
    println!("\nbranches into the near window\n{flows}");
    Ok(tallies.iter().all(|tally| tally.mismatches.is_empty()))
}

/// Where the file's code is put, so that no address is near 0.
const LOADED_AT: u64 = 0x0000_1000_0000_0000;

fn case(isa: Isa, function: &Function, min_len: usize, distance: u64) -> Case {
    let from = function.addr.add(LOADED_AT);
    Case {
        about: Vec::new(),
        isa,
        from,
        to: from.add(distance),
        min_len,
        options: WindowOptions {
            extent: Some(function.len),
            allow_padding: true,
            ..WindowOptions::default()
        },
        source: function.bytes[..function.bytes.len().min(min_len + 64)].to_vec(),
    }
}

fn run_random(isa: Isa, states: u64, seed: u64, windows: u64) -> Result<bool, Box<dyn Error>> {
    let mut judges = Judges::new(states)?;
    let mut tally = Tally::default();
    let mut rng = Rng::with_seed(seed);
    let mut entropy = [0; generate::ENTROPY];
    for number in 0..windows {
        rng.fill(&mut entropy);
        let case = generate::case(isa, &mut Unstructured::new(&entropy))?;
        tally.add(&case, &mut judges, seed.wrapping_add(number));
    }
    println!("{tally}");
    print_mismatches(&tally);
    Ok(tally.mismatches.is_empty())
}

fn print_mismatches(tally: &Tally) {
    for how in tally.disputed.iter().take(10) {
        println!("\ndisputed: {how}");
    }
    for (case, difference) in tally.mismatches.iter().take(10) {
        println!("\n{case}\n{difference}");
    }
}

/// What is known of the branches into the windows.
#[derive(Default)]
struct Flows {
    proven: u64,
    assumed: u64,
    refused: u64,
}

impl Flows {
    fn add(&mut self, isa: Isa, library: &Library, function: &Function, window_len: usize) {
        let read = |addr, out: &mut [u8]| library.read(addr, out);
        let around = Surroundings { read: Some(&read), ..Surroundings::default() };
        match flow::check_with(isa, &function.bytes[..function.len], function.addr, window_len, &around) {
            Verdict::Proven => self.proven += 1,
            Verdict::Refused(_) => self.refused += 1,
            _ => self.assumed += 1,
        }
    }
}

impl std::fmt::Display for Flows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = (self.proven + self.assumed + self.refused).max(1);
        for (name, count) in [("proven", self.proven), ("assumed", self.assumed), ("refused", self.refused)] {
            writeln!(f, "{name:<50} {count:>10}  {:>7.3} %", count as f64 * 100.0 / all as f64)?;
        }
        Ok(())
    }
}
