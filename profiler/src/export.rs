//! `grapnel export`: a trace as a file that other tools open.

use crate::opened::{OpenError, analysis_of, name_of, reader_of, say, text_of};
use crate::symbols::{SymbolArgs, SymbolArgsError};
use crate::whole_file::{is_same_file, is_standard_output, to_file};
use clap::{Args, ValueEnum};
use flate2::write::GzEncoder;
use grapnel_analysis::Analysis;
use grapnel_analysis::export;
use grapnel_analysis::report::words::harmless;
use grapnel_analysis::symbols::{FileStore, Symbols};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `grapnel export`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExportArgs {
    /// The trace
    trace: PathBuf,
    /// What to write [default: what the name of FILE ends in]
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// The figure that is shown; only collapsed and svg have no other, and speedscope begins with it
    #[arg(long, value_enum, default_value_t = Measure::Peak)]
    measure: Measure,
    /// The file to write [default: standard output, which is also -]. It is replaced once all is written
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    symbols: SymbolArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line for each stack, as flame graph tools read it (.collapsed, .folded)
    Collapsed,
    /// A flame graph for a browser (.svg)
    Svg,
    /// For `go tool pprof` (.pb.gz, .pprof)
    Pprof,
    /// For speedscope (.speedscope.json)
    Speedscope,
    /// A row for each site (.csv)
    Csv,
    /// For heaptrack and `heaptrack_print` (.heaptrack, .heaptrack.gz, .heaptrack.zst)
    Heaptrack,
    /// For `ms_print` and massif-visualizer (.massif, massif.out.*)
    Massif,
    /// For Valgrind's dh_view.html (.dhat, dhat.out.*)
    Dhat,
    /// For the Firefox Profiler (.firefox.json, .firefox.json.gz)
    Firefox,
    /// Android's native heap dump: what was live at the end (.heapdump.txt)
    Android,
    /// A row for each site, for DuckDB and its like (.parquet)
    Parquet,
    /// A row for each block that came or went (.events.parquet)
    ParquetEvents,
}

impl Format {
    const ENDINGS: [(&'static str, Self); 18] = [
        (".collapsed", Self::Collapsed),
        (".folded", Self::Collapsed),
        (".svg", Self::Svg),
        (".pb.gz", Self::Pprof),
        (".pprof", Self::Pprof),
        (".speedscope.json", Self::Speedscope),
        (".speedscope", Self::Speedscope),
        (".csv", Self::Csv),
        (".heaptrack", Self::Heaptrack),
        (".heaptrack.gz", Self::Heaptrack),
        (".heaptrack.zst", Self::Heaptrack),
        (".massif", Self::Massif),
        (".dhat", Self::Dhat),
        (".firefox.json", Self::Firefox),
        (".firefox.json.gz", Self::Firefox),
        (".heapdump.txt", Self::Android),
        (".events.parquet", Self::ParquetEvents),
        (".parquet", Self::Parquet),
    ];

    fn of_name(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        let ending = Self::ENDINGS.iter().find(|(ending, _)| name.ends_with(ending));
        // As Valgrind calls them.
        let valgrinds = [("massif.out", Self::Massif), ("dhat.out", Self::Dhat)];
        let ending = ending.or_else(|| valgrinds.iter().find(|(start, _)| name.starts_with(start)));
        ending.map(|(_, format)| *format)
    }

    /// Whether a terminal can't show it.
    fn is_binary(self) -> bool {
        matches!(self, Self::Pprof | Self::Parquet | Self::ParquetEvents)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measure {
    /// Bytes held at the process's peak
    Peak,
    /// Bytes live at the end
    Live,
    /// All bytes that were allocated
    Allocated,
    /// How many blocks were allocated
    Allocations,
    /// How many blocks were freed before their thread allocated again
    Temporary,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ExportError {
    /// The trace can't be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is nowhere to look for symbols.
    #[error(transparent)]
    Symbols(#[from] SymbolArgsError),
    /// No format was given.
    #[error("what to write isn't said: give --format, or a FILE that ends in one of {endings}")]
    NoFormat {
        /// The endings that are known.
        endings: String,
    },
    /// The file to write is the trace, which would be lost.
    #[error("{path} is the trace itself: give another file to write")]
    Trace {
        /// The trace.
        path: String,
    },
    /// The output is a terminal, which shows no bytes.
    #[error("this format isn't text: give a file with --output, or a pipe")]
    Binary,
    /// The file can't be written.
    #[error("{path}: {error}")]
    Write {
        /// The file.
        path: String,
        /// Why not.
        error: io::Error,
    },
}

/// Exports a trace.
///
/// # Errors
/// When the trace can't be read at all, or the file can't be written. A closed pipe is no error.
pub(crate) fn run(args: &ExportArgs) -> Result<ExitCode, ExportError> {
    let format = args.format.or_else(|| Format::of_name(args.output.as_deref()?)).ok_or_else(|| {
        let endings: Vec<&str> = Format::ENDINGS.iter().map(|(ending, _)| *ending).collect();
        ExportError::NoFormat { endings: endings.join(", ") }
    })?;
    let output = args.output.as_deref().unwrap_or(Path::new("-"));
    if format.is_binary() && is_standard_output(output) && io::stdout().is_terminal() {
        return Err(ExportError::Binary);
    }
    if is_same_file(output, &args.trace) {
        return Err(ExportError::Trace { path: text_of(output) });
    }
    let search = args.symbols.search()?;
    let analysis = analysis_of(&args.trace)?;
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, search);
    let what = (format.into(), args.measure.into());
    // The file was opened before; it may be gone since.
    let again = || reader_of(&args.trace).map_err(io::Error::other);
    let packing = Packing::of(format, args.output.as_deref());
    to_file(output, |out| packing.write(out, |out| export::write(out, &analysis, &mut symbols, what, again)))
        .map_err(|error| ExportError::Write { path: name_of(output), error })?;
    for note in symbols.notes() {
        say(&format!("note: {}", harmless(&note)));
    }
    Ok(status(&analysis))
}

/// heaptrack and the Firefox Profiler take files that are compressed; heaptrack knows them by their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    None,
    Gzip,
    Zstd,
}

impl Packing {
    fn of(format: Format, path: Option<&Path>) -> Self {
        let ending = path.and_then(Path::extension);
        let is = |name| ending.is_some_and(|ending| ending.eq_ignore_ascii_case(name));
        match format {
            Format::Heaptrack | Format::Firefox if is("gz") => Self::Gzip,
            Format::Heaptrack if is("zst") => Self::Zstd,
            _ => Self::None,
        }
    }

    fn write(
        self,
        out: &mut dyn Write,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        match self {
            Self::None => content(out),
            Self::Gzip => {
                let mut packed = BufWriter::new(GzEncoder::new(out, flate2::Compression::default()));
                content(&mut packed)?;
                packed.into_inner()?.finish().map(drop)
            }
            Self::Zstd => {
                let mut packed = BufWriter::new(zstd::Encoder::new(out, 0)?);
                content(&mut packed)?;
                packed.into_inner()?.finish().map(drop)
            }
        }
    }
}

fn status(analysis: &Analysis) -> ExitCode {
    if analysis.ending.is_damage() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

impl From<Format> for export::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Collapsed => Self::Collapsed,
            Format::Svg => Self::Svg,
            Format::Pprof => Self::Pprof,
            Format::Speedscope => Self::Speedscope,
            Format::Csv => Self::Csv,
            Format::Heaptrack => Self::Heaptrack,
            Format::Massif => Self::Massif,
            Format::Dhat => Self::Dhat,
            Format::Firefox => Self::Firefox,
            Format::Android => Self::Android,
            Format::Parquet => Self::ParquetSites,
            Format::ParquetEvents => Self::ParquetEvents,
        }
    }
}

impl From<Measure> for export::Measure {
    fn from(measure: Measure) -> Self {
        match measure {
            Measure::Peak => Self::Peak,
            Measure::Live => Self::Live,
            Measure::Allocated => Self::Allocated,
            Measure::Allocations => Self::Allocations,
            Measure::Temporary => Self::Temporary,
        }
    }
}
