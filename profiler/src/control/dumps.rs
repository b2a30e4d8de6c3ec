//! Snapshots that nobody waits for: the program asked for them, a signal came, or memory went beyond a threshold.
//!
//! The drain says where the trace ends; a thread copies it to a file beside the trace. A few may wait; of more than can be
//! written there are fewer.

use super::snapshot::{SnapshotSource, to_free_file};
use crate::opened::{say, text_of};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Snapshots that may wait.
const MOST: usize = 4;

/// Where snapshots go.
#[derive(Clone, Debug)]
pub(crate) struct Dumps {
    /// Nothing more comes behind `None`.
    send: SyncSender<Option<SnapshotSource>>,
}

/// The thread that writes them.
#[derive(Debug)]
pub(crate) struct Writing {
    dumps: Dumps,
    thread: Option<JoinHandle<()>>,
}

impl Dumps {
    /// Starts the thread. `quiet`: it says nothing of what it wrote.
    pub(crate) fn start(quiet: bool) -> (Self, Writing) {
        let (send, received) = sync_channel(MOST);
        let thread =
            std::thread::Builder::new().name("snapshots".into()).spawn(move || write(&received, quiet));
        let dumps = Self { send };
        (dumps.clone(), Writing { dumps, thread: thread.ok() })
    }

    /// Has it written, if there is room.
    pub(crate) fn write(&self, source: SnapshotSource) {
        drop(self.send.try_send(Some(source)));
    }
}

impl Writing {
    /// Waits until all is written. What comes later is not.
    pub(crate) fn finish(self) {
        if let Some(thread) = self.thread {
            drop(self.dumps.send.send(None));
            drop(thread.join());
        }
    }
}

fn write(received: &Receiver<Option<SnapshotSource>>, quiet: bool) {
    while let Ok(Some(source)) = received.recv() {
        let directory = source.path.parent().unwrap_or(Path::new(""));
        match to_free_file(directory, &source.path, |out| source.write_to(out)) {
            Ok(_) if quiet => {}
            Ok(path) => say(&format!("snapshot {}", text_of(&path))),
            Err(error) => say(&error.to_string()),
        }
    }
}
