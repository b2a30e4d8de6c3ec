//! Verdicts as a JUnit report, which most servers of continuous integration show.

use super::Verdict;
use crate::Analysis;
use crate::export::command;
use crate::export::stack::frames;
use crate::report::words::harmless;
use crate::symbols::Symbols;
use std::io::{self, Write};

/// Sites that are told of a condition that isn't met.
const SITES: usize = 20;

/// Writes a test suite with a case for each condition.
///
/// # Errors
/// What writing gives.
pub fn write(
    mut out: impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    verdicts: &[Verdict],
) -> io::Result<()> {
    let failures = verdicts.iter().filter(|verdict| !verdict.is_met).count();
    let (tests, name) = (verdicts.len(), escaped(&command(analysis)));
    let time = analysis.totals.duration_ns as f64 / 1e9;
    writeln!(out, r#"<?xml version="1.0" encoding="UTF-8"?>"#)?;
    writeln!(out, r#"<testsuites tests="{tests}" failures="{failures}">"#)?;
    writeln!(
        out,
        r#"  <testsuite name="grapnel: {name}" tests="{tests}" failures="{failures}" errors="0" skipped="0" time="{time:.3}">"#
    )?;
    for verdict in verdicts {
        let (name, message) = (escaped(&verdict.gate.name()), escaped(&verdict.message));
        write!(out, r#"    <testcase classname="grapnel" name="{name}" time="0""#)?;
        if verdict.is_met {
            match &verdict.doubt {
                None => writeln!(out, "/>")?,
                Some(doubt) => {
                    let doubt = escaped(doubt);
                    writeln!(out, ">\n      <system-out>warning: {doubt}</system-out>\n    </testcase>")?;
                }
            }
            continue;
        }
        writeln!(out, ">\n      <failure type=\"grapnel\" message=\"{message}\">")?;
        for blamed in verdict.sites.iter().take(SITES) {
            let site = &analysis.sites[blamed.site];
            writeln!(out, "{}:", blamed.of)?;
            let mut lines = String::new();
            frames(analysis, symbols, site.stack, |_, frame| {
                lines.push_str("  ");
                lines.push_str(&escaped(&frame.name));
                if let (Some(file), Some(line)) = (frame.file, frame.line) {
                    lines.push_str(&format!(" at {}:{line}", escaped(&harmless(file))));
                }
                lines.push('\n');
            });
            out.write_all(lines.as_bytes())?;
        }
        writeln!(out, "      </failure>\n    </testcase>")?;
    }
    writeln!(out, "  </testsuite>\n</testsuites>")?;
    out.flush()
}

/// Text for XML. What it can't hold at all was escaped by [`harmless`].
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
