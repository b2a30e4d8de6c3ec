//! Looks for leaks at the ends of processes.
//!
//! A process that ends waits in the agent. It is stopped as a whole, what is in its rings is taken, and a thread of its own
//! looks through its memory, with what the trace says until then; meanwhile the drain goes on with other processes. When
//! it is done, what it found goes into the trace, and the process is let go.

use super::recording::Recording;
use crate::leaks::{Include, Job, JobError, Running, StopError, Stopped, Wanted};
use grapnel_trace::leaks::doubts;
use std::io;
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
}

/// A process that is looked through.
struct UnderWay {
    /// Its segment.
    index: u32,
    /// Before the process itself, which must not go on before its memory has been read.
    job: Running,
    stopped: Stopped,
    since: Instant,
}

/// Those that are under way.
pub(crate) struct Scans {
    wanted: Option<Wanted>,
    under_way: Vec<UnderWay>,
}

impl Scans {
    pub(crate) fn new(wanted: Option<Wanted>) -> Self {
        Self { wanted, under_way: Vec::new() }
    }

    /// Begins and ends what is due.
    pub(crate) fn see_to(&mut self, active: &mut [Recording]) {
        let Some(wanted) = self.wanted else { return };
        for at in
            (0..self.under_way.len()).rev().filter(|&at| self.under_way[at].job.is_done()).collect::<Vec<_>>()
        {
            let UnderWay { index, job, stopped, since } = self.under_way.swap_remove(at);
            // It goes on to wait until it is told.
            drop(stopped);
            let Some(recording) = active.iter_mut().find(|recording| recording.index == index) else {
                continue;
            };
            let mut result = job.result().map_err(ScanError::Job);
            if let Ok(scan) = &mut result {
                scan.stopped_ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            }
            recording.looked_through(result);
        }
        for recording in active {
            let index = recording.index;
            if !recording.waits_for_scan() || self.under_way.iter().any(|other| other.index == index) {
                continue;
            }
            match begin(recording, wanted) {
                Ok(begun) => self.under_way.push(begun),
                Err(error) => recording.looked_through(Err(error)),
            }
        }
    }
}

fn begin(recording: &mut Recording, wanted: Wanted) -> Result<UnderWay, ScanError> {
    if !recording.id.is_ours() {
        return Err(ScanError::Namespace);
    }
    let since = Instant::now();
    let pid = recording.id.pid();
    let mut stopped = Stopped::stop(pid)?;
    let mut found = doubts::BUSY;
    for _ in 0..TRIES {
        if recording.take_still() {
            found = 0;
            break;
        }
        drop(stopped);
        std::thread::sleep(BETWEEN);
        stopped = Stopped::stop(pid)?;
    }
    recording.take_still();
    let (trace, len) = recording.trace_so_far().map_err(ScanError::Trace)?;
    let job = Job {
        pid,
        trace,
        len,
        threads: stopped.threads().to_vec(),
        policy: wanted.policy,
        include: Include { mappings: wanted.mappings, before: recording.began_before() },
        at_exit: true,
        doubts: found,
    };
    let job = job.start().map_err(JobError::Memory)?;
    Ok(UnderWay { index: recording.index, job, stopped, since })
}
