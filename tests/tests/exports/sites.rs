//! Formats that hold the sites' figures, and what can go wrong with files.

use crate::common::{RECORDED, REPORT, export, exported, measures, said_by};
use grapnel_tests::programs;
use grapnel_tests::run::{Case, finish, grapnel, temporary_dir};
use std::ffi::OsStr;
use std::path::Path;

#[test]
fn collapsed_stacks_add_up() {
    for (measure, whole) in measures() {
        let outcome = export(&[&"--format", &"collapsed", &"--measure", &measure]);
        let text = outcome.out();
        let figures = text.lines().map(|line| {
            let (stack, figure) = line.rsplit_once(' ').expect("a figure behind the stack");
            assert!(!stack.is_empty() && !stack.split(';').any(str::is_empty), "{line}");
            figure.parse::<u64>().expect("a number")
        });
        assert_eq!(figures.sum::<u64>(), whole, "{measure}");
    }
    let live = export(&[&"--format", &"collapsed", &"--measure", &"live"]).out();
    assert!(
        live.lines().any(|line| line.starts_with("_start;") && line.contains(";main;")),
        "root first: {live}"
    );
}

#[test]
fn a_flame_graph_is_an_svg() {
    let dir = temporary_dir();
    let svg = exported(dir.path(), "leaks.svg", &["--measure", "live"]);
    said_by("xmllint", &["--noout".as_ref(), "--nonet".as_ref(), svg.as_os_str()]);
    let text = std::fs::read_to_string(&svg).unwrap();
    assert!(text.contains("Bytes live at the end") && text.contains("<title>main ("), "{text}");
}

#[test]
fn pprof_sees_the_same_totals() {
    let dir = temporary_dir();
    let file = exported(dir.path(), "leaks.pb.gz", &[]);
    let raw = said_by("go", &["tool".as_ref(), "pprof".as_ref(), "-raw".as_ref(), file.as_os_str()]);
    let types = "alloc_objects/count alloc_space/bytes inuse_objects/count inuse_space/bytes peak_space/bytes[dflt] temporary_objects/count";
    assert!(raw.lines().any(|line| line == types), "{raw}");
    let samples = raw.split(types).nth(1).unwrap().split("Locations").next().unwrap();
    let mut sums = [0; 6];
    for line in samples.lines().filter(|line| line.contains(": ")) {
        let (figures, _) = line.split_once(": ").unwrap();
        for (sum, figure) in sums.iter_mut().zip(figures.split_whitespace()) {
            *sum += figure.parse::<u64>().unwrap();
        }
    }
    let of = |name: &str| measures().iter().find(|(measure, _)| *measure == name).unwrap().1;
    let live_blocks = REPORT.sites.iter().map(|site| site.live_allocations).sum();
    let expected = [of("allocations"), of("allocated"), live_blocks, of("live"), of("peak"), of("temporary")];
    assert_eq!(sums, expected);
    // A leak's line is there, and inlined calls are one location.
    let line = programs::marked_line("leaks.c", "LEAK inlined");
    let place = format!("leaks.c:{line}");
    assert!(raw.contains(&place), "{place}: {raw}");
    let listed = [
        "tool".as_ref(),
        "pprof".as_ref(),
        "-top".as_ref(),
        "-sample_index=inuse_space".as_ref(),
        "-nodefraction=0".as_ref(),
        file.as_os_str(),
    ];
    assert!(said_by("go", &listed).contains("100% of"), "all of it is shown");
}

#[test]
fn speedscope_accepts_its_form() {
    let dir = temporary_dir();
    let file = exported(dir.path(), "leaks.speedscope.json", &["--measure", "live"]);
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/speedscope-file-format-schema.json");
    let validate = "import json, sys, jsonschema\n\
        jsonschema.validate(json.load(open(sys.argv[1])), json.load(open(sys.argv[2])))";
    said_by("/usr/bin/python3", &["-c".as_ref(), validate.as_ref(), file.as_os_str(), schema.as_os_str()]);
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(json["activeProfileIndex"], 1);
    let frames = json["shared"]["frames"].as_array().unwrap();
    for (profile, (measure, whole)) in json["profiles"].as_array().unwrap().iter().zip(measures()) {
        let weights = profile["weights"].as_array().unwrap();
        assert_eq!(weights.iter().map(|weight| weight.as_u64().unwrap()).sum::<u64>(), whole, "{measure}");
        assert_eq!(profile["endValue"], whole);
        let samples = profile["samples"].as_array().unwrap();
        assert_eq!(samples.len(), weights.len());
        let numbers = samples.iter().flat_map(|stack| stack.as_array().unwrap());
        assert!(numbers.into_iter().all(|number| (number.as_u64().unwrap() as usize) < frames.len()));
    }
}

#[test]
fn a_table_can_be_imported() {
    let dir = temporary_dir();
    let file = exported(dir.path(), "leaks.csv", &[]);
    let import = format!(".import --csv {} sites", file.display());
    let sums = "select sum(peak_bytes), sum(live_bytes), sum(allocated_bytes), sum(allocations), \
        sum(temporary_allocations), count(*) from sites";
    let text = said_by("sqlite3", &[":memory:".as_ref(), import.as_ref(), sums.as_ref()]);
    let mut expected: Vec<String> = measures().iter().map(|(_, whole)| whole.to_string()).collect();
    expected.push(REPORT.sites.len().to_string());
    assert_eq!(text.trim(), expected.join("|"));
    let line = programs::marked_line("leaks.c", "LEAK list");
    let place =
        format!("select count(*) from sites where stack like '%main%' and place like '%leaks.c:{line}'");
    let text = said_by("sqlite3", &[":memory:".as_ref(), import.as_ref(), place.as_ref()]);
    assert_ne!(text.trim(), "0");
}

#[test]
fn what_was_there_stays_if_nothing_can_be_written() {
    let dir = temporary_dir();
    let file = dir.path().join("kept.svg");
    std::fs::write(&file, "before").unwrap();
    let empty = Case::new("/bin/true").recorded();
    let arguments: [&OsStr; 6] = [
        "export".as_ref(),
        "--measure".as_ref(),
        "temporary".as_ref(),
        "-o".as_ref(),
        file.as_os_str(),
        &empty.trace().into_os_string(),
    ];
    let outcome = grapnel(arguments);
    assert_eq!(outcome.status.code(), Some(1), "{}", outcome.err());
    assert!(outcome.err().contains("nothing to draw"), "{}", outcome.err());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "before");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");

    for (output, word) in [("/dev/full", "No space"), ("/nowhere/x.svg", "No such file")] {
        let outcome = export(&[&"--format", &"collapsed", &"-o", &output]);
        assert_eq!(outcome.status.code(), Some(1), "{output}");
        assert!(outcome.err().contains(output) && outcome.err().contains(word), "{}", outcome.err());
        assert!(!outcome.err().contains(".grapnel-"), "no name that nobody gave: {}", outcome.err());
    }
}

#[test]
fn the_trace_is_not_overwritten() {
    let dir = temporary_dir();
    let link = dir.path().join("link.csv");
    std::os::unix::fs::symlink(RECORDED.trace(), &link).unwrap();
    let before = std::fs::read(RECORDED.trace()).unwrap();
    for output in [RECORDED.trace(), link] {
        let outcome = export(&[&"--format", &"csv", &"-o", &output]);
        assert_eq!(outcome.status.code(), Some(1), "{}", outcome.err());
        assert!(outcome.err().contains("is the trace itself"), "{}", outcome.err());
    }
    assert_eq!(std::fs::read(RECORDED.trace()).unwrap(), before);
}

#[test]
fn a_dash_is_standard_output_and_no_file() {
    let dir = temporary_dir();
    let trace = RECORDED.trace();
    let run = |arguments: &[&str]| {
        let mut command = std::process::Command::new(programs::grapnel());
        finish(command.args(arguments).current_dir(dir.path()), b"")
    };
    let trace = trace.to_str().unwrap();
    let csv = run(&["export", "--format", "csv", "-o", "-", trace]);
    assert_eq!(csv.out(), export(&[&"--format", &"csv"]).out());
    let page = run(&["report", "--html", "-", trace]);
    assert!(page.status.success() && page.out().starts_with("<!doctype html>"), "{}", page.err());
    let named = run(&["symbolize", "-o", "-", trace]);
    assert!(named.status.success() && named.stdout.len() > 1000, "{}", named.err());
    assert!(named.err().contains("standard output: "), "{}", named.err());
    let junit = run(&["check", "--max-peak", "1T", "--junit", "-", trace]);
    assert!(junit.out().starts_with("<?xml") && junit.out().ends_with("</testsuites>\n"), "{}", junit.out());
    assert!(junit.err().contains("ok     max-peak"), "{}", junit.err());
    let both = run(&["check", "--max-peak", "1T", "--junit", "-", "--sarif", "-", trace]);
    assert_eq!(both.status.code(), Some(1), "{}", both.err());
    // A recording is a file.
    let recording = run(&["run", "-o", "-", "--", "/bin/true"]);
    assert!(!recording.status.success() && recording.err().contains("./-"), "{}", recording.err());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn links_modes_and_pipes_are_kept() {
    use std::os::unix::fs::PermissionsExt;
    let dir = temporary_dir();
    let file = dir.path().join("real.csv");
    std::fs::write(&file, "before").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink(&file, dir.path().join("link.csv")).unwrap();
    exported(dir.path(), "link.csv", &[]);
    assert!(dir.path().join("link.csv").is_symlink());
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("allocations,"));
    // A process substitution is a pipe with a name.
    let script = format!(
        "'{}' export --format csv -o >(head -1) '{}'; wait",
        programs::grapnel().display(),
        RECORDED.trace().display()
    );
    assert!(said_by("bash", &["-c".as_ref(), script.as_ref()]).starts_with("allocations,"));
}

#[test]
fn a_format_must_be_known() {
    let outcome = export(&[]);
    assert_eq!(outcome.status.code(), Some(1));
    assert!(outcome.err().contains("--format") && outcome.err().contains(".pb.gz"), "{}", outcome.err());
    let outcome = export(&[&"-o", &"x.unknown"]);
    assert_eq!(outcome.status.code(), Some(1), "{}", outcome.err());
    let outcome = grapnel(["export", "--format", "csv", "/nowhere/t.grapnel"]);
    assert_eq!(outcome.status.code(), Some(1));
    assert!(outcome.err().contains("grapnel run"), "{}", outcome.err());
}
