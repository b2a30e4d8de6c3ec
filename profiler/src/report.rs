//! `grapnel report`: what a trace says.

use crate::look::LookArgs;
use crate::opened::{OpenError, analysis_with, history_of, name_of, say, text_of};
use crate::symbols::{SymbolArgs, SymbolArgsError};
use crate::whole_file::{is_same_file, to_file};
use clap::{Args, ValueEnum};
use grapnel_analysis::history::Window;
use grapnel_analysis::report::words::harmless;
use grapnel_analysis::report::{json, text};
use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
use grapnel_analysis::{Analysis, page};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `grapnel report`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReportArgs {
    /// The trace to report on.
    trace: PathBuf,
    /// What to write: text for people, JSON for programs.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write a page to look at in a browser instead: one file that needs no network. It is replaced once all is
    /// written; - is standard output.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "top", "frames", "color"])]
    html: Option<PathBuf>,
    /// On that page, compare the trace with this one, of before.
    #[arg(long, value_name = "TRACE", requires = "html")]
    before: Option<PathBuf>,
    /// Sites to show in each section, 0 for all [default: 10]; in JSON, sites with the most allocated bytes
    /// [default: all].
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    #[command(flatten)]
    look: LookArgs,
    #[command(flatten)]
    symbols: SymbolArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ReportError {
    /// The trace can't be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is nowhere to look for symbols.
    #[error(transparent)]
    Symbols(#[from] SymbolArgsError),
    /// The report can't be written.
    #[error("the report can't be written: {0}")]
    Write(io::Error),
    /// The page would take the trace's place.
    #[error("{path} is the trace itself: give another file to write")]
    Trace {
        /// The trace.
        path: String,
    },
    /// The page can't be written.
    #[error("{path}: {error}")]
    Page {
        /// The file.
        path: String,
        /// Why not.
        error: io::Error,
    },
}

/// Reports on a trace.
///
/// A trace that stops early is reported with a note on stderr. One that is damaged in the middle is
/// reported up to there; the exit status is then 1, so that scripts notice.
///
/// # Errors
/// When the trace can't be read at all, or the report can't be written. A closed pipe is no error.
pub(crate) fn run(args: &ReportArgs) -> Result<ExitCode, ReportError> {
    let search = args.symbols.search()?;
    if let Some(path) = &args.html {
        return write_page(path, args, &search);
    }
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, search);
    let analysis = analysis_with(&args.trace, &mut symbols)?;
    match write(args, &analysis, &mut symbols) {
        Ok(()) => {}
        // `grapnel report TRACE | head` has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
        Err(error) => return Err(ReportError::Write(error)),
    }
    if args.format == Format::Json {
        // The text has them in itself.
        for note in symbols.notes() {
            say(&format!("note: {}", harmless(&note)));
        }
    }
    Ok(status(&analysis))
}

fn status(analysis: &Analysis) -> ExitCode {
    if analysis.ending.is_damage() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn write_page(path: &Path, args: &ReportArgs, search: &SearchPath) -> Result<ExitCode, ReportError> {
    if let Some(trace) = args.before.iter().chain([&args.trace]).find(|trace| is_same_file(path, trace)) {
        return Err(ReportError::Trace { path: text_of(trace) });
    }
    let (analysis, history) = history_of(&args.trace, Window::ALL)?;
    let before = args.before.as_ref().map(|before| history_of(before, Window::ALL)).transpose()?;
    let store = FileStore::new();
    // Addresses of different traces have nothing to do with each other.
    let [mut symbols, mut symbols_before] = [(); 2].map(|()| Symbols::new(&store, search.clone()));
    let written = to_file(path, |mut out| match &before {
        None => page::write(&mut out, &analysis, &history, &mut symbols),
        Some((analysis_before, history_before)) => page::write_compared(
            &mut out,
            ((&analysis, &history), &mut symbols),
            ((analysis_before, history_before), &mut symbols_before),
        ),
    });
    written.map_err(|error| ReportError::Page { path: name_of(path), error })?;
    let is_damage = before.is_some_and(|(before, _)| before.ending.is_damage());
    Ok(if is_damage { ExitCode::FAILURE } else { status(&analysis) })
}

fn write(args: &ReportArgs, analysis: &Analysis, symbols: &mut Symbols<'_>) -> io::Result<()> {
    let stdout = io::stdout();
    match args.format {
        Format::Json => json::write(
            BufWriter::with_capacity(1 << 16, stdout.lock()),
            analysis,
            symbols,
            args.top.unwrap_or(0),
        ),
        Format::Text => {
            let options = args.look.options(args.top, &stdout);
            let mut out = BufWriter::with_capacity(1 << 16, stdout.lock());
            text::write(&mut out, analysis, symbols, &options)?;
            out.flush()
        }
    }
}
