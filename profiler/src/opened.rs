//! A trace that is to be analysed: opening it, and what there is to say about it.

use crate::reading::Shown;
use crate::whole_file::is_standard_output;
use grapnel_analysis::history::{History, Window, analyse_over_time};
use grapnel_analysis::report::words::harmless;
use grapnel_analysis::symbols::Symbols;
use grapnel_analysis::{Analysis, analyse, analyse_and_open};
use grapnel_trace::reader::Reader;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;

/// Why a trace can't be read at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum OpenError {
    /// The trace can't be opened.
    #[error("{path}: {error}{hint}")]
    Open {
        /// The trace.
        path: String,
        /// Why not.
        error: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// Its beginning can't be read.
    #[error("{path}: {error}{hint}")]
    Trace {
        /// The trace.
        path: String,
        /// What is wrong with it.
        error: grapnel_trace::Error,
        /// What to do.
        hint: &'static str,
    },
}

/// A path as it can stand in a message.
pub(crate) fn text_of(path: &Path) -> String {
    harmless(&path.to_string_lossy()).into_owned()
}

/// What a file to write is called in a message.
pub(crate) fn name_of(output: &Path) -> String {
    if is_standard_output(output) { "standard output".to_owned() } else { text_of(output) }
}

/// Says something beside the result. If nobody can hear it, the result is still worth writing.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "grapnel: {text}");
}

/// Opens a trace.
pub(crate) fn reader_of(trace: &Path) -> Result<Reader<BufReader<Shown>>, OpenError> {
    let file = File::open(trace).map_err(|error| open_error(trace, error))?;
    let input = BufReader::with_capacity(1 << 18, Shown::new(file));
    Reader::new(input).map_err(|error| trace_error(trace, error))
}

/// A trace that can't be opened.
pub(crate) fn open_error(trace: &Path, error: io::Error) -> OpenError {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "; `grapnel run -- PROGRAM` records one",
        _ => "",
    };
    OpenError::Open { path: text_of(trace), error, hint }
}

/// A trace whose beginning can't be read.
pub(crate) fn trace_error(trace: &Path, error: grapnel_trace::Error) -> OpenError {
    OpenError::Trace { path: text_of(trace), hint: hint(&error), error }
}

/// Reads a trace. One that stops early is analysed up to there, with a note on stderr.
pub(crate) fn analysis_of(trace: &Path) -> Result<Analysis, OpenError> {
    let analysis = analyse(reader_of(trace)?);
    say_ending(trace, &analysis);
    Ok(analysis)
}

/// As [`analysis_of`], and meanwhile `symbols` opens files that it is likely to be asked for.
pub(crate) fn analysis_with(trace: &Path, symbols: &mut Symbols<'_>) -> Result<Analysis, OpenError> {
    let analysis = analyse_and_open(reader_of(trace)?, symbols);
    say_ending(trace, &analysis);
    Ok(analysis)
}

/// As [`analysis_of`], with what each site did over time.
pub(crate) fn history_of(trace: &Path, window: Window) -> Result<(Analysis, History), OpenError> {
    let (analysis, history) = analyse_over_time(reader_of(trace)?, window);
    say_ending(trace, &analysis);
    Ok((analysis, history))
}

/// Says how a trace ends, if not in order.
pub(crate) fn say_ending(trace: &Path, analysis: &Analysis) {
    if let Some(note) = analysis.ending.note() {
        let word = if analysis.ending.is_damage() { "warning" } else { "note" };
        say(&format!("{word}: {}: {note}", text_of(trace)));
    }
}

const GIVE_TRACE: &str = "; give a file that `grapnel run` wrote";

/// Whether a file begins as heaptrack's do, or is compressed as these are; `found` has its first bytes, with escapes.
fn looks_like_heaptracks(found: &str) -> bool {
    ["\"v 1", "\"\\x1f\\x8b", "\"(\\xb5/\\xfd"].iter().any(|start| found.starts_with(start))
}

/// What can be done about a trace that can't be read; where the error itself says it, nothing.
fn hint(error: &grapnel_trace::Error) -> &'static str {
    match error {
        grapnel_trace::Error::NotATrace { found } if looks_like_heaptracks(found) => {
            "; if it is heaptrack's, `grapnel import` makes a trace of it"
        }
        grapnel_trace::Error::NotATrace { .. } => GIVE_TRACE,
        grapnel_trace::Error::Io(error) if error.kind() == io::ErrorKind::IsADirectory => GIVE_TRACE,
        grapnel_trace::Error::Empty
        | grapnel_trace::Error::NoInfo { .. }
        | grapnel_trace::Error::Damaged { .. } => "; record it again",
        _ => "",
    }
}
