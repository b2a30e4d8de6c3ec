//! Programs that put themselves under filters for system calls (seccomp), which end a process or a thread that makes another
//! call than the program's own: `tests/programs/locked_up.c` in all its modes, by every answer.
//!
//! The counting library makes calls that such a filter doesn't foresee. So it counts under filters that let these pass too; the
//! program does the same under both.

use grapnel_tests::attaching::{Running, may_trace};
use grapnel_tests::programs;
use grapnel_tests::report::{Exit, Report};
use grapnel_tests::run::{Case, Recorded, grapnel, report, temporary_dir};
use grapnel_tests::truth::Totals;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

const ANSWERS: [&str; 3] = ["kill", "errno", "trap"];

fn case(mode: &str, answer: &str) -> Case {
    Case::ours("locked_up").args([mode, answer]).patience(Duration::from_secs(120))
}

/// To its user as without grapnel, by each of the answers.
fn as_without(mode: &str, mut each: impl FnMut(&Recorded)) {
    for answer in ANSWERS {
        let case = case(mode, answer);
        let bare = case.bare();
        assert!(bare.status.success() && bare.out().ends_with("done\n"), "{mode} {answer}: {bare:?}");
        let recorded = case.recorded();
        recorded.outcome.same_as(&bare);
        each(&recorded);
    }
}

/// The totals of each process by the counting library, the first process first.
fn counted(mode: &str, follow: bool) -> Vec<Totals> {
    let (outcome, processes) = case(mode, "kill").arg("counted").counted(follow);
    assert!(outcome.status.success(), "{mode}: {outcome:?}");
    processes.into_iter().map(|process| process.totals).collect()
}

/// As without grapnel, and the same totals as by the counting library: the peak of several threads is that of a moment, which
/// differs from run to run.
fn check(mode: &str, has_threads: bool) {
    let expected = without_peak(counted(mode, false)[0], has_threads);
    as_without(mode, |recorded| {
        let report = recorded.report();
        assert_eq!(report.totals.lost_events, 0, "{mode}");
        assert_eq!(without_peak(report.totals(), has_threads), expected, "{mode} (left: grapnel)");
        assert_eq!(report.process.exit, Some(Exit::Code(0)), "{mode}");
    });
}

fn without_peak(totals: Totals, has_threads: bool) -> Totals {
    if has_threads { Totals { peak_bytes: 0, ..totals } } else { totals }
}

/// What the sites with this function allocated.
fn allocations_in(report: &Report, function: &str) -> u64 {
    let sites = report.sites.iter().filter(|site| site.frames.iter().any(|frame| frame.name() == function));
    sites.map(|site| site.allocations).sum()
}

#[test]
fn one_thread() {
    check("main", false);
}

#[test]
fn filters_on_top_of_each_other() {
    check("stacked", false);
}

#[test]
fn one_thread_of_several() {
    check("one", true);
}

#[test]
fn all_threads_at_once() {
    check("all", true);
}

#[test]
fn threads_of_threads() {
    check("handed", true);
}

/// A handler of its own has them, and not those that it doesn't know of.
#[test]
fn a_program_that_answers_its_own_system_calls() {
    let case = Case::ours("dispatched");
    let bare = case.bare();
    assert_eq!(bare.out(), "0 answered\n");
    for option in ["--sample=1", "--drop", "--check-stacks"] {
        case.clone().option(option).recorded().outcome.same_as(&bare);
    }
    let recorded = case.recorded();
    recorded.outcome.same_as(&bare);
    let totals = recorded.report().totals;
    assert!((202_001..202_010).contains(&totals.allocations), "{totals:?}");
    assert_eq!((totals.frees, totals.lost_events), (202_000, 0));
}

/// The thread can't even be asked for its clock.
#[test]
fn strict_mode() {
    as_without("strict", |recorded| {
        let report = recorded.report();
        assert_eq!(report.totals.lost_events, 0);
        assert_eq!(allocations_in(&report, "another_way"), 3000 * 6);
        assert_eq!(report.totals.allocations - report.totals.frees, report.totals.live_allocations);
    });
}

#[test]
fn without_the_processors_clock() {
    check("clock", true);
}

/// What a child installs in its parent's memory holds for the child.
#[test]
fn a_child_of_vfork() {
    let expected = counted("vfork", false);
    as_without("vfork", |recorded| {
        let report = recorded.report();
        assert_eq!(report.totals.lost_events, 0);
        assert_eq!(without_peak(report.totals(), true), without_peak(expected[0], true), "left: grapnel");
        assert_eq!(recorded.traces().len(), 1, "a program that can't take the agent isn't followed");
    });
}

#[test]
fn a_child_of_fork() {
    let expected = counted("fork", true);
    assert_eq!(expected.len(), 2);
    as_without("fork", |recorded| {
        let reports = recorded.reports();
        let totals: Vec<Totals> = reports.iter().map(|report| without_peak(report.totals(), true)).collect();
        let mut expected: Vec<Totals> = expected.iter().map(|totals| without_peak(*totals, true)).collect();
        // Children's process ids say nothing of their order.
        if totals.first() != expected.first() {
            expected.reverse();
        }
        assert_eq!(totals, expected, "left: grapnel");
        assert!(reports.iter().all(|report| report.totals.lost_events == 0));
    });
}

/// The next program would be killed at the agent's first call: it is left alone, and the program before has its trace.
#[test]
fn a_program_that_comes_next() {
    as_without("exec", |recorded| {
        let reports = recorded.reports();
        assert_eq!(reports.len(), 1);
        // 2,000 blocks, and three that grow in each of two rounds.
        assert_eq!(reports[0].totals.allocations, 2 * (1000 + 3));
        let note = recorded.outcome.err();
        assert_eq!(note, "");
    });
}

/// A filter that nobody is hindered by doesn't hinder following, either.
#[test]
fn a_program_that_comes_next_under_a_mild_filter() {
    let expected = counted("plain", false);
    as_without("mild", |recorded| {
        let reports = recorded.reports();
        assert_eq!(reports.len(), 2);
        let plain = reports.iter().find(|report| report.process.command.iter().any(|word| word == "plain"));
        let plain = plain.expect("the second program has a trace").totals();
        assert_eq!(without_peak(plain, true), without_peak(expected[0], true), "left: grapnel");
    });
}

#[test]
fn filters_that_the_kernel_refuses() {
    check("refused", true);
}

/// The handler sees the program's own calls, and none of ours.
#[test]
fn a_handler_of_traps() {
    check("trapped", true);
}

/// The summary says that something is left out.
#[test]
fn what_is_left_out_is_said() {
    let dir = temporary_dir();
    let trace = dir.path().join("t.grapnel");
    let outcome = Case::new(programs::grapnel())
        .args(["run", "-o"])
        .arg(&trace)
        .arg("--")
        .arg(programs::program("locked_up"))
        .args(["main", "kill"])
        .bare();
    assert!(outcome.status.success(), "{outcome:?}");
    assert!(outcome.err().contains("(seccomp)"), "{}", outcome.err());
}

/// A process that is attached to, and then locks itself up; it is left again while it is.
#[test]
fn a_process_that_is_attached_to() {
    if !may_trace() {
        return;
    }
    for answer in ANSWERS {
        let dir = temporary_dir();
        let trace = dir.path().join("t.grapnel");
        let mut command = Command::new(programs::program("locked_up"));
        command.args(["attended", answer]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running(command.spawn().expect("the program starts"));
        let (mut input, mut out) = (running.0.stdin.take().expect("its input"), running.out());
        let pid = running.pid().to_string();
        let mut command = Command::new(programs::grapnel());
        command.arg("attach").arg("-o").arg(&trace).arg(&pid).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut recorder = Running(command.spawn().expect("grapnel starts"));
        let mut said = BufReader::new(recorder.0.stderr.take().expect("what it says"));
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert!(line.contains("attached to"), "{line}");
        // A thread, which comes to its end; and the first thread, halfway.
        for bytes in [&b"."[..], b".."] {
            input.write_all(bytes).expect("it reads");
            line.clear();
            out.read_line(&mut line).expect("a line");
            assert_eq!(line, "locked up\n", "{answer}");
        }
        let detached = grapnel(["detach", &pid]);
        assert!(detached.status.success(), "{detached:?}");
        assert!(recorder.0.wait().expect("its end").success());
        line.clear();
        said.read_to_string(&mut line).expect("the rest");
        assert!(line.contains("(seccomp)"), "{answer}: {line}");
        input.write_all(b".").expect("it reads");
        line.clear();
        out.read_to_string(&mut line).expect("the rest");
        assert_eq!(line, "done\n", "{answer}");
        assert_eq!(running.0.wait().expect("its end").code(), Some(0), "{answer}");
        let report = report(&trace);
        assert_eq!(report.totals.lost_events, 0);
        // Three blocks more, which grow eleven times.
        let work = |count: u64| count + 3 + 3 * 11;
        let expected = work(5000) + 4 * work(300) + work(1000) + work(5000) + 4 * work(300);
        assert_eq!(allocations_in(&report, "work"), expected, "{answer}");
    }
}
