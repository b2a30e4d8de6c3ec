//! An analysis in the forms that other tools open.
//!
//! | format | what opens it |
//! |---|---|
//! | [`Format::Collapsed`] | flamegraph.pl, inferno, speedscope, and all that reads collapsed stacks |
//! | [`Format::Svg`] | a browser: a flame graph that zooms and searches |
//! | [`Format::Pprof`] | `go tool pprof`, and what keeps profiles of a fleet in that form |
//! | [`Format::Speedscope`] | <https://www.speedscope.app>, or a copy of it |
//! | [`Format::Csv`] | spreadsheets, DuckDB, pandas: a row for each site |
//! | [`Format::Heaptrack`] | heaptrack's own window, and `heaptrack_print` |
//! | [`Format::Massif`] | `ms_print`, massif-visualizer |
//! | [`Format::Dhat`] | Valgrind's `dh_view.html`, the Firefox Profiler |
//! | [`Format::Firefox`] | <https://profiler.firefox.com>, or a copy of it |
//! | [`Format::Android`] | what reads Android's native heap dumps |
//! | [`Format::ParquetSites`], [`Format::ParquetEvents`] | DuckDB, Spark and their like, many files at once |
//!
//! pprof and speedscope hold every [`Measure`], and let their user choose; collapsed stacks and flame graphs hold one.
//! heaptrack, Massif, DHAT, the Firefox Profiler, Android's dumps and tables of events tell of single blocks, for which the trace
//! is read a second time.

mod android;
mod collapsed;
mod csv;
mod dhat;
mod firefox;
pub mod go_text;
mod heaptrack;
mod labels;
mod massif;
mod otlp;
mod parquet;
pub mod pprof;
mod profile;
pub mod pushed;
mod speedscope;
pub(crate) mod stack;
mod svg;

use crate::Analysis;
use crate::report::words::harmless;
use crate::sites::Site;
use crate::symbols::Symbols;
use grapnel_trace::reader::Reader;
use std::io::{self, Read, Write};

/// What a file is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// A line for each stack: its frames, root first, between semicolons, and after a space the figure.
    Collapsed,
    /// A flame graph.
    Svg,
    /// pprof's `profile.proto`, compressed by gzip.
    Pprof,
    /// speedscope's own JSON.
    Speedscope,
    /// Comma-separated values (RFC 4180), with a header.
    Csv,
    /// heaptrack's interpreted format, not compressed.
    Heaptrack,
    /// Massif's `massif.out`.
    Massif,
    /// DHAT's `dhat.out`.
    Dhat,
    /// The Firefox Profiler's processed profile.
    Firefox,
    /// Android's native heap dump.
    Android,
    /// A Parquet table with a row for each site.
    ParquetSites,
    /// A Parquet table with a row for each block that came or went.
    ParquetEvents,
}

/// Which figure of the sites is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// [`Site::peak_bytes`].
    Peak,
    /// [`Site::live_bytes`].
    Live,
    /// [`Site::allocated_bytes`].
    Allocated,
    /// [`Site::allocations`].
    Allocations,
    /// [`Site::temporary_allocations`].
    Temporary,
}

impl Measure {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Peak, Self::Live, Self::Allocated, Self::Allocations, Self::Temporary];

    pub(crate) fn of(self, site: &Site) -> u64 {
        match self {
            Self::Peak => site.peak_bytes,
            Self::Live => site.live_bytes,
            Self::Allocated => site.allocated_bytes,
            Self::Allocations => site.allocations,
            Self::Temporary => site.temporary_allocations,
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Peak => "Bytes held at the peak",
            Self::Live => "Bytes live at the end",
            Self::Allocated => "Bytes allocated",
            Self::Allocations => "Allocations",
            Self::Temporary => "Temporary allocations",
        }
    }

    pub(crate) fn is_bytes(self) -> bool {
        matches!(self, Self::Peak | Self::Live | Self::Allocated)
    }
}

/// The command that was recorded, in one line.
pub(crate) fn command(analysis: &Analysis) -> String {
    let words: Vec<_> = analysis.process.command.iter().map(|word| String::from_utf8_lossy(word)).collect();
    harmless(&words.join(" ")).into_owned()
}

/// Writes an analysis. `measure` is for the formats that hold one figure, `again` opens the trace anew for those that need
/// its events.
///
/// # Errors
/// What writing, opening and reading give; an SVG of nothing is refused with [`io::ErrorKind::InvalidInput`].
pub fn write<R: Read + Send>(
    mut out: impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    (format, measure): (Format, Measure),
    again: impl FnOnce() -> io::Result<Reader<R>>,
) -> io::Result<()> {
    match format {
        Format::Collapsed => collapsed::write(&mut out, analysis, symbols, measure)?,
        Format::Svg => svg::write(&mut out, analysis, symbols, measure)?,
        Format::Pprof => pprof::write(&mut out, analysis, symbols)?,
        Format::Speedscope => speedscope::write(&mut out, analysis, symbols, measure)?,
        Format::Csv => csv::write(&mut out, analysis, symbols)?,
        Format::Heaptrack => heaptrack::write(&mut out, analysis, symbols, again()?)?,
        Format::Massif => massif::write(&mut out, analysis, symbols, again()?)?,
        Format::Dhat => dhat::write(&mut out, analysis, symbols, again()?)?,
        Format::Firefox => firefox::write(&mut out, analysis, symbols, again()?)?,
        Format::Android => android::write(&mut out, analysis, symbols, again()?)?,
        Format::ParquetSites => parquet::sites(&mut out, analysis, symbols)?,
        Format::ParquetEvents => parquet::events(&mut out, analysis, again()?)?,
    }
    out.flush()
}
