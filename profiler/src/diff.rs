//! `grapnel diff`: two traces side by side.

use crate::export::Measure;
use crate::look::LookArgs;
use crate::opened::{OpenError, analysis_of, say};
use crate::symbols::{SymbolArgs, SymbolArgsError};
use clap::{Args, ValueEnum};
use grapnel_analysis::diff::{Diff, json, text};
use grapnel_analysis::report::words::harmless;
use grapnel_analysis::symbols::{FileStore, Symbols};
use grapnel_analysis::{Analysis, diff};
use std::io::{self, BufWriter};
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `grapnel diff`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DiffArgs {
    /// The trace of before.
    before: PathBuf,
    /// The trace of after.
    after: PathBuf,
    /// By which figure sites have changed.
    #[arg(long, value_enum, default_value_t = Measure::Peak)]
    measure: Measure,
    /// How figures are made comparable.
    #[arg(long, value_enum, default_value_t = Normalize::None)]
    normalize: Normalize,
    /// What to write: text for people, JSON for programs.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Sites to show in each section, 0 for all [default: 10]; in JSON, sites that changed most [default: all].
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Normalize {
    /// They are compared as they are
    None,
    /// Those of before are multiplied by the ratio of the recordings' durations
    Time,
    /// Those of before are multiplied by the ratio of the numbers of allocations
    Count,
}

/// Why there is no comparison.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DiffError {
    /// A trace can't be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is nowhere to look for symbols.
    #[error(transparent)]
    Symbols(#[from] SymbolArgsError),
    /// The comparison can't be written.
    #[error("the comparison can't be written: {0}")]
    Write(io::Error),
}

/// Compares two traces.
///
/// # Errors
/// When a trace can't be read at all, or the comparison can't be written. A closed pipe is no error.
pub(crate) fn run(args: &DiffArgs) -> Result<ExitCode, DiffError> {
    let search = args.symbols.search()?;
    let (before, after) = (analysis_of(&args.before)?, analysis_of(&args.after)?);
    let store = FileStore::new();
    let mut symbols = [(); 2].map(|()| Symbols::new(&store, search.clone()));
    match write(args, &before, &after, symbols.each_mut()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
        result => result.map_err(DiffError::Write)?,
    }
    // Both may have found the same trouble with a debug file.
    let mut notes: Vec<String> = Vec::new();
    for note in symbols.iter().flat_map(Symbols::notes) {
        if notes.contains(&note) {
            continue;
        }
        say(&format!("note: {}", harmless(&note)));
        notes.push(note);
    }
    let is_damaged = before.ending.is_damage() || after.ending.is_damage();
    Ok(if is_damaged { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn write(
    args: &DiffArgs,
    before: &Analysis,
    after: &Analysis,
    [old, new]: [&mut Symbols<'_>; 2],
) -> io::Result<()> {
    let normalize = match args.normalize {
        Normalize::None => diff::Normalize::Not,
        Normalize::Time => diff::Normalize::Time,
        Normalize::Count => diff::Normalize::Count,
    };
    let diff = Diff::new((before, &mut *old), (after, &mut *new), normalize);
    let stdout = io::stdout();
    let out = BufWriter::with_capacity(1 << 16, stdout.lock());
    match args.format {
        Format::Json => json::write(out, &diff, [old, new], args.measure.into(), args.top.unwrap_or(0)),
        Format::Text => {
            let options = args.look.options(args.top, &stdout);
            text::write(out, &diff, [old, new], args.measure.into(), &options)
        }
    }
}
