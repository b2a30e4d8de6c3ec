//! Runs programs bare, under grapnel, under the counting library, and under both at once.

use crate::report::Report;
use crate::{programs, truth};
use rustix::process::{Pid, Signal};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// No run of a test takes longer than this unless something hangs.
const PATIENCE: Duration = Duration::from_secs(240);

/// How a run ended and what it printed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// The exit status.
    pub status: ExitStatus,
}

impl Outcome {
    /// Standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text, without what an emulator says of a signal that ends what it runs.
    pub fn err(&self) -> String {
        let all = String::from_utf8_lossy(&self.stderr).into_owned();
        if programs::machine().is_none() {
            return all;
        }
        all.split_inclusive('\n').filter(|line| !line.starts_with("qemu: uncaught target signal")).collect()
    }

    /// Checks that this run was to its user like another: the same bytes, the same end.
    ///
    /// # Panics
    /// If it wasn't.
    pub fn same_as(&self, bare: &Outcome) {
        assert_eq!(self.out(), bare.out(), "stdout differs (left: with grapnel), stderr: {}", self.err());
        assert!(self.stdout == bare.stdout, "stdout differs in bytes that are not text");
        assert_eq!(self.err(), bare.err(), "stderr differs (left: with grapnel)");
        assert_eq!(
            (self.status.code(), self.status.signal()),
            (bare.status.code(), bare.status.signal()),
            "the end differs (left: with grapnel)"
        );
    }
}

/// A program with its arguments and surroundings, ready to be run in several ways.
#[derive(Clone, Debug)]
pub struct Case {
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    stdin: Vec<u8>,
    options: Vec<OsString>,
    launcher: Vec<OsString>,
    patience: Duration,
}

impl Case {
    /// A program by its path or name.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let env = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/nonexistent"), ("LANG", "C.UTF-8")];
        Self {
            argv: vec![program.as_ref().into()],
            env: env.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            stdin: Vec::new(),
            options: Vec::new(),
            launcher: Vec::new(),
            patience: PATIENCE,
        }
    }

    /// One of the programs of `tests/programs/`.
    pub fn ours(name: &str) -> Self {
        Self::new(programs::program(name))
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.argv.push(argument.as_ref().into());
        self
    }

    /// Adds arguments.
    pub fn args<T: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.argv.extend(arguments.into_iter().map(|argument| argument.as_ref().into()));
        self
    }

    /// Adds a variable to the small environment that all cases have.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.into(), value.as_ref().into()));
        self
    }

    /// What the program reads.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Adds an option of `grapnel run`.
    pub fn option(mut self, option: &str) -> Self {
        self.options.push(option.into());
        self
    }

    /// What starts the program, or grapnel with the program, by executing its last arguments.
    pub fn launcher<T: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.launcher = arguments.into_iter().map(|argument| argument.as_ref().into()).collect();
        self
    }

    /// Starts the program, or grapnel with the program, from a shell that has done this before.
    pub fn after(self, script: &str) -> Self {
        let script = format!("{script}\nexec \"$@\"");
        self.launcher(["/bin/sh", "-c", &script, "sh"])
    }

    /// Adds redirections of the shell to the start of the program, or of grapnel with the program.
    pub fn redirected(self, redirections: &str) -> Self {
        let script = format!("exec \"$@\" {redirections}");
        self.launcher(["/bin/sh", "-c", &script, "sh"])
    }

    /// A run that takes longer than this hangs.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// A command in this case's environment, with the program as its last arguments.
    fn command(&self, before: &[OsString]) -> Command {
        let all: Vec<&OsString> = self.launcher.iter().chain(before).chain(&self.argv).collect();
        let mut command = Command::new(all[0]);
        command.args(&all[1..]).env_clear().envs(self.env.iter().cloned());
        command
    }

    fn finish(&self, command: &mut Command) -> Outcome {
        finish_within(command, &self.stdin, self.patience)
    }

    /// Runs the program by itself.
    pub fn bare(&self) -> Outcome {
        self.finish(&mut self.command(&[]))
    }

    /// Runs the program under the counting library.
    pub fn counted(&self, follow: bool) -> (Outcome, Vec<truth::Process>) {
        let dir = temporary_dir();
        let outcome = self.finish(&mut self.command(&truth_env(dir.path(), follow)));
        (outcome, truth::read_dir(dir.path()))
    }

    /// The command `grapnel run -q -o <dir>/t.grapnel -- PROGRAM`, not yet started.
    pub fn grapnel_command(&self, dir: &Path) -> Command {
        self.command(&self.grapnel_run(dir))
    }

    fn grapnel_run(&self, dir: &Path) -> Vec<OsString> {
        let mut before = vec![programs::recorder().into(), "run".into(), "-q".into(), "-o".into()];
        before.push(dir.join("t.grapnel").into());
        before.extend(self.options.iter().cloned());
        before.push("--".into());
        before
    }

    /// Runs the program under `grapnel run -q`.
    pub fn recorded(&self) -> Recorded {
        let dir = temporary_dir();
        let outcome = self.finish(&mut self.grapnel_command(dir.path()));
        Recorded { outcome, dir }
    }

    /// Runs the program under both: `grapnel run -- env LD_PRELOAD=libtruth.so PROGRAM`. The same calls are
    /// counted twice, so the figures must be equal even where a program isn't deterministic.
    pub fn both(&self, follow: bool) -> (Recorded, Vec<truth::Process>) {
        let dir = temporary_dir();
        let truth_dir = temporary_dir();
        let mut before = self.grapnel_run(dir.path());
        before.extend(truth_env(truth_dir.path(), follow));
        let outcome = self.finish(&mut self.command(&before));
        (Recorded { outcome, dir }, truth::read_dir(truth_dir.path()))
    }
}

fn truth_env(dir: &Path, follow: bool) -> Vec<OsString> {
    let mut before: Vec<OsString> = vec![programs::env().into()];
    let mut variable = |name: &str, value: &OsStr| {
        let mut text = OsString::from(name);
        text.push(value);
        before.push(text);
    };
    variable("TRUTH_DIR=", dir.as_os_str());
    if follow {
        variable("TRUTH_FOLLOW=", "1".as_ref());
    }
    variable("LD_PRELOAD=", programs::truth_library().as_os_str());
    before
}

/// A fresh directory that goes when its owner does.
pub fn temporary_dir() -> TempDir {
    tempfile::Builder::new().prefix("grapnel-test-").tempdir().expect("a temporary directory can be made")
}

/// What `grapnel run` left.
#[derive(Debug)]
pub struct Recorded {
    /// How the run looked from outside.
    pub outcome: Outcome,
    /// The directory of the traces.
    pub dir: TempDir,
}

impl Recorded {
    /// The trace of the program itself.
    pub fn trace(&self) -> PathBuf {
        self.dir.path().join("t.grapnel")
    }

    /// All traces, the program's own first, its children's by name.
    pub fn traces(&self) -> Vec<PathBuf> {
        traces_in(self.dir.path())
    }

    /// The checked report of the program itself.
    pub fn report(&self) -> Report {
        report(&self.trace())
    }

    /// The checked reports of all traces.
    pub fn reports(&self) -> Vec<Report> {
        self.traces().iter().map(|trace| report(trace)).collect()
    }
}

/// The report of a trace from which events may be missing, which it counts.
///
/// # Panics
/// If there is none.
pub fn report_with_losses(trace: &Path) -> Report {
    let json = grapnel([Path::new("report"), Path::new("--format"), Path::new("json"), trace]);
    serde_json::from_slice(&json.stdout).unwrap_or_else(|error| panic!("{error}: {}", json.err()))
}

/// All traces in a directory, by name, the shortest name first.
pub fn traces_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("the directory is there").flatten();
    let mut all: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "grapnel"))
        .collect();
    all.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    all
}

/// Runs `grapnel` with these arguments.
pub fn grapnel<T: AsRef<OsStr>>(arguments: impl IntoIterator<Item = T>) -> Outcome {
    Case::new(programs::grapnel()).args(arguments).bare()
}

/// The report of a trace that is whole.
///
/// # Panics
/// If `grapnel report` fails, prints anything on stderr, or contradicts itself.
pub fn report(trace: &Path) -> Report {
    let mut arguments = vec!["report".into(), "--format".into(), "json".into()];
    if let Some(root) = std::env::var_os("GRAPNEL_SYSROOT") {
        arguments.extend(["--sysroot".into(), root]);
    }
    arguments.push(OsString::from(trace));
    let outcome = grapnel(arguments);
    assert!(outcome.status.success(), "report of {}: {}", trace.display(), outcome.err());
    assert_eq!(outcome.err(), "", "report of {}", trace.display());
    let report: Report = serde_json::from_slice(&outcome.stdout)
        .unwrap_or_else(|error| panic!("report of {}: {error}\n{}", trace.display(), outcome.out()));
    report.check();
    report
}

/// Starts the command with files as its three streams and waits for its end.
pub fn finish(command: &mut Command, stdin: &[u8]) -> Outcome {
    finish_within(command, stdin, PATIENCE)
}

fn finish_within(command: &mut Command, stdin: &[u8], patience: Duration) -> Outcome {
    let mut streams: [File; 3] = std::array::from_fn(|_| tempfile::tempfile().expect("a temporary file"));
    streams[0].write_all(stdin).and_then(|()| streams[0].rewind()).expect("a temporary file can be written");
    let [input, output, errors] = streams.each_ref().map(|file| file.try_clone().expect("a descriptor"));
    command.stdin(Stdio::from(input)).stdout(Stdio::from(output)).stderr(Stdio::from(errors));
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let status = wait(&mut child, patience);
    let [_, stdout, stderr] = streams.each_mut().map(|file| {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a temporary file can be read");
        bytes
    });
    let Some(status) = status else {
        panic!(
            "{command:?} hung\n{}\n{}",
            String::from_utf8_lossy(&stdout),
            String::from_utf8_lossy(&stderr)
        );
    };
    Outcome { stdout, stderr, status }
}

/// Waits for a child as long as `patience`, then ends it with its descendants and answers `None`.
pub fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        if start.elapsed() > patience {
            for pid in descendants(child.id()) {
                kill(Signal::KILL, pid);
            }
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The children of a process and theirs.
pub fn descendants(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children: Vec<u32> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    children.iter().flat_map(|child| [vec![*child], descendants(*child)].concat()).collect()
}

/// Sends a signal to a process that a test started. It may have ended already.
pub fn kill(signal: Signal, pid: u32) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        match rustix::process::kill_process(pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => panic!("{pid:?} can't be sent {signal:?}: {error}"),
        }
    }
}

/// The page of a trace, in a directory.
///
/// # Panics
/// If it can't be made.
pub fn page(dir: &Path, trace: &Path) -> PathBuf {
    let path = dir.join("report.html");
    let outcome = grapnel([&"report".as_ref(), &"--html".as_ref(), &path.as_os_str(), &trace.as_os_str()]);
    assert!(outcome.status.success(), "{}", outcome.err());
    assert_eq!(outcome.out(), "");
    path
}
