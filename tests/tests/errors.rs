//! Bad input: each error is one line that says what to do, with the right exit status, and no panic.

use grapnel_tests::run::{Case, Outcome, finish, grapnel, temporary_dir};
use grapnel_tests::{is_root, programs, skipped};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// grapnel's own failure before the program starts.
const OWN: i32 = 125;

/// The program is there and can't be executed, as the shell has it, or not with the agent inside.
const REFUSED: i32 = 126;

fn run(program: &Path) -> Outcome {
    let dir = temporary_dir();
    let outcome = Case::new(program).recorded().outcome;
    drop(dir);
    outcome
}

/// One line on stderr, nothing on stdout, this status, and these words.
fn expect(outcome: &Outcome, status: i32, words: &[&str]) {
    let err = outcome.err();
    assert_eq!(err.lines().count(), 1, "one line: {err}");
    assert_eq!(outcome.out(), "", "nothing on stdout");
    assert!(!err.contains("panicked"), "{err}");
    assert_eq!(outcome.status.code(), Some(status), "{err}");
    for word in words {
        assert!(err.to_lowercase().contains(&word.to_lowercase()), "{word:?} in: {err}");
    }
}

fn file(dir: &Path, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).expect("the file can be written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("the mode can be set");
    path
}

#[test]
fn no_such_program() {
    expect(&run(Path::new("/nowhere/at/all")), 127, &["/nowhere/at/all"]);
    expect(&run(Path::new("no-such-program-in-path")), 127, &["no-such-program-in-path"]);
    expect(&run(Path::new("")), 127, &[]);
}

#[test]
fn not_executable() {
    let dir = temporary_dir();
    let data = file(dir.path(), "data", b"just text\n", 0o644);
    expect(&run(&data), 126, &["data"]);
    expect(&run(dir.path()), 126, &[]);
    // No format that the kernel knows: /bin/sh takes it for a script, as execvp has it.
    let script = file(dir.path(), "shebangless", b"echo \"$0\" is run; exit 3\n", 0o755);
    let by_env = Case::new("/usr/bin/env").arg(&script).bare();
    assert_eq!(by_env.status.code(), Some(3), "{}", by_env.err());
    Case::new(&script).recorded().outcome.same_as(&by_env);
    let no_interpreter = file(dir.path(), "script", b"#!/nowhere/interpreter\n", 0o755);
    let outcome = run(&no_interpreter);
    assert!(matches!(outcome.status.code(), Some(126 | 127)), "{:?} {}", outcome.status, outcome.err());
    expect(&outcome, outcome.status.code().unwrap_or_default(), &["script"]);
}

/// Statically linked: nothing can be preloaded. It isn't run, so that nobody takes an empty trace for an answer.
#[test]
fn static_program() {
    expect(&run(&programs::static_program("plain")), REFUSED, &["static"]);
}

/// A header of a 32-bit program for x86.
#[test]
fn thirty_two_bits() {
    let dir = temporary_dir();
    let mut elf = vec![0u8; 52 + 32];
    elf[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
    elf[16] = 2; // executable
    elf[18] = 3; // 80386
    elf[20] = 1;
    elf[28] = 52; // program headers
    elf[40] = 52; // size of this header
    elf[42] = 32;
    elf[44] = 1;
    let program = file(dir.path(), "old", &elf, 0o755);
    expect(&run(&program), REFUSED, &["32-bit"]);
}

/// An x86-64 file that is cut short, or for another machine.
#[test]
fn damaged_and_foreign_programs() {
    let dir = temporary_dir();
    let whole = std::fs::read(programs::program("plain")).expect("the program can be read");
    for cut in [4, 16, 63, 64, 100, 500] {
        let program = file(dir.path(), &format!("cut{cut}"), &whole[..cut], 0o755);
        let outcome = run(&program);
        assert_eq!(outcome.err().lines().count(), 1, "{cut}: {}", outcome.err());
        assert!(!outcome.err().contains("panicked"));
        assert!(matches!(outcome.status.code(), Some(125..=127)), "{cut}: {:?}", outcome.status);
    }
    let mut foreign = whole;
    foreign[18] = 183; // AArch64
    let outcome = run(&file(dir.path(), "foreign", &foreign, 0o755));
    assert_eq!(outcome.err().lines().count(), 1, "{}", outcome.err());
    assert!(matches!(outcome.status.code(), Some(125 | 126)), "{:?}", outcome.status);
}

/// The kernel ignores LD_PRELOAD for a set-uid program whose owner is someone else.
#[test]
fn set_uid() {
    if !is_root() {
        skipped("a set-uid program", "making one needs root");
        return;
    }
    let dir = temporary_dir();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))
        .expect("the mode can be set");
    let whole = std::fs::read(programs::program("plain")).expect("the program can be read");
    let program = file(dir.path(), "privileged", &whole, 0o755);
    std::os::unix::fs::chown(&program, Some(65534), Some(65534)).expect("root may give files away");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).expect("the mode can be set");
    expect(&run(&program), REFUSED, &["set-uid"]);
}

#[test]
fn output_that_cannot_be_written() {
    let plain = programs::program("plain");
    for output in ["/nowhere/at/all/t.grapnel", "/proc/t.grapnel", "/"] {
        let outcome = grapnel([
            "run".as_ref(),
            "-q".as_ref(),
            "-o".as_ref(),
            output.as_ref(),
            "--".as_ref(),
            plain.as_os_str(),
        ]);
        expect(&outcome, OWN, &[output.trim_end_matches("t.grapnel").trim_end_matches('/')]);
    }
}

/// What is made for other tools is whole, or there is an error.
#[test]
fn what_is_printed_to_a_full_disk_is_not_lost_silently() {
    for arguments in [&["header"][..], &["header", "malloc-debug"], &["completions", "bash"], &["agent-path"]]
    {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
        let cache = temporary_dir();
        let mut command = Command::new(programs::grapnel());
        command.args(arguments).env("XDG_CACHE_HOME", cache.path()).stdout(full);
        let outcome = command.output().expect("grapnel can be started");
        let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
        assert_eq!(outcome.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("No space left"), "{arguments:?}: {said}");
    }
    let outcome = grapnel(["man", "/dev/null"]);
    assert_eq!(outcome.status.code(), Some(1));
    assert!(outcome.err().contains("/dev/null: "), "{}", outcome.err());
}

/// Every write fails from the first on: the program runs all the same.
#[test]
fn full_from_the_start() {
    let flood = Case::ours("flood").args(["100", "100"]);
    let mut command = Command::new(programs::grapnel());
    command.args(["run", "-q", "-o", "/dev/full", "--"]).arg(programs::program("flood")).args(["100", "100"]);
    let outcome = finish(&mut command, b"");
    assert!(!outcome.err().contains("panicked"), "{}", outcome.err());
    assert_eq!(outcome.err().lines().count(), 1, "{}", outcome.err());
    let ran = outcome.out() == flood.bare().out();
    assert!(ran || outcome.status.code() == Some(OWN), "it runs, or it is refused: {:?}", outcome.status);
}

#[test]
fn usage() {
    for arguments in
        [&["run"][..], &["run", "--"], &["run", "--no-such-option", "--", "true"], &["report"], &["fly"]]
    {
        let outcome = grapnel(arguments);
        assert_eq!(
            outcome.status.code(),
            Some(if arguments[0] == "run" { outcome.status.code().unwrap_or(0) } else { 2 })
        );
        assert!(matches!(outcome.status.code(), Some(2 | OWN)), "{arguments:?}: {:?}", outcome.status);
        assert_eq!(outcome.out(), "");
        assert!(!outcome.err().contains("panicked"), "{}", outcome.err());
    }
}

fn report(path: &Path) -> Outcome {
    grapnel([Path::new("report"), Path::new("--format"), Path::new("json"), path])
}

#[test]
fn not_a_trace() {
    let dir = temporary_dir();
    expect(&report(&dir.path().join("absent")), 1, &["absent"]);
    expect(&report(&file(dir.path(), "empty", b"", 0o644)), 1, &["empty"]);
    expect(
        &report(&file(dir.path(), "text", b"hello, this is not a trace\n", 0o644)),
        1,
        &["not a grapnel trace"],
    );
    expect(&report(&file(dir.path(), "zeros", &[0; 10_000], 0o644)), 1, &["zeros"]);
    expect(&report(dir.path()), 1, &[]);
    expect(&report(&programs::program("plain")), 1, &["not a grapnel trace"]);
}

/// A trace of a program with enough events for several blocks.
fn trace() -> (grapnel_tests::run::Recorded, Vec<u8>) {
    let recorded = Case::ours("flood").args(["200", "500"]).recorded();
    let bytes = std::fs::read(recorded.trace()).expect("the trace is there");
    (recorded, bytes)
}

#[test]
fn another_version() {
    let (recorded, mut bytes) = trace();
    // The mark and the version stand in the first ten bytes: a change of any of them is a clear error.
    let mut versions = 0;
    for at in 0..10 {
        let old = bytes[at];
        bytes[at] = old.wrapping_add(1);
        let outcome = report(&file(recorded.dir.path(), "other", &bytes, 0o644));
        bytes[at] = old;
        expect(&outcome, 1, &["other"]);
        versions += usize::from(outcome.err().contains("version"));
    }
    assert!(versions >= 1, "one of the bytes is the version");
}

/// Cut at many places: what lies before the cut is read, with a note of one line; a trace without its
/// beginning is an error of one line.
#[test]
fn cut_short() {
    let (recorded, bytes) = trace();
    let mut last = 0;
    let cuts =
        (0..64).chain((64..bytes.len()).step_by(bytes.len() / 40)).chain(bytes.len() - 20..bytes.len());
    for cut in cuts {
        let path = file(recorded.dir.path(), "cut", &bytes[..cut], 0o644);
        let outcome = report(&path);
        let err = outcome.err();
        assert!(!err.contains("panicked"), "cut at {cut}: {err}");
        assert!(err.lines().count() <= 1, "cut at {cut}: {err}");
        match outcome.status.code() {
            Some(0) => {
                let report: grapnel_tests::report::Report =
                    serde_json::from_slice(&outcome.stdout).expect("JSON");
                assert!(report.totals.allocations >= last, "a longer trace has no fewer events: {cut}");
                last = report.totals.allocations;
            }
            Some(1) => {
                assert_eq!(outcome.out(), "");
                assert_eq!(last, 0, "a longer trace is no less readable: {cut}: {err}");
            }
            other => panic!("cut at {cut}: {other:?} {err}"),
        }
    }
    assert!(last > 100_000, "the longest cut has nearly all: {last}");
}

/// A flipped bit is noticed, or it makes no difference.
#[test]
fn flipped_bits() {
    let (recorded, mut bytes) = trace();
    let whole = recorded.report();
    for step in 0..120 {
        let at = step * bytes.len() / 120;
        let bit = 1 << (step % 8);
        bytes[at] ^= bit;
        let outcome = report(&file(recorded.dir.path(), "flipped", &bytes, 0o644));
        bytes[at] ^= bit;
        let err = outcome.err();
        assert!(!err.contains("panicked"), "flipped at {at}: {err}");
        assert!(err.lines().count() <= 1, "flipped at {at}: {err}");
        match outcome.status.code() {
            Some(0) if err.is_empty() => {
                let report: grapnel_tests::report::Report =
                    serde_json::from_slice(&outcome.stdout).expect("JSON");
                assert_eq!(report.totals(), whole.totals(), "flipped at {at}: not noticed");
            }
            Some(0 | 1) => assert_eq!(err.lines().count(), 1, "flipped at {at}"),
            other => panic!("flipped at {at}: {other:?} {err}"),
        }
    }
}

/// A trace that another user prepared, as a file or as a link to one's own, is not written.
#[test]
fn a_trace_that_another_user_prepared() {
    if !is_root() {
        skipped("another user's file in the trace's place", "needs root");
        return;
    }
    let dir = temporary_dir();
    let (theirs, link, precious) =
        (dir.path().join("theirs"), dir.path().join("link"), dir.path().join("precious"));
    std::fs::write(&theirs, "").expect("the file can be written");
    std::fs::write(&precious, "mine").expect("the file can be written");
    std::os::unix::fs::symlink(&precious, &link).expect("a link can be made");
    for path in [&theirs, &link] {
        std::os::unix::fs::lchown(path, Some(65534), Some(65534)).expect("root may give files away");
    }
    for (path, words) in [(&theirs, "another user's file"), (&link, "another user made a link")] {
        let path = path.to_str().expect("the path is text");
        let outcome = grapnel(["run", "-q", "-o", path, "--", "/bin/true"]);
        expect(&outcome, OWN, &[path, words]);
    }
    assert_eq!(std::fs::read(&precious).expect("it is there"), b"mine");
}
