//! Profiles of what was recorded until now.
//!
//! A thread reads the trace up to where the drain has written it, and looks up names, one request after the other. That takes
//! as long as a report of so much; the drain only says where the trace ends. Kept in between is what was found of symbols.

use super::request::Wanted;
use crate::control::{Desk, Refusal, Reply, Request, SnapshotSource};
use grapnel_analysis::export::go_text::write_go_text;
use grapnel_analysis::export::pprof::write_go;
use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
use grapnel_analysis::{Analysis, analyse};
use grapnel_trace::reader::Reader;
use std::io::{self, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

/// Requests that may wait.
const MOST: usize = 32;

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum ProfileError {
    /// The recording says no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The trace can't be read.
    #[error("the trace can't be read: {0}")]
    Trace(#[from] grapnel_trace::Error),
    /// A fault of our own.
    #[error("a fault in grapnel itself; the recording goes on")]
    Fault,
    /// The profile can't be made.
    #[error("the profile can't be made: {0}")]
    Write(#[from] io::Error),
}

enum Job {
    /// All until now.
    Look(u32, SyncSender<Result<Arc<Analysis>, ProfileError>>),
    /// A profile, perhaps of the difference.
    Write(Wanted, u32, Option<Arc<Analysis>>, SyncSender<Result<Vec<u8>, ProfileError>>),
}

/// The thread's letterbox.
#[derive(Clone, Debug)]
pub(super) struct Profiles {
    jobs: SyncSender<Job>,
}

impl Profiles {
    /// Starts the thread. It ends with this process.
    pub(super) fn start(desk: &Arc<Desk>) -> Self {
        let (jobs, received) = sync_channel(MOST);
        let desk = Arc::clone(desk);
        // A trace that makes the analysis fail costs one answer, and what was found of symbols.
        let serve = move || while catch_unwind(AssertUnwindSafe(|| work(&desk, &received))).is_err() {};
        // Without it each request is told so.
        drop(std::thread::Builder::new().name("profiles".into()).spawn(serve));
        Self { jobs }
    }

    /// A profile. Waits as long as the difference is to be over.
    ///
    /// # Errors
    /// When the process isn't recorded, or its trace can't be read back.
    pub(super) fn get(&self, wanted: Wanted) -> Result<Vec<u8>, ProfileError> {
        let pid = wanted.pid.unwrap_or_else(std::process::id);
        let before = match wanted.over {
            None => None,
            Some(over) => {
                let before = self.ask(|reply| Job::Look(pid, reply))?;
                std::thread::sleep(over);
                Some(before)
            }
        };
        self.ask(|reply| Job::Write(wanted, pid, before, reply))
    }

    fn ask<T>(
        &self,
        job: impl FnOnce(SyncSender<Result<T, ProfileError>>) -> Job,
    ) -> Result<T, ProfileError> {
        let (reply, received) = sync_channel(1);
        self.jobs.try_send(job(reply)).map_err(|error| match error {
            TrySendError::Full(_) => ProfileError::Refused(Refusal::Busy),
            TrySendError::Disconnected(_) => ProfileError::Fault,
        })?;
        received.recv().unwrap_or(Err(ProfileError::Fault))
    }
}

fn work(desk: &Desk, jobs: &Receiver<Job>) {
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, SearchPath::default());
    while let Ok(job) = jobs.recv() {
        // Whoever asked may have gone.
        match job {
            Job::Look(pid, reply) => drop(reply.send(look(desk, pid).map(Arc::new))),
            Job::Write(wanted, pid, before, reply) => {
                let mut profile = Vec::new();
                // Perhaps another process than last time.
                symbols.begin_trace();
                let written = look(desk, pid).and_then(|analysis| {
                    let (out, before) = (&mut profile, before.as_deref());
                    if wanted.text {
                        write_go_text(out, &analysis, &mut symbols, wanted.profile, before)?;
                    } else {
                        write_go(out, &analysis, &mut symbols, wanted.profile, before)?;
                    }
                    Ok(())
                });
                drop(reply.send(written.map(|()| profile)));
            }
        }
    }
}

fn look(desk: &Desk, pid: u32) -> Result<Analysis, ProfileError> {
    match desk.ask(Request::Snapshot { pid })? {
        Reply::Snapshot(source) => Ok(analyse(reader_of(source)?)),
        _ => Err(Refusal::Busy.into()),
    }
}

fn reader_of(source: SnapshotSource) -> Result<Reader<impl io::Read + Send>, ProfileError> {
    Ok(Reader::new(BufReader::with_capacity(1 << 18, source.into_read()?))?)
}
