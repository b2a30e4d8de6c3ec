//! A look through a process's memory, done by a thread of its own: the drain has others to see to.
//!
//! A process that is about to end stands still until it is over. One that goes on stands still for as long as its memory is
//! copied, and what is looked through is the copy. For that the thread goes through [`Stage`]s, and says at which it is.

use super::copy::{CopyError, MemoryCopy, Room};
use super::maps::{self, Map};
use super::memory::ProcessMemory;
use super::names::Names;
use super::roots::{Include, roots};
use super::stop::Thread;
use grapnel_analysis::leaks::recorded::RecordedError;
use grapnel_analysis::leaks::{Memory, Policy, paths, recorded, scan};
use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
use grapnel_trace::LeakScan;
use grapnel_trace::leaks::doubts;
use grapnel_trace::reader::Reader;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Why a process could not be looked through.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum JobError {
    /// The trace can't be read back.
    #[error("the trace can't be read back: {0}")]
    Trace(#[from] RecordedError),
    /// Its first part can't.
    #[error("the trace can't be read back: {0}")]
    Start(#[from] grapnel_trace::Error),
    /// The process's memory can't be read.
    #[error("the process's memory can't be read: {0}")]
    Memory(#[from] io::Error),
    /// It can't be copied.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// A fault of our own.
    #[error("a fault in grapnel itself")]
    Fault,
}

/// What is looked through, and how.
#[derive(Debug)]
pub(crate) struct Job {
    /// The process whose memory is read.
    pub(crate) pid: u32,
    /// The trace so far.
    pub(crate) trace: File,
    /// Its length.
    pub(crate) len: u64,
    /// All threads, as they stand still.
    pub(crate) threads: Vec<Thread>,
    pub(crate) policy: Policy,
    pub(crate) include: Include,
    /// The agent's own memory, as far as it is known.
    pub(crate) own: Vec<Range<u64>>,
    /// The process is about to end.
    pub(crate) at_exit: bool,
    /// What was in doubt before; see [`doubts`].
    pub(crate) doubts: u32,
}

/// How far a look has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Room is made for a copy.
    Preparing,
    /// The process is to be stopped, and [`Running::go`] called.
    Prepared,
    /// The process has to stand still.
    Reading,
    /// It need not any more.
    Read,
}

impl Stage {
    const ALL: [Self; 4] = [Self::Preparing, Self::Prepared, Self::Reading, Self::Read];
}

/// A look that goes on.
#[derive(Debug)]
pub(crate) struct Running {
    thread: JoinHandle<Result<LeakScan, JobError>>,
    stage: Arc<AtomicU8>,
    go: Option<SyncSender<Job>>,
}

fn start(
    stage: Stage,
    go: Option<SyncSender<Job>>,
    work: impl FnOnce(&AtomicU8) -> Result<LeakScan, JobError> + Send + 'static,
) -> io::Result<Running> {
    let stage = Arc::new(AtomicU8::new(stage as u8));
    let told = Arc::clone(&stage);
    let thread = std::thread::Builder::new().name("leaks".into()).spawn(move || work(&told))?;
    Ok(Running { thread, stage, go })
}

/// Begins to look at a process that goes on.
///
/// # Errors
/// When there can be no thread for it.
pub(crate) fn prepare(pid: u32) -> io::Result<Running> {
    let (send, received) = sync_channel(1);
    start(Stage::Preparing, Some(send), move |stage| look_at_copy(pid, &received, stage))
}

fn look_at_copy(pid: u32, jobs: &Receiver<Job>, stage: &AtomicU8) -> Result<LeakScan, JobError> {
    let at = |to: Stage| stage.store(to as u8, Ordering::Release);
    let room = Room::of(pid)?;
    at(Stage::Prepared);
    // Nobody wants it any more.
    let job = jobs.recv().map_err(|_| JobError::Fault)?;
    let copied = MemoryCopy::take(pid, room);
    at(Stage::Read);
    let mut copy = copied?;
    let maps = std::mem::take(&mut copy.maps);
    job.look(&maps, &mut copy)
}

impl Job {
    /// Begins to look at a process that stands still until it is over.
    ///
    /// # Errors
    /// When there can be no thread for it.
    pub(crate) fn start(self) -> io::Result<Running> {
        start(Stage::Reading, None, move |_| {
            let maps = maps::read(self.pid)?;
            let mut memory = ProcessMemory::open(self.pid)?;
            self.look(&maps, &mut memory)
        })
    }

    fn look(self, maps: &[Map], memory: &mut impl Memory) -> Result<LeakScan, JobError> {
        let Self { pid, policy, include, .. } = self;
        let reader = Reader::new(BufReader::with_capacity(1 << 18, self.trace.take(self.len)))?;
        let recorded = recorded(reader)?;
        let include = Include { before: include.before || recorded.paused, ..include };
        let maps = maps::without(maps, &self.own);
        let roots = roots(&recorded, &maps, &self.threads, include, memory);
        let store = FileStore::new();
        let symbols = Symbols::new(&store, SearchPath::default());
        let mut names = Names::new(&recorded, symbols, pid);
        let found = scan(&recorded.blocks, &roots, policy, memory, &mut names);
        let (paths, is_cut) = paths::paths(&recorded.blocks, &found, |stack| {
            recorded.stacks.node(stack).map_or(0, |node| node.pc)
        });
        let mut doubts = self.doubts | found.doubts;
        for (doubt, is_so) in [
            (doubts::LOST_EVENTS, recorded.lost > 0),
            (doubts::BUSY, recorded.moving > 0),
            (doubts::BEFORE, include.before),
            (doubts::CUT, is_cut),
        ] {
            doubts |= if is_so { doubt } else { 0 };
        }
        Ok(LeakScan {
            time_ns: recorded.time_ns,
            at_exit: self.at_exit,
            interior: policy.interior,
            tags: policy.tags,
            root_bytes: found.root_bytes,
            stopped_ns: 0,
            doubts,
            roots: found.roots,
            paths,
        })
    }
}

impl Running {
    pub(crate) fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    /// How far it has come.
    pub(crate) fn stage(&self) -> Stage {
        Stage::ALL[usize::from(self.stage.load(Ordering::Acquire))]
    }

    /// The process stands still: it may be copied.
    pub(crate) fn go(&mut self, job: Job) {
        self.stage.store(Stage::Reading as u8, Ordering::Release);
        // A thread that has failed meanwhile has a result.
        self.go.take().inspect(|go| drop(go.try_send(job)));
    }

    /// What it found, once it is done.
    pub(crate) fn result(self) -> Result<LeakScan, JobError> {
        self.thread.join().unwrap_or(Err(JobError::Fault))
    }
}
