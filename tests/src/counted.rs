//! `counted`, a program that counts what it does with its heap, and recordings of a part of that.

use crate::attaching::Running;
use crate::programs;
use crate::report::{Report, Site};
use crate::run::{finish, kill, report};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Lines, Write};
use std::ops::Sub;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, Stdio};

/// The program, which waits to be told.
#[derive(Debug)]
pub struct Counted {
    /// It, or what it was started by.
    pub running: Running,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// What it had counted last.
    pub so_far: Counts,
}

/// What the program counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks that it got, not by `realloc`.
    pub got: u64,
    /// Blocks that it gave back.
    pub gave: u64,
    /// Blocks that it had changed by `realloc`.
    pub changed: u64,
    /// Bytes that it asked for in all.
    pub bytes: u64,
    /// Blocks that are live.
    pub live: u64,
    /// Their bytes.
    pub live_bytes: u64,
}

impl Sub for Counts {
    type Output = Self;

    /// What was done since; what is live is what is.
    fn sub(self, before: Self) -> Self {
        Self {
            got: self.got - before.got,
            gave: self.gave - before.gave,
            changed: self.changed - before.changed,
            bytes: self.bytes - before.bytes,
            ..self
        }
    }
}

impl Counts {
    fn of(line: &str) -> Self {
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        let [got, gave, changed, bytes, live, live_bytes] = numbers[..] else { panic!("{line}") };
        Self { got, gave, changed, bytes, live, live_bytes }
    }
}

impl Counted {
    /// Starts it by a command whose last argument is its path.
    ///
    /// # Panics
    /// If it doesn't start.
    pub fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut counted = Self { running: Running(child), input, output, so_far: Counts::default() };
        counted.so_far = counted.read();
        counted
    }

    fn read(&mut self) -> Counts {
        Counts::of(&self.output.next().expect("a line").expect("a line"))
    }

    /// Has it do its work once more: what came of that.
    ///
    /// # Panics
    /// If it doesn't.
    pub fn work(&mut self) -> Counts {
        let before = self.so_far;
        self.input.write_all(b"g").expect("it is told");
        self.so_far = self.read();
        self.so_far - before
    }
}

/// A recording of a process that was attached to.
#[derive(Debug)]
pub struct Attached {
    recorder: Running,
    said: Lines<BufReader<ChildStderr>>,
    trace: PathBuf,
    listened: Vec<String>,
}

impl Attached {
    /// Attaches, and waits until that is done.
    ///
    /// # Panics
    /// If it can't be.
    pub fn to(pid: u32, dir: &Path, options: &[&str]) -> Self {
        let trace = dir.join("t.grapnel");
        let mut command = Command::new(programs::grapnel());
        command.arg("attach").args(options).arg("-o").arg(&trace).arg(pid.to_string());
        let mut recorder =
            Running::start(command.env("XDG_RUNTIME_DIR", dir).current_dir(dir).stderr(Stdio::piped()));
        let mut said = BufReader::new(recorder.0.stderr.take().expect("what it says")).lines();
        let mut listened = Vec::new();
        while !listened.last().is_some_and(|line: &String| line.contains("attached to")) {
            match said.next() {
                Some(line) => listened.push(line.expect("text")),
                None => panic!("not attached: {}", listened.join("\n")),
            }
        }
        Self { recorder, said, trace, listened }
    }

    /// grapnel's id.
    pub fn pid(&self) -> u32 {
        self.recorder.pid()
    }

    /// Asks a recording.
    ///
    /// # Panics
    /// If that says no.
    pub fn ask(&self, arguments: &[&str]) -> String {
        let dir = self.trace.parent().expect("a directory");
        let mut command = Command::new(programs::grapnel());
        command.args(arguments).env("XDG_RUNTIME_DIR", dir).current_dir(dir);
        let outcome = finish(&mut command, b"");
        assert!(outcome.status.success(), "{arguments:?}: {}", outcome.err());
        outcome.out()
    }

    /// Ends it: the report, and all that grapnel said.
    ///
    /// # Panics
    /// If it doesn't end well.
    pub fn end(self) -> (Report, String) {
        kill(Signal::INT, self.recorder.pid());
        let trace = self.trace.clone();
        let said = self.ended();
        (report(&trace), said)
    }

    /// All that grapnel said until it ended by itself.
    ///
    /// # Panics
    /// If it doesn't end well.
    pub fn ended(mut self) -> String {
        self.listened.extend(self.said.by_ref().map_while(Result::ok));
        let said = self.listened.join("\n");
        assert_eq!(self.recorder.0.wait().expect("it ends").code(), Some(0), "{said}");
        said
    }
}

/// What a report says of the program's own calls: libc makes some for threads.
pub fn recorded(report: &Report) -> Counts {
    let calls = |site: &Site, name: &str| {
        let mut frames = site.frames.iter().filter_map(|frame| frame.function.as_deref());
        frames.any(|function| function == name)
    };
    let mut counts = Counts { gave: report.totals.frees, ..Counts::default() };
    for site in &report.sites {
        let (is_make, is_change) = (calls(site, "make"), calls(site, "change"));
        if !is_make && !is_change {
            continue;
        }
        *if is_make { &mut counts.got } else { &mut counts.changed } += site.allocations;
        counts.bytes += site.allocated_bytes;
        counts.live += site.live_allocations;
        counts.live_bytes += site.live_bytes;
    }
    counts
}

/// Whether a site's stack goes from these functions to those that called them, whatever is between.
pub fn leads(site: &Site, names: &[&str]) -> bool {
    let mut frames = site.frames.iter().filter_map(|frame| frame.function.as_deref());
    names.iter().all(|name| frames.any(|function| function == *name))
}
