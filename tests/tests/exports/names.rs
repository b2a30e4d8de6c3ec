//! Names that were made to harm, or that a format has its own mind about.

use crate::common::said_by;
use grapnel_tests::programs;
use grapnel_tests::run::{Case, grapnel, temporary_dir};
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A trace with a live block for each function of these names: heaptrack's files can have any.
fn trace_of(dir: &Path, functions: &[&str]) -> PathBuf {
    let mut text = String::from("v 10400 3\nX app\nI 1000 0\ns 8 /bin/app\n");
    for (at, name) in functions.iter().enumerate() {
        let (string, place) = (at + 2, at + 1);
        let address = 0x1000 + 16 * at;
        writeln!(text, "s {:x} {name}", name.len()).unwrap();
        writeln!(text, "i {address:x} 1 {string:x}\nt {place:x} 0\na 10 {place:x}\n+ {at:x}").unwrap();
    }
    let (file, trace) = (dir.join("file"), dir.join("t.grapnel"));
    std::fs::write(&file, text).unwrap();
    let outcome = grapnel([OsStr::new("import"), "-o".as_ref(), trace.as_os_str(), file.as_os_str()]);
    assert!(outcome.status.success(), "{}", outcome.err());
    trace
}

fn exported(trace: &Path, name: &str) -> PathBuf {
    let file = trace.with_file_name(name);
    let outcome = grapnel([OsStr::new("export"), "-o".as_ref(), file.as_os_str(), trace.as_os_str()]);
    assert!(outcome.status.success(), "{}", outcome.err());
    file
}

#[test]
fn no_cell_of_a_table_is_a_formula() {
    let names = ["=cmd|'/C calc'!A0", "+f", "-[Foo bar]", "@SUM(A1)", "'lambda'()::f", "plain", "a=b"];
    let dir = temporary_dir();
    let file = exported(&trace_of(dir.path(), &names), "t.csv");
    let read = "import csv, json, sys\n\
        print(json.dumps(list(csv.DictReader(open(sys.argv[1], newline=''))), ensure_ascii=True))";
    let rows = said_by("/usr/bin/python3", &["-c".as_ref(), read.as_ref(), file.as_os_str()]);
    let rows: serde_json::Value = serde_json::from_str(&rows).unwrap();
    let rows = rows.as_array().unwrap();
    for row in rows {
        for (column, cell) in row.as_object().unwrap() {
            let cell = cell.as_str().unwrap();
            assert!(!cell.starts_with(['=', '+', '-', '@', '\t', '\r', '\n']), "{column}: {cell}");
        }
        assert_eq!((&row["allocations"], &row["live_bytes"]), (&"1".into(), &"16".into()));
    }
    // The true name comes back without the first apostrophe.
    let mut found: Vec<&str> = rows.iter().map(|row| row["function"].as_str().unwrap()).collect();
    found.iter_mut().for_each(|name| *name = name.strip_prefix('\'').unwrap_or(name));
    assert_eq!(found, names);
}

#[test]
fn pprof_shows_names_that_it_would_cut_to_nothing() {
    let names = [
        "<alloc::vec::Vec<T> as core::ops::Drop>::drop",
        "<lambda>",
        "(anonymous namespace)::leaky(int)",
        "store::Less::operator()(int, int) const",
    ];
    let short = "store::Table<int>::grow(unsigned long)";
    let dir = temporary_dir();
    let all: Vec<&str> = names.iter().copied().chain([short]).collect();
    let file = exported(&trace_of(dir.path(), &all), "t.pb.gz");
    let arguments = ["tool", "pprof", "-top", "-nodefraction=0", "-sample_index=inuse_space"].map(OsStr::new);
    let said = said_by("go", &[&arguments[..], &[file.as_os_str()]].concat());
    for name in names {
        assert!(said.lines().any(|line| line.trim_end().ends_with(&format!("%  {name}"))), "{name}: {said}");
    }
    assert!(said.contains("%  store::Table::grow\n"), "as its users know it: {said}");
}

#[test]
fn a_path_of_two_lines_is_one_line_in_pprof() {
    let dir = temporary_dir();
    let program = dir.path().join("two\nlines");
    std::fs::copy(programs::program("leaks"), &program).unwrap();
    let recorded = Case::new(&program).arg(programs::library("leak_library")).recorded();
    let file = dir.path().join("t.pb.gz");
    let trace = recorded.trace();
    let outcome = grapnel([OsStr::new("export"), "-o".as_ref(), file.as_os_str(), trace.as_os_str()]);
    assert!(outcome.status.success(), "{}", outcome.err());
    let raw = said_by("go", &["tool".as_ref(), "pprof".as_ref(), "-raw".as_ref(), file.as_os_str()]);
    let mappings = raw.split("Mappings\n").nth(1).unwrap();
    assert!(mappings.lines().next().unwrap().contains("/two\\nlines"), "{mappings}");
    assert!(
        mappings.lines().all(|line| line.split(": ").next().unwrap().parse::<u64>().is_ok()),
        "{mappings}"
    );
}

#[test]
fn androids_dump_has_true_names_and_no_others() {
    let literal = "operator\"\" _kb(unsigned long long)";
    let forged = "f\" 0} {\"/lib/fake.so\" 12 \"fake";
    let dir = temporary_dir();
    let file = exported(&trace_of(dir.path(), &[literal, forged]), "t.heapdump.txt");
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.contains(&format!("\"{literal}\" 0}}\n")), "{text}");
    for line in text.lines().filter(|line| line.starts_with("  bt_info")) {
        // As many ends of frames as there are frames.
        assert_eq!(line.matches("\" 0}").count(), 1, "{line}");
    }
}
