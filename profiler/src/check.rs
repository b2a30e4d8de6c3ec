//! `grapnel check`: whether a recording meets conditions, for continuous integration.

use crate::opened::{OpenError, analysis_of, name_of, say, text_of};
use crate::sizes::size;
use crate::suppressed::{SuppressionsError, suppressions_of};
use crate::symbols::{SymbolArgs, SymbolArgsError};
use crate::whole_file::{is_same_file, is_standard_output, to_file};
use clap::{ArgGroup, Args, ValueEnum};
use grapnel_analysis::Analysis;
use grapnel_analysis::gates::{Gate, Unjudged, Verdict, judge, junit, sarif};
use grapnel_analysis::report::stack::StackPrinter;
use grapnel_analysis::report::text::TextOptions;
use grapnel_analysis::report::words::{counted, harmless};
use grapnel_analysis::suppressions::{Pattern, Suppressions};
use grapnel_analysis::symbols::{FileStore, Symbols};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `grapnel check`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("gates").required(true).multiple(true).args(["fail_on", "max_peak", "max_allocations_at"]))]
pub(crate) struct CheckArgs {
    /// The trace to check
    trace: PathBuf,
    /// What must not be there
    #[arg(long, value_enum, value_name = "WHAT")]
    fail_on: Vec<Fault>,
    /// The most that may be live at once: bytes, or with a unit such as 64K, 100M, 1.5G (powers of 1024)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_peak: Option<u64>,
    /// How many blocks may be given out in calls of FUNCTION: its whole name, with or without parameters; * stands for any
    /// characters. May be given several times
    #[arg(long, value_name = "FUNCTION=N", value_parser = allocations_at)]
    max_allocations_at: Vec<(String, u64)>,
    /// Leaks that are no fault, in the syntax of LeakSanitizer's files: lines of leak:PATTERN
    #[arg(long, value_name = "FILE")]
    suppressions: Option<PathBuf>,
    /// Also write a JUnit report; - is standard output, and what stands there otherwise goes to standard error
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Also write SARIF 2.1.0, with a result for each site that is to blame; - as for JUnit
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,
    /// Sites to show of each condition that isn't met; 0 for all
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
    /// Frames to show of each stack, beyond which its middle is left out; 0 shows all. Calls that the compiler inlined, and
    /// recursion, which is told once, don't count
    #[arg(long, value_name = "N", default_value_t = 16)]
    frames: usize,
    #[command(flatten)]
    symbols: SymbolArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fault {
    /// Blocks that are lost at the end, where the recording looked for leaks (--leaks), else those that are live
    Leaks,
}

/// Why nothing was checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CheckError {
    /// The trace can't be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is nowhere to look for symbols.
    #[error(transparent)]
    Symbols(#[from] SymbolArgsError),
    /// It can't be judged.
    #[error("{path} can't be judged: {error}")]
    Unjudged {
        /// The trace.
        path: String,
        /// Why not.
        error: Unjudged,
    },
    /// The suppressions can't be read.
    #[error(transparent)]
    Suppressions(#[from] SuppressionsError),
    /// A report would take the place of another file that matters.
    #[error("{path} is {what}: give another file to write")]
    Taken {
        /// The file.
        path: String,
        /// What it is already.
        what: &'static str,
    },
    /// A file can't be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// Why not.
        error: io::Error,
    },
}

fn allocations_at(text: &str) -> Result<(String, u64), String> {
    // Operators have such signs in their names.
    let (function, most) = text.rsplit_once('=').ok_or("there is no =N behind the function")?;
    let most = most.parse().map_err(|_| "what is behind the last = is no number".to_owned())?;
    if function.is_empty() { Err("there is no function".to_owned()) } else { Ok((function.to_owned(), most)) }
}

fn gates(args: &CheckArgs) -> Vec<Gate> {
    let leaks = args.fail_on.first().map(|Fault::Leaks| Gate::Leaks);
    let peak = args.max_peak.map(Gate::MaxPeak);
    let at = |(function, most): &(String, u64)| Gate::MaxAllocationsAt {
        function: Pattern::whole(function),
        most: *most,
    };
    leaks.into_iter().chain(peak).chain(args.max_allocations_at.iter().map(at)).collect()
}

/// What a gate adds to the exit status when it is not met.
fn status_of(gate: &Gate) -> u8 {
    match gate {
        Gate::Leaks => 8,
        Gate::MaxPeak(_) => 16,
        _ => 32,
    }
}

/// Refuses to write a report over what is read, or both into one file.
fn refuse_taken(args: &CheckArgs) -> Result<(), CheckError> {
    let read =
        [(Some(&args.trace), "the trace itself"), (args.suppressions.as_ref(), "the file of suppressions")];
    for path in [&args.junit, &args.sarif].into_iter().flatten() {
        let is_it = |(file, _): &(Option<&PathBuf>, _)| file.is_some_and(|file| is_same_file(path, file));
        if let Some((_, what)) = read.into_iter().find(is_it) {
            return Err(CheckError::Taken { path: text_of(path), what });
        }
    }
    match (&args.junit, &args.sarif) {
        (Some(junit), Some(sarif)) if junit == sarif || is_same_file(junit, sarif) => {
            Err(CheckError::Taken { path: name_of(junit), what: "for the JUnit report and for SARIF" })
        }
        _ => Ok(()),
    }
}

/// Checks a trace.
///
/// # Errors
/// When the trace can't be read or judged, or a file can't be read or written.
pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode, CheckError> {
    refuse_taken(args)?;
    let search = args.symbols.search()?;
    let mut suppressions = match &args.suppressions {
        Some(path) => suppressions_of(path)?,
        None => Suppressions::default(),
    };
    let analysis = analysis_of(&args.trace)?;
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, search);
    let verdicts = judge(&analysis, &mut symbols, &gates(args), &mut suppressions)
        .map_err(|error| CheckError::Unjudged { path: text_of(&args.trace), error })?;
    let is_taken = [&args.junit, &args.sarif].into_iter().flatten().any(|path| is_standard_output(path));
    let (out, name): (Box<dyn Write>, _) = if is_taken {
        (Box::new(io::stderr().lock()), "standard error")
    } else {
        (Box::new(io::stdout().lock()), "standard output")
    };
    let out = BufWriter::with_capacity(1 << 16, out);
    match write(out, args, &analysis, &mut symbols, &verdicts, &suppressions) {
        // Who has seen enough still gets the status.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            return Err(CheckError::File { path: name.to_owned(), error });
        }
        _ => {}
    }
    for doubt in verdicts.iter().filter_map(|verdict| verdict.doubt.as_ref()) {
        say(&format!("warning: {}", harmless(doubt)));
    }
    let failed = |path: &Path, error| CheckError::File { path: name_of(path), error };
    if let Some(path) = &args.junit {
        to_file(path, |out| junit::write(out, &analysis, &mut symbols, &verdicts))
            .map_err(|error| failed(path, error))?;
    }
    if let Some(path) = &args.sarif {
        to_file(path, |out| sarif::write(out, &analysis, &mut symbols, &verdicts))
            .map_err(|error| failed(path, error))?;
    }
    for note in symbols.notes() {
        say(&format!("note: {}", harmless(&note)));
    }
    let unmet = verdicts.iter().filter(|verdict| !verdict.is_met);
    Ok(ExitCode::from(unmet.fold(0, |status, verdict| status | status_of(&verdict.gate))))
}

fn write(
    mut out: impl Write,
    args: &CheckArgs,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    verdicts: &[Verdict],
    suppressions: &Suppressions,
) -> io::Result<()> {
    let options = TextOptions { frames: args.frames, ..TextOptions::default() };
    for verdict in verdicts {
        let word = if verdict.is_met { "ok    " } else { "FAILED" };
        writeln!(out, "{word} {}: {}", harmless(&verdict.gate.name()), harmless(&verdict.message))?;
        let top = if args.top == 0 { usize::MAX } else { args.top };
        for blamed in verdict.sites.iter().take(top) {
            let site = &analysis.sites[blamed.site];
            writeln!(out, "     {}", blamed.of)?;
            StackPrinter { analysis, symbols, options: &options }.print(&mut out, site.stack)?;
        }
        if let Some(more) = verdict.sites.len().checked_sub(top).filter(|&more| more > 0) {
            writeln!(out, "     and {}; --top 0 shows all", counted(more as u64, "more site"))?;
        }
    }
    for (pattern, blocks, bytes) in suppressions.used() {
        let blocks = counted(blocks, "block");
        writeln!(out, "suppressed by leak:{}: {blocks} with {}", harmless(pattern), counted(bytes, "byte"))?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_may_be_limited() {
        assert_eq!(allocations_at("a::operator===7"), Ok(("a::operator==".to_owned(), 7)));
        assert!(["f", "f=", "=3", "f=x"].iter().all(|bad| allocations_at(bad).is_err()));
    }
}
