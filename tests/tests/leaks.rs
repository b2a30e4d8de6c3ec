//! Looks for leaks at the ends of programs whose truth is known.

use grapnel_tests::leaks::{at, holds_what_it_should, kinds, paths, total};
use grapnel_tests::run::{Case, Outcome, Recorded, grapnel};
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

/// What `grapnel leaks` says of a trace, reachable blocks included; `None` if leaks were not looked for.
fn looked(trace: &Path) -> Option<Value> {
    let options = ["leaks", "--format", "json", "--reachable"].map(OsStr::new);
    let outcome = grapnel(options.into_iter().chain([trace.as_ref()]));
    if outcome.err().contains("leaks were not looked for") {
        assert_eq!(outcome.status.code(), Some(1));
        return None;
    }
    assert!(outcome.status.success(), "{}", outcome.err());
    Some(serde_json::from_slice(&outcome.stdout).unwrap())
}

fn leaks(trace: &Path) -> Value {
    looked(trace).expect("leaks were looked for")
}

fn recorded(program: &str, options: &[&str]) -> Recorded {
    let case = options.iter().fold(Case::ours(program).option("--leaks"), |case, option| case.option(option));
    case.recorded()
}

#[test]
fn what_is_lost_is_told_from_what_is_held_and_by_what() {
    let recorded = recorded("lost", &[]);
    assert_eq!((recorded.outcome.out().as_str(), recorded.outcome.status.code()), ("done\n", Some(7)));
    let found = leaks(&recorded.trace());
    assert_eq!(found["scan"]["at_exit"], true);
    assert_eq!(found["scan"]["notes"], serde_json::json!([]));
    holds_what_it_should(&found);
    let sum =
        ["direct", "indirect", "possible", "reachable"].map(|kind| total(&found, kind).0).iter().sum::<u64>();
    assert_eq!(sum, recorded.report().totals.live_allocations);
}

/// Several stacks may lie in one mapping, with or without what libc keeps of threads, and what can't be written to any more
/// still holds.
#[test]
fn stacks_of_every_making_hold_and_so_does_what_became_read_only() {
    let recorded = recorded("lost_stacks", &[]);
    assert_eq!((recorded.outcome.out().as_str(), recorded.outcome.status.code()), ("done\n", Some(0)));
    let found = leaks(&recorded.trace());
    for (mark, blocks, size, roots) in [
        ("HELD in a pool of stacks", 3, 1001, &["stack"][..]),
        ("HELD without guard pages", 3, 1002, &["stack"]),
        ("HELD variable", 6, 1003, &["thread-local"]),
        ("HELD in a read-only mapping", 1, 1004, &["mapping"]),
        ("HELD by a read-only variable", 1, 1005, &["global"]),
        ("HELD by an initialized read-only variable", 1, 1006, &["global"]),
        ("HELD by a coroutine", 4, 1007, &["stack", "mapping"]),
        ("HELD above the stack of its thread", 1, 1008, &["stack"]),
    ] {
        let reachable = kinds(&[("reachable", blocks, blocks * size)]);
        assert_eq!(at(&found, "lost_stacks.c", mark), reachable, "{mark}");
        for path in paths(&found, "lost_stacks.c", mark) {
            assert!(roots.contains(&path["root"]["kind"].as_str().unwrap()), "{mark}: {path}");
        }
    }
    assert_eq!(at(&found, "lost_stacks.c", "LOST by a thread"), kinds(&[("direct", 6, 6 * 2001)]));
}

/// Wherever libc puts them: beside the thread pointer, or in a block to which a thread's list of them leads.
#[test]
fn variables_of_threads_hold_until_these_end() {
    let library = grapnel_tests::programs::library("lost_locals_library");
    let recorded = Case::ours("lost_locals").arg(library).option("--leaks").recorded();
    assert_eq!((recorded.outcome.out().as_str(), recorded.outcome.status.code()), ("done\n", Some(0)));
    let found = leaks(&recorded.trace());
    for (mark, size) in [
        ("HELD by the first thread */", 1001),
        ("HELD by the first thread, further up", 1002),
        ("HELD by the first thread's in a library", 1003),
        ("HELD by the second thread */", 1004),
        ("HELD by the second thread, further up", 1005),
        ("HELD by the second thread's in a library", 1006),
    ] {
        assert_eq!(at(&found, "lost_locals.c", mark), kinds(&[("reachable", 1, size)]), "{mark}");
    }
    assert_eq!(at(&found, "lost_locals.c", "LOST by a thread"), kinds(&[("direct", 1, 2001)]));
    // What libc keeps of the thread that has ended is not lost.
    assert_eq!(total(&found, "direct"), (1, 2001), "{found}");
}

#[test]
fn policies_change_what_counts() {
    let tagged = leaks(&recorded("lost", &["--tags=0xff00000000000000"]).trace());
    assert_eq!(at(&tagged, "lost.c", "HELD tagged"), kinds(&[("reachable", 1, 15)]));
    assert_eq!(at(&tagged, "lost.c", "LOST alone"), kinds(&[("direct", 1, 100)]));
    for interior in ["start", "known"] {
        let found = leaks(&recorded("lost", &["--interior", interior]).trace());
        assert_eq!(at(&found, "lost.c", "HELD inside"), kinds(&[("possible", 1, 1400)]), "{interior}");
        assert_eq!(at(&found, "lost.c", "HELD list"), kinds(&[("reachable", 20, 960)]), "{interior}");
    }
    let without = leaks(&recorded("lost", &["--no-mappings"]).trace());
    assert_eq!(at(&without, "lost.c", "HELD mapped"), kinds(&[("direct", 1, 13)]));
}

#[test]
fn every_orderly_end_is_looked_at_and_none_is_changed() {
    for (end, status) in [("return", 7), ("exit", 3), ("quick", 4), ("_exit", 5)] {
        let recorded = Case::ours("lost").arg(end).option("--leaks").recorded();
        recorded.outcome.same_as(&Case::ours("lost").arg(end).bare());
        assert_eq!(recorded.outcome.status.code(), Some(status));
        assert_eq!(
            at(&leaks(&recorded.trace()), "lost.c", "LOST alone"),
            kinds(&[("direct", 1, 100)]),
            "{end}"
        );
    }
    let killed = Case::ours("lost").arg("abort").option("--leaks").recorded();
    assert_eq!(killed.outcome.status.signal(), Some(6));
    let outcome = grapnel([OsStr::new("leaks"), killed.trace().as_ref()]);
    assert_eq!(outcome.status.code(), Some(1));
    assert!(outcome.err().contains("leaks were not looked for"), "{}", outcome.err());
}

fn check(trace: &Path, arguments: &[&str]) -> Outcome {
    let arguments = ["check", "--fail-on", "leaks"].iter().chain(arguments).map(OsStr::new);
    grapnel(arguments.chain([trace.as_ref()]))
}

#[test]
fn the_gate_and_suppressions_go_by_what_is_lost() {
    let recorded = recorded("lost", &[]);
    let trace = recorded.trace();
    let outcome = check(&trace, &[]);
    assert_eq!(outcome.status.code(), Some(8), "{}", outcome.err());
    assert!(outcome.out().contains("lost at the end, 54 of them indirectly"), "{}", outcome.out());
    let file = recorded.dir.path().join("known.txt");
    std::fs::write(&file, "leak:^lose\nleak:^chain$\nleak:^hold$\n").unwrap();
    let known = check(&trace, &["--suppressions", file.to_str().unwrap()]);
    assert_eq!(known.status.code(), Some(0), "{}", known.out());
    assert!(known.out().contains("suppressed by leak:^chain$: 50 blocks"), "{}", known.out());
    // What hangs on a suppressed block goes with it.
    std::fs::write(&file, "leak:^lose_tree$\n").unwrap();
    let text = grapnel(
        ["leaks", "--suppressions", file.to_str().unwrap()]
            .map(OsStr::new)
            .into_iter()
            .chain([trace.as_ref()]),
    );
    assert!(!text.out().contains("lose_tree") && text.out().contains("lose_circle"), "{}", text.out());
    let clean = Case::new("/bin/true").option("--leaks").recorded();
    assert_eq!(check(&clean.trace(), &[]).status.code(), Some(0));
}

/// What the program's calls, and the agent's own frames in them, left on the stack holds no block.
#[test]
fn a_block_that_was_just_forgotten_is_lost() {
    let recorded = Case::ours("forgotten").option("--leaks").recorded();
    let direct = &looked(&recorded.trace()).unwrap()["totals"]["direct"];
    assert_eq!((direct["blocks"].as_u64(), direct["bytes"].as_u64()), (Some(1), Some(1000)));
}

#[test]
fn the_text_names_what_holds_a_block() {
    let recorded = recorded("lost", &[]);
    let outcome = grapnel(
        ["leaks", "--reachable", "--top", "0"].map(OsStr::new).into_iter().chain([recorded.trace().as_ref()]),
    );
    let text = outcome.out();
    for expected in [
        "Directly lost",
        "held by `table` in lost+0x",
        "held by r12 of thread",
        "held by the stack of thread",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// Children are looked at too. One that was forked has blocks that its recording doesn't know of.
#[test]
fn children_are_looked_at() {
    let recorded = Case::ours("forks").option("--leaks").option("--wait").recorded();
    recorded.outcome.same_as(&Case::ours("forks").bare());
    let (mut forked, mut killed) = (0, 0);
    for trace in recorded.traces().into_iter().skip(1) {
        match looked(&trace) {
            Some(found) => forked += found["scan"]["notes"].as_array().unwrap().len(),
            None => killed += 1,
        }
    }
    assert_eq!(killed, 1, "one of them ends by a signal");
    assert!(forked > 0);
}

/// What real programs print and how they end is the same, and they lose next to nothing.
#[test]
fn real_programs_end_as_they_would() {
    let script = "import json, threading\nthreading.Thread(target=lambda: json.dumps([1] * 9)).start()\nprint(len('x' * 7))";
    for case in [
        Case::new("/usr/bin/python3").args(["-c", script]).env("PYTHONMALLOC", "malloc"),
        Case::new("/usr/bin/jq").args(["-n", "[range(2000)] | add"]),
        Case::new("/usr/bin/sqlite3")
            .args([":memory:", "create table t(x); insert into t values (1); select * from t"]),
        Case::new("/bin/sh").args(["-c", "echo $(/bin/true; echo 1); exit 9"]),
    ] {
        let recorded = case.clone().option("--leaks").recorded();
        recorded.outcome.same_as(&case.bare());
        leaks(&recorded.trace());
        // One that became another program was not looked at.
        for trace in recorded.traces() {
            let Some(found) = looked(&trace) else { continue };
            let (lost, all) = (total(&found, "direct"), total(&found, "reachable"));
            assert!(lost.1 <= 64 + all.1 / 4, "{case:?}: {:?} {lost:?} of {all:?}", trace);
        }
    }
}
