//! What a recording says of its own cost. How much that is depends on the machine; that it is all there, and adds up,
//! does not.

use grapnel_tests::programs;
use grapnel_tests::report::{Recorder, Report};
use grapnel_tests::run::{self, Case, grapnel};
use rustix::process::{Signal, getpriority_process, setpriority_process};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

fn recorder(report: &Report) -> Recorder {
    report.recorder.expect("a recording that ended in order says what it cost")
}

/// A `realloc` is two events.
fn events(report: &Report) -> u64 {
    let totals = &report.totals;
    totals.allocations + totals.frees + 2 * totals.reallocations
}

#[test]
fn some_events_of_every_kind_are_timed() {
    for case in [
        Case::ours("flood").args(["600", "4000"]),
        Case::ours("threads"),
        Case::ours("many_threads"),
        Case::ours("cxx"),
        Case::ours("interrupts"),
    ] {
        let report = case.recorded().report();
        let found = recorder(&report);
        // Those of reallocs that failed are in the one figure only.
        assert!((events(&report)..=events(&report) + 10).contains(&found.events), "{case:?}: {found:?}");
        // Every few hundred events one is chosen; some of these are interrupted.
        let (most, least) = (found.events / 50 + 8, found.events / 5000);
        assert!((least..=most).contains(&found.timed_events), "{case:?}: {found:?}");
        if found.timed_events >= 100 {
            let added = found.added_ns.expect("enough were timed");
            assert!(
                added > found.setup_ns && found.added_ns_error.is_some_and(|error| error > 0),
                "{found:?}"
            );
        }
        let cpu = found.program_cpu_ns.expect("its own child can be asked");
        assert!(found.setup_ns > 0 && cpu > 0 && found.drain_cpu_ns > 0, "{found:?}");
        // A page at least; no more than a segment's numbers and a ring of a mebibyte for each of sixteen threads at once.
        assert!((4096..64 << 20).contains(&found.shared_bytes), "{found:?}");
        assert!((4096..64 << 20).contains(&found.agent_bytes), "{found:?}");
        assert!(found.command_bytes > found.shared_bytes, "{found:?}");
    }
}

/// Children have figures of their own.
#[test]
fn each_process_is_metered_by_itself() {
    let recorded = Case::ours("fork_race").recorded();
    for report in recorded.reports() {
        let found = recorder(&report);
        let all = events(&report);
        assert!((all..=all + 10).contains(&found.events), "{found:?} for {all}");
        assert!(found.timed_events <= found.events, "{found:?}");
    }
}

/// The report and the summary say it in words, the summary without a second pass.
#[test]
fn it_is_told() {
    let case = Case::ours("flood").args(["300", "4000"]);
    let recorded = case.recorded();
    let text = grapnel([OsStr::new("report"), recorded.trace().as_ref()]).out();
    for part in ["  recording ", " ns per event, estimated from ", " mapped and ", "was waited for "] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    // A handful of events says nothing.
    let few = grapnel([OsStr::new("report"), Case::ours("plain").recorded().trace().as_ref()]).out();
    assert!(few.contains("too few were timed"), "{few}");
}

/// While a thread waits for room in its ring, grapnel's thread that makes it goes first, where that is allowed; no other does, and it
/// doesn't go on so.
#[test]
fn who_is_waited_for_goes_first() {
    let usual = getpriority_process(None).expect("a niceness");
    let may = setpriority_process(None, usual - 1).is_ok();
    setpriority_process(None, usual).expect("as it was");

    let dir = run::temporary_dir();
    // Of a shell, since grapnel stops when its program is stopped.
    let case = Case::new("/bin/sh").args(["-c", "\"$0\" 100000 100; :"]).arg(programs::program("flood"));
    let mut child =
        case.grapnel_command(dir.path()).stdout(Stdio::null()).spawn().expect("grapnel can be started");
    let (tasks, mut least) = (format!("/proc/{}/task", child.id()), usual);
    for _ in 0..100 {
        // The ring is full when it goes on.
        run::kill(Signal::STOP, child.id());
        std::thread::sleep(Duration::from_millis(30));
        run::kill(Signal::CONT, child.id());
        let until = Instant::now() + Duration::from_millis(30);
        while Instant::now() < until && least == usual {
            for (name, niceness) in nicenesses(Path::new(&tasks)) {
                assert!(name == "drain" || niceness == usual, "{name} {niceness}");
                least = least.min(niceness);
            }
        }
        if least != usual {
            break;
        }
    }
    assert_eq!(least < usual, may, "{usual} {least}");
    // Then it has nothing more to do.
    run::descendants(child.id()).into_iter().skip(1).for_each(|pid| run::kill(Signal::STOP, pid));
    let deadline = Instant::now() + Duration::from_secs(20);
    while nicenesses(Path::new(&tasks)).any(|(_, niceness)| niceness != usual) {
        assert!(Instant::now() < deadline, "it goes first for ever");
        std::thread::sleep(Duration::from_millis(10));
    }
    run::descendants(child.id()).into_iter().for_each(|pid| run::kill(Signal::KILL, pid));
    child.wait().expect("it ends");
}

/// Name and niceness of the threads of a process.
fn nicenesses(tasks: &Path) -> impl Iterator<Item = (String, i32)> {
    std::fs::read_dir(tasks).into_iter().flatten().flatten().filter_map(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        // The nineteenth field is the seventeenth behind the name.
        Some((name.to_owned(), rest.split_whitespace().nth(16)?.parse().ok()?))
    })
}
