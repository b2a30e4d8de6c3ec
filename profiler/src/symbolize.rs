//! `grapnel symbolize`: a trace that carries the names of its functions.

use crate::opened::{OpenError, analysis_of, name_of, reader_of, say, text_of};
use crate::symbols::{SymbolArgs, SymbolArgsError};
use crate::whole_file::to_file;
use clap::Args;
use grapnel_analysis::Analysis;
use grapnel_analysis::report::words::{grouped, harmless};
use grapnel_analysis::symbols::{Embedded, FileStore, SearchPath, Symbols, embed};
use grapnel_trace::event::Event;
use grapnel_trace::writer::Writer;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `grapnel symbolize`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SymbolizeArgs {
    /// The trace
    trace: PathBuf,
    /// The trace to write, with names; may be TRACE itself. It is replaced once all is written; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    symbols: SymbolArgs,
}

/// Why there is no trace with names.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SymbolizeError {
    /// The trace can't be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is nowhere to look for symbols.
    #[error(transparent)]
    Symbols(#[from] SymbolArgsError),
    /// What stands behind the damage would be lost.
    #[error("{path}: {note}; it isn't written anew")]
    Damaged {
        /// The trace.
        path: String,
        /// What is wrong with it.
        note: String,
    },
    /// The trace can't be written.
    #[error("{path}: {error}")]
    Write {
        /// The trace to write.
        path: String,
        /// Why not.
        error: io::Error,
    },
}

/// zstd's level. Names are written once, and read often.
const LEVEL: i32 = 9;

/// Writes a trace anew with the names of its addresses.
///
/// # Errors
/// When the trace can't be read, is damaged, or the other can't be written.
pub(crate) fn run(args: &SymbolizeArgs) -> Result<ExitCode, SymbolizeError> {
    let search = args.symbols.search()?;
    let (embedded, notes) = embed_into(&args.trace, &args.output, search)?;
    for note in notes {
        say(&format!("note: {}", harmless(&note)));
    }
    say(&format!("{}: {}", name_of(&args.output), summary(embedded)));
    Ok(ExitCode::SUCCESS)
}

/// The same with files that are looked for by `search`: what became of it, and what kept names from being found.
///
/// # Errors
/// As [`run`].
pub(crate) fn embed_into(
    trace: &Path,
    output: &Path,
    search: SearchPath,
) -> Result<(Embedded, Vec<String>), SymbolizeError> {
    let analysis = analysis_of(trace)?;
    if let Some(note) = analysis.ending.note().filter(|_| analysis.ending.is_damage()) {
        return Err(SymbolizeError::Damaged { path: text_of(trace), note });
    }
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, search);
    let mut embedded = Embedded::default();
    to_file(output, |out| {
        embedded = write(trace, &analysis, &mut symbols, out)?;
        Ok(())
    })
    .map_err(|error| SymbolizeError::Write { path: name_of(output), error })?;
    Ok((embedded, symbols.notes()))
}

/// All blocks as they are, and the names before the end.
fn write(
    path: &Path,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    out: &mut dyn Write,
) -> io::Result<Embedded> {
    let mut reader = reader_of(path).map_err(io::Error::other)?;
    let mut batch = Vec::new();
    // An empty batch and nothing behind it is the end.
    while reader.next_batch(&mut batch, BATCH).map_err(io::Error::other)?.is_some() || !batch.is_empty() {
        batch.clear();
    }
    let behind = reader.block_offset();
    let mut trace = File::open(path)?;
    io::copy(&mut (&mut trace).take(behind), out)?;
    let mut writer = Writer::resume(&mut *out, reader.time(), LEVEL).map_err(io::Error::other)?;
    let embedded =
        embed(analysis, symbols, |names| writer.push(&Event::Names(names))).map_err(io::Error::other)?;
    writer.suspend().map_err(io::Error::other)?;
    // A block that is cut is of no use.
    if reader.end().is_some() {
        trace.seek(SeekFrom::Start(behind))?;
        io::copy(&mut trace, out)?;
    }
    Ok(embedded)
}

/// Events that are read together.
const BATCH: usize = 256;

fn summary(embedded: Embedded) -> String {
    let mut text = format!("{} addresses have got names", grouped(embedded.named));
    for (count, what) in [
        (embedded.before, "had names before"),
        (embedded.unknown, "are unknown here"),
        (embedded.left_out, "left out, as a trace holds no more"),
    ] {
        if count > 0 {
            text += &format!("; {} {what}", grouped(count));
        }
    }
    text
}
