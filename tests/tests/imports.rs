//! heaptrack's files as traces: the figures are those of heaptrack_print on the same file.

use grapnel_tests::programs;
use grapnel_tests::report::Report;
use grapnel_tests::run::{Case, Outcome, grapnel, report, temporary_dir};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use tempfile::TempDir;

/// What heaptrack recorded of a program: `app.raw.zst`, and interpreted `app.zst`.
struct Recorded {
    dir: TempDir,
}

impl Recorded {
    fn new(program: &[&OsStr]) -> Self {
        let dir = temporary_dir();
        let raw = dir.path().join("app");
        run(Command::new("heaptrack").args(["-r", "-o"]).arg(&raw).args(program));
        // What `heaptrack` does by itself without `-r`; its window has no command for it in all versions.
        let (interpreter, packed) =
            ("/usr/lib/heaptrack/libexec/heaptrack_interpret", dir.path().join("app.zst"));
        run(Command::new("bash")
            .args(["-o", "pipefail", "-c", "zstd -dc \"$1\" | \"$2\" | zstd -c >\"$3\"", "bash"])
            .arg(dir.path().join("app.raw.zst"))
            .args([OsStr::new(interpreter), packed.as_os_str()]));
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

static LEAKS: LazyLock<Recorded> = LazyLock::new(|| {
    Recorded::new(&[programs::program("leaks").as_os_str(), programs::library("leak_library").as_os_str()])
});

fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}: ./test installs it"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The sum of a figure over all stacks, as heaptrack_print has it.
fn heaptracks(file: &Path, figure: &str) -> u64 {
    let dir = temporary_dir();
    let stacks = dir.path().join("stacks");
    let options = ["--disable-builtin-suppressions", "--disable-embedded-suppressions"];
    run(Command::new("heaptrack_print")
        .args(options)
        .args(["--flamegraph-cost-type", figure])
        .arg("-F")
        .arg(&stacks)
        .arg(file));
    let text = std::fs::read_to_string(stacks).unwrap();
    text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

fn import(file: &Path, output: &Path) -> Outcome {
    grapnel(["import".as_ref(), "-o".as_ref(), output.as_os_str(), file.as_os_str()])
}

/// The report on what was imported without a fault.
fn imported(file: &Path) -> Report {
    let dir = temporary_dir();
    let trace = dir.path().join("t.grapnel");
    let outcome = import(file, &trace);
    assert!(outcome.status.success(), "{}", outcome.err());
    let outcome = grapnel([OsStr::new("report"), "--format".as_ref(), "json".as_ref(), trace.as_ref()]);
    assert!(outcome.status.success(), "{}", outcome.err());
    let report: Report = serde_json::from_slice(&outcome.stdout).unwrap();
    report.check();
    report
}

fn temporary(report: &Report) -> u64 {
    report.sites.iter().map(|site| site.temporary_allocations).sum()
}

/// Blocks of the first kind that heaptrack takes for temporary ones because it keeps a 0 where nothing was given out since.
fn mistaken(file: &Path) -> u64 {
    let text = Command::new("zstd").arg("-dc").arg(file).output().expect("zstd").stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    let events: Vec<&str> = text.lines().filter(|line| line.starts_with(['+', '-'])).collect();
    let is_mistaken = |two: &&[&str]| two[1] == "- 0" && two[0].starts_with('-');
    events.windows(2).filter(is_mistaken).count() as u64
}

#[test]
fn interpreted_files_have_heaptracks_totals_and_names() {
    let python = Recorded::new(
        &["/usr/bin/python3", "-c", "import json; json.dumps(list(range(3000)))"].map(OsStr::new),
    );
    for recorded in [&*LEAKS, &python] {
        let file = recorded.path("app.zst");
        let report = imported(&file);
        let totals = &report.totals;
        assert!(totals.allocations > 100, "{totals:?}");
        assert_eq!(totals.allocations, heaptracks(&file, "allocations"));
        assert_eq!(totals.peak_bytes, heaptracks(&file, "peak"));
        assert_eq!(totals.live_bytes, heaptracks(&file, "leaked"));
        // A block that goes after another has gone is one here, and none for heaptrack.
        assert!(temporary(&report) + mistaken(&file) >= heaptracks(&file, "temporary"), "{}", file.display());
    }
    let report = imported(&LEAKS.path("app.zst"));
    let line = programs::marked_line("leaks.c", "LEAK list");
    let is_it = |site: &grapnel_tests::report::Site| {
        site.live_bytes > 0
            && site.frames.iter().any(|frame| frame.is_at("leaks.c", line))
            && site.frames.iter().any(|frame| frame.name() == "main")
    };
    assert!(report.sites.iter().any(is_it), "line {line}");
    assert!(report.sites.iter().any(|site| site.frames.iter().any(|frame| frame.inlined)));
}

#[test]
fn raw_files_are_interpreted_here() {
    let (raw, interpreted) = (LEAKS.path("app.raw.zst"), LEAKS.path("app.zst"));
    let report = imported(&raw);
    let totals = &report.totals;
    assert_eq!(totals.allocations, heaptracks(&interpreted, "allocations"));
    assert_eq!(totals.peak_bytes, heaptracks(&interpreted, "peak"));
    assert_eq!(totals.live_bytes, heaptracks(&interpreted, "leaked"));
    // Lines come from the program's own file here.
    let line = programs::marked_line("leaks.c", "LEAK inlined");
    let found = report.sites.iter().any(|site| site.frames.iter().any(|frame| frame.is_at("leaks.c", line)));
    assert!(found, "line {line}");
    assert_eq!(report.process.command.len(), 2, "{:?}", report.process.command);
}

#[test]
fn packing_is_seen_in_the_file_itself() {
    let dir = temporary_dir();
    let plain = dir.path().join("plain");
    let text = Command::new("zstd").arg("-dc").arg(LEAKS.path("app.zst")).output().expect("zstd").stdout;
    std::fs::write(&plain, &text).unwrap();
    let gzip = dir.path().join("named.zst");
    let packed = Command::new("gzip").arg("-c").arg(&plain).output().expect("gzip").stdout;
    std::fs::write(&gzip, packed).unwrap();
    let expected = imported(&LEAKS.path("app.zst")).totals;
    for file in [plain, gzip] {
        assert_eq!(format!("{:?}", imported(&file).totals), format!("{expected:?}"), "{}", file.display());
    }
}

#[test]
fn what_is_exported_comes_back() {
    let recorded = Case::ours("leaks").arg(programs::library("leak_library")).recorded();
    let (dir, trace) = (temporary_dir(), recorded.trace());
    let file = dir.path().join("app.heaptrack.gz");
    let outcome = grapnel(["export".as_ref(), "-o".as_ref(), file.as_os_str(), trace.as_os_str()]);
    assert!(outcome.status.success(), "{}", outcome.err());
    let (before, after) = (report(&trace), imported(&file));
    let given = |report: &Report| report.totals.allocations + report.totals.reallocations;
    let figures = |report: &Report| {
        let totals = &report.totals;
        (given(report), totals.allocated_bytes, totals.peak_bytes, totals.live_bytes, totals.live_allocations)
    };
    assert_eq!(figures(&before), figures(&after));
    assert_eq!(before.sites.len(), after.sites.len());
}

#[test]
fn files_that_break_off_or_lie_are_imported_up_to_there() {
    let dir = temporary_dir();
    let text = Command::new("zstd").arg("-dc").arg(LEAKS.path("app.zst")).output().expect("zstd").stdout;
    let lines: Vec<&[u8]> = text.split_inclusive(|&byte| byte == b'\n').collect();
    let file = dir.path().join("file");
    let trace = dir.path().join("t.grapnel");
    for bad in [
        "t 7fffffff 1\n",
        "+ ffffff\n",
        "a 10\n",
        "i 10 ffff\n",
        "s ffff short\n",
        "c fffffffffffffff\n",
        "Z\n",
    ] {
        std::fs::write(&file, [&lines[..200].concat(), bad.as_bytes(), &lines[200..].concat()].concat())
            .unwrap();
        let outcome = import(&file, &trace);
        assert_eq!(outcome.status.code(), Some(1), "{bad}: {}", outcome.err());
        assert!(outcome.err().contains("line 201 "), "{bad}: {}", outcome.err());
        let said = grapnel(["report".as_ref(), trace.as_os_str()]);
        assert!(said.status.success() && said.err().contains("stops early"), "{}", said.err());
    }
    let packed = std::fs::read(LEAKS.path("app.zst")).unwrap();
    std::fs::write(&file, &packed[..packed.len() / 2]).unwrap();
    let outcome = import(&file, &trace);
    assert_eq!(outcome.status.code(), Some(1), "{}", outcome.err());
    // What is no such file leaves what was there.
    for (content, word) in
        [("ELF", "not a file of heaptrack's"), ("v 10900 9\n", "version 9"), ("", "not a file of")]
    {
        std::fs::write(&file, content).unwrap();
        std::fs::write(&trace, "before").unwrap();
        let outcome = import(&file, &trace);
        assert_eq!(outcome.status.code(), Some(1));
        assert!(outcome.err().contains(word), "{}", outcome.err());
        assert_eq!(std::fs::read_to_string(&trace).unwrap(), "before");
    }
    let outcome = grapnel([OsStr::new("report"), LEAKS.path("app.zst").as_os_str()]);
    assert!(outcome.err().contains("grapnel import"), "{}", outcome.err());
}
