//! Looks for leaks: at the ends of processes, and whenever somebody asks.
//!
//! A process that ends waits in the agent. It is stopped as a whole, what is in its rings is taken, and a thread of its own
//! looks through its memory, with what the trace says until then; meanwhile the drain goes on with other processes. When
//! it is done, what it found goes into the trace, and the process is let go.
//!
//! One that somebody asks about is stopped when there is room for a copy of its memory, and goes on as soon as that is made.

use super::recording::Recording;
use crate::control::{Order, Refusal, Reply};
use crate::leaks::{
    Include, Job, JobError, Running, Stage, StopError, Stopped, Wanted, have_session, own_mappings, prepare,
};
use grapnel_trace::leaks::doubts;
use std::io;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How often a process is stopped anew when a thread of it was in the middle of an event.
const TRIES: u32 = 50;
const BETWEEN: Duration = Duration::from_micros(300);

/// Why there was no look for leaks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ScanError {
    /// It can't be stopped.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// It could not be looked through.
    #[error(transparent)]
    Job(#[from] JobError),
    /// It is in another namespace.
    #[error("it is in another namespace of process ids")]
    Namespace,
    /// Its trace can't be read back.
    #[error("the trace can't be read back: {0}")]
    Trace(io::Error),
    /// What it says of itself isn't so.
    #[error("process {0} isn't one that is recorded here")]
    Other(u32),
    /// The recording begins or ends.
    #[error("the process is just being attached to or detached from; ask again")]
    Turn,
}

/// A process that stands still.
struct Still<'a> {
    /// Dropped before the turn is given to others.
    stopped: Stopped,
    since: Instant,
    _turn: Option<MutexGuard<'a, ()>>,
}

/// Who wants to know.
struct Asked {
    order: Order,
    wanted: Wanted,
}

/// A process that is looked through.
struct UnderWay<'a> {
    /// Its segment.
    index: u32,
    job: Running,
    /// Until its memory has been read.
    still: Option<Still<'a>>,
    stopped_ns: u64,
    /// Nobody, where it is about to end.
    asked: Option<Asked>,
}

/// Those that are under way.
pub(crate) struct Scans<'a> {
    /// What is looked for at the ends of processes.
    wanted: Option<Wanted>,
    /// The number of the memory that is shared, and where the agent's ledger lies in processes that ran already when the
    /// recording began; 0 in others.
    session: (u64, u64),
    /// Whose turn it is to stop processes that go on.
    turn: &'a Mutex<()>,
    under_way: Vec<UnderWay<'a>>,
}

impl<'a> Scans<'a> {
    pub(crate) fn new(wanted: Option<Wanted>, session: (u64, u64), turn: &'a Mutex<()>) -> Self {
        Self { wanted, session, turn, under_way: Vec::new() }
    }

    /// Somebody asks. The answer comes when it is there.
    pub(crate) fn ask(&mut self, recording: &Recording, order: Order, wanted: Wanted) {
        let index = recording.index;
        if recording.waits_for_scan() || self.under_way.iter().any(|other| other.index == index) {
            return order.answer(Err(Refusal::Busy));
        }
        let prepared = match recording.id.is_ours() {
            true => prepare(recording.id.pid()).map_err(|error| ScanError::Job(JobError::Memory(error))),
            false => Err(ScanError::Namespace),
        };
        match prepared {
            Ok(job) => {
                let asked = Some(Asked { order, wanted });
                self.under_way.push(UnderWay { index, job, still: None, stopped_ns: 0, asked });
            }
            Err(error) => order.answer(Err(Refusal::NoLook(error.to_string()))),
        }
    }

    /// Whether a process waits, or is about to, for no longer than its memory is copied.
    pub(crate) fn are_urgent(&self) -> bool {
        self.under_way.iter().any(|one| one.asked.is_some() && one.job.stage() < Stage::Read)
    }

    /// Begins and ends what is due.
    pub(crate) fn see_to(&mut self, active: &mut [Recording]) {
        for at in (0..self.under_way.len()).rev() {
            let index = self.under_way[at].index;
            let recording = active.iter_mut().find(|recording| recording.index == index);
            let one = &mut self.under_way[at];
            // One that is about to end stands until what was found is written down and it is told to end.
            let is_read = one.job.is_done() || one.job.stage() == Stage::Read;
            if recording.is_none() || (is_read && one.asked.is_some()) {
                one.let_go();
            }
            match recording {
                Some(recording) if one.job.is_done() => {
                    self.under_way.swap_remove(at).finish(recording);
                }
                Some(recording) => {
                    if let Err(error) = one.hold(recording, self.session, self.turn) {
                        self.under_way.swap_remove(at).refuse(Refusal::NoLook(error.to_string()));
                    }
                }
                None => self.under_way.swap_remove(at).refuse(Refusal::Ended),
            }
        }
        let Some(wanted) = self.wanted else { return };
        for recording in active {
            let index = recording.index;
            if !recording.waits_for_scan() || self.under_way.iter().any(|other| other.index == index) {
                continue;
            }
            let begun = held(recording, wanted, self.session, None).and_then(|(still, job)| {
                let job = job.start().map_err(JobError::Memory)?;
                Ok(UnderWay { index, job, still: Some(still), stopped_ns: 0, asked: None })
            });
            match begun {
                Ok(begun) => self.under_way.push(begun),
                Err(error) => recording.looked_through(Err(error)),
            }
        }
    }
}

impl<'a> UnderWay<'a> {
    /// Has the process go on.
    fn let_go(&mut self) {
        if let Some(Still { stopped, since, _turn }) = self.still.take() {
            drop(stopped);
            self.stopped_ns = nanoseconds(since);
        }
    }

    /// Stops the process once there is room for a copy.
    fn hold(
        &mut self,
        recording: &mut Recording,
        session: (u64, u64),
        turn: &'a Mutex<()>,
    ) -> Result<(), ScanError> {
        let Some(asked) = self.asked.as_ref().filter(|_| self.job.stage() == Stage::Prepared) else {
            return Ok(());
        };
        let turn = turn.try_lock().map_err(|_| ScanError::Turn)?;
        let (still, job) = held(recording, asked.wanted, session, Some(turn))?;
        self.still = Some(still);
        self.job.go(job);
        Ok(())
    }

    fn finish(self, recording: &mut Recording) {
        let mut result = self.job.result().map_err(ScanError::Job);
        if let Ok(scan) = &mut result {
            scan.stopped_ns = self.still.as_ref().map_or(self.stopped_ns, |still| nanoseconds(still.since));
        }
        match self.asked {
            None => {
                recording.looked_through(result);
                drop(self.still);
            }
            Some(asked) => asked.order.answer(match result {
                Ok(scan) => recording.looked_at(&scan).map(Reply::Snapshot),
                Err(error) => Err(Refusal::NoLook(error.to_string())),
            }),
        }
    }

    fn refuse(self, refusal: Refusal) {
        if let Some(asked) = self.asked {
            asked.order.answer(Err(refusal));
        }
    }
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Stops a process where none of its threads is in the middle of an event, and takes what is in its rings.
fn held<'a>(
    recording: &mut Recording,
    wanted: Wanted,
    (inode, ledger): (u64, u64),
    turn: Option<MutexGuard<'a, ()>>,
) -> Result<(Still<'a>, Job), ScanError> {
    if !recording.id.is_ours() {
        return Err(ScanError::Namespace);
    }
    let pid = recording.id.pid();
    // Who it is the process itself says, in memory that it may write what it likes to.
    if !have_session(pid, inode).map_err(JobError::Memory)? {
        return Err(ScanError::Other(pid));
    }
    let mut since = Instant::now();
    let mut stopped = Stopped::stop(pid)?;
    let mut found = doubts::BUSY;
    for _ in 0..TRIES {
        if recording.take_still() {
            found = 0;
            break;
        }
        drop(stopped);
        std::thread::sleep(BETWEEN);
        since = Instant::now();
        stopped = Stopped::stop(pid)?;
    }
    recording.take_still();
    let (trace, len) = recording.trace_so_far().map_err(ScanError::Trace)?;
    let before = recording.began_before() || ledger != 0;
    let own = if ledger == 0 { Vec::new() } else { own_mappings(pid, ledger) };
    let job = Job {
        pid,
        trace,
        len,
        threads: stopped.threads().to_vec(),
        policy: wanted.policy(),
        include: Include { mappings: wanted.mappings, before },
        own,
        at_exit: turn.is_none(),
        doubts: found,
    };
    Ok((Still { stopped, since, _turn: turn }, job))
}
