//! Taking the agent out of all processes that it is in, at the end of a recording or on request.

use super::AttachError;
use super::found::{Found, has_open, processes, sessions};
use super::freeze::Freezer;
use super::leave::{Agent, Begun, LeaveError, Left, Place, leave};
use super::memory::Memory;
use super::target::{Target, TargetError, look_until, mappings};
use crate::opened::say;
use crate::run::shared::Session;
use crate::run::summary::End;
use clap::Args;
use grapnel_analysis::report::words::{counted, human_bytes};
use grapnel_trace::shared::SessionHeader;
use std::io::ErrorKind;
use std::mem::offset_of;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long another grapnel may take to take the agent out: it waits for threads inside, and then for its turn.
const TAKING: Duration = Duration::from_secs(15);
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
    let pid = args.pid;
    let (left, agent) = match look_until(|| find(pid, None)) {
        Ok(found) => (found.leave()?, Agent::Whole(found.place)),
        // Nobody else sees to that any more.
        Err(TargetError::Unfinished { session, .. }) => {
            let memory = Memory::open(pid).map_err(|_| Target::denied(pid))?;
            let agent = Agent::Begun(Begun { code: None, session: Some(session) });
            say(&format!(
                "a grapnel that was about to attach to process {pid} was killed; what it left is taken out"
            ));
            (leave(pid, &mut Freezer::new(pid), &memory, agent)?, agent)
        }
        Err(error) => return Err(error.into()),
    };
    report(pid, &left);
    leave_others(agent, vec![pid], false);
    let is_all_out = left.inside == 0 && left.changed.is_empty();
    Ok(if is_all_out { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The same after grapnel was killed, for nobody to see. `place`: where the agent is, if it had come in; otherwise `begun`
/// is all that there is of it. `memory`: that of the program as it was at the beginning.
pub(super) fn clean_up(
    pid: u32,
    place: Option<Place>,
    begun: Begun,
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
    leave_others(agent, Vec::new(), true);
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
fn find(pid: u32, session: Option<u64>) -> Result<InProcess, TargetError> {
    let maps = mappings(pid).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => Target::denied(pid),
        _ => TargetError::NoProcess(pid),
    })?;
    // A thread of the kernel has no memory, and nobody may open that of a process that ends.
    if maps.is_empty() {
        return Err(TargetError::NotRecorded { pid });
    }
    let memory = Memory::open(pid).map_err(|_| Target::denied(pid))?;
    match Found::find(&memory, &maps, session) {
        Some(Found::Attached { place, header, .. }) => Ok(InProcess { pid, memory, place, header }),
        Some(other) => Err(other.why_not(pid)),
        None => Err(TargetError::NotRecorded { pid }),
    }
}

impl InProcess {
    fn leave(&self) -> Result<Left, LeaveError> {
        // Whoever records it ends the recording. Memory that can't be written isn't there any more.
        let stopped = self.header + offset_of!(SessionHeader, stopped) as u64;
        self.memory.write(stopped, &1u32.to_ne_bytes()).map_err(|_| LeaveError::Gone(self.pid))?;
        leave(self.pid, &mut Freezer::new(self.pid), &self.memory, Agent::Whole(self.place))
    }
}

/// At the end of a recording: takes the agent out of the process, if it is still there, and out of its children.
pub(super) fn end_of(
    end: End,
    pid: u32,
    session: &Session,
    place: Place,
    freezer: &mut Freezer,
    memory: &Memory,
    quiet: bool,
) -> Result<(), LeaveError> {
    // From here on the agent puts no hooks in: not in what the program loads while it is taken out.
    session.header().stopped.store(1, Ordering::Release);
    // The process may have said so itself: what lies in that memory is anybody's.
    let is_ours = match end {
        End::Detached => true,
        End::Taken => !is_taken(pid, place.inode),
        _ => false,
    };
    let left = match is_ours {
        true => leave(pid, freezer, memory, Agent::Whole(place)),
        false => Err(LeaveError::Gone(pid)),
    };
    leave_others(Agent::Whole(place), vec![pid], quiet);
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

/// Waits until another grapnel has taken the session with this number out of a process. False if nobody does.
fn is_taken(pid: u32, session: u64) -> bool {
    let end = Instant::now() + TAKING;
    loop {
        // One that has ended has no mappings.
        if sessions(&mappings(pid).unwrap_or_default(), session).is_empty() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(TAKING / 300);
    }
}

/// Children, and children of children: whoever has the session's memory. Each is tried once: what couldn't be left then stands
/// still for nothing.
pub(super) fn leave_others(agent: Agent, mut tried: Vec<u32>, quiet: bool) {
    let Some(session) = agent.session() else { return };
    for _ in 0..ROUNDS {
        let mut others = others(session);
        others.retain(|pid| !tried.contains(pid));
        if others.is_empty() {
            return;
        }
        for pid in others {
            tried.push(pid);
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
    let has_it = |&pid: &u32| !sessions(&mappings(pid).unwrap_or_default(), session).is_empty();
    processes()
        .filter(|&pid| pid != std::process::id())
        .filter(has_it)
        // One whose descriptors can't be seen can't be traced either.
        .filter(|&pid| has_open(pid, session) == Some(false))
        .collect()
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
            "detached from process {pid}; {} may still be in the agent, so {kept} of it stay until `grapnel detach {pid}`, which may be tried again",
            counted(left.inside as u64, "thread")
        ));
    } else {
        say(&format!(
            "detached from process {pid}: its threads stood still for {stood:.1} ms, nothing of the agent is left"
        ));
    }
}
