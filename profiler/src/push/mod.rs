//! `--push` of `grapnel run` and `grapnel attach`: profiles of what is recorded, sent to an engine that keeps those of a fleet.
//!
//! - `target`: which engine, and where; `labels`: what profiles are found by there; `body`: what each engine takes
//! - `followed`: a trace that is read as it grows, and what the engine knows of it
//! - `send`: a request, its answer, and when the next one may follow
//! - `worker`: the thread that does all this
//!
//! The recording notices no more of it than of `--serve`: the drain says where traces end. The traces are read, and the engine is
//! talked to, by one thread that stands back for others and has one profile in its hands at a time. Whatever an engine
//! does, it costs profiles, which are counted.

mod body;
mod followed;
mod labels;
mod send;
mod target;
mod worker;

use crate::control::Desk;
use crate::opened::say;
use crate::run::spawn::short_name;
use crate::secret::{SecretError, token_of};
use clap::Args;
use labels::Labels;
use send::Sender;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;
use target::Target;
use worker::{Count, Worker};

/// How often it is looked whether somebody doesn't want to wait for the last profiles.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Options of what is sent.
#[derive(Args, Clone, Debug)]
pub(crate) struct PushArgs {
    /// Send profiles to an engine that keeps them: otlp+http://HOST:4318, pyroscope+http://HOST:4040 or
    /// parca+http://HOST:7070, or the same with https
    ///
    /// What is live and what was allocated, of each process that is recorded. An engine that fails, or isn't there, costs
    /// profiles and nothing else; how many, is said at the end. docs/push.md tells what each engine gets.
    #[arg(long, value_name = "URL", value_parser = target::parse)]
    push: Option<Target>,
    /// How often; and once more at the end
    #[arg(long, value_name = "SECONDS", default_value_t = 15, requires = "push")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    push_every: u64,
    /// A label of the profiles; may be given often [default: service_name=NAME, the program's]
    #[arg(long = "push-label", value_name = "KEY=VALUE", requires = "push", value_parser = labels::parse)]
    push_labels: Vec<(String, String)>,
    /// The file with the token that the engine wants, which it gets as `Authorization: Bearer TOKEN`
    #[arg(long, value_name = "FILE", requires = "push")]
    push_token_file: Option<PathBuf>,
}

/// Why nothing is sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum PushError {
    /// There is no token.
    #[error(transparent)]
    Token(#[from] SecretError),
    /// One label has two values.
    #[error("--push-label {0}: given twice; give it once")]
    Twice(String),
}

/// What is about to be sent.
#[derive(Debug)]
pub(crate) struct Ready {
    sender: Sender,
    labels: Labels,
    every: Duration,
    url: String,
}

/// What is being sent.
#[derive(Debug)]
pub(crate) struct Pushing {
    /// Where the program's trace is, at the end.
    end: mpsc::Sender<PathBuf>,
    count: Receiver<Count>,
    url: String,
}

impl PushArgs {
    /// Looks at everything that is needed. Before the program is started: a mistake is said at once.
    ///
    /// # Errors
    /// When something is missing.
    pub(crate) fn prepare(&self, program: &OsStr) -> Result<Option<Ready>, PushError> {
        let Some(target) = &self.push else { return Ok(None) };
        let token = self.push_token_file.as_deref();
        let token = token.map(|path| token_of("--push-token-file", path, 1)).transpose()?;
        let labels = Labels::new(&self.push_labels, short_name(program)).map_err(PushError::Twice)?;
        if token.is_some() && target.is_open_to_listeners() {
            say(&format!("note: the token goes to {} unencrypted; use https", target.url));
        }
        let (url, every) = (target.url.clone(), Duration::from_secs(self.push_every));
        Ok(Some(Ready { sender: Sender::new(target.clone(), token), labels, every, url }))
    }
}

impl Ready {
    /// Sends from here on.
    pub(crate) fn start(self, desk: &Arc<Desk>) -> Pushing {
        let (end, ended) = mpsc::channel();
        let (counted, count) = mpsc::channel();
        let worker = Worker::new(Arc::clone(desk), self.sender, self.labels, self.every, ended);
        let work = move || {
            let count = worker.run();
            drop(counted.send(count));
        };
        // Without the thread nothing is sent, and that is said at the end.
        drop(std::thread::Builder::new().name("push".into()).spawn(work));
        Pushing { end, count, url: self.url }
    }
}

impl Pushing {
    /// The recording has ended: sends the last profiles, and says what came of all. `is_enough` tells whether somebody
    /// doesn't want to wait for that.
    pub(crate) fn finish(self, quiet: bool, program: &Path, is_enough: impl Fn() -> bool) {
        // If nobody is there to hear it, there is no count either.
        let _ = self.end.send(program.to_owned());
        let count = loop {
            match self.count.recv_timeout(LOOK_EVERY) {
                Err(RecvTimeoutError::Timeout) if is_enough() => break None,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(count) => break Some(count),
                Err(RecvTimeoutError::Disconnected) => break None,
            }
        };
        match count {
            Some(count) => count.tell(quiet, &self.url),
            None => say(&format!("the last profiles were not pushed to {}", self.url)),
        }
    }
}
