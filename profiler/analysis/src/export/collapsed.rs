//! Collapsed stacks.

use super::Measure;
use super::stack::frames;
use crate::Analysis;
use crate::symbols::Symbols;
use std::io::{self, Write};

pub(super) fn write(
    out: &mut impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    measure: Measure,
) -> io::Result<()> {
    for line in lines(analysis, symbols, measure) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// A line for each site that has any of the measure.
pub(super) fn lines(
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    measure: Measure,
) -> impl Iterator<Item = String> {
    let sites = analysis.sites.iter().filter(move |site| measure.of(site) > 0);
    sites.map(move |site| {
        let mut names = Vec::new();
        // A semicolon ends a frame.
        frames(analysis, symbols, site.stack, |_, frame| names.push(frame.name.replace(';', ":")));
        names.reverse();
        format!("{} {}", names.join(";"), measure.of(site))
    })
}
