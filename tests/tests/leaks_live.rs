//! Looks for leaks in processes that go on: what is found, and that the process notices nothing of it.

use grapnel_tests::going::{Going, until};
use grapnel_tests::leaks::{at, holds_what_it_should, kinds, total};
use grapnel_tests::run::{Case, grapnel, temporary_dir};
use grapnel_tests::{is_root, programs, skipped};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Begins to record a program that says `done` when all is there, and waits for that.
fn going(case: &Case) -> Going {
    let mut going = Going::new(case);
    let mut line = String::new();
    let stdout = going.child.stdout.as_mut().expect("a pipe");
    // It writes nothing more until its input ends.
    BufReader::with_capacity(16, stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "done\n");
    going
}

/// What is found in a process that goes on.
fn look(going: &Going, options: &[&str]) -> Value {
    let pid = going.pid();
    let arguments = [&["leaks", "--format", "json", "--reachable"], options, &[&pid]].concat();
    let outcome = going.grapnel(&arguments);
    assert!(outcome.status.success(), "{}", outcome.err());
    serde_json::from_slice(&outcome.stdout).unwrap()
}

/// What a trace says was found last.
fn found_in(trace: &Path) -> Value {
    let options = ["leaks", "--format", "json", "--reachable"].map(std::ffi::OsStr::new);
    let outcome = grapnel(options.into_iter().chain([trace.as_ref()]));
    assert!(outcome.status.success(), "{}", outcome.err());
    serde_json::from_slice(&outcome.stdout).unwrap()
}

#[test]
fn a_process_that_goes_on_is_looked_through() {
    let going = going(&Case::ours("lost").arg("wait"));
    let found = look(&going, &[]);
    assert_eq!((&found["scan"]["at_exit"], &found["scan"]["notes"]), (&false.into(), &serde_json::json!([])));
    assert!(found["scan"]["stopped_ns"].as_u64() > Some(0));
    holds_what_it_should(&found);
    // Again, by another policy, and by grapnel's own number.
    let strict = look(&going, &["--interior", "start", "--no-mappings"]);
    assert_eq!(at(&strict, "lost.c", "HELD inside"), kinds(&[("possible", 1, 1400)]));
    assert_eq!(at(&strict, "lost.c", "HELD mapped"), kinds(&[("direct", 1, 13)]));
    let copy = going.dir.path().join("copy.grapnel");
    let by_grapnel = going.child.id().to_string();
    let text = going.grapnel(&["leaks", "-o", copy.to_str().unwrap(), &by_grapnel]);
    assert!(text.out().starts_with("Leaks, while the process ran\n"), "{}{}", text.out(), text.err());
    // The last stays in the trace, which the copy is of.
    let traces = [going.dir.path().join("t.grapnel"), copy];
    let mut going = going;
    drop(going.child.stdin.take());
    assert_eq!(going.child.wait().unwrap().code(), Some(7));
    for trace in traces {
        let kept = found_in(&trace);
        assert_eq!(kept["scan"]["at_exit"], false);
        holds_what_it_should(&kept);
    }
}

/// A look at the end comes after one before it.
#[test]
fn a_look_at_the_end_is_the_last() {
    let mut going = going(&Case::ours("lost").arg("wait").option("--leaks"));
    assert_eq!(look(&going, &[])["scan"]["at_exit"], false);
    drop(going.child.stdin.take());
    assert_eq!(going.child.wait().unwrap().code(), Some(7));
    let found = found_in(&going.dir.path().join("t.grapnel"));
    assert_eq!(found["scan"]["at_exit"], true);
    holds_what_it_should(&found);
}

/// Threads in the midst of allocating have nothing that looks lost.
#[test]
fn what_threads_are_about_to_hold_is_not_lost() {
    let mut going = Going::new(&Case::ours("churn"));
    until("blocks", || (going.status()?["processes"][0]["events"].as_u64()? > 20_000).then_some(()));
    // Some looks find its threads between two events, the more the fewer others use the processors.
    let (mut looks, mut quiet) = (0, 0);
    while looks < 6 || (quiet == 0 && looks < 40) {
        looks += 1;
        let found = look(&going, &[]);
        let busy = found["scan"]["notes"].as_array().is_some_and(|notes| !notes.is_empty());
        quiet += u32::from(!busy);
        assert!(busy || total(&found, "direct") == (0, 0), "{found}");
        assert!(total(&found, "reachable").0 >= 3990, "{}", found["totals"]);
    }
    assert!(quiet > 0, "no look found its threads between two events");
    going.end();
}

/// System calls end as they would, in time and with no error of their own, and a child is waited for by its parent alone.
#[test]
fn the_process_notices_nothing() {
    let case = Case::ours("waits").arg("8000");
    let sorted = |out: &str| {
        let mut lines: Vec<_> = out.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let mut going = Going::new(&case);
    let pid = going.pid();
    std::thread::sleep(Duration::from_millis(300));
    look(&going, &[]);
    // One thread works, so there is more to read each time; the end may come before.
    going.grapnel(&["leaks", &pid]);
    let stdout = going.child.stdout.take().unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut { stdout }, &mut said).unwrap();
    assert!(going.child.wait().unwrap().success());
    assert_eq!(sorted(&said), sorted(&case.bare().out()));
}

#[test]
fn what_cannot_be_looked_at_says_so() {
    let error = |outcome: grapnel_tests::run::Outcome| {
        assert_eq!((outcome.status.code(), outcome.out()), (Some(1), String::new()));
        outcome.err()
    };
    let sampled = going(&Case::ours("lost").arg("wait").option("--sample=100"));
    let refused = error(sampled.grapnel(&["leaks", &sampled.pid()]));
    assert!(refused.contains("record without --sample"), "{refused}");
    let none = error(sampled.grapnel(&["leaks", "1"]));
    assert!(none.contains("not recorded") && none.contains("grapnel attach 1"), "{none}");
    let trace = sampled.dir.path().join("t.grapnel");
    let found = error(grapnel(["leaks", "--tags=7", trace.to_str().unwrap()]));
    assert!(found.contains("are for processes"), "{found}");
}

/// Of blocks from before the recording nothing is known: what they hold counts as held.
#[test]
fn a_process_that_was_attached_to_is_looked_through() {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !is_root() && !["", "0"].contains(&scope.trim()) {
        skipped("leaks of a process that was attached to", "Yama lets only root attach here");
        return;
    }
    let dir = temporary_dir();
    let runtime = dir.path().join("run");
    std::fs::create_dir(&runtime).unwrap();
    let mut program = Command::new(programs::program("churn"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = program.id().to_string();
    std::thread::sleep(Duration::from_millis(200));
    let grapnel = |arguments: &[&str]| {
        let mut command = Command::new(programs::grapnel());
        command.args(arguments).env("XDG_RUNTIME_DIR", &runtime);
        command
    };
    let trace = dir.path().join("t.grapnel");
    let mut attached =
        grapnel(&["attach", "-q", "-o", trace.to_str().unwrap(), "--for", "5", &pid]).spawn().unwrap();
    let found = until("a look", || {
        let outcome = grapnel(&["leaks", "--format", "json", &pid]).output().unwrap();
        serde_json::from_slice::<Value>(&outcome.stdout).ok()
    });
    let notes = found["scan"]["notes"].to_string();
    assert!(notes.contains("blocks from before the recording"), "{notes}");
    // Detaching and looking stop the same threads, one after the other.
    while attached.try_wait().unwrap().is_none() {
        drop(grapnel(&["leaks", &pid]).output().unwrap());
    }
    assert!(attached.wait().unwrap().success());
    drop(program.stdin.take());
    assert!(program.wait_with_output().unwrap().status.success());
}
