//! The thread that reads traces and sends profiles.

use super::body;
use super::followed::Followed;
use super::labels::Labels;
use super::send::Sender;
use crate::control::{Desk, ProcessStatus, Reply, Request};
use crate::opened::say;
use grapnel_analysis::export::pushed::Pushed;
use grapnel_analysis::report::words::counted;
use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

/// The most processes whose profiles are sent at once.
const MOST: usize = 64;
/// How long the last profiles are sent again where that fails.
const LAST: Duration = Duration::from_secs(10);
/// Behind the program, and behind what records it.
const NICE: i32 = 10;

/// What came of all profiles.
#[derive(Debug, Default)]
pub(super) struct Count {
    taken: u64,
    lost: u64,
    /// Why the last of those was lost.
    reason: String,
    /// There were more processes than are followed.
    is_crowded: bool,
}

impl Count {
    /// Says so on stderr; with `quiet` only what went wrong.
    pub(super) fn tell(&self, quiet: bool, url: &str) {
        if self.lost != 0 {
            let all = counted(self.taken + self.lost, "profile");
            say(&format!("{} of {all} did not get to {url}; the last: {}", self.lost, self.reason));
        } else if !quiet {
            say(&format!("{} went to {url}", counted(self.taken, "profile")));
        }
        if self.is_crowded {
            say(&format!("no profiles were pushed of processes beyond {MOST} at once"));
        }
    }
}

/// What the thread works with.
#[derive(Debug)]
pub(super) struct Worker {
    desk: Arc<Desk>,
    sender: Sender,
    labels: Labels,
    every: Duration,
    /// The end of the recording comes from there, with the program's trace.
    ended: Receiver<PathBuf>,
    /// It has come.
    end: Option<PathBuf>,
    followed: Vec<Followed>,
    /// Traces that can't be followed.
    unreadable: Vec<String>,
    count: Count,
}

impl Worker {
    pub(super) fn new(
        desk: Arc<Desk>,
        sender: Sender,
        labels: Labels,
        every: Duration,
        ended: Receiver<PathBuf>,
    ) -> Self {
        let (followed, unreadable) = (Vec::new(), Vec::new());
        Self { desk, sender, labels, every, ended, end: None, followed, unreadable, count: Count::default() }
    }

    /// Sends profiles until the recording has ended.
    pub(super) fn run(mut self) -> Count {
        // Of this thread alone, on Linux. Where it may not be changed it goes without.
        let _ = rustix::process::nice(NICE);
        let store = FileStore::new();
        let mut symbols = Symbols::new(&store, SearchPath::default());
        let mut next = Instant::now() + self.every;
        while nap(&self.ended, &mut self.end, next.saturating_duration_since(Instant::now())) {
            next += self.every;
            self.tell_all(&mut symbols, next);
            // One that took longer than that is not made up for.
            next = next.max(Instant::now());
        }
        if let Some(trace) = self.end.take() {
            self.tell_last(&mut symbols, &trace);
        }
        self.count
    }

    /// Sends a profile of each process.
    fn tell_all(&mut self, symbols: &mut Symbols<'_>, until: Instant) {
        let Ok(Reply::Status(status)) = self.desk.ask(Request::Status {}) else { return };
        for process in &status.processes {
            self.read_on(process);
        }
        for mut followed in std::mem::take(&mut self.followed) {
            let has_ended = status.processes.iter().all(|process| process.trace != followed.trace);
            // At the end of the recording all have their last turn.
            if self.end.is_none() {
                if has_ended {
                    followed.read(u64::MAX, SystemTime::now());
                }
                self.tell(&mut followed, symbols, until);
            }
            if !has_ended || self.end.is_some() {
                self.followed.push(followed);
            }
        }
    }

    /// Reads a process's trace up to now.
    fn read_on(&mut self, process: &ProcessStatus) {
        let known = self.followed.iter().position(|followed| followed.trace == process.trace);
        if known.is_none() && self.unreadable.contains(&process.trace) {
            self.lose("its trace can't be read".into());
            return;
        }
        if known.is_none() && self.followed.len() >= MOST {
            self.count.is_crowded = true;
            return;
        }
        // With the answer all until now is written.
        let now = SystemTime::now();
        let source = match self.desk.ask(Request::Snapshot { pid: process.pid }) {
            Ok(Reply::Snapshot(source)) => source,
            Ok(_) => return,
            Err(_) if known.is_some() => return,
            Err(refusal) => return self.lose(refusal.to_string()),
        };
        let len = source.len;
        let at = match known {
            Some(at) => at,
            // It has ended, and another one has its number.
            None if source.path.to_string_lossy() != process.trace => return,
            None => match Followed::new(process.trace.clone(), source.file) {
                Ok(followed) => {
                    self.followed.push(followed);
                    self.followed.len() - 1
                }
                Err(error) => {
                    if self.unreadable.len() < MOST {
                        self.unreadable.push(process.trace.clone());
                    }
                    return self.lose(error);
                }
            },
        };
        self.followed[at].read(len, now);
    }

    /// Sends the last profile of each process; that of the program in any case.
    fn tell_last(&mut self, symbols: &mut Symbols<'_>, trace: &Path) {
        let mut followed = std::mem::take(&mut self.followed);
        let name = trace.to_string_lossy().into_owned();
        if !followed.iter().any(|followed| followed.trace == name) {
            // A pipe by this name would be waited for.
            let mut options = File::options();
            let options = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
            let opened = options.open(trace).map_err(|error| error.to_string());
            match opened.and_then(|file| is_plain(&file).and_then(|()| Followed::new(name, file))) {
                Ok(program) => followed.insert(0, program),
                Err(error) => self.lose(error),
            }
        }
        self.sender.be_quick();
        for followed in &mut followed {
            followed.read(u64::MAX, SystemTime::now());
        }
        let until = Instant::now() + LAST;
        for mut followed in followed {
            self.tell(&mut followed, symbols, until);
        }
    }

    /// Sends what there is to tell of a process.
    fn tell(&mut self, followed: &mut Followed, symbols: &mut Symbols<'_>, until: Instant) {
        let engine = self.sender.engine();
        let (body, known) = {
            let (analysis, unix_ns) = followed.look();
            let pushed = Pushed::new(&analysis, unix_ns, followed.known.as_ref());
            if pushed.is_empty() {
                return;
            }
            symbols.begin_trace();
            let process = (followed.pid, &*followed.command);
            let body = body::of(engine, &pushed, symbols, &self.labels, process);
            (body, engine.adds_up().then(|| pushed.known()))
        };
        let Self { sender, ended, end, .. } = self;
        match sender.send(&body, until, |time| nap(ended, end, time)) {
            Ok(()) => {
                self.count.taken += 1;
                followed.known = known;
            }
            // What would have been told is told with the last profile.
            Err(_) if self.end.is_some() => {}
            Err(reason) => self.lose(reason),
        }
    }

    fn lose(&mut self, reason: String) {
        self.count.lost += 1;
        self.count.reason = reason;
    }
}

/// Waits; false if the recording has ended, which `end` keeps.
fn nap(ended: &Receiver<PathBuf>, end: &mut Option<PathBuf>, time: Duration) -> bool {
    if end.is_some() {
        return false;
    }
    match ended.recv_timeout(time) {
        Err(RecvTimeoutError::Timeout) => true,
        Ok(trace) => {
            *end = Some(trace);
            false
        }
        // Nothing was recorded, or nobody waits any more.
        Err(RecvTimeoutError::Disconnected) => false,
    }
}

/// Other files than plain ones can be read once, or never end.
fn is_plain(file: &File) -> Result<(), String> {
    match file.metadata() {
        Ok(facts) if facts.is_file() => Ok(()),
        Ok(_) => Err("the trace is no plain file, and can't be read back".into()),
        Err(error) => Err(error.to_string()),
    }
}
