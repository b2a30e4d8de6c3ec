//! Conditions that a recording is to meet, for continuous integration.

pub mod junit;
pub mod sarif;

use crate::export::stack::frames;
use crate::report::words::{counted, grouped, human_bytes};
use crate::suppressions::{Pattern, Suppressions};
use crate::symbols::Symbols;
use crate::{Analysis, leaks};
use std::collections::HashMap;

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gate {
    /// Nothing is lost at the end but what is suppressed; where leaks were not looked for, nothing is live.
    Leaks,
    /// The peak is at most this many bytes.
    MaxPeak(u64),
    /// In calls of these functions at most so many blocks are given out, by them or by what they call.
    MaxAllocationsAt {
        /// The functions: the whole of their names, with or without parameters.
        function: Pattern,
        /// How many.
        most: u64,
    },
}

impl Gate {
    /// A short name.
    pub fn name(&self) -> String {
        match self {
            Self::Leaks => "leaks".to_owned(),
            Self::MaxPeak(_) => "max-peak".to_owned(),
            Self::MaxAllocationsAt { function, .. } => format!("max-allocations-at {}", function.text()),
        }
    }
}

/// Whether a condition is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The condition.
    pub gate: Gate,
    /// Whether it is met.
    pub is_met: bool,
    /// What was found, in a sentence.
    pub message: String,
    /// The sites that are to blame, those with most first: their places in the analysis. None where the condition is met.
    pub sites: Vec<usize>,
}

/// Why nothing can be said of a recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unjudged {
    /// It has no end.
    #[error("{note}: what holds of a part need not hold of the whole")]
    Incomplete {
        /// How it ends.
        note: String,
    },
    /// Events are missing.
    #[error("{count} events could not be recorded: record it again, without --drop")]
    Lost {
        /// How many.
        count: u64,
    },
    /// All figures are estimates.
    #[error("it has a sample of the allocations only: record it without --sample and --budget")]
    Sample,
}

/// Judges a recording.
///
/// # Errors
/// When it isn't the whole truth: nobody should take it for a pass or a failure.
pub fn judge(
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    gates: &[Gate],
    suppressions: &mut Suppressions,
) -> Result<Vec<Verdict>, Unjudged> {
    if let Some(note) = analysis.ending.note() {
        return Err(Unjudged::Incomplete { note });
    }
    if analysis.totals.lost_events > 0 {
        return Err(Unjudged::Lost { count: analysis.totals.lost_events });
    }
    if analysis.sampling.is_some() {
        return Err(Unjudged::Sample);
    }
    let mut verdicts = Vec::new();
    for gate in gates {
        let (is_met, message, sites) = match gate {
            Gate::Leaks => leaks(analysis, symbols, suppressions),
            Gate::MaxPeak(most) => peak(analysis, *most),
            Gate::MaxAllocationsAt { function, most } => allocations(analysis, symbols, function, *most),
        };
        let sites = if is_met { Vec::new() } else { sites };
        verdicts.push(Verdict { gate: gate.clone(), is_met, message, sites });
    }
    Ok(verdicts)
}

type Found = (bool, String, Vec<usize>);

/// The sites for which a figure isn't 0, those with most first.
fn ranked(analysis: &Analysis, figure: impl Fn(usize) -> u64) -> Vec<usize> {
    let mut sites: Vec<usize> = (0..analysis.sites.len()).filter(|&at| figure(at) > 0).collect();
    sites.sort_by_key(|&at| std::cmp::Reverse(figure(at)));
    sites
}

fn leaks(analysis: &Analysis, symbols: &mut Symbols<'_>, suppressions: &mut Suppressions) -> Found {
    if let Some(found) = analysis.leaks.as_ref().filter(|found| found.scan.at_exit) {
        return lost(found, analysis, symbols, suppressions);
    }
    let mut sites = ranked(analysis, |at| analysis.sites[at].live_allocations);
    sites.sort_by_key(|&at| std::cmp::Reverse(analysis.sites[at].live_bytes));
    sites.retain(|&at| !suppressions.suppress(analysis, symbols, &analysis.sites[at]));
    let sum = |figure: fn(&crate::sites::Site) -> u64| {
        sites.iter().fold(0_u64, |sum, &at| sum.saturating_add(figure(&analysis.sites[at])))
    };
    let (blocks, bytes) = (sum(|site| site.live_allocations), sum(|site| site.live_bytes));
    if sites.is_empty() {
        return (true, "nothing is live at the end".to_owned(), sites);
    }
    let of = counted(sites.len() as u64, "site");
    let message =
        format!("{} with {} of {of}, live at the end", counted(blocks, "block"), counted(bytes, "byte"));
    (false, message, sites)
}

/// Of a trace with a look for leaks: what is lost. What is only possibly lost, is not.
fn lost(
    found: &leaks::Found,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    suppressions: &mut Suppressions,
) -> Found {
    let left = found.without(|stack, count| {
        suppressions.suppress_stack(analysis, symbols, stack, count.blocks, count.bytes)
    });
    let place: HashMap<u32, usize> = (0..).zip(&analysis.sites).map(|(at, site)| (site.stack, at)).collect();
    let mut sites = Vec::new();
    for site in left.sites.iter().filter(|site| site.kind.is_lost()) {
        sites.extend(place.get(&site.stack).filter(|at| !sites.contains(*at)).copied());
    }
    let lost = left.lost();
    if lost.is_empty() {
        return (true, "nothing is lost at the end".to_owned(), sites);
    }
    let indirect = left.total(leaks::Kind::Indirect).blocks;
    let of = counted(sites.len() as u64, "site");
    let (blocks, bytes) = (counted(lost.blocks, "block"), counted(lost.bytes, "byte"));
    let message = format!("{blocks} with {bytes} of {of}, lost at the end, {indirect} of them indirectly");
    (false, message, sites)
}

fn peak(analysis: &Analysis, most: u64) -> Found {
    let peak = analysis.totals.peak_bytes;
    let message = format!(
        "the peak is {} ({}), of at most {}",
        human_bytes(peak),
        counted(peak, "byte"),
        human_bytes(most)
    );
    (peak <= most, message, ranked(analysis, |at| analysis.sites[at].peak_bytes))
}

fn allocations(analysis: &Analysis, symbols: &mut Symbols<'_>, function: &Pattern, most: u64) -> Found {
    let is_in = |name: &str| {
        function.matches(name) || name.split_once('(').is_some_and(|(name, _)| function.matches(name))
    };
    let mut sites = ranked(analysis, |at| analysis.sites[at].allocations);
    sites.retain(|&at| {
        let mut found = false;
        frames(analysis, symbols, analysis.sites[at].stack, |_, frame| found |= is_in(&frame.name));
        found
    });
    let count = sites.iter().fold(0_u64, |sum, &at| sum.saturating_add(analysis.sites[at].allocations));
    let message =
        format!("{} in {}, of at most {}", counted(count, "allocation"), function.text(), grouped(most));
    (count <= most, message, sites)
}
