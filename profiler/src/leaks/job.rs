//! A scan of a process that stands still, done by a thread of its own: the drain has others to see to.

use super::maps;
use super::memory::ProcessMemory;
use super::names::Names;
use super::roots::{Include, roots};
use super::stop::Thread;
use grapnel_analysis::leaks::recorded::RecordedError;
use grapnel_analysis::leaks::{Policy, paths, recorded, scan};
use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
use grapnel_trace::LeakScan;
use grapnel_trace::leaks::doubts;
use grapnel_trace::reader::Reader;
use std::fs::File;
use std::io::{self, BufReader, Read};
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
    /// The process is about to end.
    pub(crate) at_exit: bool,
    /// What was in doubt before; see [`doubts`].
    pub(crate) doubts: u32,
}

/// A scan that goes on.
#[derive(Debug)]
pub(crate) struct Running(JoinHandle<Result<LeakScan, JobError>>);

impl Job {
    /// Begins.
    ///
    /// # Errors
    /// When there can be no thread for it.
    pub(crate) fn start(self) -> io::Result<Running> {
        Ok(Running(std::thread::Builder::new().name("leaks".into()).spawn(|| self.run())?))
    }

    fn run(self) -> Result<LeakScan, JobError> {
        let Self { pid, policy, include, .. } = self;
        let reader = Reader::new(BufReader::with_capacity(1 << 18, self.trace.take(self.len)))?;
        let recorded = recorded(reader)?;
        let include = Include { before: include.before || recorded.paused, ..include };
        let maps = maps::read(pid)?;
        let mut memory = ProcessMemory::open(pid)?;
        let roots = roots(&recorded, &maps, &self.threads, include, &mut memory);
        let store = FileStore::new();
        let symbols = Symbols::new(&store, SearchPath::default());
        let mut names = Names::new(&recorded, symbols, pid);
        let found = scan(&recorded.blocks, &roots, policy, &mut memory, &mut names);
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
        self.0.is_finished()
    }

    /// What it found, once it is done.
    pub(crate) fn result(self) -> Result<LeakScan, JobError> {
        self.0.join().unwrap_or(Err(JobError::Fault))
    }
}
