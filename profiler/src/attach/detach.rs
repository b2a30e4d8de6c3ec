//! Taking the agent out of all processes that it is in, at the end of a recording or on request.

use super::found::{Found, is_session_file, sessions};
use super::freeze::Freezer;
use super::leave::{Agent, Begun, LeaveError, Left, Place, leave};
use super::memory::Memory;
use super::target::{Target, TargetError, mappings};
use super::{AttachError, system};
use crate::opened::say;
use crate::run::shared::Session;
use crate::run::summary::End;
use clap::Args;
use grapnel_analysis::report::words::{counted, human_bytes};
use grapnel_trace::shared::SessionHeader;
use std::mem::offset_of;
use std::os::unix::fs::MetadataExt;
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
    let found = find(args.pid, None)?;
    let left = found.leave()?;
    report(args.pid, &left);
    leave_others(Agent::Whole(found.place), false);
    Ok(ExitCode::SUCCESS)
}

/// The same after grapnel was killed, for nobody to see. `place`: where the agent is, if it had come in; otherwise `begun`
/// is all that there is of it. `memory`: that of the program as it was at the beginning.
pub(super) fn clean_up(
    pid: u32,
    place: Option<Place>,
    begun: &Begun,
    memory: Option<&Memory>,
    has_ended: bool,
) {
    let agent = place.map_or(Agent::Begun(begun), Agent::Whole);
    // Another grapnel's is none of our business.
    let found = begun.session.filter(|_| !has_ended).and_then(|session| find(pid, Some(session)).ok());
    if let Some(found) = &found {
        let _ = found.leave();
    } else if let Some(memory) = memory.filter(|_| !has_ended) {
        // The session's memory says nothing yet.
        let _ = leave(pid, &mut Freezer::new(pid), memory, agent);
    }
    // Children go on when their parent has ended.
    leave_others(agent, true);
}

/// The agent in a process that runs.
struct InProcess {
    pid: u32,
    memory: Memory,
    place: Place,
    /// Where the session's header lies.
    header: u64,
}

/// Finds it: that of the session with this number, or of any.
fn find(pid: u32, session: Option<u64>) -> Result<InProcess, AttachError> {
    let maps = mappings(pid).map_err(|_| TargetError::NoProcess(pid))?;
    let memory = Memory::open(pid).map_err(|_| Target::denied(pid))?;
    match Found::find(&memory, &maps, session) {
        Some(Found::Attached { place, header }) => Ok(InProcess { pid, memory, place, header }),
        Some(other) => Err(other.why_not(pid).into()),
        None => Err(TargetError::NotRecorded { pid }.into()),
    }
}

impl InProcess {
    fn leave(&self) -> Result<Left, AttachError> {
        // Whoever records it ends the recording.
        let stopped = self.header + offset_of!(SessionHeader, stopped) as u64;
        let told = self.memory.write(stopped, &1u32.to_ne_bytes());
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
    leave_others(Agent::Whole(place), quiet);
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
pub(super) fn leave_others(agent: Agent<'_>, quiet: bool) {
    let Some(session) = agent.session() else { return };
    for _ in 0..ROUNDS {
        let others = others(session);
        if others.is_empty() {
            return;
        }
        for pid in others {
            let left = Memory::open(pid).map(|memory| leave(pid, &mut Freezer::new(pid), &memory, agent));
            match left {
                Ok(Ok(left)) if !quiet => report(pid, &left),
                Ok(Err(error)) if !matches!(error, LeaveError::Gone(_)) => say(&error.to_string()),
                _ => {}
            }
        }
    }
}

/// Processes that the agent is in with the memory of this session mapped. Who records has that too, and is the only one that
/// has its file open.
fn others(session: u64) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_it = |&pid: &u32| !sessions(&mappings(pid).unwrap_or_default(), session).is_empty();
    numbers
        .filter(|&pid| pid != std::process::id())
        .filter(has_it)
        .filter(|&pid| !records(pid, session))
        .collect()
}

/// Whether a process has the file of this session's memory open. One whose descriptors can't be seen can't be traced either.
fn records(pid: u32, session: u64) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return true };
    let links = entries
        .flatten()
        .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|link| is_session_file(&link)));
    links
        .map(|entry| std::fs::metadata(entry.path()))
        .any(|file| file.is_ok_and(|file| file.ino() == session))
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
