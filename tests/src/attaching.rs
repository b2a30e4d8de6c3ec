//! Processes that are attached to: what they must be as before, and who attaches.
//!
//! Whatever fails here fails the test that asks.

use crate::run::{Outcome, grapnel};
use crate::{is_root, programs, skipped};
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A process to attach to, which goes when the test does.
#[derive(Debug)]
pub struct Running(pub Child);

impl Running {
    /// Starts it, without input.
    pub fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().expect("the program starts"))
    }

    /// `steady`, at work: it prints a line each tenth of a second.
    pub fn steady(tenths: &str) -> Self {
        Self::at_work(&programs::program("steady"), tenths)
    }

    /// The same of another executable.
    pub fn at_work(steady: &Path, tenths: &str) -> Self {
        let mut command = Command::new(steady);
        let mut running = Self::start(command.arg(tenths).stdout(Stdio::piped()));
        let out = running.0.stdout.as_mut().expect("its output");
        BufReader::new(out).read_line(&mut String::new()).expect("a line");
        running
    }

    /// Debian's python3 with a script, which prints a line before all else.
    pub fn python(script: &str) -> Self {
        Self::start(Command::new("/usr/bin/python3").args(["-c", script]).stdout(Stdio::piped()))
    }

    /// What it prints.
    pub fn out(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.0.stdout.take().expect("its output"))
    }

    /// Its id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What must be afterwards as it was: which mappings there are, code and what it says, and how many descriptors.
#[derive(Debug, PartialEq, Eq)]
pub struct State {
    /// Lines of `/proc/PID/maps`, but for the heap and the first thread's stack, which grow as they like.
    pub mappings: Vec<String>,
    /// A hash of all code of files.
    pub code: u64,
    /// How many there are.
    pub descriptors: usize,
    /// How many there are.
    pub threads: usize,
}

impl State {
    /// What a process is now.
    pub fn of(pid: u32) -> Self {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("mappings");
        let memory = fs::File::open(format!("/proc/{pid}/mem")).expect("memory");
        let mut code = DefaultHasher::new();
        for line in maps.lines().filter(|line| line.contains("r-xp") && line.contains('/')) {
            let (start, end) =
                line.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
            let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).expect("a number"));
            let mut bytes = vec![0; (end - start) as usize];
            memory.read_exact_at(&mut bytes, start).expect("code can be read");
            code.write(&bytes);
        }
        let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).expect("a list").count();
        let is_its_own = |line: &&str| line.contains("[heap]") || line.contains("[stack]");
        let mappings = maps.lines().filter(|line| !is_its_own(line)).map(str::to_owned).collect();
        Self { mappings, code: code.finish(), descriptors: count("fd"), threads: count("task") }
    }
}

/// Attaches, and waits until that is over.
pub fn attach(dir: &Path, pid: u32, options: &[&str]) -> Outcome {
    let trace = dir.join("t.grapnel");
    let pid = pid.to_string();
    let mut arguments = vec!["attach", "-o", trace.to_str().expect("a path")];
    arguments.extend(options);
    arguments.push(&pid);
    grapnel(arguments)
}

/// Begins to attach, without an end.
pub fn recorder(dir: &Path, pid: u32) -> Running {
    let mut command = Command::new(programs::grapnel());
    Running::start(command.args(["attach", "-q", "-o"]).arg(dir.join("t.grapnel")).arg(pid.to_string()))
}

/// The state that the kernel shows.
pub fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
}

/// Attaching to a process that isn't one's own child takes rights that not every machine gives.
pub fn may_trace() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let may = is_root() || ["", "0"].contains(&scope.trim());
    if !may {
        skipped("attaching to a process", "Yama lets only root do it here");
    }
    may
}
