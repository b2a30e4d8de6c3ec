//! Snapshots that nobody waits for: the program asked for them, a signal came, or memory went beyond a threshold.
//!
//! The drain says where the trace ends; a thread copies it to a file beside the trace. A few may wait; of more than can be
//! written there are fewer.

use super::snapshot::{SnapshotSource, to_free_file};
use crate::opened::{say, text_of};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Snapshots that may wait.
const MOST: usize = 4;

/// Where snapshots go.
#[derive(Clone, Debug)]
pub(crate) struct Dumps(Arc<Shared>);

/// What writes snapshots, for whoever waits for it to be done.
#[derive(Debug)]
pub(crate) struct Writing(Dumps);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Nothing is said of what was written.
    quiet: bool,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<SnapshotSource>,
    /// Nothing more is taken.
    over: bool,
    /// The one that writes. Most recordings have no snapshots, and need none.
    thread: Option<JoinHandle<()>>,
    /// Why there was none when one was wanted. It is said at the end: the drain, which may want one, waits for nobody to read that.
    missing: Option<io::Error>,
}

impl Dumps {
    /// Begins to take snapshots. `quiet`: nothing is said of what was written.
    pub(crate) fn start(quiet: bool) -> (Self, Writing) {
        let dumps = Self(Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), quiet }));
        (dumps.clone(), Writing(dumps))
    }

    /// Starts the thread now: where a snapshot is due there may be no room for one any more.
    pub(crate) fn prepare(&self) {
        self.start_thread(&mut self.lock());
    }

    /// Has it written, if there is room.
    pub(crate) fn write(&self, source: SnapshotSource) {
        let mut state = self.lock();
        if !state.over && self.start_thread(&mut state) && state.waiting.len() < MOST {
            state.waiting.push_back(source);
            self.0.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a thread.
    fn start_thread(&self, state: &mut State) -> bool {
        if state.thread.is_none() {
            let dumps = self.clone();
            match std::thread::Builder::new().name("snapshots".into()).spawn(move || dumps.work()) {
                Ok(thread) => state.thread = Some(thread),
                Err(error) => {
                    state.missing = Some(error);
                    return false;
                }
            }
        }
        true
    }

    /// Writes what is to be written, until nothing more comes.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(source) = state.waiting.pop_front() {
                drop(state);
                self.write_to_file(&source);
                state = self.lock();
            } else if state.over {
                return;
            } else {
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn write_to_file(&self, source: &SnapshotSource) {
        let directory = source.path.parent().unwrap_or(Path::new(""));
        match to_free_file(directory, &source.path, |out| source.write_to(out)) {
            Ok(_) if self.0.quiet => {}
            Ok(path) => say(&format!("snapshot {}", text_of(&path))),
            Err(error) => say(&error.to_string()),
        }
    }
}

impl Writing {
    /// Waits until all is written. What comes later is not.
    pub(crate) fn finish(self) {
        let Self(dumps) = self;
        let mut state = dumps.lock();
        state.over = true;
        let (thread, missing) = (state.thread.take(), state.missing.take());
        drop(state);
        dumps.0.changed.notify_all();
        drop(thread.map(JoinHandle::join));
        if let Some(error) = missing {
            say(&format!("note: snapshots were not written, since there was no thread for it: {error}"));
        }
    }
}
