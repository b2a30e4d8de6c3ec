//! Recordings that go on while a test looks at them.

use crate::programs;
use crate::run::{Case, Outcome, kill, temporary_dir, wait};
use rustix::process::Signal;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A recording that goes on, in a runtime directory of its own.
#[derive(Debug)]
pub struct Going {
    /// grapnel.
    pub child: Child,
    /// Where its trace is.
    pub dir: TempDir,
}

impl Drop for Going {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            kill(Signal::TERM, self.child.id());
            let _ = wait(&mut self.child, Duration::from_secs(20));
        }
    }
}

/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for something to come about.
///
/// # Panics
/// If it doesn't.
pub fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Going {
    /// Begins to record a program, and waits until it can be asked about.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn new(case: &Case) -> Self {
        let dir = temporary_dir();
        let runtime = dir.path().join("run");
        std::fs::create_dir(&runtime).unwrap();
        let case = case.clone().env("XDG_RUNTIME_DIR", &runtime);
        let mut command = case.grapnel_command(dir.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let going = Self { child, dir };
        until("a recording", || (!going.status()?["processes"].as_array()?.is_empty()).then_some(()));
        going
    }

    /// Runs grapnel where it finds this recording.
    pub fn grapnel(&self, arguments: &[&str]) -> Outcome {
        Case::new(programs::grapnel())
            .args(arguments)
            .env("XDG_RUNTIME_DIR", self.dir.path().join("run"))
            .bare()
    }

    /// The recording's socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join(format!("run/grapnel/{}.socket", self.child.id()))
    }

    /// How it stands; nothing when it is over.
    pub fn status(&self) -> Option<Value> {
        let outcome = self.grapnel(&["status", "--json", &self.child.id().to_string()]);
        outcome.status.success().then(|| serde_json::from_slice(&outcome.stdout).unwrap())
    }

    /// The program's process.
    pub fn pid(&self) -> String {
        self.status().unwrap()["program"].to_string()
    }

    /// Ends the program's input, and waits for the end of all.
    pub fn end(&mut self) {
        drop(self.child.stdin.take());
        assert!(wait(&mut self.child, PATIENCE).unwrap().success());
    }
}
