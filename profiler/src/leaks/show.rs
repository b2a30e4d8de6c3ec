//! `grapnel leaks`: what a trace says of lost blocks.

use crate::look::LookArgs;
use crate::opened::{OpenError, analysis_of, say, text_of};
use crate::suppressed::{SuppressionsError, suppressions_of};
use crate::symbols::{SymbolArgs, SymbolArgsError};
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
    /// A trace that `grapnel run --leaks` wrote
    trace: PathBuf,
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
    look: LookArgs,
    #[command(flatten)]
    symbols: SymbolArgs,
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
    let analysis = analysis_of(&args.trace)?;
    let Some(all) = &analysis.leaks else { return Err(LeaksError::NoScan { path: text_of(&args.trace) }) };
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
