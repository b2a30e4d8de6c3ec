//! An answer as a table.

use super::{Answer, By, Figures, Query};
use crate::report::words::{columns, counted, duration, folded, grouped, harmless, human_bytes};
use std::io::{self, Write};

/// No name takes more columns, unless there is room for it.
const WIDEST: usize = 60;

/// Writes the first `top` groups, all for 0.
///
/// # Errors
/// What writing gives.
pub fn write(mut out: impl Write, answer: &Answer, query: &Query, top: usize) -> io::Result<()> {
    let (start, end) = (*query.window.start(), *query.window.end());
    let is_all = (start, end) == (0, u64::MAX);
    if !is_all {
        let end = if end == u64::MAX { "the end".to_owned() } else { duration(end) };
        let before = human_bytes(answer.live_before);
        writeln!(out, "from {} to {end}; {before} were live before", duration(start))?;
    }
    let grown = if is_all { "live at end" } else { "grown" };
    let has_own = answer.rows.iter().any(|row| row.own.is_some());
    let mut head = vec!["allocated", "blocks", "temporary", grown, "realloc", "copied"];
    // What was held at the peak has no part in a time or a life.
    let has_peak = !matches!(query.by, By::Time | By::Lifetime);
    if has_peak {
        head.push("at peak");
    }
    if has_own {
        head.push("own");
    }
    let cells = |figures: &Figures, own: Option<&Figures>| {
        let mut cells = vec![
            human_bytes(figures.allocated_bytes),
            grouped(figures.allocations),
            grouped(figures.temporary_allocations),
            signed_bytes(figures.grown_bytes),
            grouped(figures.reallocations),
            human_bytes(figures.copied_bytes),
        ];
        if has_peak {
            cells.push(human_bytes(figures.peak_bytes));
        }
        if has_own {
            cells.push(own.map_or(String::new(), |own| human_bytes(own.allocated_bytes)));
        }
        cells
    };
    let shown = if top == 0 { answer.rows.len() } else { top.min(answer.rows.len()) };
    let mut table: Vec<(String, Vec<String>)> = answer.rows[..shown]
        .iter()
        .map(|row| (folded(&harmless(&row.name), WIDEST).into_owned(), cells(&row.figures, row.own.as_ref())))
        .collect();
    table.push(("together, each block once".to_owned(), cells(&answer.whole, None)));
    let width = table.iter().map(|(name, _)| columns(name)).max().unwrap_or(0);
    write!(out, "{:width$}", "")?;
    for title in head {
        write!(out, " {title:>12}")?;
    }
    writeln!(out)?;
    for (name, cells) in table {
        // Widths are of columns on a terminal, not of characters.
        write!(out, "{name}{:1$}", "", width - columns(&name))?;
        for cell in cells {
            write!(out, " {cell:>12}")?;
        }
        writeln!(out)?;
    }
    if shown < answer.rows.len() {
        writeln!(
            out,
            "and {}; --top 0 shows all",
            counted((answer.rows.len() - shown) as u64, "more group")
        )?;
    }
    out.flush()
}

fn signed_bytes(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", human_bytes(bytes.unsigned_abs()))
}
