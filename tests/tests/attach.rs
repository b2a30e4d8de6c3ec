//! `grapnel attach`: into a process that runs, and out of it without a trace.

use grapnel_tests::going::until;
use grapnel_tests::report::Report;
use grapnel_tests::run::{descendants, grapnel, kill, report, temporary_dir, traces_in};
use grapnel_tests::{is_root, programs, skipped};
use rustix::process::Signal;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A process to attach to, which goes when the test does.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().expect("the program starts"))
    }

    /// `steady`, at work: it prints a line each tenth of a second.
    fn steady(tenths: &str) -> Self {
        Self::at_work(&programs::program("steady"), tenths)
    }

    fn at_work(steady: &Path, tenths: &str) -> Self {
        let mut command = Command::new(steady);
        let mut running = Self::start(command.arg(tenths).stdout(Stdio::piped()));
        let out = running.0.stdout.as_mut().expect("its output");
        BufReader::new(out).read_line(&mut String::new()).expect("a line");
        running
    }

    fn pid(&self) -> u32 {
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
#[derive(Debug, PartialEq)]
struct State {
    mappings: Vec<String>,
    /// A hash of it.
    code: u64,
    descriptors: usize,
    threads: usize,
}

impl State {
    fn of(pid: u32) -> Self {
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
        // The program's own heap and stacks grow as they like.
        let is_its_own = |line: &&str| line.contains("[heap]") || line.contains("[stack]");
        let mappings = maps.lines().filter(|line| !is_its_own(line)).map(str::to_owned).collect();
        Self { mappings, code: code.finish(), descriptors: count("fd"), threads: count("task") }
    }
}

fn attach(dir: &Path, pid: u32, options: &[&str]) -> grapnel_tests::run::Outcome {
    let trace = dir.join("t.grapnel");
    let pid = pid.to_string();
    let mut arguments = vec!["attach", "-o", trace.to_str().expect("a path")];
    arguments.extend(options);
    arguments.push(&pid);
    grapnel(arguments)
}

/// Attaching to a process that isn't one's own child takes rights that not every machine gives.
fn may_trace() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let may = is_root() || ["", "0"].contains(&scope.trim());
    if !may {
        skipped("attaching to a process", "Yama lets only root do it here");
    }
    may
}

#[test]
fn a_process_is_recorded_and_then_as_it_was() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("600");
    let before = State::of(program.pid());
    let outcome = attach(dir.path(), program.pid(), &["--for", "1"]);
    assert_eq!(outcome.status.code(), Some(0), "{}", outcome.err());
    assert!(outcome.err().contains("nothing of the agent is left"), "{}", outcome.err());
    assert_eq!(State::of(program.pid()), before);

    let recorded = report(&dir.path().join("t.grapnel"));
    assert!(recorded.totals.allocations >= 1000, "{:?}", recorded.totals);
    assert_eq!(recorded.totals.lost_events, 0);
    // Of ten blocks one is kept.
    let kept = recorded.totals.live_allocations as f64 / recorded.totals.allocations as f64;
    assert!((0.05..0.2).contains(&kept), "{:?}", recorded.totals);
    let trace = dir.path().join("t.grapnel");
    let text = grapnel([Path::new("report"), &trace]);
    assert!(text.out().contains("main at ") && text.out().contains("steady.c"), "{}", text.out());
    let ended = ", attached to while it ran, detached from while it went on; ";
    assert!(text.out().contains(ended), "{}", text.out());
    // Nobody else's business.
    assert_eq!(trace.metadata().expect("a trace").mode() & 0o777, 0o600);
}

#[test]
fn a_process_can_be_attached_to_again_and_again() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("3000");
    let before = State::of(program.pid());
    for _ in 0..10 {
        let outcome = attach(dir.path(), program.pid(), &["-q", "--for", "0.05"]);
        assert_eq!((outcome.status.code(), outcome.err()), (Some(0), String::new()));
    }
    assert_eq!(State::of(program.pid()), before);
}

#[test]
fn waits_end_as_if_nobody_had_come() {
    if !may_trace() {
        return;
    }
    let waits = programs::program("waits");
    let sorted = |out: &[u8]| {
        let mut lines: Vec<_> = String::from_utf8_lossy(out).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let start = || {
        Command::new(&waits)
            .arg("4000")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts")
    };
    let (bare, child) = (start(), start());
    let pid = child.id();
    std::thread::sleep(Duration::from_millis(500));
    let dir = temporary_dir();
    for _ in 0..3 {
        let outcome = attach(dir.path(), pid, &["-q", "--for", "0.1"]);
        assert_eq!((outcome.status.code(), outcome.err()), (Some(0), String::new()));
    }
    let [bare, attached] = [bare, child].map(|child| child.wait_with_output().expect("it ends"));
    assert_eq!(attached.status.code(), Some(0));
    assert_eq!(sorted(&attached.stdout), sorted(&bare.stdout));
}

#[test]
fn when_grapnel_is_killed_the_process_is_left_as_it_was() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("600");
    let before = State::of(program.pid());
    let mut command = Command::new(programs::grapnel());
    command.args(["attach", "-q", "-o"]).arg(dir.path().join("t.grapnel")).arg(program.pid().to_string());
    let mut recorder = Running::start(&mut command);
    let until = |condition: &dyn Fn() -> bool, what: &str| {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let memory = || fs::read_to_string(format!("/proc/{}/maps", program.pid())).expect("mappings");
    until(&|| State::of(program.pid()).code != before.code, "it is attached to");
    let again = attach(dir.path(), program.pid(), &[]);
    assert_eq!(again.status.code(), Some(125));
    assert!(again.err().contains("is recorded already"), "{}", again.err());
    kill(Signal::KILL, recorder.pid());
    recorder.0.wait().expect("it ends");
    until(&|| !memory().contains("memfd:grapnel"), "nothing of the agent is left");
    until(&|| State::of(program.pid()) == before, "all is as it was");
}

#[test]
fn detaching_ends_the_recording_from_elsewhere() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("600");
    let before = State::of(program.pid());
    let pid = program.pid().to_string();
    let nothing = grapnel(["detach", &pid]);
    assert_eq!(nothing.status.code(), Some(125));
    assert!(nothing.err().contains("isn't recorded"), "{}", nothing.err());
    let mut command = Command::new(programs::grapnel());
    command.args(["attach", "-q", "-o"]).arg(dir.path().join("t.grapnel")).arg(&pid);
    let mut recorder = Running::start(&mut command);
    let start = Instant::now();
    while !report_is_there(&dir.path().join("t.grapnel")) {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing was recorded");
        std::thread::sleep(Duration::from_millis(50));
    }
    let outcome = grapnel(["detach", &pid]);
    assert_eq!(outcome.status.code(), Some(0), "{}", outcome.err());
    assert_eq!(recorder.0.wait().expect("it ends").code(), Some(0));
    assert_eq!(State::of(program.pid()), before);
}

/// What is asked of a recording is answered, whichever way it began.
#[test]
fn a_recording_of_what_ran_already_can_be_asked() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let program = Running::steady("600");
    let pid = program.pid().to_string();
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(programs::grapnel());
        command.args(arguments).env("XDG_RUNTIME_DIR", dir.path()).current_dir(dir.path());
        let outcome = grapnel_tests::run::finish(&mut command, b"");
        assert!(outcome.status.success(), "{arguments:?}: {}", outcome.err());
        outcome.out()
    };
    let mut command = Command::new(programs::grapnel());
    command.args(["attach", "--serve", "0", "-o"]).arg(dir.path().join("t.grapnel")).arg(&pid);
    let mut recorder = Running::start(command.env("XDG_RUNTIME_DIR", dir.path()).stderr(Stdio::piped()));
    let mut said = BufReader::new(recorder.0.stderr.take().expect("what it says")).lines();
    let host = said.by_ref().map_while(Result::ok).find_map(|line| {
        line.split_once("serving at http://").map(|(_, host)| host.trim_end_matches('/').to_owned())
    });
    let host = host.expect("an address");
    // Whatever it says meanwhile.
    let listening = std::thread::spawn(move || said.map_while(Result::ok).collect::<Vec<_>>());
    let events = || {
        let status: serde_json::Value =
            serde_json::from_str(&ask(&["status", "--json", &pid])).expect("JSON");
        let process = &status["processes"][0];
        (process["events"].as_u64().unwrap_or(0), process["paused"].clone())
    };
    until("events", || (events().0 > 1000).then_some(()));
    assert!(ask(&["list"]).starts_with(&pid));
    ask(&["mark", &pid, "loaded"]);
    ask(&["snapshot", "-o", "s.grapnel", &pid]);
    let text = ask(&["report", "s.grapnel"]);
    assert!(text.contains("loaded") && text.contains("attached to while it ran, how it ended"), "{text}");
    assert!(ask(&["top", "--once", &pid]).contains("main"));
    ask(&["pause", &pid]);
    assert_eq!(events().1, true);
    ask(&["resume", &pid]);
    let get = |path: &str| {
        let mut stream = TcpStream::connect(&host).expect("a connection");
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes())
            .expect("a request");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    };
    let metrics = get("/metrics");
    assert!(metrics.starts_with("HTTP/1.1 200") && metrics.contains("grapnel_heap_live_bytes{"), "{metrics}");
    let profile = get("/debug/pprof/heap?debug=1");
    assert!(profile.contains("heap profile: ") && profile.contains("\tmain\t"), "{profile}");
    assert!(get("/debug/pprof/allocs").starts_with("HTTP/1.1 200"));
    kill(Signal::INT, recorder.pid());
    assert_eq!(recorder.0.wait().expect("it ends").code(), Some(0));
    let said = listening.join().expect("what it said").join("\n");
    assert!(said.contains("nothing of the agent is left"), "{said}");
    let report = grapnel([Path::new("report"), &dir.path().join("t.grapnel")]).out();
    assert!(report.contains("loaded") && report.contains("detached from while it went on"), "{report}");
}

fn report_is_there(trace: &Path) -> bool {
    let json = grapnel([Path::new("report"), Path::new("--format"), Path::new("json"), trace]);
    serde_json::from_slice(&json.stdout).is_ok_and(|report: Report| report.totals.allocations > 0)
}

#[test]
fn a_child_is_recorded_by_itself_and_left_too() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    // It goes on when it is attached to, which takes as long as the machine is busy.
    let script = "import os, time\nprint('up', flush=True)\n\
                  while 'memfd:grapnel' not in open('/proc/self/maps').read(): time.sleep(0.05)\n\
                  time.sleep(1)\nchild = os.fork()\n\
                  rows = [bytearray(600 + i % 7) for i in range(2000)]\ntime.sleep(1 if child else 60)\n\
                  child and (print(child, flush=True), time.sleep(60))";
    let mut command = Command::new("/usr/bin/python3");
    let mut program = Running::start(command.args(["-c", script]).stdout(Stdio::piped()));
    let mut out = BufReader::new(program.0.stdout.take().expect("its output"));
    out.read_line(&mut String::new()).expect("a line");
    let outcome = attach(dir.path(), program.pid(), &["--for", "3.5"]);
    assert_eq!(outcome.status.code(), Some(0), "{}", outcome.err());
    let mut child = String::new();
    out.read_line(&mut child).expect("a line");
    let child: u32 = child.trim().parse().expect("the child's id");
    for pid in [program.pid(), child] {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("mappings");
        assert!(!maps.contains("memfd:grapnel"), "{maps}");
    }
    kill(Signal::KILL, child);
    let traces = traces_in(dir.path());
    assert_eq!(traces.len(), 2, "{traces:?}: {}", outcome.err());
    assert!(traces.iter().all(|trace| report(trace).totals.allocations > 1000), "{}", outcome.err());
}

#[test]
fn what_cannot_be_attached_to_is_left_alone_with_a_reason() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let refused = |pid: u32, why: &str| {
        let outcome = attach(dir.path(), pid, &[]);
        assert_eq!(outcome.status.code(), Some(125), "{}", outcome.err());
        assert!(outcome.err().contains(why), "{}", outcome.err());
        assert!(!dir.path().join("t.grapnel").exists(), "nothing is written");
    };
    refused(u32::MAX >> 2, "there is no process");
    refused(2, "thread of the kernel");
    let mut ended = Running::start(&mut Command::new("/bin/true"));
    std::thread::sleep(Duration::from_millis(300));
    refused(ended.pid(), "has ended");
    ended.0.wait().expect("it ends");

    let recorded = Running::start(
        Command::new(programs::grapnel())
            .args(["run", "-q", "-o"])
            .arg(dir.path().join("other"))
            .args(["--", "sleep", "60"]),
    );
    std::thread::sleep(Duration::from_millis(1500));
    let family = descendants(recorded.pid());
    refused(*family.first().expect("a child"), "is recorded already");
    let detached = grapnel(["detach", &family[0].to_string()]);
    assert!(detached.err().contains("was started by `grapnel run`"), "{}", detached.err());

    let mut traced = Command::new("gdb");
    let program = Running::steady("600");
    let pid = program.pid().to_string();
    let debugger = Running::start(
        traced
            .args(["-q", "-batch", "-ex", "shell sleep 20", "-p", &pid])
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    );
    let start = Instant::now();
    while !fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| !text.contains("TracerPid:\t0"))
    {
        assert!(start.elapsed() < Duration::from_secs(60), "the debugger came");
        std::thread::sleep(Duration::from_millis(50));
    }
    refused(program.pid(), "is traced by gdb");
    drop(debugger);

    let linked = Running::at_work(&programs::static_program("steady"), "600");
    let before = State::of(linked.pid());
    refused(linked.pid(), "does not use glibc");
    assert_eq!(State::of(linked.pid()), before);
}
