//! `grapnel leaks`: what a trace says of lost blocks.

use super::PolicyArgs;
use super::of_process::{self, ProcessError};
use crate::look::LookArgs;
use crate::opened::{OpenError, analysis_of, say, text_of};
use crate::suppressed::{SuppressionsError, suppressions_of};
use crate::symbols::{SymbolArgs, SymbolArgsError};
use crate::whole_file::true_file;
use clap::{Args, ValueEnum};
use grapnel_analysis::Analysis;
use grapnel_analysis::leaks::{Found, Kind, json, text};
use grapnel_analysis::report::words::{counted, harmless};
use grapnel_analysis::suppressions::Suppressions;
use grapnel_analysis::symbols::{FileStore, Symbols};
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `grapnel leaks`.
#[derive(Args, Clone, Debug)]
pub(crate) struct LeaksArgs {
    /// A process that is recorded now, or a trace in which leaks were looked for; a file whose name is a number is ./NUMBER
    #[arg(value_name = "PID|TRACE", value_parser = subject)]
    subject: Subject,
    /// Of a process: write its trace, with what was found, to this file too
    #[arg(short, long, value_name = "FILE", value_parser = true_file())]
    output: Option<PathBuf>,
    /// Show what is still reachable too, with what holds it
    #[arg(long)]
    reachable: bool,
    /// The form
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Text)]
    format: Format,
    /// Sites to show of each kind; 0 for all [default: 10, all as JSON]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Leaks that are known, in the syntax of LeakSanitizer's files: lines of leak:PATTERN
    #[arg(long, value_name = "FILE")]
    suppressions: Option<PathBuf>,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    look: LookArgs,
    #[command(flatten)]
    symbols: SymbolArgs,
}

/// Whose leaks.
#[derive(Clone, Debug)]
enum Subject {
    Process(u32),
    Trace(PathBuf),
}

#[expect(clippy::unnecessary_wraps, reason = "what a parser of arguments gives")]
fn subject(text: &str) -> Result<Subject, std::convert::Infallible> {
    Ok(text.parse().map_or_else(|_| Subject::Trace(PathBuf::from(text)), Subject::Process))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// For programs: docs/leaks.md describes it
    Json,
}

/// Why nothing is said.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum LeaksError {
    /// The trace can't be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The process can't be looked through.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// What was found can't be found anew.
    #[error(
        "{0}: --interior, --tags, --no-mappings and -o are for processes: what a trace says of leaks was found when it was \
         recorded. Give them to `grapnel run --leaks`"
    )]
    Found(String),
    /// There is nowhere to look for symbols.
    #[error(transparent)]
    Symbols(#[from] SymbolArgsError),
    /// The suppressions can't be read.
    #[error(transparent)]
    Suppressions(#[from] SuppressionsError),
    /// Leaks were not looked for.
    #[error(
        "{path}: leaks were not looked for, so it is only known what was not freed: see grapnel report. \
         Record with --leaks; what a signal kills is not looked through"
    )]
    NoScan {
        /// The trace.
        path: String,
    },
    /// It can't be written.
    #[error("the leaks can't be written: {0}")]
    Write(io::Error),
}

/// Says what was found.
///
/// # Errors
/// When the trace can't be read or has nothing to say, or nothing can be written. A closed pipe is no error.
pub(crate) fn run(args: &LeaksArgs) -> Result<ExitCode, LeaksError> {
    let search = args.symbols.search()?;
    let mut suppressions = match &args.suppressions {
        Some(path) => suppressions_of(path)?,
        None => Suppressions::default(),
    };
    let analysis = match &args.subject {
        Subject::Process(pid) => of_process::analysis_of(*pid, args.policy.wanted(), args.output.as_deref())?,
        Subject::Trace(trace) if args.policy.is_given() || args.output.is_some() => {
            return Err(LeaksError::Found(text_of(trace)));
        }
        Subject::Trace(trace) => analysis_of(trace)?,
    };
    let Some(all) = &analysis.leaks else {
        let path = match &args.subject {
            Subject::Trace(trace) => text_of(trace),
            Subject::Process(pid) => pid.to_string(),
        };
        return Err(LeaksError::NoScan { path });
    };
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, search);
    let found = all.without(|stack, count| {
        suppressions.suppress_stack(&analysis, &mut symbols, stack, count.blocks, count.bytes)
    });
    match write(args, &analysis, &found, &mut symbols) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
        result => result.map_err(LeaksError::Write)?,
    }
    for (pattern, blocks, bytes) in suppressions.used() {
        let (blocks, bytes) = (counted(blocks, "block"), counted(bytes, "byte"));
        say(&format!("suppressed by leak:{}: {blocks} with {bytes}", harmless(pattern)));
    }
    for note in symbols.notes() {
        say(&format!("note: {}", harmless(&note)));
    }
    Ok(if analysis.ending.is_damage() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn write(args: &LeaksArgs, analysis: &Analysis, found: &Found, symbols: &mut Symbols<'_>) -> io::Result<()> {
    let kinds = if args.reachable { &Kind::ALL[..] } else { &Kind::ALL[..3] };
    let stdout = io::stdout();
    let out = BufWriter::with_capacity(1 << 16, stdout.lock());
    match args.format {
        Format::Json => json::write(out, analysis, found, symbols, kinds, args.top.unwrap_or(0)),
        Format::Text => {
            let options = args.look.options(args.top, &stdout);
            text::write(out, analysis, found, symbols, &options, kinds)
        }
    }
}
