//! A table with a row for each site.

use super::stack::frames;
use crate::Analysis;
use crate::symbols::Symbols;
use std::io::{self, Write};

const HEADER: [&str; 9] = [
    "allocations",
    "allocated_bytes",
    "live_allocations",
    "live_bytes",
    "peak_bytes",
    "temporary_allocations",
    "function",
    "place",
    "stack",
];

/// The frames of `stack` come leaf first, with a line's end between them, as they can hold anything else.
pub(super) fn write(out: &mut impl Write, analysis: &Analysis, symbols: &mut Symbols<'_>) -> io::Result<()> {
    let mut table = csv::Writer::from_writer(out);
    table.write_record(HEADER).map_err(own)?;
    for site in &analysis.sites {
        let mut names: Vec<String> = Vec::new();
        let mut place = String::new();
        frames(analysis, symbols, site.stack, |_, frame| {
            if let (true, Some(file), Some(line)) = (names.is_empty(), frame.file, frame.line) {
                place = format!("{file}:{line}");
            }
            names.push(frame.name.into_owned());
        });
        let figures = [
            site.allocations,
            site.allocated_bytes,
            site.live_allocations,
            site.live_bytes,
            site.peak_bytes,
            site.temporary_allocations,
        ];
        let figures = figures.iter().map(u64::to_string);
        let leaf = names.first().cloned().unwrap_or_default();
        table.write_record(figures.chain([leaf, place, names.join("\n")])).map_err(own)?;
    }
    table.flush()
}

/// The error of what was written to, as it was: a closed pipe is none for a command.
fn own(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        _ => io::ErrorKind::InvalidData.into(),
    }
}
