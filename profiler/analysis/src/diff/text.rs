//! A comparison as text.

use super::{Change, Diff, Normalize, Row};
use crate::Analysis;
use crate::export::Measure;
use crate::report::stack::StackPrinter;
use crate::report::text::TextOptions;
use crate::report::words::{counted, duration, grouped, human_bytes, quoted};
use crate::symbols::Symbols;
use std::io::{self, Write};

/// Writes the comparison by `measure`: the totals, then the sites by what became of them. The symbols are those of the first
/// trace and of the second.
///
/// # Errors
/// What writing gives.
pub fn write(
    mut out: impl Write,
    diff: &Diff<'_>,
    [before, after]: [&mut Symbols<'_>; 2],
    measure: Measure,
    options: &TextOptions,
) -> io::Result<()> {
    head(&mut out, "before", diff.before, options)?;
    head(&mut out, "after", diff.after, options)?;
    let by = match diff.normalize {
        Normalize::Not => None,
        Normalize::Time => Some("the recordings' durations"),
        Normalize::Count => Some("their numbers of allocations"),
    };
    if let Some(by) = by {
        let factor = diff.factor;
        writeln!(out, "changes are by {by}: what was before is taken {factor:.3} times")?;
    }
    writeln!(out)?;
    totals(&mut out, diff, options)?;
    let rows = diff.changed(measure);
    for change in Change::ALL {
        let rows: Vec<&Row> =
            rows.iter().copied().filter(|row| diff.change(row, measure) == change).collect();
        section(&mut out, diff, (change, measure), &rows, options, |out, row| {
            let (analysis, symbols) =
                if row.is_after { (diff.after, &mut *after) } else { (diff.before, &mut *before) };
            StackPrinter { analysis, symbols, options }.print(out, row.stack)
        })?;
    }
    out.flush()
}

fn head(out: &mut impl Write, word: &str, analysis: &Analysis, options: &TextOptions) -> io::Result<()> {
    let arguments: Vec<_> = analysis.process.command.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
    let command: Vec<_> = arguments.iter().map(|arg| quoted(arg)).collect();
    let (title, length) = (options.palette.title, duration(analysis.totals.duration_ns));
    writeln!(out, "{word:<7} {title}{}{title:#}, {length}", command.join(" "))
}

fn shown(measure: Measure, value: u64) -> String {
    if measure.is_bytes() { human_bytes(value) } else { grouped(value) }
}

/// With its sign.
fn shown_change(measure: Measure, change: i64) -> String {
    let sign = if change < 0 { "-" } else { "+" };
    format!("{sign}{}", shown(measure, change.unsigned_abs()))
}

fn totals(out: &mut impl Write, diff: &Diff<'_>, options: &TextOptions) -> io::Result<()> {
    let (before, after) = diff.totals();
    let figure = options.palette.figure;
    writeln!(out, "  {:24}{:>14}{:>14}{:>14}", "", "before", "after", "change")?;
    for measure in Measure::ALL {
        let (old, new) = (before.of(measure), after.of(measure));
        let change = diff.difference(old, new);
        let percent = match old as f64 * diff.factor {
            0.0 => String::new(),
            old => format!("{:+9.1}%", 100.0 * change as f64 / old),
        };
        let change = shown_change(measure, change);
        let (old, new) = (shown(measure, old), shown(measure, new));
        writeln!(out, "  {:24}{old:>14}{new:>14}{figure}{change:>14}{figure:#}{percent}", measure.title())?;
    }
    writeln!(out)
}

fn section<W: Write>(
    out: &mut W,
    diff: &Diff<'_>,
    (change, measure): (Change, Measure),
    rows: &[&Row],
    options: &TextOptions,
    mut stack: impl FnMut(&mut W, &Row) -> io::Result<()>,
) -> io::Result<()> {
    let word = match change {
        Change::Came => "came",
        Change::Grew => "grew",
        Change::Shrank => "shrank",
        Change::Went => "went",
        Change::Same => "stayed",
    };
    let (title, figure, faint) = (options.palette.title, options.palette.figure, options.palette.faint);
    writeln!(out, "{title}{}: sites that {word}{title:#}", measure.title())?;
    if rows.is_empty() {
        writeln!(out, "  none")?;
    }
    let top = if options.top == 0 { rows.len() } else { options.top.min(rows.len()) };
    for (rank, row) in rows[..top].iter().enumerate() {
        let rise = shown_change(measure, diff.rise(row, measure));
        let (before, after) = (shown(measure, row.before.of(measure)), shown(measure, row.after.of(measure)));
        writeln!(
            out,
            "{:>3}. {figure}{rise}{figure:#}  {faint}({before} before, {after} after){faint:#}",
            rank + 1
        )?;
        stack(out, row)?;
    }
    if top < rows.len() {
        let rest = rows[top..].iter().fold(0_i64, |sum, row| sum.saturating_add(diff.rise(row, measure)));
        let more = counted((rows.len() - top) as u64, "more site");
        let rest = shown_change(measure, rest);
        writeln!(out, "     {faint}and {more} with {rest} together; --top N shows more{faint:#}")?;
    }
    writeln!(out)
}
