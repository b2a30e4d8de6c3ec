//! What grapnel was started with is what the program is started with, and grapnel keeps none of it from ending:
//! signals, descriptors, limits, the working directory.

use grapnel_tests::run::{Case, temporary_dir, wait};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Some daemons and schedulers start their children with SIGCHLD ignored. Then the kernel forgets exit statuses.
#[test]
fn children_ignored() {
    for script in ["exit 7", "exit 0", "kill -KILL $$"] {
        let case =
            Case::new("/bin/sh").args(["-c", script]).launcher(["/usr/bin/env", "--ignore-signal=CHLD"]);
        case.recorded().outcome.same_as(&case.bare());
    }
    let case = Case::ours("surroundings").launcher(["/usr/bin/env", "--ignore-signal=CHLD"]);
    let bare = case.bare();
    assert!(bare.out().contains("ignored 17\n"), "{}", bare.out());
    case.recorded().outcome.same_as(&bare);
}

/// Standard descriptors that were closed are closed for the program, in each combination.
#[test]
fn closed_descriptors() {
    for set in 0..8 {
        let closings: Vec<&str> = ["<&-", ">&-", "2>&-"]
            .into_iter()
            .enumerate()
            .filter(|(bit, _)| set & (1 << bit) != 0)
            .map(|(_, closing)| closing)
            .collect();
        let dir = temporary_dir();
        let file = dir.path().join("closed");
        let case = Case::ours("descriptors").arg(&file).redirected(&closings.join(" "));
        let recorded = case.recorded();
        assert_eq!(recorded.outcome.status.code(), Some(set), "{closings:?} {}", recorded.outcome.err());
        assert!(recorded.report().totals.allocations > 0);
        let expected = format!("closed {} {} {}\n", set & 1, set >> 1 & 1, set >> 2 & 1);
        assert_eq!(std::fs::read_to_string(&file).expect("the program's file"), expected);
    }
}

/// A FIFO that a script waits for.
fn fifo(dir: &Path) -> PathBuf {
    let fifo = dir.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().is_ok_and(|status| status.success()), "a FIFO");
    fifo
}

/// A writer to the program's stdin gets its error when the program closes it, not when grapnel ends.
#[test]
fn stdin_is_let_go() {
    let dir = temporary_dir();
    let fifo = fifo(dir.path());
    let mut child = Case::new("/bin/sh")
        .args(["-c", "exec <&-; echo closed; read word < $FIFO"])
        .env("FIFO", &fifo)
        .grapnel_command(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("grapnel starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut line = [0; 7];
    child.stdout.take().expect("a pipe").read_exact(&mut line).expect("the program says so");
    assert_eq!(&line, b"closed\n");
    // grapnel may need a moment to see that the program was executed.
    let start = Instant::now();
    let error = loop {
        if let Err(error) = input.write_all(b"y\n") {
            break error;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "somebody still holds the other end");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    assert!(child.try_wait().expect("a child").is_none(), "the program still runs");
    std::fs::write(&fifo, "\n").expect("it waits");
    wait(&mut child, Duration::from_secs(60)).expect("grapnel ends with it");
}

/// A reader of the program's output sees its end when the program closes it, be it stdout or a descriptor that
/// only happens to be open.
#[test]
fn output_is_let_go() {
    for (redirections, script) in [("", "exec >&-"), ("9>&1 >/dev/null", "exec 9>&-")] {
        let dir = temporary_dir();
        let fifo = fifo(dir.path());
        let script = format!("{script}; read word < $FIFO");
        let case = Case::new("/bin/sh").args(["-c", &script]).env("FIFO", &fifo).redirected(redirections);
        let mut child = case
            .grapnel_command(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("grapnel starts");
        let mut rest = String::new();
        child.stdout.take().expect("a pipe").read_to_string(&mut rest).expect("the pipe ends");
        assert_eq!(rest, "");
        assert!(child.try_wait().expect("a child").is_none(), "the program still runs: {script}");
        std::fs::write(&fifo, "\n").expect("it waits");
        wait(&mut child, Duration::from_secs(60)).expect("grapnel ends with it");
    }
}

/// Too little address space for all that grapnel would like to map: everything is recorded all the same.
#[test]
fn little_address_space() {
    for kib in [400_000, 700_000, 1_200_000] {
        let case = Case::ours("flood")
            .args(["400", "500"])
            .after(&format!("ulimit -v {kib}"))
            .patience(Duration::from_secs(60));
        let recorded = case.recorded();
        recorded.outcome.same_as(&case.bare());
        let (_, counted) = case.counted(false);
        assert_eq!(recorded.report().totals(), counted[0].totals, "{kib} KiB");
    }
}

/// A directory that was removed is no reason not to run when the trace goes elsewhere.
/// Programs run with less stack than it takes to read a command line.
#[test]
fn little_stack() {
    let case = Case::new("/bin/sh").args(["-c", "ulimit -s"]);
    let case = case.launcher(["/bin/sh", "-c", "ulimit -s 64; exec \"$@\"", "sh"]);
    let bare = case.bare();
    assert_eq!(bare.out(), "64\n", "{}", bare.err());
    case.recorded().outcome.same_as(&bare);
}

#[test]
fn removed_directory() {
    let dir = temporary_dir();
    let gone = dir.path().join("gone");
    let script = format!("mkdir '{0}'; cd '{0}'; rmdir '{0}'", gone.display());
    let case = Case::ours("plain").after(&script);
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    assert_eq!(recorded.report().totals.live_allocations, 2);

    let outcome = Case::new(grapnel_tests::programs::grapnel())
        .args(["run", "--"])
        .arg(grapnel_tests::programs::program("plain"))
        .after(&script)
        .bare();
    assert_eq!(outcome.status.code(), Some(125), "{}", outcome.err());
    assert_eq!((outcome.out().as_str(), outcome.err().lines().count()), ("", 1), "{}", outcome.err());
}
