//! Relocates many windows, judges each, and prints a table.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use arbitrary::Unstructured;
use clap::{Args, Parser, Subcommand};
use fastrand::Rng;
use grapnel_fuzz::{
    case::Case,
    corpus::{self, Function, Library},
    generate,
    jobs::{self, Effort},
    survey::{self, Setting},
    tally::Tally,
};
use grapnel_relocator::{
    Isa,
    flow::{self, Surroundings, Verdict},
};

/// Relocates many windows, runs each against its original, and prints what became of them.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Common {
    /// The instruction set: x86_64, aarch64, a32 or t32.
    #[arg(long, default_value = "x86_64")]
    isa: Isa,
    /// How many random states each window is run from.
    #[arg(long, default_value_t = 2)]
    states: u64,
    /// How many threads.
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Every refusal and everything that was not run, up to 500 of each reason, and not one example.
    #[arg(long)]
    list: bool,
}

impl Common {
    const fn effort(&self) -> Effort {
        Effort { states: self.states, jobs: self.jobs }
    }
}

#[derive(Subcommand)]
enum Command {
    /// The start of every function of ELF files or of lists of windows (*.jsonl, *.jsonl.gz), for the near redirect to
    /// a near destination, and for the absolute one to far destinations above and below.
    Corpus {
        #[command(flatten)]
        common: Common,
        /// A window at every instruction that direct branches lead to, and not only at the start.
        #[arg(long)]
        within: bool,
        /// Look at one function in this many.
        #[arg(long, default_value_t = 1)]
        every: usize,
        /// The files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Every instruction of every function of files, as our decoder sees it and as others do.
    #[cfg(feature = "capstone")]
    Decode {
        #[command(flatten)]
        common: Common,
        /// The files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Random windows.
    Random {
        #[command(flatten)]
        common: Common,
        /// Where the random numbers start.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// How many windows.
        windows: usize,
    },
    /// Cases in the format of tests/filetests, as a mismatch is printed.
    Judge {
        #[command(flatten)]
        common: Common,
        /// Where the random states start.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// The files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// A trace without compression, as the target `trace` wants its seeds.
    Seed {
        /// The trace.
        trace: PathBuf,
        /// What to write.
        seed: PathBuf,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Corpus { common, within, every, files } => run_corpus(&common, within, every.max(1), &files),
        #[cfg(feature = "capstone")]
        Command::Decode { common, files } => run_decode(&common, &files),
        Command::Random { common, seed, windows } => run_random(&common, seed, windows),
        Command::Judge { common, seed, files } => run_judge(&common, seed, &files),
        Command::Seed { trace, seed } => write_seed(&trace, &seed),
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

/// A tally for each setting, and the verdicts on the near windows.
#[derive(Default)]
struct Surveyed {
    tallies: [Tally; 3],
    flows: Flows,
}

fn run_corpus(
    common: &Common,
    within: bool,
    every: usize,
    files: &[PathBuf],
) -> Result<bool, Box<dyn Error>> {
    let isa = common.isa;
    let settings = survey::settings(isa);
    let mut libraries = Vec::new();
    for file in files {
        libraries.push(corpus::library(file, isa)?);
    }
    let functions: Vec<(&Library, &Function)> = libraries
        .iter()
        .flat_map(|library| library.functions.iter().map(move |function| (library, function)))
        .step_by(every)
        .collect();
    println!("{isa}: {} functions of {} files", functions.len(), files.len());
    let parts = jobs::fold(common.effort(), functions.len(), |number, judges, surveyed: &mut Surveyed| {
        let (library, function) = functions[number];
        if !within {
            surveyed.flows.add(isa, library, function, settings[0].min_len);
        }
        let offsets = if within { corpus::boundaries(isa, function) } else { vec![0] };
        for offset in offsets {
            for (setting, tally) in settings.iter().zip(&mut surveyed.tallies) {
                if function.extent.is_some_and(|extent| extent < offset + setting.min_len) {
                    tally.too_short += 1;
                } else {
                    let case = survey::case(isa, function, offset, *setting);
                    tally.add(&case, judges, case.from.0);
                }
            }
        }
    })?;
    let mut all = Surveyed::default();
    for part in parts {
        all.flows.merge(&part.flows);
        for (tally, part) in all.tallies.iter_mut().zip(part.tallies) {
            tally.merge(part);
        }
    }
    for (Setting { name, min_len, distance }, tally) in settings.iter().zip(&all.tallies) {
        println!("\n{isa}, {name} ({}), windows of at least {min_len} bytes", signed(*distance));
        print_table(common, tally);
        print_mismatches(tally);
    }
    if !within {
        println!("\nbranches into the near window\n{}", all.flows);
    }
    Ok(all.tallies.iter().all(|tally| tally.mismatches.is_empty()))
}

#[cfg(feature = "capstone")]
fn run_decode(common: &Common, files: &[PathBuf]) -> Result<bool, Box<dyn Error>> {
    use grapnel_fuzz::decoders::Comparison;

    let mut all = Comparison::default();
    for file in files {
        let functions = corpus::library(file, common.isa)?.functions;
        let parts =
            jobs::fold(common.effort(), functions.len(), |number, judges, found: &mut Comparison| {
                found.add(common.isa, &functions[number], &judges.second);
            })?;
        parts.into_iter().for_each(|part| all.merge(part));
    }
    println!("{}, {} files\n{all}", common.isa, files.len());
    Ok(all.is_undisputed())
}

fn run_random(common: &Common, seed: u64, windows: usize) -> Result<bool, Box<dyn Error>> {
    let parts = jobs::fold(common.effort(), windows, |number, judges, tally: &mut Tally| {
        let seed = (seed << 32).wrapping_add(number as u64);
        let mut entropy = [0; generate::ENTROPY];
        Rng::with_seed(seed).fill(&mut entropy);
        // Entropy that ends early is no case.
        if let Ok(case) = generate::case(common.isa, &mut Unstructured::new(&entropy)) {
            tally.add(&case, judges, seed);
        }
    })?;
    let mut all = Tally::default();
    parts.into_iter().for_each(|part| all.merge(part));
    println!("{}, random windows from seed {seed}", common.isa);
    print_table(common, &all);
    print_mismatches(&all);
    Ok(all.mismatches.is_empty())
}

fn run_judge(common: &Common, seed: u64, files: &[PathBuf]) -> Result<bool, Box<dyn Error>> {
    let mut cases: Vec<Case> = Vec::new();
    for file in files {
        cases.push(fs::read_to_string(file)?.parse()?);
    }
    let parts = jobs::fold(common.effort(), cases.len(), |number, judges, tally: &mut Tally| {
        tally.add(&cases[number], judges, seed);
    })?;
    let mut all = Tally::default();
    parts.into_iter().for_each(|part| all.merge(part));
    print_table(common, &all);
    print_mismatches(&all);
    Ok(all.mismatches.is_empty())
}

fn write_seed(trace: &Path, seed: &Path) -> Result<bool, Box<dyn Error>> {
    let unpacked = grapnel_fuzz::trace::unpacked(&fs::read(trace)?).ok_or("it is no whole trace")?;
    fs::write(seed, unpacked)?;
    Ok(true)
}

/// A distance in hexadecimal digits.
fn signed(distance: i64) -> String {
    format!("{}{:#x}", if distance < 0 { "-" } else { "+" }, distance.unsigned_abs())
}

fn print_table(common: &Common, tally: &Tally) {
    if common.list {
        println!("{tally:#}");
    } else {
        println!("{tally}");
    }
}

fn print_mismatches(tally: &Tally) {
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
        let Some(bytes) = function.whole() else { return };
        let read = |addr, out: &mut [u8]| library.read(addr, out);
        let around = Surroundings { read: Some(&read), ..Surroundings::default() };
        match flow::check_with(isa, bytes, function.addr, window_len, &around) {
            Verdict::Proven => self.proven += 1,
            Verdict::Refused(_) => self.refused += 1,
            _ => self.assumed += 1,
        }
    }

    const fn merge(&mut self, other: &Self) {
        self.proven += other.proven;
        self.assumed += other.assumed;
        self.refused += other.refused;
    }
}

impl std::fmt::Display for Flows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = (self.proven + self.assumed + self.refused).max(1);
        for (name, count) in [("proven", self.proven), ("assumed", self.assumed), ("refused", self.refused)] {
            writeln!(f, "{name:<50} {count:>10}  {:>8.4} %", count as f64 * 100.0 / all as f64)?;
        }
        Ok(())
    }
}
