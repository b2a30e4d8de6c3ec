//! What a program can see of how it was started is the same with and without grapnel.

use grapnel_tests::programs;
use grapnel_tests::run::{Case, finish, grapnel, report, temporary_dir};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

#[test]
fn surroundings() {
    let case = Case::ours("surroundings").args(["one", "two words", "", "-o", "--", "é\n"]);
    let bare = case.bare();
    assert!(bare.out().contains("argument 2 [two words]"), "{}", bare.out());
    assert!(bare.out().contains("LD_PRELOAD is not set"), "{}", bare.out());
    case.recorded().outcome.same_as(&bare);
}

/// The user's own LD_PRELOAD stays, with its spelling.
#[test]
fn preload_of_the_user() {
    let library = programs::truth_library();
    let case = Case::ours("surroundings").env("LD_PRELOAD", &library);
    let bare = case.bare();
    // Without TRUTH_DIR the library counts nothing, but it hides itself all the same.
    assert!(bare.out().contains("LD_PRELOAD is not set"));
    case.recorded().outcome.same_as(&bare);

    let plug = programs::library("leak_library");
    let case = Case::ours("surroundings").env("LD_PRELOAD", &plug);
    let bare = case.bare();
    assert!(bare.out().contains(&format!("LD_PRELOAD {}", plug.display())));
    case.recorded().outcome.same_as(&bare);
}

/// Signal dispositions and masks, descriptors, the umask, niceness and limits pass through.
#[test]
fn what_is_inherited() {
    let dir = temporary_dir();
    let surroundings = programs::program("surroundings");
    let bare = Case::ours("launcher").arg(&surroundings).bare();
    for fact in
        ["ignored 13", "ignored 10", "blocked 12", "blocked 28", "umask 37", "priority 3", "descriptor 7"]
    {
        assert!(bare.out().contains(fact), "{fact}: {}", bare.out());
    }
    let with = Case::ours("launcher")
        .arg(programs::grapnel())
        .args(["run", "-q", "-o"])
        .arg(dir.path().join("t.grapnel"))
        .arg("--")
        .arg(&surroundings)
        .bare();
    with.same_as(&bare);
}

/// stdin as a pipe that is fed while the program runs, stdout as a pipe.
#[test]
fn pipes() {
    let dir = temporary_dir();
    let mut child = Case::new("/bin/cat")
        .grapnel_command(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("grapnel starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut output = child.stdout.take().expect("a pipe");
    let mut buffer = [0; 6];
    for n in 0..5 {
        let line = format!("line{n}\n");
        input.write_all(line.as_bytes()).expect("the program reads");
        output.read_exact(&mut buffer).expect("the program answers at once");
        assert_eq!(buffer, line.as_bytes());
    }
    drop(input);
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("the pipe closes with the program");
    assert_eq!(rest, "");
    assert!(child.wait().expect("grapnel ends").success());
}

/// A program that writes into a closed pipe dies of it as it would.
#[test]
fn closed_pipe() {
    let dir = temporary_dir();
    let script = |command: &str| format!("({command}; echo $? >&2) | head -1");
    let bare = Case::new("/bin/sh").args(["-c", &script("yes")]).bare();
    let with =
        format!("{} run -q -o {}/t.grapnel -- yes", programs::grapnel().display(), dir.path().display());
    let recorded = Case::new("/bin/sh").args(["-c", &script(&with)]).bare();
    recorded.same_as(&bare);
}

/// Without -q a summary of about ten lines goes to stderr and says where the trace is; stdout is untouched.
#[test]
fn summary() {
    let dir = temporary_dir();
    let trace = dir.path().join("t.grapnel");
    let bare = Case::ours("plain").bare();
    let with = Case::new(programs::grapnel())
        .args(["run", "-o"])
        .arg(&trace)
        .arg("--")
        .arg(programs::program("plain"))
        .bare();
    assert_eq!(with.out(), bare.out());
    let err = with.err();
    assert!(err.contains("t.grapnel"), "the trace is named: {err}");
    assert!((4..=14).contains(&err.lines().count()), "about ten lines: {err}");
    assert!(!err.contains('\x1b'), "no colours when it isn't a terminal: {err:?}");
    assert!(!err.contains('\r'), "no progress when it isn't a terminal: {err:?}");
}

/// On a terminal there is a progress line, on stderr only.
#[test]
fn progress_on_a_terminal() {
    let dir = temporary_dir();
    let steady = programs::program("steady");
    let command = format!(
        "{} run -o {}/t.grapnel -- {} 15 > {}/out",
        programs::grapnel().display(),
        dir.path().display(),
        steady.display(),
        dir.path().display()
    );
    let terminal = finish(
        Command::new("/usr/bin/script").args(["-qec", &command, "/dev/null"]).env("TERM", "xterm"),
        b"",
    );
    let bare = Case::new(&steady).arg("15").bare();
    assert_eq!(terminal.status.code(), bare.status.code());
    let out = std::fs::read(dir.path().join("out")).expect("stdout was redirected");
    assert_eq!(String::from_utf8_lossy(&out), bare.out());
    assert!(terminal.out().contains('\r'), "a line that is rewritten: {:?}", terminal.out());
}

/// Without -o the trace is `<program>.<pid>.grapnel` in the current directory.
#[test]
fn default_name() {
    let dir = temporary_dir();
    let plain = programs::program("plain");
    let mut command = Command::new(programs::grapnel());
    command.args(["run", "-q", "--"]).arg(&plain).current_dir(dir.path());
    let outcome = finish(&mut command, b"");
    assert_eq!(outcome.out(), "plain 1\n");
    let traces = grapnel_tests::run::traces_in(dir.path());
    assert_eq!(traces.len(), 1, "{traces:?}");
    let report = report(&traces[0]);
    let name = traces[0].file_name().map(|name| name.to_string_lossy().into_owned());
    assert_eq!(name, Some(format!("plain.{}.grapnel", report.process.pid)));
}

/// The executable alone, in an empty directory, with no environment at all.
#[test]
fn one_file_is_enough() {
    let dir = temporary_dir();
    let copy = dir.path().join("grapnel");
    std::fs::copy(programs::grapnel(), &copy).expect("the executable can be copied");
    let plain = programs::program("plain");
    let mut command = Command::new(&copy);
    command.args(["run", "-q", "-o", "t.grapnel", "--"]).arg(&plain).env_clear().current_dir(dir.path());
    let outcome = finish(&mut command, b"");
    assert_eq!((outcome.out().as_str(), outcome.err().as_str()), ("plain 1\n", ""));
    let mut command = Command::new(&copy);
    command.args(["report", "t.grapnel"]).env_clear().current_dir(dir.path());
    let outcome = finish(&mut command, b"");
    assert!(outcome.status.success(), "{}", outcome.err());
    assert!(outcome.out().contains("main"), "{}", outcome.out());
    let mut left: Vec<_> = std::fs::read_dir(dir.path())
        .expect("the directory is there")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    left.sort();
    assert_eq!(left, ["grapnel", "t.grapnel"], "nothing else is left behind");
}

/// The text report is plain when piped and names what it counts.
#[test]
fn text_report() {
    let recorded = Case::ours("leaks").arg(programs::library("leak_library")).recorded();
    let outcome = grapnel(["report".as_ref(), recorded.trace().as_os_str()]);
    assert!(outcome.status.success(), "{}", outcome.err());
    let text = outcome.out();
    assert!(!text.contains('\x1b'), "colours in a pipe");
    for word in ["leaks.c", "leak_library.c", "inlined_leak", "grown_leak", "peak", "temporary"] {
        assert!(text.contains(word), "{word} in\n{text}");
    }
}

#[test]
fn help_teaches() {
    for arguments in [vec!["--help"], vec!["run", "--help"], vec!["report", "--help"]] {
        let outcome = grapnel(&arguments);
        assert!(outcome.status.success());
        assert!(
            outcome.out().contains("grapnel run") || outcome.out().contains("grapnel report"),
            "examples"
        );
    }
}
