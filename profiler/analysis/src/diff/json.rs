//! A comparison as JSON, version 1. `docs/diff-json.md` in the repository describes every field.

use super::{Change, Diff, Figures, Normalize, Row};
use crate::Analysis;
use crate::export::Measure;
use crate::export::stack::frames;
use crate::symbols::Symbols;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::borrow::Cow;
use std::cell::RefCell;
use std::io::{self, Write};

/// The version of the form. It rises when a field changes its meaning or goes; fields may come at any time.
pub const VERSION: u32 = 1;

/// Writes the first `top` sites that changed by `measure`, all for 0. The symbols are those of the first trace and of the
/// second.
///
/// # Errors
/// What writing gives.
pub fn write(
    mut out: impl Write,
    diff: &Diff<'_>,
    [before, after]: [&mut Symbols<'_>; 2],
    measure: Measure,
    top: usize,
) -> io::Result<()> {
    let (old, new) = diff.totals();
    let rows = diff.changed(measure);
    let shown = if top == 0 { rows.len() } else { top.min(rows.len()) };
    let symbols = RefCell::new([before, after]);
    let form = Form {
        version: VERSION,
        normalize: match diff.normalize {
            Normalize::Not => "none",
            Normalize::Time => "time",
            Normalize::Count => "count",
        },
        factor: diff.factor,
        measure: key(measure),
        before: SideForm::of(diff.before, old),
        after: SideForm::of(diff.after, new),
        changes: Changes(diff, Row { before: old, after: new, ..Row::default() }),
        sites: Sites { diff, symbols: &symbols, rows: &rows[..shown], measure },
    };
    serde_json::to_writer(&mut out, &form)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// The names that reports have for these figures.
fn key(measure: Measure) -> &'static str {
    match measure {
        Measure::Peak => "peak_bytes",
        Measure::Live => "live_bytes",
        Measure::Allocated => "allocated_bytes",
        Measure::Allocations => "allocations",
        Measure::Temporary => "temporary_allocations",
    }
}

#[derive(Serialize)]
struct Form<'d, 'a, 's, 'f> {
    version: u32,
    normalize: &'static str,
    factor: f64,
    measure: &'static str,
    before: SideForm<'a>,
    after: SideForm<'a>,
    changes: Changes<'d, 'a>,
    sites: Sites<'d, 'a, 's, 'f>,
}

#[derive(Serialize)]
struct SideForm<'a> {
    pid: u32,
    command: Vec<Cow<'a, str>>,
    duration_ns: u64,
    totals: FiguresForm,
}

impl<'a> SideForm<'a> {
    fn of(analysis: &'a Analysis, totals: Figures) -> Self {
        let command = analysis.process.command.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
        let duration_ns = analysis.totals.duration_ns;
        Self { pid: analysis.process.pid, command, duration_ns, totals: FiguresForm(totals) }
    }
}

struct FiguresForm(Figures);

impl Serialize for FiguresForm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Measure::ALL.map(|measure| (key(measure), self.0.of(measure))))
    }
}

/// By how much each figure rose.
struct Changes<'d, 'a>(&'d Diff<'a>, Row);

impl Serialize for Changes<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Measure::ALL.map(|measure| (key(measure), self.0.rise(&self.1, measure))))
    }
}

/// The symbols of the first trace and of the second. The cell is for that: to serialize takes `&self`.
type BothSymbols<'s, 'f> = RefCell<[&'s mut Symbols<'f>; 2]>;

struct Sites<'d, 'a, 's, 'f> {
    diff: &'d Diff<'a>,
    symbols: &'d BothSymbols<'s, 'f>,
    rows: &'d [&'d Row],
    measure: Measure,
}

impl Serialize for Sites<'_, '_, '_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.rows.iter().map(|row| SiteForm { sites: self, row }))
    }
}

struct SiteForm<'r, 'd, 'a, 's, 'f> {
    sites: &'r Sites<'d, 'a, 's, 'f>,
    row: &'r Row,
}

impl Serialize for SiteForm<'_, '_, '_, '_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Sites { diff, symbols, measure, .. } = *self.sites;
        let row = self.row;
        let change = match diff.change(row, measure) {
            Change::Came => "came",
            Change::Went => "went",
            Change::Grew => "grew",
            Change::Shrank => "shrank",
            Change::Same => "same",
        };
        let mut form = serializer.serialize_map(None)?;
        form.serialize_entry("change", change)?;
        form.serialize_entry("before", &FiguresForm(row.before))?;
        form.serialize_entry("after", &FiguresForm(row.after))?;
        form.serialize_entry("changes", &Changes(diff, *row))?;
        let mut both = symbols.borrow_mut();
        let analysis = if row.is_after { diff.after } else { diff.before };
        let mut list: Vec<Place> = Vec::new();
        frames(analysis, both[usize::from(row.is_after)], row.stack, |_, frame| {
            let (function, file) = (frame.name.into_owned(), frame.file.map(str::to_owned));
            list.push(Place { function, file, line: frame.line });
        });
        form.serialize_entry("frames", &list)?;
        form.end()
    }
}

#[derive(Serialize)]
struct Place {
    function: String,
    file: Option<String>,
    line: Option<u32>,
}
