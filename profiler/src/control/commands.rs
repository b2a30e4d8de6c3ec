//! The commands that ask: `grapnel list`, `grapnel status`.

use super::client::{ControlError, recording_of, recordings};
use super::protocol::{ProcessStatus, Status};
use clap::Args;
use grapnel_analysis::report::words::{grouped, harmless, human_bytes};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

/// Options of `grapnel list`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ListArgs {
    /// One line of JSON for each recording
    #[arg(long)]
    json: bool,
}

/// Options of `grapnel status`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StatusArgs {
    /// A line of JSON
    #[arg(long)]
    json: bool,
    /// A process that is recorded, or the grapnel that records it
    pid: u32,
}

/// Says which recordings go on.
///
/// # Errors
/// When it can't be said.
pub(crate) fn list(args: &ListArgs) -> Result<ExitCode, ControlError> {
    let all: Vec<Status> = recordings().into_iter().map(|(_, status)| status).collect();
    if all.is_empty() && !args.json {
        crate::opened::say("nothing is being recorded");
    }
    say(&all, args.json)
}

/// Says how one recording stands.
///
/// # Errors
/// When there is none of that process, or it doesn't answer.
pub(crate) fn status(args: &StatusArgs) -> Result<ExitCode, ControlError> {
    let (_, status) = recording_of(args.pid)?;
    say(&[status], args.json)
}

fn say(all: &[Status], json: bool) -> Result<ExitCode, ControlError> {
    let mut text = String::new();
    for status in all {
        if json {
            let line = serde_json::to_string(status).map_err(|error| ControlError::Say(error.into()))?;
            text.push_str(&line);
            text.push('\n');
        } else {
            for process in &status.processes {
                line(&mut text, status, process);
            }
        }
    }
    match io::stdout().write_all(text.as_bytes()) {
        // A reader that closes early wanted no more.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(ControlError::Say(error)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn line(text: &mut String, status: &Status, process: &ProcessStatus) {
    let command = process.command.join(" ");
    let live = process.live_bytes.map_or_else(String::new, |bytes| format!(", {} live", human_bytes(bytes)));
    let lost = match process.lost_events {
        0 => String::new(),
        lost => format!(", {} lost", grouped(lost)),
    };
    // Writing into a string never fails.
    let _ = writeln!(
        text,
        "{}  {:.1} s, {} events{live}{lost}  {}  (by {}: {})",
        process.pid,
        process.duration_ns as f64 / 1e9,
        grouped(process.events),
        harmless(&process.trace),
        status.grapnel,
        harmless(&command),
    );
}
