//! What a person is told when the program has ended.

use super::drain::Outcome;
use super::recording::Finished;
use grapnel_analysis::report::cost;
use grapnel_analysis::report::words::{counted, duration, grouped, human_bytes, quoted};
use grapnel_trace::Exit;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// How a recording came to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// The program ended.
    Exit(Exit),
    /// It ended, and how isn't known.
    Ended,
    /// The agent was taken out of it.
    Detached,
    /// Somebody else took it out.
    Taken,
    /// It has become another program, which isn't recorded.
    Exec,
}

/// Prints the summary to stderr; with `quiet` only what went wrong.
pub(crate) fn print(quiet: bool, path: &Path, program: &OsStr, pid: u32, end: End, outcome: &Outcome) {
    let mut text = String::new();
    for problem in problems(path, outcome) {
        let _ = writeln!(text, "grapnel: {problem}");
    }
    if !quiet {
        for note in outcome.recordings.iter().filter_map(|recording| recording.note.as_ref()) {
            let _ = writeln!(text, "grapnel: note: {note}");
        }
    }
    let own = outcome.recordings.iter().find(|recording| recording.path == path);
    if let Some(own) = own.filter(|_| !quiet) {
        summarise(&mut text, program, pid, end, own, outcome);
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
}

fn problems(path: &Path, outcome: &Outcome) -> Vec<String> {
    let mut problems: Vec<String> =
        outcome.recordings.iter().filter_map(|recording| recording.problem.clone()).collect();
    for recording in &outcome.recordings {
        if let Some(Err(error)) = &recording.leaks {
            problems.push(format!("no leaks were looked for in {}: {error}", recording.path.display()));
        }
    }
    if let Some(refused) = outcome.refused.as_ref().filter(|refused| !problems.contains(refused)) {
        problems.push(refused.clone());
    }
    if !outcome.recordings.iter().any(|recording| recording.path == path) {
        problems.push(format!(
            "the agent did not come up in the program, so {} is empty; did the program start at all?",
            path.display()
        ));
    }
    problems
}

fn summarise(text: &mut String, program: &OsStr, pid: u32, end: End, own: &Finished, outcome: &Outcome) {
    let totals = &own.totals;
    let command: Vec<_> =
        own.command.iter().map(|word| quoted(&String::from_utf8_lossy(word)).into_owned()).collect();
    let mut command =
        if command.is_empty() { program.to_string_lossy().into_owned() } else { command.join(" ") };
    if command.chars().count() > 60 {
        command = command.chars().take(59).chain(['…']).collect();
    }
    let ended = match end {
        End::Exit(Exit::Code(code)) => format!("exited with status {code}"),
        End::Exit(Exit::Signal(signal)) => format!("was killed by signal {signal}"),
        End::Ended => "ended".into(),
        End::Detached | End::Taken => "was recorded and goes on,".into(),
        End::Exec => "became another program".into(),
    };
    let events = match own.sampled {
        true => own.events,
        false => totals.allocations + totals.reallocations + totals.frees,
    };
    let per_event = if events == 0 { 0.0 } else { own.bytes as f64 / events as f64 };
    let (cost, cost_in_words) = cost::of_the_program(&own.meter);
    let mut lost = match totals.lost_events {
        0 => "none lost".to_owned(),
        lost => format!("{} LOST", counted(lost, "event")),
    };
    if own.sampled {
        lost.push_str("; a sample, from which the figures above are estimated");
    }
    let leaks = leaks(own);
    let others = || outcome.recordings.iter().filter(|recording| recording.path != own.path);
    let events_of = |recording: &Finished| recording.totals.allocations + recording.totals.frees;
    let mut processes = match (others().count(), others().max_by_key(|recording| events_of(recording))) {
        (0, _) | (_, None) => "no other traces".to_owned(),
        (1, Some(other)) => format!("1 other trace: {}", quoted(&other.path.display().to_string())),
        (n, Some(largest)) => {
            format!("{n} other traces, the largest {}", quoted(&largest.path.display().to_string()))
        }
    };
    if outcome.running != 0 {
        let _ = write!(processes, "; {} still running, recorded until now (see --wait)", outcome.running);
    }
    if outcome.unfollowed != 0 {
        let _ = write!(processes, "; {} could not be followed", outcome.unfollowed);
    }
    let _ = write!(
        text,
        "grapnel: {command} (pid {pid}) {ended} after {}
  allocations    {:>14}  ({} requested)
  reallocations  {:>14}
  frees          {:>14}
  peak           {:>14}  at {}
  live at end    {:>14}  in {}
{leaks}  events         {:>14}  {lost}
  recording      {cost:>14}  {cost_in_words}
  trace          {} ({}, {per_event:.1} bytes per event)
  children       {processes}
  next           grapnel report {}
",
        duration(totals.duration_ns),
        grouped(totals.allocations),
        human_bytes(totals.allocated_bytes),
        grouped(totals.reallocations),
        grouped(totals.frees),
        human_bytes(totals.peak_bytes),
        duration(totals.peak_time_ns),
        human_bytes(totals.live_bytes),
        counted(totals.live_allocations, "block"),
        grouped(events),
        quoted(&own.path.display().to_string()),
        human_bytes(own.bytes),
        quoted(&own.path.display().to_string()),
    );
}

/// What the look for leaks found, if there was one: a line.
fn leaks(own: &Finished) -> String {
    let Some(Ok(totals)) = &own.leaks else { return String::new() };
    let [direct, indirect, possible, _] = *totals;
    let lost = human_bytes(direct.bytes.saturating_add(indirect.bytes));
    let mut text = format!(
        "  lost           {lost:>14}  in {} directly and {} indirectly",
        counted(direct.blocks, "block"),
        counted(indirect.blocks, "block")
    );
    if !possible.is_empty() {
        let _ = write!(text, "; {} possibly", counted(possible.blocks, "block"));
    }
    text.push_str(" (see grapnel leaks)\n");
    text
}
