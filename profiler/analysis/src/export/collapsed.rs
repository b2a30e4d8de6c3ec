//! Collapsed stacks.

use super::Measure;
use super::stack::frames;
use crate::Analysis;
use crate::sites::Site;
use crate::symbols::Symbols;
use std::io::{self, Write};

pub(super) fn write(
    out: &mut impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    measure: Measure,
) -> io::Result<()> {
    for site in analysis.sites.iter().filter(|site| measure.of(site) > 0) {
        writeln!(out, "{}", line(analysis, symbols, site, measure))?;
    }
    Ok(())
}

/// A site's line.
pub(super) fn line(analysis: &Analysis, symbols: &mut Symbols<'_>, site: &Site, measure: Measure) -> String {
    let mut names = Vec::new();
    // A semicolon ends a frame.
    frames(analysis, symbols, site.stack, |_, frame| names.push(frame.name.replace(';', ":")));
    names.reverse();
    format!("{} {}", names.join(";"), measure.of(site))
}
