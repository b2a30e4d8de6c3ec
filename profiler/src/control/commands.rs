//! The commands that ask.

use super::client::{ControlError, recording_of, recordings};
use super::protocol::{Answer, ProcessStatus, Request, Status};
use super::snapshot::{to_file, to_free_file};
use crate::opened::text_of;
use crate::whole_file::is_standard_output;
use clap::Args;
use grapnel_analysis::report::words::{grouped, harmless, human_bytes};
use grapnel_trace::mark::MAX_MARK;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
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

/// Options of `grapnel pause` and `grapnel resume`.
#[derive(Args, Clone, Debug)]
pub(crate) struct PidArgs {
    /// A process that is recorded, or the grapnel that records it
    pid: u32,
}

/// Options of `grapnel mark`.
#[derive(Args, Clone, Debug)]
pub(crate) struct MarkArgs {
    /// A process that is recorded, or the grapnel that records it
    pid: u32,
    /// What this moment is called
    #[arg(value_parser = name)]
    name: String,
}

/// Options of `grapnel snapshot`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SnapshotArgs {
    /// The file to write, - for standard output [default: NAME.snapshot-N.grapnel in the current directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// A process that is recorded, or the grapnel that records it
    pid: u32,
}

fn name(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("a name has at least one character".into()),
        len if len > MAX_MARK => Err(format!("a name has at most {MAX_MARK} bytes")),
        _ => Ok(text.into()),
    }
}

/// Leaves out what a process allocates.
///
/// # Errors
/// When the process is not recorded.
pub(crate) fn pause(args: &PidArgs) -> Result<ExitCode, ControlError> {
    done(args.pid, &Request::Pause { pid: args.pid })
}

/// Records it again.
///
/// # Errors
/// When the process is not recorded.
pub(crate) fn resume(args: &PidArgs) -> Result<ExitCode, ControlError> {
    done(args.pid, &Request::Resume { pid: args.pid })
}

/// Marks a moment.
///
/// # Errors
/// When the process is not recorded.
pub(crate) fn mark(args: &MarkArgs) -> Result<ExitCode, ControlError> {
    done(args.pid, &Request::Mark { pid: args.pid, name: args.name.clone() })
}

fn done(pid: u32, request: &Request) -> Result<ExitCode, ControlError> {
    ask(pid, request).map(|_| ExitCode::SUCCESS)
}

/// Asks the recording of a process to mark a moment, whose time is returned, to pause or to go on.
///
/// # Errors
/// When the process is not recorded, or the recording says no.
pub(crate) fn ask(pid: u32, request: &Request) -> Result<Option<u64>, ControlError> {
    match recording_of(pid)?.0.ask(request)? {
        Answer::Done => Ok(None),
        Answer::Marked { time_ns } => Ok(Some(time_ns)),
        _ => Err(ControlError::Unexpected),
    }
}

/// Writes the trace of a process as it is now, and says where.
///
/// # Errors
/// When the process is not recorded, or the file can't be written.
pub(crate) fn snapshot(args: &SnapshotArgs) -> Result<ExitCode, ControlError> {
    let path = save_snapshot(args.pid, args.output.as_deref())?;
    if is_standard_output(&path) {
        return Ok(ExitCode::SUCCESS);
    }
    write_out(&format!("{}\n", text_of(&path)))
}

/// Writes the trace of a process as it is now, without an `output` into the current directory. Returns where.
///
/// # Errors
/// When the process is not recorded, or the file can't be written.
pub(crate) fn save_snapshot(pid: u32, output: Option<&Path>) -> Result<PathBuf, ControlError> {
    let (mut client, _) = recording_of(pid)?;
    let Answer::Snapshot { bytes, trace } = client.ask(&Request::Snapshot { pid })? else {
        return Err(ControlError::Unexpected);
    };
    let write = |out: &mut dyn Write| client.bytes(bytes, out);
    match output {
        Some(path) => to_file(path, write).map(|()| path.to_owned()),
        None => to_free_file(Path::new(""), Path::new(&trace), write),
    }
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
    write_out(&text)
}

fn write_out(text: &str) -> Result<ExitCode, ControlError> {
    match io::stdout().write_all(text.as_bytes()) {
        // A reader that closes early wanted no more.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(ControlError::Say(error)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn line(text: &mut String, status: &Status, process: &ProcessStatus) {
    let command = process.command.join(" ");
    let live = process
        .totals
        .map_or_else(String::new, |totals| format!(", {} live", human_bytes(totals.live_bytes)));
    let lost = match process.lost_events {
        0 => String::new(),
        lost => format!(", {} lost", grouped(lost)),
    };
    let paused = if process.paused { ", paused" } else { "" };
    // Writing into a string never fails.
    let _ = writeln!(
        text,
        "{}  {:.1} s, {} events{live}{lost}{paused}  {}  (by {}: {})",
        process.pid,
        process.duration_ns as f64 / 1e9,
        grouped(process.events),
        harmless(&process.trace),
        status.grapnel,
        harmless(&command),
    );
}
