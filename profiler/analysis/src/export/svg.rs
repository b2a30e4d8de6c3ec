//! A flame graph, drawn by inferno.

use super::{Measure, collapsed};
use crate::Analysis;
use crate::report::words::harmless;
use crate::symbols::Symbols;
use inferno::flamegraph::{self, Options};
use std::io::{self, Write};

pub(super) fn write(
    out: &mut impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    measure: Measure,
) -> io::Result<()> {
    let lines: Vec<String> = collapsed::lines(analysis, symbols, measure).collect();
    if lines.is_empty() {
        let what = measure.title().to_lowercase();
        let message = format!("there is nothing to draw: no site has any {what}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let command =
        analysis.process.command.first().map(|name| String::from_utf8_lossy(name)).unwrap_or_default();
    let mut options = Options::default();
    options.title = measure.title().to_owned();
    options.subtitle = Some(harmless(&command).into_owned());
    options.count_name = if measure.is_bytes() { "bytes" } else { "allocations" }.to_owned();
    options.colors = flamegraph::Palette::Basic(flamegraph::color::BasicPalette::Mem);
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), out)
}
