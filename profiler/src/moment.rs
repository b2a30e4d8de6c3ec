//! Moments of a recording on the command line: by a time, or by a mark's name.

use crate::opened::{OpenError, reader_of, text_of};
use grapnel_analysis::marks::{Moment, moments_of};
use grapnel_analysis::report::words::{duration, harmless};
use std::ops::RangeInclusive;
use std::path::Path;

/// A moment as people write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Nanoseconds since the recording began.
    Ns(u64),
    /// A mark of this name.
    Mark(String),
}

/// Why there is no such moment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum WhenError {
    /// The trace can't be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its marks can't.
    #[error("{path}: its marks can't be read: {error}")]
    Damaged {
        /// The trace.
        path: String,
        /// What is wrong with it.
        error: grapnel_trace::Error,
    },
    /// It would end before it begins.
    #[error("--to is before --from: {to} and {from} since the recording began")]
    Backwards {
        /// Where it would begin.
        from: String,
        /// Where it would end.
        to: String,
    },
    /// No mark has that name.
    #[error("{path}: no mark is called \"{name}\"{after}; it has {known}")]
    NoMark {
        /// The trace.
        path: String,
        /// The name.
        name: String,
        /// Where it was looked for.
        after: &'static str,
        /// Those that it has.
        known: String,
    },
}

/// A number with s, ms, us or ns, or `mark:NAME`.
pub(crate) fn when(text: &str) -> Result<When, String> {
    if let Some(name) = text.strip_prefix("mark:") {
        return Ok(When::Mark(name.to_owned()));
    }
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let ns = match unit.trim() {
        "s" | "" => 1e9,
        "ms" => 1e6,
        "us" => 1e3,
        "ns" => 1.0,
        _ => return Err("the unit is none of s, ms, us and ns".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "there is no number".to_owned())?;
    // 1.001 us are not quite 1001 ns in binary fractions.
    Ok(When::Ns((number * ns).round() as u64))
}

/// From one moment up to another. A mark's own moment belongs to what comes after it. Of several marks of one name the
/// first counts, and for the end the first behind the start.
///
/// # Errors
/// When a mark isn't there, or the end is before the start.
pub(crate) fn window(
    trace: &Path,
    from: Option<&When>,
    to: Option<&When>,
) -> Result<RangeInclusive<u64>, WhenError> {
    let is_named = |when: Option<&When>| matches!(when, Some(When::Mark(_)));
    let moments = if is_named(from) || is_named(to) {
        let damaged = |error| WhenError::Damaged { path: text_of(trace), error };
        moments_of(reader_of(trace)?).map_err(damaged)?
    } else {
        Vec::new()
    };
    let found = |name: &str, after: u64, words| {
        let moment = moments.iter().find(|moment| moment.name() == name && moment.time_ns >= after);
        moment.map(|moment| moment.time_ns).ok_or_else(|| WhenError::NoMark {
            path: text_of(trace),
            name: harmless(name).into_owned(),
            after: words,
            known: known(&moments),
        })
    };
    let start = match from {
        None => 0,
        Some(When::Ns(ns)) => *ns,
        Some(When::Mark(name)) => found(name, 0, "")?,
    };
    let end = match to {
        None => u64::MAX,
        Some(When::Ns(ns)) => *ns,
        Some(When::Mark(name)) => found(name, start.saturating_add(1), " behind --from")?.saturating_sub(1),
    };
    if end < start {
        return Err(WhenError::Backwards { from: duration(start), to: duration(end) });
    }
    Ok(start..=end)
}

fn known(moments: &[Moment]) -> String {
    /// So many are named.
    const SHOWN: usize = 10;
    let mut names: Vec<String> = moments.iter().map(Moment::harmless_name).collect();
    names.dedup();
    if names.is_empty() {
        return "none; `grapnel mark PID NAME` sets one while a program runs".into();
    }
    let more = if names.len() > SHOWN { ", ..." } else { "" };
    names.truncate(SHOWN);
    format!("{}{more}", names.join(", "))
}
