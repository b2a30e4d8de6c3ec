//! Snapshots that nobody waits for: the program asked for them, a signal came, or memory went beyond a threshold.
//!
//! The drain says where the trace ends; a thread copies it to a file beside the trace. A few may wait; of more than can be
//! written there are fewer.

use super::snapshot::{SnapshotSource, to_free_file};
use crate::opened::{say, text_of};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Snapshots that may wait.
const MOST: usize = 4;

/// Where snapshots go.
#[derive(Clone, Debug)]
pub(crate) struct Dumps {
    /// Nothing more comes behind `None`.
    send: SyncSender<Option<SnapshotSource>>,
    writer: Arc<Mutex<Writer>>,
}

/// The thread that writes them: started for the first, since most recordings have none.
#[derive(Debug)]
enum Writer {
    /// What it is to be told. `quiet`: it says nothing of what it wrote.
    Wanted {
        received: Receiver<Option<SnapshotSource>>,
        quiet: bool,
    },
    Started(JoinHandle<()>),
    /// Nothing is written any more, or there is no thread for it.
    Over,
}

/// What writes snapshots, for whoever waits for it to be done.
#[derive(Debug)]
pub(crate) struct Writing(Dumps);

impl Dumps {
    /// Begins to take snapshots. `quiet`: nothing is said of what was written.
    pub(crate) fn start(quiet: bool) -> (Self, Writing) {
        let (send, received) = sync_channel(MOST);
        let dumps = Self { send, writer: Arc::new(Mutex::new(Writer::Wanted { received, quiet })) };
        (dumps.clone(), Writing(dumps))
    }

    /// Has it written, if there is room.
    pub(crate) fn write(&self, source: SnapshotSource) {
        self.start_writer();
        drop(self.send.try_send(Some(source)));
    }

    fn start_writer(&self) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *writer, Writer::Over) {
            Writer::Wanted { received, quiet } => {
                let thread = std::thread::Builder::new()
                    .name("snapshots".into())
                    .spawn(move || write(&received, quiet));
                *writer = thread.map_or(Writer::Over, Writer::Started);
            }
            other => *writer = other,
        }
    }
}

impl Writing {
    /// Waits until all is written. What comes later is not.
    pub(crate) fn finish(self) {
        let Self(dumps) = self;
        let mut writer = dumps.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let was = std::mem::replace(&mut *writer, Writer::Over);
        drop(writer);
        if let Writer::Started(thread) = was {
            drop(dumps.send.send(None));
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
