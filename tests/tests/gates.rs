//! `grapnel diff` and `grapnel check`.

use grapnel_tests::programs;
use grapnel_tests::run::{Case, Outcome, Recorded, grapnel, temporary_dir};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

static LEAKS: LazyLock<Recorded> =
    LazyLock::new(|| Case::ours("leaks").arg(programs::library("leak_library")).recorded());

fn check(trace: &Path, arguments: &[&str]) -> Outcome {
    grapnel(
        [OsStr::new("check")].into_iter().chain(arguments.iter().map(OsStr::new)).chain([trace.as_os_str()]),
    )
}

fn python(script: &str) -> Recorded {
    Case::new("/usr/bin/python3")
        .arg("-c")
        .arg(script)
        .env("PYTHONMALLOC", "malloc")
        .env("PYTHONHASHSEED", "0")
        .recorded()
}

fn diff(before: &Recorded, after: &Recorded, arguments: &[&str]) -> Value {
    let (before, after) = (before.trace(), after.trace());
    let head = [OsStr::new("diff"), "--format".as_ref(), "json".as_ref(), before.as_ref(), after.as_ref()];
    let outcome = grapnel(head.into_iter().chain(arguments.iter().map(OsStr::new)));
    assert!(outcome.status.success(), "{}", outcome.err());
    serde_json::from_slice(&outcome.stdout).unwrap()
}

#[test]
fn the_same_run_has_not_changed_but_for_its_addresses() {
    let again = Case::ours("leaks").arg(programs::library("leak_library")).recorded();
    for measure in ["peak", "live", "allocated", "allocations", "temporary"] {
        let compared = diff(&LEAKS, &again, &["--measure", measure]);
        assert_eq!(compared["sites"].as_array().map(Vec::len), Some(0), "{measure}: {compared}");
        assert_eq!(compared["factor"], 1.0);
    }
}

#[test]
fn what_came_went_and_grew_is_told_apart() {
    let small = python("a = [bytes(1000) for _ in range(10)]");
    let large = python("a = [bytes(1000) for _ in range(1000)]; import json");
    let compared = diff(&small, &large, &["--measure", "allocated"]);
    let (before, after) = (&compared["before"]["totals"], &compared["after"]["totals"]);
    let figure = |of: &Value| of["allocated_bytes"].as_i64().unwrap();
    assert_eq!(figure(before), small.report().totals.allocated_bytes.cast_signed());
    assert_eq!(figure(after), large.report().totals.allocated_bytes.cast_signed());
    assert_eq!(figure(&compared["changes"]), figure(after) - figure(before));
    let sites = compared["sites"].as_array().unwrap();
    let sum: i64 = sites.iter().map(|site| figure(&site["changes"])).sum();
    assert_eq!(sum, figure(&compared["changes"]), "all that changed is there");
    let sizes: Vec<u64> = sites.iter().map(|site| figure(&site["changes"]).unsigned_abs()).collect();
    assert!(sizes.is_sorted_by(|a, b| a >= b));
    for site in sites {
        let (old, new) = (figure(&site["before"]), figure(&site["after"]));
        let expected = match (old, new) {
            (0, _) => "came",
            (_, 0) => "went",
            _ if new > old => "grew",
            _ => "shrank",
        };
        assert_eq!(site["change"], expected, "{site}");
    }
    let has = |change: &str| sites.iter().any(|site| site["change"] == change);
    assert!(has("came") && has("grew"));
    let back = diff(&large, &small, &["--measure", "allocated"]);
    assert!(back["sites"].as_array().unwrap().iter().any(|site| site["change"] == "went"));

    let (before, after) = (small.trace(), large.trace());
    let outcome =
        grapnel([OsStr::new("diff"), "--top".as_ref(), "1".as_ref(), before.as_ref(), after.as_ref()]);
    let text = outcome.out();
    assert!(text.contains("Bytes held at the peak: sites that came") && text.contains("before, "), "{text}");
}

#[test]
fn figures_are_normalized_by_time_or_count() {
    let one = python("for _ in range(2000): bytes(900)");
    let two = python("for _ in range(20000): bytes(900)");
    let given = |recorded: &Recorded| {
        let totals = recorded.report().totals;
        (totals.allocations + totals.reallocations) as f64
    };
    let by_count = diff(&one, &two, &["--measure", "allocations", "--normalize", "count"]);
    let factor = by_count["factor"].as_f64().unwrap();
    assert!((factor - given(&two) / given(&one)).abs() < 1e-9, "{factor}");
    // As many as there were, in relation: all together has not changed.
    assert_eq!(by_count["changes"]["allocations"], 0);
    let by_time = diff(&one, &two, &["--normalize", "time"]);
    let duration = |recorded: &Recorded| recorded.report().totals.duration_ns as f64;
    assert!((by_time["factor"].as_f64().unwrap() - duration(&two) / duration(&one)).abs() < 1e-9);
}

#[test]
fn each_gate_has_its_own_status() {
    let trace = LEAKS.trace();
    let totals = LEAKS.report().totals;
    let peak = totals.peak_bytes.to_string();
    let below = (totals.peak_bytes - 1).to_string();
    let in_main: u64 = LEAKS
        .report()
        .sites
        .iter()
        .filter(|site| site.frames.iter().any(|frame| frame.name() == "main"))
        .map(|site| site.allocations)
        .sum();
    let (enough, too_few) = (format!("main={in_main}"), format!("m*n={}", in_main - 1));
    let cases: [(&[&str], i32, &str); 7] = [
        (&["--fail-on", "leaks"], 8, "FAILED leaks: "),
        (&["--max-peak", &peak], 0, "ok     max-peak: "),
        (&["--max-peak", &below], 16, "FAILED max-peak: "),
        (&["--max-allocations-at", &enough], 0, "ok     max-allocations-at main: "),
        (&["--max-allocations-at", &too_few], 32, "FAILED max-allocations-at m*n: "),
        (
            &["--fail-on", "leaks", "--max-peak", "1K", "--max-allocations-at", "main=1"],
            56,
            "at most 1.0 KiB",
        ),
        (&["--max-allocations-at", "nowhere=0"], 0, "0 allocations in nowhere"),
    ];
    for (arguments, status, text) in cases {
        let outcome = check(&trace, arguments);
        assert_eq!(outcome.status.code(), Some(status), "{arguments:?}: {}{}", outcome.out(), outcome.err());
        assert!(outcome.out().contains(text), "{arguments:?}: {}", outcome.out());
    }
    // To the byte.
    let said = check(&trace, &["--max-peak", &below]).out();
    let said = said.lines().next().unwrap().split(" bytes)");
    let said: Vec<String> = said.map(|part| part.rsplit('(').next().unwrap().replace(',', "")).collect();
    assert_eq!(said[..2], [peak.clone(), below.clone()]);
    let leaks = check(&trace, &["--fail-on", "leaks", "--top", "0"]).out();
    assert!(leaks.contains(&format!("leaks.c:{}", programs::marked_line("leaks.c", "LEAK list"))), "{leaks}");
    let clean = Case::new("/bin/true").recorded();
    if clean.report().totals.live_allocations == 0 {
        assert_eq!(check(&clean.trace(), &["--fail-on", "leaks"]).status.code(), Some(0));
    }
    for bad in [&["--max-peak", "many"][..], &["--max-allocations-at", "main"], &[]] {
        assert_eq!(check(&trace, bad).status.code(), Some(2), "{bad:?}");
    }
}

#[test]
fn suppressions_are_leak_sanitizers() {
    let dir = temporary_dir();
    let file = dir.path().join("known.txt");
    let run = |text: &str| {
        std::fs::write(&file, text).unwrap();
        check(&LEAKS.trace(), &["--fail-on", "leaks", "--suppressions", file.to_str().unwrap()])
    };
    let all = run(
        "# the program and its library\nleak:leaks\nleak:libleak_library.so$\nleak:ld-linux*\nleak:libc.so\n",
    );
    assert_eq!(all.status.code(), Some(0), "{}", all.out());
    let blocks = LEAKS.report().totals.live_allocations;
    assert!(
        all.out().contains("ok     leaks") && all.out().contains("suppressed by leak:leaks"),
        "{}",
        all.out()
    );
    let none = run("leak:^eaks$\n");
    assert_eq!(none.status.code(), Some(8));
    assert!(none.out().contains(&format!("leaks: {blocks} blocks")), "{}", none.out());
    let bad = run("leak:a\nrace:b\n");
    assert_eq!(bad.status.code(), Some(1));
    assert!(bad.err().contains("line 2"), "{}", bad.err());
    let marked = run("\u{feff}leak:leaks\n");
    assert!(marked.out().contains("suppressed by leak:leaks"), "{}{}", marked.out(), marked.err());
    std::fs::write(&file, b"leak:a\nleak:b\xff\n").unwrap();
    let bad = check(&LEAKS.trace(), &["--fail-on", "leaks", "--suppressions", file.to_str().unwrap()]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(bad.err().contains("line 2 is not UTF-8: its byte 7 is 0xff"), "{}", bad.err());
}

#[test]
fn verdicts_are_reported_as_junit_and_sarif() {
    let dir = temporary_dir();
    let (junit, sarif) = (dir.path().join("j.xml"), dir.path().join("s.sarif"));
    let outcome = check(
        &LEAKS.trace(),
        &[
            "--fail-on",
            "leaks",
            "--max-peak",
            "1T",
            "--junit",
            junit.to_str().unwrap(),
            "--sarif",
            sarif.to_str().unwrap(),
        ],
    );
    assert_eq!(outcome.status.code(), Some(8), "{}", outcome.err());
    let ask = |path: &str| {
        let output = Command::new("xmllint").args(["--xpath", path]).arg(&junit).output().expect("xmllint");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(ask("count(/testsuites/testsuite[@tests=2 and @failures=1]/testcase)"), "2");
    assert_eq!(ask("count(//testcase[@name='leaks']/failure)"), "1");
    assert!(
        ask("string(//failure)")
            .contains(&format!("leaks.c:{}", programs::marked_line("leaks.c", "LEAK list")))
    );
    let log: Value = serde_json::from_slice(&std::fs::read(sarif).unwrap()).unwrap();
    assert_eq!(log["version"], "2.1.0");
    let results = log["runs"][0]["results"].as_array().unwrap();
    let leaking = LEAKS.report().sites.iter().filter(|site| site.live_allocations > 0).count();
    assert_eq!(results.len(), leaking);
    let rules = log["runs"][0]["tool"]["driver"]["rules"].as_array().unwrap();
    assert!(results.iter().all(|result| rules.iter().any(|rule| rule["id"] == result["ruleId"])));
    let place = results.iter().map(|result| &result["locations"][0]["physicalLocation"]);
    let line = programs::marked_line("leaks.c", "LEAK list");
    let mut place = place.filter(|place| place["region"]["startLine"] == line);
    assert!(place.any(|place| place["artifactLocation"]["uri"].as_str().unwrap().ends_with("/leaks.c")));
}

#[test]
fn a_part_is_not_judged() {
    let dir = temporary_dir();
    let cut = dir.path().join("cut.grapnel");
    let whole = std::fs::read(LEAKS.trace()).unwrap();
    std::fs::write(&cut, &whole[..whole.len() - 10]).unwrap();
    let outcome = check(&cut, &["--max-peak", "1T"]);
    assert_eq!(outcome.status.code(), Some(1), "{}", outcome.out());
    assert!(outcome.err().contains("can't be judged"), "{}", outcome.err());
    let sample = Case::ours("temporary").option("--sample=1000").recorded();
    assert_eq!(check(&sample.trace(), &["--max-peak", "1T"]).status.code(), Some(1));
}

/// A condition on a function that no stack has is met, and said to be in doubt, unless there is such a function.
#[test]
fn a_function_that_is_nowhere_is_said() {
    let dir = temporary_dir();
    let (junit, sarif) = (dir.path().join("j.xml"), dir.path().join("s.sarif"));
    let reports = ["--junit", junit.to_str().unwrap(), "--sarif", sarif.to_str().unwrap()];
    let trace = LEAKS.trace();
    let outcome = check(&trace, &[&["--max-allocations-at", "mian=0"], &reports[..]].concat());
    assert_eq!(outcome.status.code(), Some(0), "{}", outcome.err());
    let warning = "no function called mian is in any stack";
    assert!(outcome.err().contains(warning), "{}", outcome.err());
    assert!(outcome.err().contains("did you mean main"), "{}", outcome.err());
    let output = Command::new("xmllint")
        .args(["--xpath", "string(//testcase/system-out)"])
        .arg(&junit)
        .output()
        .expect("xmllint");
    assert!(String::from_utf8_lossy(&output.stdout).contains(warning));
    let log: Value = serde_json::from_slice(&std::fs::read(&sarif).unwrap()).unwrap();
    let said = &log["runs"][0]["invocations"][0]["toolConfigurationNotifications"][0];
    assert_eq!(said["level"], "warning");
    assert!(said["message"]["text"].as_str().unwrap().contains(warning), "{said}");
    // libc has it, and nothing was allocated there.
    for known in ["qsort=0", "main=1000000"] {
        let outcome = check(&trace, &["--max-allocations-at", known]);
        assert_eq!((outcome.status.code(), outcome.err().contains("no function called")), (Some(0), false));
    }
}

/// What is lost is called so, and is as much as is lost of the site.
#[test]
fn what_is_lost_is_not_called_live() {
    let dir = temporary_dir();
    let (junit, sarif) = (dir.path().join("j.xml"), dir.path().join("s.sarif"));
    let recorded = Case::ours("leaks").arg(programs::library("leak_library")).option("--leaks").recorded();
    let reports = ["--junit", junit.to_str().unwrap(), "--sarif", sarif.to_str().unwrap()];
    let outcome = check(&recorded.trace(), &[&["--fail-on", "leaks", "--top", "0"], &reports[..]].concat());
    assert_eq!(outcome.status.code(), Some(8), "{}", outcome.err());
    let text = outcome.out();
    let junit = std::fs::read_to_string(&junit).unwrap();
    let log: Value = serde_json::from_slice(&std::fs::read(&sarif).unwrap()).unwrap();
    let results = log["runs"][0]["results"].as_array().unwrap();
    assert!(!results.is_empty());
    let mut bytes = 0;
    for result in results {
        let said = result["message"]["text"].as_str().unwrap();
        assert!(said.contains(", lost at the end") && !said.contains("live"), "{said}");
        assert!(junit.contains(said) && text.contains(said), "{said}");
        bytes += said.split(' ').next().unwrap().replace(',', "").parse::<u64>().unwrap();
    }
    let whole = text.split(" bytes of").next().unwrap().rsplit(' ').next().unwrap();
    assert_eq!(bytes, whole.replace(',', "").parse::<u64>().unwrap(), "{text}");
    assert!(!junit.contains("live at the end"), "{junit}");
}

/// A report that can't be written is named as it was given.
#[test]
fn a_report_that_cannot_be_written_is_named() {
    for option in ["--junit", "--sarif"] {
        let said = check(&LEAKS.trace(), &["--max-peak", "1T", option, "/nonexist/x"]);
        assert_eq!(said.status.code(), Some(1));
        assert!(
            said.err().contains("/nonexist/x: No such file") && !said.err().contains(".grapnel-"),
            "{}",
            said.err()
        );
    }
}

/// A report never takes the place of what was read, nor of the other report.
#[test]
fn reports_take_no_files_place() {
    let dir = temporary_dir();
    let path = |name: &str| dir.path().join(name);
    let (trace, suppressions, link) = (path("t.grapnel"), path("s"), path("link"));
    std::fs::copy(LEAKS.trace(), &trace).unwrap();
    std::fs::write(&suppressions, "leak:nothing\n").unwrap();
    std::os::unix::fs::symlink(&trace, &link).unwrap();
    let was = std::fs::read(&trace).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    for (option, taken, what) in [
        ("--junit", text(&trace), "the trace itself"),
        ("--sarif", text(&link), "the trace itself"),
        ("--sarif", text(&suppressions), "the file of suppressions"),
    ] {
        let said =
            check(&trace, &["--max-peak", "1G", "--suppressions", &text(&suppressions), option, &taken]);
        assert_eq!(said.status.code(), Some(1), "{}", said.err());
        assert!(said.err().contains(what), "{}", said.err());
    }
    let both = text(&path("both"));
    let said = check(&trace, &["--max-peak", "1G", "--junit", &both, "--sarif", &both]);
    assert!(said.status.code() == Some(1) && said.err().contains("for the JUnit report"), "{}", said.err());
    assert_eq!(std::fs::read(&trace).unwrap(), was);
    assert_eq!(std::fs::read(&suppressions).unwrap(), b"leak:nothing\n");
}
