//! A table with a row for each site.
//!
//! Spreadsheets take a cell for a formula that begins with one of [`FORMULA`], also where it stands in quotes, and a formula
//! can run programs: names in a recording are those of whatever was recorded. Such a cell of text gets an apostrophe before
//! it, as OWASP advises ("CSV Injection"), and so does one that begins with an apostrophe by itself: without the first
//! apostrophe of a cell that begins with one, each is what it was.

use super::stack::frames;
use crate::Analysis;
use crate::report::words::harmless;
use crate::symbols::Symbols;
use std::borrow::Cow;
use std::io::{self, Write};

/// How formulas begin.
const FORMULA: [char; 7] = ['=', '+', '-', '@', '\t', '\r', '\n'];

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
                place = format!("{}:{line}", harmless(file));
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
        let texts = [leaf, place, names.join("\n")];
        let texts = texts.iter().map(|text| no_formula(text).into_owned());
        table.write_record(figures.chain(texts)).map_err(own)?;
    }
    table.flush()
}

/// Text that no spreadsheet computes.
fn no_formula(text: &str) -> Cow<'_, str> {
    if text.starts_with(FORMULA) || text.starts_with('\'') {
        return format!("'{text}").into();
    }
    text.into()
}

/// The error of what was written to, as it was: a closed pipe is none for a command.
fn own(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        _ => io::ErrorKind::InvalidData.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_a_formula_and_each_comes_back() {
        for text in [
            "=cmd|' /C calc'!A0",
            "+[NSString stringWithFormat:]",
            "-[Foo bar]",
            "@SUM(A1)",
            "\tx",
            "\r=1",
            "\n=1",
            "'lambda'(int)::operator()",
            "main",
            "a=b",
            "",
        ] {
            let cell = no_formula(text);
            assert!(!cell.starts_with(FORMULA), "{cell}");
            assert_eq!(cell.strip_prefix('\'').unwrap_or(&cell), text);
        }
        assert_eq!(no_formula("operator-(int)"), "operator-(int)");
    }
}
