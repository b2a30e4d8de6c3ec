//! Grapnel's totals against the ground truth, and its discretion: output and end as without it.
//!
//! Each program is run four times: bare, counted by the truth library, recorded by grapnel, and by both at
//! once. The last compares the very same calls; the second against the third shows that grapnel doesn't make a
//! program allocate otherwise.

use grapnel_tests::programs;
use grapnel_tests::report::Report;
use grapnel_tests::run::Case;
use grapnel_tests::truth::{Process, Totals};
use std::path::Path;

/// The report of each process that the truth library counted. A process that only one of them saw is an error,
/// except for `env`, which starts the program, and for processes without a single event.
fn pairs<'a>(reports: &'a [Report], counted: &'a [Process]) -> Vec<(&'a Report, &'a Process)> {
    let mut rest: Vec<&Report> = reports.iter().collect();
    let mut found = Vec::new();
    for process in counted {
        let same =
            |report: &&Report| report.process.pid == process.pid && report.process.command == process.command;
        let at = rest.iter().position(same).unwrap_or_else(|| {
            let seen: Vec<_> = reports.iter().map(|report| &report.process).collect();
            panic!("no trace of {} {:?} among {seen:#?}", process.pid, process.command)
        });
        found.push((rest.remove(at), process));
    }
    let env = programs::env();
    rest.retain(|report| {
        report.process.command.first().is_none_or(|name| Path::new(name) != env)
            && report.totals() != Totals::default()
            && !has_empty_environment(report)
    });
    assert!(rest.is_empty(), "traces of processes that the truth library didn't count: {rest:#?}");
    found
}

/// `spawns.c` starts one program with an empty environment: grapnel follows, the truth library can't.
fn has_empty_environment(report: &Report) -> bool {
    report.process.command.last().is_some_and(|argument| argument == "110")
}

/// `spawns.c` starts two programs by the shell, which is this machine's own: an agent of another machine doesn't go along.
fn is_out_of_reach(process: &Process) -> bool {
    programs::machine().is_some()
        && process.command.last().is_some_and(|argument| ["116", "117"].contains(&argument.as_str()))
}

/// The program's processes counted by both in one run are equal.
fn equal_in_one_run(case: &Case, follow: bool) {
    let (recorded, mut counted) = case.both(follow);
    counted.retain(|process| !is_out_of_reach(process));
    let reports = recorded.reports();
    assert!(!counted.is_empty(), "nothing was counted: {}", recorded.outcome.err());
    for (report, process) in pairs(&reports, &counted) {
        assert_eq!(report.totals(), process.totals, "{} (left: grapnel)", process.command.join(" "));
    }
}

/// As without grapnel, and the same totals in a run of its own as in one with the truth library.
fn check(case: &Case) {
    let bare = case.bare();
    let (outcome, counted) = case.counted(false);
    outcome.same_as(&bare);
    let recorded = case.recorded();
    recorded.outcome.same_as(&bare);
    assert_eq!(counted.len(), 1, "one process: {counted:?}");
    assert_eq!(recorded.report().totals(), counted[0].totals, "in runs apart (left: grapnel)");
    equal_in_one_run(case, false);
}

#[test]
fn every_function() {
    check(&Case::ours("every_function"));
}

#[test]
fn failures() {
    check(&Case::ours("failures"));
}

#[test]
fn threads() {
    check(&Case::ours("threads"));
}

#[test]
fn many_threads() {
    check(&Case::ours("many_threads"));
}

#[test]
fn small_stack() {
    check(&Case::ours("small_stack"));
}

#[test]
fn dlopen_loop() {
    check(&Case::ours("dlopen_loop").arg(programs::plug("a")).arg(programs::plug("b")));
}

#[test]
fn deep() {
    check(&Case::ours("deep").arg("60"));
    check(&Case::ours("deep").arg("600"));
}

#[test]
fn cxx() {
    check(&Case::ours("cxx"));
}

#[test]
fn signals() {
    check(&Case::ours("signals"));
}

#[test]
fn before_and_after_main() {
    check(&Case::ours("before_after"));
}

#[test]
fn leaks() {
    check(&Case::ours("leaks").arg(programs::library("leak_library")));
}

#[test]
fn temporary() {
    check(&Case::ours("temporary"));
}

#[test]
fn limits() {
    check(&Case::ours("limits"));
}

#[test]
fn jumps() {
    check(&Case::ours("jumps"));
}

#[test]
fn many_stacks() {
    check(&Case::ours("flood").args(["300", "2000"]));
}

#[test]
fn lines_from_stdin() {
    let lines: String = (0..5000).map(|n| format!("line {n} {}\n", "x".repeat(n % 300))).collect();
    check(&Case::ours("lines").stdin(lines));
}

#[test]
fn descriptors_closed() {
    for how in ["range", "loop", "directory"] {
        check(&Case::ours("close_all").arg(how));
    }
}

#[test]
fn ends() {
    let ways =
        ["kill", "abort", "segv", "term", "_exit", "exit", "quick_exit", "syscall", "pthread_exit", "return"];
    for how in ways {
        check(&Case::ours("ends").arg(how));
    }
    for how in ["thread-kill", "thread-abort", "thread-_exit", "thread-segv", "thread-return"] {
        check(&Case::ours("ends").arg(how));
    }
}

#[test]
fn interrupts() {
    check(&Case::ours("interrupts"));
}

/// In a sandbox where one system call too many is death. The truth library makes some, so the calls are known
/// by number.
#[test]
fn sandboxed() {
    let case = Case::ours("sandboxed");
    let bare = case.bare();
    assert_eq!(bare.status.code(), Some(5), "{}", bare.err());
    let recorded = case.recorded();
    recorded.outcome.same_as(&bare);
    let totals = recorded.report().totals();
    assert_eq!((totals.allocations, totals.frees, totals.peak_bytes), (100_001, 100_001, 100_000));
}

/// A library opened with RTLD_DEEPBIND calls libc past any preloaded library, the truth library too. What it
/// does is known by number.
#[test]
fn deepbind() {
    let case = Case::ours("deepbind").arg(programs::library("deep_bound"));
    let bare = case.bare();
    let recorded = case.recorded();
    recorded.outcome.same_as(&bare);
    let (_, counted) = case.counted(false);
    assert_eq!(counted.len(), 1);
    let mut expected = counted[0].totals;
    expected.allocations += 30;
    expected.reallocations += 10;
    expected.frees += 20;
    expected.allocated_bytes += 30 * 100 + 10 * 300;
    expected.peak_bytes += 10 * 300;
    expected.live_allocations += 10;
    expected.live_bytes += 10 * 300;
    assert_eq!(recorded.report().totals(), expected, "left: grapnel");
}

#[test]
fn forks() {
    let case = Case::ours("forks");
    case.recorded().outcome.same_as(&case.bare());
    equal_in_one_run(&case, true);
}

#[test]
fn spawns() {
    let case = Case::ours("spawns");
    case.recorded().outcome.same_as(&case.bare());
    equal_in_one_run(&case, true);
}

/// Real programs of Debian.
mod real {
    use super::*;

    fn check(case: &Case) {
        let bare = case.bare();
        assert!(bare.status.success(), "{}", bare.err());
        case.recorded().outcome.same_as(&bare);
        equal_in_one_run(case, true);
    }

    #[test]
    fn python() {
        let script = "
import json, re, collections, subprocess, threading, io
data = [{'n': i, 'text': str(i) * (i % 7), 'list': list(range(i % 20))} for i in range(3000)]
text = json.dumps(data)
words = collections.Counter(re.findall(r'[0-9]+', text))
back = json.loads(text)
results = []
threads = [threading.Thread(target=lambda k: results.append(sum(range(k))), args=(k,)) for k in range(8)]
for t in threads:
    t.start()
    t.join()
print(len(text), len(words), back == data, results)
print(subprocess.run(['/usr/bin/env', 'echo', 'child'], capture_output=True).stdout)
";
        let case = Case::new("/usr/bin/python3")
            .args(["-c", script])
            .env("PYTHONMALLOC", "malloc")
            .env("PYTHONHASHSEED", "0")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        check(&case);
    }

    /// gcc forks and executes cc1plus and as: three processes, one of them large.
    #[test]
    fn compiler() {
        let dir = grapnel_tests::run::temporary_dir();
        let source = dir.path().join("x.cc");
        std::fs::write(&source, "#include <map>\n#include <string>\nstd::map<std::string, int> m;\nint f() { return m[\"a\"]++; }\n")
            .expect("the source can be written");
        let object = dir.path().join("x.o");
        let case = Case::new("/usr/bin/gcc").args(["-O1", "-c", "-o"]).arg(&object).arg(&source);
        check(&case);
        let (recorded, counted) = case.both(true);
        let reports = recorded.reports();
        let compiled = |command: &[String]| command.first().is_some_and(|name| name.ends_with("cc1plus"));
        assert!(counted.iter().any(|process| compiled(&process.command)));
        let cc1plus: Vec<_> = reports.iter().filter(|report| compiled(&report.process.command)).collect();
        assert_eq!(cc1plus.len(), 1, "one trace of cc1plus");
        assert!(cc1plus[0].totals.allocations > 10_000, "{:?}", cc1plus[0].totals);
    }

    #[test]
    fn sqlite() {
        let script = "
CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
  INSERT INTO t SELECT i, 'text ' || (i * 7919 % 10007), i / 3.0 FROM n;
CREATE INDEX i ON t(b);
SELECT count(*), count(DISTINCT b), round(sum(c), 3) FROM t;
SELECT b, count(*) FROM t GROUP BY b ORDER BY 2 DESC, 1 LIMIT 5;
";
        check(&Case::new("/usr/bin/sqlite3").args(["-batch", ":memory:"]).stdin(script));
    }

    #[test]
    fn jq() {
        let items: Vec<String> = (0..3000)
            .map(|n| format!("{{\"id\":{n},\"tags\":[\"a{}\",\"b\"],\"v\":{}.5}}", n % 17, n))
            .collect();
        let case = Case::new("/usr/bin/jq")
            .arg("-c")
            .arg("group_by(.tags[0]) | map({tag: .[0].tags[0], sum: map(.v) | add, n: length})")
            .stdin(format!("[{}]", items.join(",")));
        check(&case);
    }

    #[test]
    fn xmllint() {
        let items: String = (0..2000)
            .map(|n| format!("<item id=\"{n}\"><name>n{}</name><v>{}</v></item>", n % 31, n * 3))
            .collect();
        let case = Case::new("/usr/bin/xmllint").args(["--format", "-"]).stdin(format!("<all>{items}</all>"));
        check(&case);
    }
}

/// The counting library itself is right about a program whose calls can be counted by hand.
#[test]
fn the_truth_is_true() {
    let (outcome, counted) = Case::ours("plain").counted(false);
    assert_eq!(outcome.out(), "plain 1\n");
    // The program's 10 bytes, and stdout's buffer of a page.
    let expected = Totals {
        allocations: 2,
        allocated_bytes: 4106,
        peak_bytes: 4106,
        live_allocations: 2,
        live_bytes: 4106,
        ..Totals::default()
    };
    assert_eq!(counted.iter().map(|process| process.totals).collect::<Vec<_>>(), [expected]);
}
