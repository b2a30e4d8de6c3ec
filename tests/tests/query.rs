//! `grapnel query`: whatever blocks are grouped by, the groups add up to the report.

use grapnel_tests::programs;
use grapnel_tests::report::Report;
use grapnel_tests::run::{Case, Outcome, Recorded, grapnel};
use serde_json::Value;
use std::ffi::OsStr;
use std::sync::LazyLock;

struct Asked {
    recorded: Recorded,
    report: Report,
}

impl Asked {
    fn new(case: &Case) -> Self {
        let recorded = case.recorded();
        let report = recorded.report();
        Self { recorded, report }
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        let trace = self.recorded.trace();
        let arguments = arguments.iter().map(OsStr::new);
        grapnel([OsStr::new("query")].into_iter().chain(arguments).chain([trace.as_os_str()]))
    }

    fn ask(&self, arguments: &[&str]) -> Value {
        let outcome = self.run(&[&["--format", "json"], arguments].concat());
        assert!(outcome.status.success(), "{arguments:?}: {}", outcome.err());
        serde_json::from_slice(&outcome.stdout).unwrap()
    }

    fn temporary(&self) -> u64 {
        self.report.sites.iter().map(|site| site.temporary_allocations).sum()
    }
}

static LEAKS: LazyLock<Asked> =
    LazyLock::new(|| Asked::new(&Case::ours("leaks").arg(programs::library("leak_library"))));
static PYTHON: LazyLock<Asked> = LazyLock::new(|| {
    let script = "import json, threading\n\
        rows = [{'id': i, 'name': str(i)} for i in range(3000)]\n\
        t = threading.Thread(target=lambda: json.dumps(rows)); t.start(); t.join()";
    Asked::new(&Case::new("/usr/bin/python3").arg("-c").arg(script).env("PYTHONMALLOC", "malloc"))
});

fn figure(of: &Value, name: &str) -> i64 {
    of[name].as_i64().unwrap_or_else(|| panic!("{name}: {of}"))
}

const FIGURES: [&str; 7] = [
    "allocations",
    "allocated_bytes",
    "releases",
    "grown_blocks",
    "grown_bytes",
    "temporary_allocations",
    "reallocations",
];

fn sum(answer: &Value, name: &str) -> i64 {
    answer["groups"].as_array().unwrap().iter().map(|group| figure(group, name)).sum()
}

#[test]
fn groups_that_share_no_block_add_up_to_the_report() {
    for asked in [&*LEAKS, &*PYTHON] {
        let totals = &asked.report.totals;
        let given = totals.allocations + totals.reallocations;
        for by in ["thread", "size", "lifetime", "time", "source"] {
            let answer = asked.ask(&["--by", by]);
            let whole = &answer["whole"];
            for (name, expected) in [
                ("allocations", given),
                ("allocated_bytes", totals.allocated_bytes),
                ("grown_blocks", totals.live_allocations),
                ("grown_bytes", totals.live_bytes),
                ("temporary_allocations", asked.temporary()),
            ] {
                assert_eq!(figure(whole, name), expected.cast_signed(), "{by}, {name}");
                assert_eq!(sum(&answer, name), expected.cast_signed(), "{by}, {name}");
            }
            if !matches!(by, "lifetime" | "time") {
                assert_eq!(sum(&answer, "peak_bytes"), totals.peak_bytes.cast_signed(), "{by}");
            }
        }
        let all = asked.ask(&[]);
        assert_eq!(all["groups"].as_array().map(Vec::len), Some(1));
        assert_eq!(all["groups"][0]["name"], "all");
    }
    let threads = PYTHON.ask(&["--by", "thread"]);
    assert_eq!(threads["groups"].as_array().map(Vec::len), Some(2), "{threads}");
    assert!(threads["groups"][0]["name"].as_str().unwrap().starts_with("python3 ("), "{threads}");
}

#[test]
fn functions_have_what_is_below_them_and_what_is_their_own() {
    for asked in [&*LEAKS, &*PYTHON] {
        let answer = asked.ask(&["--by", "function"]);
        let groups = answer["groups"].as_array().unwrap();
        let own: i64 = groups.iter().map(|group| figure(&group["own"], "allocated_bytes")).sum();
        assert_eq!(own, asked.report.totals.allocated_bytes.cast_signed(), "each block has one leaf");
        let name = if asked.report.process.command.len() == 2 { "main" } else { "Py_BytesMain" };
        let below: u64 = asked
            .report
            .sites
            .iter()
            .filter(|site| site.frames.iter().any(|frame| frame.name() == name))
            .map(|site| site.allocated_bytes)
            .sum();
        let found = groups.iter().find(|group| group["name"] == name).expect("the function is there");
        assert_eq!(figure(found, "allocated_bytes"), below.cast_signed(), "{name}");
    }
    let modules = PYTHON.ask(&["--by", "module"]);
    let python = modules["groups"]
        .as_array()
        .unwrap()
        .iter()
        .find(|group| group["name"].as_str().is_some_and(|name| name.contains("/python3")));
    assert!(figure(python.expect("the program itself"), "allocations") > 3000);
    let line = LEAKS.ask(&["--by", "file", "--keep", "leaks.c$"]);
    let files = line["groups"].as_array().unwrap();
    assert!(files.iter().any(|group| group["name"].as_str().unwrap().ends_with("/leaks.c")), "{line}");
}

#[test]
fn what_is_kept_and_what_is_dropped_is_all() {
    let whole = PYTHON.ask(&[]);
    let parts: [[&[&str]; 2]; 3] = [
        [&["--keep", "PyDict_*"], &["--drop", "PyDict_*"]],
        [&["--max-size", "64"], &["--min-size", "65"]],
        [&["--thread", "^python3$"], &["--thread", "nobody"]],
    ];
    for [one, other] in parts {
        let (one, other) = (PYTHON.ask(one), PYTHON.ask(other));
        for name in FIGURES {
            let parts = figure(&one["whole"], name) + figure(&other["whole"], name);
            assert_eq!(parts, figure(&whole["whole"], name), "{name}");
        }
    }
    let both = PYTHON.ask(&["--keep", "PyDict_*", "--keep", "nowhere at all"]);
    assert_eq!(figure(&both["whole"], "allocations"), 0, "all patterns must match");
    let sizes = PYTHON.ask(&["--by", "size", "--min-size", "65", "--max-size", "128"]);
    assert_eq!(sizes["groups"].as_array().map(Vec::len), Some(1), "{sizes}");
    assert_eq!(sizes["groups"][0]["name"], "65 to 128");
}

#[test]
fn two_halves_of_the_time_are_the_whole() {
    let whole = PYTHON.ask(&[]);
    let middle = PYTHON.report.totals.duration_ns / 2;
    let (until, from) = (format!("{middle}ns"), format!("{}us", (middle + 1) as f64 / 1000.0));
    for by in ["function", "size", "time"] {
        let first = PYTHON.ask(&["--by", by, "--to", &until]);
        let second = PYTHON.ask(&["--by", by, "--from", &from]);
        for name in FIGURES {
            let halves = figure(&first["whole"], name) + figure(&second["whole"], name);
            assert_eq!(halves, figure(&whole["whole"], name), "{by}, {name}");
        }
        assert!(figure(&first["whole"], "allocations") > 0 && figure(&second["whole"], "allocations") > 0);
        assert_eq!(second["live_bytes_before"], first["whole"]["grown_bytes"], "{by}");
    }
}

#[test]
fn groups_by_pattern_take_each_block_once() {
    let answer = PYTHON.ask(&["--group", "dictionaries=PyDict_", "--group", "json=_json"]);
    for name in FIGURES {
        assert_eq!(sum(&answer, name), figure(&answer["whole"], name), "{name}");
    }
    let names: Vec<&str> =
        answer["groups"].as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert!(
        names.contains(&"dictionaries") && names.contains(&"json") && names.contains(&"others"),
        "{names:?}"
    );
}

#[test]
fn reallocations_and_what_they_copied_are_counted() {
    let asked = Asked::new(&Case::ours("reallocs"));
    let said = asked.recorded.outcome.out();
    let (calls, copied) = said.trim().split_once(' ').unwrap();
    let answer = asked.ask(&["--by", "function", "--keep", "^grow$"]);
    let grow = answer["groups"].as_array().unwrap().iter().find(|group| group["name"] == "grow").unwrap();
    assert_eq!(figure(&grow["own"], "reallocations"), calls.parse::<i64>().unwrap());
    assert_eq!(figure(&grow["own"], "copied_bytes"), copied.parse::<i64>().unwrap());
    assert_ne!(copied, "0");
}

#[test]
fn a_table_is_for_people() {
    let text = PYTHON.run(&["--by", "function", "--top", "3"]).out();
    assert_eq!(text.lines().count(), 6, "{text}");
    assert!(text.contains("together, each block once") && text.contains("--top 0 shows all"), "{text}");
    for bad in [&["--from", "soon"][..], &["--min-size", "x"], &["--group", "=x"], &["--by", "luck"]] {
        assert_eq!(PYTHON.run(bad).status.code(), Some(2), "{bad:?}");
    }
    let sample = Asked::new(&Case::ours("temporary").option("--sample=1000"));
    let outcome = sample.run(&["--by", "size"]);
    assert_eq!(outcome.status.code(), Some(1));
    assert!(outcome.err().contains("sample"), "{}", outcome.err());
}

#[test]
fn ranges_that_hold_nothing_are_refused() {
    for (arguments, words) in [
        (&["--from", "2s", "--to", "1s"][..], "--to is before --from: 1.00 s and 2.00 s"),
        (
            &["--min-size", "2K", "--max-size", "1K"],
            "--max-size is less than --min-size: 1024 and 2048 bytes",
        ),
    ] {
        let outcome = LEAKS.run(arguments);
        assert_eq!(outcome.status.code(), Some(1), "{}", outcome.out());
        assert!(outcome.err().contains(words) && outcome.out().is_empty(), "{}", outcome.err());
    }
    let behind = LEAKS.run(&["--from", "9999s"]);
    assert!(behind.status.success() && behind.err().contains("the recording lasted"), "{}", behind.err());
    let exact = LEAKS.run(&["--from", "0s", "--to", "0s", "--min-size", "8", "--max-size", "8"]);
    assert!(exact.status.success() && exact.err().is_empty(), "{}", exact.err());
}
