//! An answer as JSON, version 1. `docs/query.md` in the repository describes every field.

use super::{Answer, Figures, Query};
use serde::Serialize;
use std::io::{self, Write};

/// The version of the form. It rises when a field changes its meaning or goes; fields may come at any time.
pub const VERSION: u32 = 1;

#[derive(Serialize)]
struct Form<'a> {
    version: u32,
    from_ns: u64,
    to_ns: Option<u64>,
    live_bytes_before: u64,
    whole: Figures,
    groups: Vec<RowForm<'a>>,
}

#[derive(Serialize)]
struct RowForm<'a> {
    name: &'a str,
    #[serde(flatten)]
    figures: Figures,
    own: Option<Figures>,
}

/// Writes the first `top` groups, all for 0.
///
/// # Errors
/// What writing gives.
pub fn write(mut out: impl Write, answer: &Answer, query: &Query, top: usize) -> io::Result<()> {
    let shown = if top == 0 { usize::MAX } else { top };
    let end = *query.window.end();
    let form = Form {
        version: VERSION,
        from_ns: *query.window.start(),
        to_ns: (end != u64::MAX).then_some(end),
        live_bytes_before: answer.live_before,
        whole: answer.whole,
        groups: answer
            .rows
            .iter()
            .take(shown)
            .map(|row| RowForm { name: &row.name, figures: row.figures, own: row.own })
            .collect(),
    };
    serde_json::to_writer(&mut out, &form)?;
    out.write_all(b"\n")?;
    out.flush()
}
