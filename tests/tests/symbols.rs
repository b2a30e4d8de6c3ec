//! Names of functions on another machine than the recording's: files below a root, names in the trace, servers.

use grapnel_tests::programs;
use grapnel_tests::report::Report;
use grapnel_tests::run::{Case, Outcome, Recorded, grapnel, temporary_dir};
use std::ffi::OsStr;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A recording of a program that is no longer where it was.
struct Moved {
    dir: TempDir,
    recorded: Recorded,
    /// The report while the program was in its place.
    before: Report,
}

impl Moved {
    fn new() -> Self {
        let dir = temporary_dir();
        let app = dir.path().join("app");
        std::fs::copy(programs::program("leaks"), &app).unwrap();
        let recorded = Case::new(&app).arg(programs::library("leak_library")).recorded();
        let before = recorded.report();
        // Where a copy of the machine's files would have it.
        let root = dir.path().join("root");
        let inside = root.join(app.strip_prefix("/").unwrap());
        std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
        std::fs::rename(&app, inside).unwrap();
        Self { dir, recorded, before }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    fn report<T: AsRef<OsStr>>(&self, options: &[T], trace: &Path) -> (Report, String) {
        let outcome = report(options, trace);
        assert!(outcome.status.success(), "{}", outcome.err());
        let report: Report = serde_json::from_slice(&outcome.stdout).unwrap();
        report.check();
        (report, outcome.err())
    }
}

fn report<T: AsRef<OsStr>>(options: &[T], trace: &Path) -> Outcome {
    let mut args = vec![OsStr::new("report"), "--format".as_ref(), "json".as_ref()];
    args.extend(options.iter().map(AsRef::as_ref));
    args.push(trace.as_os_str());
    grapnel(args)
}

/// A frame's function, its line, and whether it was inlined.
type Name = (Option<String>, Option<u64>, bool);

/// The frames of the program, at each site.
fn names(report: &Report) -> Vec<Vec<Name>> {
    let of_app = |module: &Option<String>| module.as_ref().is_some_and(|module| module.ends_with("/app"));
    let sites = report.sites.iter().map(|site| {
        let frames = site.frames.iter().filter(|frame| of_app(&frame.module));
        frames.map(|frame| (frame.function.clone(), frame.line, frame.inlined)).collect()
    });
    sites.collect()
}

#[test]
fn a_program_is_found_below_the_root_of_its_machine() {
    let moved = Moved::new();
    let trace = moved.recorded.trace();
    let (without, notes) = moved.report::<&str>(&[], &trace);
    assert!(notes.contains("/app: No such file"), "{notes}");
    assert_ne!(names(&without), names(&moved.before));
    let (with, notes) = moved.report(&["--sysroot".into(), moved.root()], &trace);
    assert_eq!(names(&with), names(&moved.before));
    assert!(
        notes.contains("libc.so.6") && !notes.contains("/app"),
        "what isn't in it isn't looked for here: {notes}"
    );
}

#[test]
fn a_trace_carries_its_names() {
    let moved = Moved::new();
    let (trace, named) = (moved.recorded.trace(), moved.dir.path().join("named.grapnel"));
    let outcome = grapnel([
        "symbolize".as_ref(),
        "--debug-dir".as_ref(),
        moved.root().as_os_str(),
        "-o".as_ref(),
        named.as_os_str(),
        trace.as_os_str(),
    ]);
    assert!(outcome.status.success(), "{}", outcome.err());
    assert!(outcome.err().contains("addresses have got names"), "{}", outcome.err());
    std::fs::remove_dir_all(moved.root()).unwrap();
    let (report, _) = moved.report::<&str>(&[], &named);
    let (before, after) = (&moved.before, report);
    assert_eq!(names(&after), names(before));
    assert!(names(&after).iter().flatten().any(|(_, _, inlined)| *inlined));
    assert_eq!(after.totals.allocations, before.totals.allocations);
    assert_eq!(after.process.exit, before.process.exit, "the end is where it was");

    // Again, in its own place: nothing new, nothing lost.
    let outcome = grapnel(["symbolize".as_ref(), "-o".as_ref(), named.as_os_str(), named.as_os_str()]);
    assert!(outcome.status.success() && outcome.err().contains("had names before"), "{}", outcome.err());
    assert_eq!(names(&moved.report::<&str>(&[], &named).0), names(before));

    // Cut in its last block: what is whole is named.
    let bytes = std::fs::read(&trace).unwrap();
    let cut = moved.dir.path().join("cut.grapnel");
    std::fs::write(&cut, &bytes[..bytes.len() - 3]).unwrap();
    let outcome = grapnel(["symbolize".as_ref(), "-o".as_ref(), named.as_os_str(), cut.as_os_str()]);
    assert!(outcome.status.success() && outcome.err().contains("stops early"), "{}", outcome.err());
    let outcome = report_text(&named);
    assert!(outcome.err().contains("stops early"), "{}", outcome.err());

    // Damaged in its middle: refused, and what was there is still there.
    let mut bad = bytes.clone();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    std::fs::write(&cut, bad).unwrap();
    let kept = std::fs::read(&named).unwrap();
    let outcome = grapnel(["symbolize".as_ref(), "-o".as_ref(), named.as_os_str(), cut.as_os_str()]);
    assert_eq!(outcome.status.code(), Some(1));
    assert!(outcome.err().contains("isn't written anew"), "{}", outcome.err());
    assert_eq!(std::fs::read(&named).unwrap(), kept);
}

fn report_text(trace: &Path) -> Outcome {
    grapnel([OsStr::new("report"), trace.as_os_str()])
}

#[test]
fn servers_are_asked_on_request_only() {
    let moved = Moved::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let ask = |options: &[&str]| {
        let output = Command::new(programs::grapnel())
            .args(["report", "--format", "json"])
            .args(options)
            .arg(moved.recorded.trace())
            .env("DEBUGINFOD_URLS", &url)
            .env("DEBUGINFOD_TIMEOUT", "1")
            .env("XDG_CACHE_HOME", moved.dir.path())
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    ask(&[]);
    assert!(listener.accept().is_err(), "nobody was asked");
    // This one takes the question, and never answers.
    let notes = ask(&["--debuginfod"]);
    assert!(listener.accept().is_ok());
    assert!(notes.contains(&format!("{url} gave no debug file")), "{notes}");
}

#[test]
fn options_that_lead_nowhere() {
    let recorded = Case::ours("plain").recorded();
    let trace = recorded.trace();
    for (options, said) in [
        (&["--sysroot", "/nonexistent/root"][..], "--sysroot /nonexistent/root: No such file"),
        (&["--debug-dir", "/etc/passwd"], "--debug-dir /etc/passwd: it is no directory"),
        (&["--debuginfod=ftp://host"], "ftp://host is no address"),
        (&["--debuginfod="], "no debuginfod server is named"),
    ] {
        let outcome = report(options, &trace);
        assert_eq!(outcome.status.code(), Some(1), "{options:?}");
        assert!(outcome.err().contains(said) && outcome.err().lines().count() == 1, "{}", outcome.err());
    }
}
