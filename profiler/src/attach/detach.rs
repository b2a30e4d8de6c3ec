//! Taking the agent out of all processes that it is in, at the end of a recording or on request.

use super::freeze::Freezer;
use super::leave::{Agent, LeaveError, Left, Place, leave};
use super::memory::Memory;
use super::target::{MapLine, SESSION_NAME, Target, TargetError, mappings};
use super::{AttachError, system};
use crate::opened::say;
use crate::run::shared::Session;
use crate::run::summary::End;
use clap::Args;
use grapnel_analysis::report::words::{counted, human_bytes};
use grapnel_trace::shared::{MAGIC, SessionHeader};
use std::mem::offset_of;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// How often children are looked for that were forked meanwhile.
const ROUNDS: usize = 5;

/// Options of `grapnel detach`.
#[derive(Args, Clone, Debug)]
pub(crate) struct DetachArgs {
    /// The process
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: u32,
}

/// Takes the agent out of a process into which `grapnel attach` brought it, whether that runs or is gone.
pub(crate) fn detach(args: &DetachArgs) -> Result<ExitCode, AttachError> {
    let found = find(args.pid)?;
    let left = found.leave()?;
    report(args.pid, &left);
    leave_others(found.place, false);
    Ok(ExitCode::SUCCESS)
}

/// The same after grapnel was killed, for nobody to see. `place`: where the agent is, if it had come in; otherwise `mapped`
/// is all that there is of it. `memory`: that of the program as it was at the beginning.
pub(super) fn clean_up(
    pid: u32,
    place: Option<Place>,
    mapped: &[(u64, u64)],
    memory: Option<&Memory>,
    has_ended: bool,
) {
    let found = if has_ended { None } else { find(pid).ok() };
    if let Some(found) = &found {
        let _ = found.leave();
    } else if let Some(memory) = memory.filter(|_| !has_ended) {
        // The session's memory says nothing yet.
        let agent = place.map_or(Agent::Begun(mapped), Agent::Whole);
        let _ = leave(pid, &mut Freezer::new(pid), memory, agent);
    }
    // Children go on when their parent has ended.
    if let Some(place) = place.or(found.map(|found| found.place)) {
        leave_others(place, true);
    }
}

/// The agent in a process.
struct Found {
    pid: u32,
    memory: Memory,
    place: Place,
    /// Where in the process the word is that ends the recording.
    stopped: u64,
}

fn find(pid: u32) -> Result<Found, AttachError> {
    let is_session = |line: &&MapLine| line.name.starts_with(SESSION_NAME);
    let maps = mappings(pid).map_err(|_| TargetError::NoProcess(pid))?;
    let memory = Memory::open(pid).map_err(|_| Target::denied(pid))?;
    let mut sessions = maps.iter().filter(is_session).filter_map(|line| {
        let word = |offset: usize| memory.word(line.range.start + offset as u64).ok();
        let ledger = word(offset_of!(SessionHeader, ledger)).filter(|&ledger| ledger != 0)?;
        let stopped = line.range.start + offset_of!(SessionHeader, stopped) as u64;
        (word(offset_of!(SessionHeader, magic))? == MAGIC).then_some((line.inode, ledger, stopped))
    });
    match sessions.next() {
        Some((inode, ledger, stopped)) => Ok(Found { pid, memory, place: Place { ledger, inode }, stopped }),
        None if maps.iter().any(|line| is_session(&line)) => Err(TargetError::Started { pid }.into()),
        None => Err(TargetError::NotRecorded { pid }.into()),
    }
}

impl Found {
    fn leave(&self) -> Result<Left, AttachError> {
        // Whoever records it ends the recording.
        let told = self.memory.write(self.stopped, &1u32.to_ne_bytes());
        told.map_err(system("the recording can't be told"))?;
        Ok(leave(self.pid, &mut Freezer::new(self.pid), &self.memory, Agent::Whole(self.place))?)
    }
}

/// At the end of a recording: takes the agent out of the process, if it is still there, and out of its children.
pub(super) fn end_of(
    end: End,
    pid: u32,
    session: &Session,
    freezer: &mut Freezer,
    memory: &Memory,
    quiet: bool,
) -> Result<(), LeaveError> {
    let header = session.header();
    let place = Place { ledger: header.ledger.load(Ordering::Relaxed), inode: session.inode() };
    // From here on the agent puts no hooks in: not in what the program loads while it is taken out.
    header.stopped.store(1, Ordering::Release);
    let left = match end {
        End::Detached => leave(pid, freezer, memory, Agent::Whole(place)),
        _ => Err(LeaveError::Gone(pid)),
    };
    leave_others(place, quiet);
    match left {
        Ok(left) => {
            if !quiet || left.inside != 0 || !left.changed.is_empty() {
                report(pid, &left);
            }
            Ok(())
        }
        // It took all with it.
        Err(LeaveError::Gone(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Children, and children of children: whoever has the session's memory.
pub(super) fn leave_others(place: Place, quiet: bool) {
    for _ in 0..ROUNDS {
        let others = others(place);
        if others.is_empty() {
            return;
        }
        for pid in others {
            let agent = Agent::Whole(place);
            let left = Memory::open(pid).map(|memory| leave(pid, &mut Freezer::new(pid), &memory, agent));
            match left {
                Ok(Ok(left)) if !quiet => report(pid, &left),
                Ok(Err(error)) if !matches!(error, LeaveError::Gone(_)) => say(&error.to_string()),
                _ => {}
            }
        }
    }
}

/// Processes with this memory file mapped.
fn others(place: Place) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_it = |&pid: &u32| place.is_in(&mappings(pid).unwrap_or_default());
    numbers.filter(|&pid| pid != std::process::id()).filter(has_it).collect()
}

fn report(pid: u32, left: &Left) {
    let stood = left.stood.as_secs_f64() * 1e3;
    let kept = human_bytes(left.kept);
    if !left.changed.is_empty() {
        let places: Vec<_> = left.changed.iter().map(|at| format!("{at:#x}")).collect();
        say(&format!(
            "detached from process {pid}, but for code at {} that somebody else has changed since; so {kept} of the agent stay",
            places.join(", ")
        ));
    } else if left.inside != 0 {
        say(&format!(
            "detached from process {pid}; {} may still be in the agent, so {kept} of it stay until `grapnel detach {pid}`",
            counted(left.inside as u64, "thread")
        ));
    } else {
        say(&format!(
            "detached from process {pid}: its threads stood still for {stood:.1} ms, nothing of the agent is left"
        ));
    }
}
