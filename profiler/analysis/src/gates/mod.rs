//! Conditions that a recording is to meet, for continuous integration.

pub mod junit;
pub mod sarif;
mod uncalled;

use crate::export::stack::frames;
use crate::leaks::found::Count;
use crate::report::words::{counted, grouped, human_bytes};
use crate::sites::Site;
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
    /// The sites that are to blame, those with most first. None where the condition is met.
    pub sites: Vec<Blamed>,
    /// Why the condition may not be the one that was meant. Only of one that is met.
    pub doubt: Option<String>,
}

/// A site that is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blamed {
    /// Its place in the analysis.
    pub site: usize,
    /// For what.
    pub of: Blame,
}

/// What a site is to blame for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Blame {
    /// Blocks that are live at the end.
    Live(Count),
    /// Blocks that nothing leads to at the end.
    Lost {
        /// They, and those that only lost blocks lead to.
        all: Count,
        /// Of these, how many only lost blocks lead to.
        indirect: u64,
    },
    /// Bytes at the peak.
    Peak(u64),
    /// Blocks that were given out.
    Allocations(u64),
}

impl core::fmt::Display for Blame {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let of =
            |count: &Count| format!("{} in {}", counted(count.bytes, "byte"), counted(count.blocks, "block"));
        match self {
            Self::Live(count) => write!(f, "{}, live at the end", of(count)),
            Self::Lost { all, indirect: 0 } => write!(f, "{}, lost at the end", of(all)),
            Self::Lost { all, indirect } => {
                write!(f, "{}, lost at the end, {} of them indirectly", of(all), grouped(*indirect))
            }
            Self::Peak(bytes) => write!(f, "{} at the peak", counted(*bytes, "byte")),
            Self::Allocations(count) => f.write_str(&counted(*count, "allocation")),
        }
    }
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
        let doubt = match gate {
            Gate::MaxAllocationsAt { function, .. } if sites.is_empty() => {
                uncalled::doubt(analysis, symbols, function)
            }
            _ => None,
        };
        let sites = if is_met { Vec::new() } else { sites };
        verdicts.push(Verdict { gate: gate.clone(), is_met, message, sites, doubt });
    }
    Ok(verdicts)
}

type Found = (bool, String, Vec<Blamed>);

/// The sites for which a figure isn't 0, those with most first.
fn ranked(analysis: &Analysis, figure: impl Fn(&Site) -> u64, of: impl Fn(&Site) -> Blame) -> Vec<Blamed> {
    let sites = analysis.sites.iter().enumerate().filter(|(_, site)| figure(site) > 0);
    let mut blamed: Vec<Blamed> = sites.map(|(at, site)| Blamed { site: at, of: of(site) }).collect();
    blamed.sort_by_key(|blamed| std::cmp::Reverse(figure(&analysis.sites[blamed.site])));
    blamed
}

fn leaks(analysis: &Analysis, symbols: &mut Symbols<'_>, suppressions: &mut Suppressions) -> Found {
    if let Some(found) = analysis.leaks.as_ref().filter(|found| found.scan.at_exit) {
        return lost(found, analysis, symbols, suppressions);
    }
    let live = |site: &Site| Blame::Live(Count { blocks: site.live_allocations, bytes: site.live_bytes });
    let mut sites = ranked(analysis, |site| site.live_allocations, live);
    sites.sort_by_key(|blamed| std::cmp::Reverse(analysis.sites[blamed.site].live_bytes));
    sites.retain(|blamed| !suppressions.suppress(analysis, symbols, &analysis.sites[blamed.site]));
    let sum = |figure: fn(&Site) -> u64| {
        sites.iter().fold(0_u64, |sum, blamed| sum.saturating_add(figure(&analysis.sites[blamed.site])))
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
    let mut sites: Vec<Blamed> = Vec::new();
    let mut known: HashMap<usize, usize> = HashMap::new();
    for site in left.sites.iter().filter(|site| site.kind.is_lost()) {
        let Some(&at) = place.get(&site.stack) else { continue };
        let blamed = *known.entry(at).or_insert_with(|| {
            sites.push(Blamed { site: at, of: Blame::Lost { all: Count::default(), indirect: 0 } });
            sites.len() - 1
        });
        if let Blame::Lost { all, indirect } = &mut sites[blamed].of {
            all.plus(site.own);
            if site.kind == leaks::Kind::Indirect {
                *indirect = indirect.saturating_add(site.own.blocks);
            }
        }
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
        "the peak is {} ({}), of at most {} ({})",
        human_bytes(peak),
        counted(peak, "byte"),
        human_bytes(most),
        counted(most, "byte")
    );
    let sites = ranked(analysis, |site| site.peak_bytes, |site| Blame::Peak(site.peak_bytes));
    (peak <= most, message, sites)
}

fn allocations(analysis: &Analysis, symbols: &mut Symbols<'_>, function: &Pattern, most: u64) -> Found {
    let of = |site: &Site| Blame::Allocations(site.allocations);
    let mut sites = ranked(analysis, |site| site.allocations, of);
    sites.retain(|blamed| {
        let (mut found, stack) = (false, analysis.sites[blamed.site].stack);
        frames(analysis, symbols, stack, |_, frame| found |= is_called(function, &frame.name));
        found
    });
    let count =
        sites.iter().fold(0_u64, |sum, blamed| sum.saturating_add(analysis.sites[blamed.site].allocations));
    let message =
        format!("{} in {}, of at most {}", counted(count, "allocation"), function.text(), grouped(most));
    (count <= most, message, sites)
}

/// Whether a function of this name is meant: with its parameters or without.
fn is_called(function: &Pattern, name: &str) -> bool {
    function.matches(name) || name.split_once('(').is_some_and(|(name, _)| function.matches(name))
}
