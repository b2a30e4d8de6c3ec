//! The trace survives the program, and the program survives grapnel.

use grapnel_tests::run::{Case, Outcome, descendants, grapnel, kill, report, temporary_dir, traces_in, wait};
use grapnel_tests::{is_root, skipped};
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Waits until a condition holds.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(120), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// What a report says of a trace that is still being written.
fn allocations_so_far(trace: &Path) -> u64 {
    let json = grapnel([Path::new("report"), Path::new("--format"), Path::new("json"), trace]);
    serde_json::from_slice(&json.stdout)
        .map_or(0, |report: grapnel_tests::report::Report| report.totals.allocations)
}

/// The process below `pid` that runs this executable.
fn running(pid: u32, name: &str) -> Option<u32> {
    let is_it =
        |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with(name));
    descendants(pid).into_iter().find(is_it)
}

fn lines_of(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

/// grapnel killed in the middle: the program goes on to its end with the same output, and what was recorded
/// until then can be read.
#[test]
fn grapnel_killed() {
    let dir = temporary_dir();
    let out = dir.path().join("out");
    let case = Case::ours("steady").arg("25");
    let stdout = std::fs::File::create(&out).expect("a file for stdout");
    let mut child =
        case.grapnel_command(dir.path()).stdin(Stdio::null()).stdout(stdout).spawn().expect("grapnel starts");
    let trace = dir.path().join("t.grapnel");
    // A line for each thousand.
    until("the program works", || lines_of(&out) >= 3 && allocations_so_far(&trace) >= 3000);
    let family = descendants(child.id());
    assert!(!family.is_empty(), "the program is a child of grapnel");
    kill(Signal::KILL, child.id());
    let status = wait(&mut child, Duration::from_secs(120)).expect("grapnel ends");
    assert_eq!(status.signal(), Some(9));
    until("the program ends", || family.iter().all(|pid| !Path::new(&format!("/proc/{pid}/exe")).exists()));
    let expected = case.bare();
    assert_eq!(std::fs::read(&out).expect("stdout"), expected.stdout);

    let traces = traces_in(dir.path());
    let outcome = grapnel([Path::new("report"), &traces[0]]);
    assert!(!outcome.err().contains("panicked"), "{}", outcome.err());
    let json = grapnel([Path::new("report"), Path::new("--format"), Path::new("json"), &traces[0]]);
    let report: grapnel_tests::report::Report =
        serde_json::from_slice(&json.stdout).unwrap_or_else(|error| panic!("{error}: {}", json.err()));
    assert!(report.totals.allocations >= 3000, "{:?}", report.totals);
}

/// grapnel killed while the program fills its rings as fast as it can: the program is not left waiting for
/// room that nobody makes.
#[test]
fn grapnel_killed_in_a_flood() {
    let dir = temporary_dir();
    let out = dir.path().join("out");
    let stdout = std::fs::File::create(&out).expect("a file for stdout");
    let case = Case::ours("flood").args(["6000", "4000"]);
    let mut child =
        case.grapnel_command(dir.path()).stdin(Stdio::null()).stdout(stdout).spawn().expect("grapnel starts");
    until("the program starts", || running(child.id(), "flood").is_some());
    let family = descendants(child.id());
    std::thread::sleep(Duration::from_millis(300));
    kill(Signal::KILL, child.id());
    wait(&mut child, Duration::from_secs(120)).expect("grapnel ends");
    until("the program ends", || family.iter().all(|pid| !Path::new(&format!("/proc/{pid}/exe")).exists()));
    assert_eq!(std::fs::read_to_string(&out).expect("stdout"), "flooded\n");
}

/// grapnel stopped for a while: the program waits for it rather than losing events.
#[test]
fn grapnel_stopped_for_a_while() {
    let dir = temporary_dir();
    let case = Case::ours("flood").args(["2000", "4000"]);
    let mut child = case
        .grapnel_command(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("grapnel starts");
    let trace = dir.path().join("t.grapnel");
    until("the program is at it", || allocations_so_far(&trace) > 0);
    kill(Signal::STOP, child.id());
    std::thread::sleep(Duration::from_millis(1500));
    kill(Signal::CONT, child.id());
    let status = wait(&mut child, Duration::from_secs(120)).expect("grapnel ends");
    assert!(status.success(), "{status:?}");
    let (_, counted) = case.counted(false);
    let report = report(&trace);
    assert_eq!(report.totals(), counted[0].totals);
    assert!(report.recorder.is_some_and(|recorder| recorder.waited_ns > 0), "{:?}", report.recorder);
}

/// A program that recovers from running out of stack goes on, and goes on being recorded.
#[test]
fn stack_overflow() {
    let case = Case::ours("overflow");
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let after = |site: &&grapnel_tests::report::Site| site.frames.iter().any(|f| f.name() == "afterwards");
    let json = grapnel([Path::new("report"), Path::new("--format"), Path::new("json"), &recorded.trace()]);
    let report: grapnel_tests::report::Report = serde_json::from_slice(&json.stdout).expect("JSON");
    let counted: u64 = report.sites.iter().filter(after).map(|site| site.allocations).sum();
    assert_eq!(counted, 1000, "{:?}", report.totals);
}

/// After grapnel is gone, the programs that its program starts run as ever, without a word on stderr.
#[test]
fn grapnel_killed_before_an_exec() {
    let dir = temporary_dir();
    let (out, err) = (dir.path().join("out"), dir.path().join("err"));
    let case = Case::new("/bin/sh").args([
        "-c",
        "for i in 1 2 3; do sleep 0.1; echo $i; done; sleep 3; for i in 1 2; do sleep 0.1; done; env",
    ]);
    let file = |path: &Path| std::fs::File::create(path).expect("a file for output");
    let mut command = case.grapnel_command(dir.path());
    let mut child =
        command.stdin(Stdio::null()).stdout(file(&out)).stderr(file(&err)).spawn().expect("grapnel starts");
    until("the program works", || lines_of(&out) >= 3);
    let shell = descendants(child.id()).into_iter().next().expect("the shell runs");
    // In the middle of the long sleep, not in that of an exec.
    until("it sleeps", || running(shell, "sleep").is_some());
    std::thread::sleep(Duration::from_millis(500));
    kill(Signal::KILL, child.id());
    wait(&mut child, Duration::from_secs(120)).expect("grapnel ends");
    until("the program ends", || !Path::new(&format!("/proc/{shell}/exe")).exists());
    let text = |path: &Path| std::fs::read_to_string(path).expect("output");
    let bare = case.bare();
    assert_eq!((text(&out), text(&err)), (bare.out(), bare.err()));
}

/// The same command, which ignores no signal: these tests may run in the background of a shell, where SIGINT is ignored.
fn with_default_signals(command: &Command) -> Command {
    let mut env = Command::new("/usr/bin/env");
    env.env_clear().arg("--default-signal=INT,TERM,HUP").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => env.env(name, value),
            None => env.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        env.current_dir(dir);
    }
    env
}

/// A signal for grapnel's process group (Ctrl-C) ends the program as it would, and the trace is whole.
#[test]
fn interrupted() {
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15), (Signal::HUP, 1)] {
        let dir = temporary_dir();
        let out = dir.path().join("out");
        let stdout = std::fs::File::create(&out).expect("a file for stdout");
        let mut command = with_default_signals(&Case::ours("steady").arg("600").grapnel_command(dir.path()));
        // A shell of its own makes a process group, as a terminal would.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.stdin(Stdio::null()).stdout(stdout).spawn().expect("grapnel starts");
        until("the program works", || lines_of(&out) >= 3);
        let group = rustix::process::Pid::from_raw(child.id().cast_signed()).expect("a pid");
        rustix::process::kill_process_group(group, signal).expect("the group can be signalled");
        let status = wait(&mut child, Duration::from_secs(120)).expect("grapnel ends with its program");
        assert_eq!(status.signal(), Some(number), "{status:?}");
        let report = report(&dir.path().join("t.grapnel"));
        assert_eq!(report.process.exit, Some(grapnel_tests::report::Exit::Signal(number)));
        assert!(report.totals.allocations >= 3000, "{:?}", report.totals);
    }
}

/// The program killed from outside while it floods the rings: the trace has all until then.
#[test]
fn killed_in_a_flood() {
    let dir = temporary_dir();
    let mut child = Case::ours("flood")
        .args(["1000000", "4000"])
        .grapnel_command(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("grapnel starts");
    let trace = dir.path().join("t.grapnel");
    until("the trace has something", || allocations_so_far(&trace) > 0);
    let before = allocations_so_far(&trace);
    let pid = running(child.id(), "flood").expect("it still runs");
    kill(Signal::KILL, pid);
    let status = wait(&mut child, Duration::from_secs(120)).expect("grapnel ends");
    assert_eq!(status.signal(), Some(9));
    let report = report(&trace);
    assert!(report.totals.allocations >= before, "{before} before: {:?}", report.totals);
    let flow = report.totals.allocations - report.totals.frees - report.totals.live_allocations;
    // Killed inside free(): recorded, and the block is gone.
    assert_eq!(flow, 0, "{:?}", report.totals);
}

fn with_full_disk(test: impl FnOnce(&Path)) {
    if !is_root() {
        skipped("a disk that fills", "mounting a small tmpfs needs root");
        return;
    }
    let dir = temporary_dir();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(dir.path())
        .output()
        .is_ok_and(|result| result.status.success());
    if !mounted {
        skipped("a disk that fills", "mount is not permitted here");
        return;
    }
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(dir.path())));
    let unmounted = Command::new("umount").arg("-l").arg(dir.path()).status();
    assert!(unmounted.is_ok_and(|status| status.success()), "the test's tmpfs is unmounted");
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

fn one_line(outcome: &Outcome) {
    let err = outcome.err();
    assert_eq!(err.lines().count(), 1, "one line: {err}");
    assert!(!err.contains("panicked"), "{err}");
}

/// The disk fills: the program runs on as before, the message is one line, what fitted can be read.
#[test]
fn full_disk() {
    with_full_disk(|dir| {
        let case = Case::ours("flood").args(["1500", "4000"]);
        let bare = case.bare();
        let outcome = grapnel_tests::run::finish(&mut case.grapnel_command(dir), b"");
        assert_eq!(outcome.out(), bare.out());
        assert_eq!(outcome.status.code(), bare.status.code(), "the program's own: {}", outcome.err());
        one_line(&outcome);
        assert!(!outcome.err().contains("after 0 bytes"), "{}", outcome.err());
        let json =
            grapnel([Path::new("report"), Path::new("--format"), Path::new("json"), &dir.join("t.grapnel")]);
        let report: grapnel_tests::report::Report =
            serde_json::from_slice(&json.stdout).unwrap_or_else(|error| panic!("{error}: {}", json.err()));
        assert!(report.totals.allocations > 50_000, "{:?}", report.totals);
    });
}
