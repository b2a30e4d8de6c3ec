//! What a page says of a recording as a whole, as JSON.

use super::leaks::Leaks;
use super::others::Other;
use crate::Analysis;
use crate::report::text::{date, exit_words, notes_of};
use crate::report::words::{harmless, quoted, source_name};
use grapnel_trace::Source;
use serde::Serialize;

#[derive(Serialize)]
struct Facts<'f> {
    program: String,
    command: String,
    pid: u32,
    threads: u32,
    exit: String,
    started: String,
    recorder: String,
    machine: String,
    sources: [&'static str; Source::ALL.len()],
    totals: Totals,
    sampling: Option<Sampling>,
    mismatches: u64,
    marks: Vec<Mark>,
    notes: Vec<String>,
    folded: Folded,
    others: &'f [Other],
    leaks: Option<&'f Leaks>,
}

/// More marks can't be told apart on a timeline; the first are shown.
const MARKS: usize = 100;

#[derive(Serialize)]
struct Mark {
    time_ns: u64,
    name: String,
}

#[derive(Serialize)]
struct Totals {
    allocations: u64,
    frees: u64,
    reallocations: u64,
    allocated_bytes: u64,
    peak_bytes: u64,
    peak_time_ns: u64,
    live_allocations: u64,
    live_bytes: u64,
    temporary_allocations: u64,
    duration_ns: u64,
    events: u64,
    sites: u64,
}

#[derive(Serialize)]
struct Sampling {
    mean_bytes: u64,
    recorded: u64,
    allocated_bytes_error: u64,
    live_bytes_error: u64,
    peak_bytes_error: u64,
}

#[derive(Serialize)]
struct Folded {
    stacks: u64,
    /// What is folded had less than this part of everything.
    threshold: f32,
}

/// The facts of a recording, `notes` added to what is to be noted of it.
pub(super) fn facts(
    analysis: &Analysis,
    (others, leaks): (&[Other], Option<&Leaks>),
    notes: &[String],
    (folded, threshold): (u64, f32),
) -> serde_json::Result<Vec<u8>> {
    let process = &analysis.process;
    let totals = &analysis.totals;
    let text = |bytes: &[u8]| harmless(&String::from_utf8_lossy(bytes)).into_owned();
    let words: Vec<_> = process.command.iter().map(|word| String::from_utf8_lossy(word)).collect();
    let command: Vec<_> = words.iter().map(|word| quoted(word)).collect();
    let name = |path: &[u8]| text(path.rsplit(|&byte| byte == b'/').next().unwrap_or(path));
    let program = match process.command.first() {
        Some(first) if !name(first).is_empty() => name(first),
        _ => name(&process.executable),
    };
    let notes = notes_of(analysis).into_iter().chain(notes.iter().cloned());
    let up = |error: f64| error.ceil() as u64;
    serde_json::to_vec(&Facts {
        program,
        command: command.join(" "),
        pid: process.pid,
        threads: analysis.threads,
        exit: exit_words(analysis),
        started: date(process.started_unix_ns),
        recorder: text(&process.recorder),
        machine: text(&process.machine),
        sources: Source::ALL.map(source_name),
        totals: Totals {
            allocations: totals.allocations,
            frees: totals.frees,
            reallocations: totals.reallocations,
            allocated_bytes: totals.allocated_bytes,
            peak_bytes: totals.peak_bytes,
            peak_time_ns: totals.peak_time_ns,
            live_allocations: totals.live_allocations,
            live_bytes: totals.live_bytes,
            temporary_allocations: totals.temporary_allocations,
            duration_ns: totals.duration_ns,
            events: analysis.events,
            sites: analysis.sites.len() as u64,
        },
        sampling: analysis.sampling.map(|sampling| Sampling {
            mean_bytes: sampling.mean,
            recorded: sampling.recorded,
            allocated_bytes_error: up(sampling.errors.allocated_bytes),
            live_bytes_error: up(sampling.errors.live_bytes),
            peak_bytes_error: up(sampling.errors.peak_bytes),
        }),
        mismatches: analysis.mismatches.iter().fold(0, |sum, found| sum.saturating_add(found.count)),
        marks: analysis
            .marks
            .iter()
            .take(MARKS)
            .map(|moment| Mark { time_ns: moment.time_ns, name: moment.harmless_name() })
            .collect(),
        notes: notes.map(|note| harmless(&note).into_owned()).collect(),
        folded: Folded { stacks: folded, threshold },
        others,
        leaks,
    })
}
