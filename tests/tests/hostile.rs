//! Programs that destroy what they share with grapnel, or are destroyed at any instant. What is in the trace may
//! then be wrong where they wrote; grapnel ends all the same, soon, and says so in its own words.

use grapnel_tests::programs;
use grapnel_tests::run::{Case, grapnel, kill, temporary_dir, wait};
use grapnel_trace::shared::RingPlace;
use rustix::process::Signal;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Each part of the shared memory overwritten: the counts of segments, all of the session's header, the rings.
#[test]
fn scribbled_session() {
    for what in ["next", "limit", "noise", "ones", "rings", "zeros", "ticks"] {
        let recorded = Case::ours("vandal").arg(what).patience(Duration::from_secs(120)).recorded();
        let (outcome, err) = (&recorded.outcome, recorded.outcome.err());
        assert_eq!(outcome.out(), "vandal\n", "{what}: {err}");
        assert!(!err.contains("panicked") && !err.contains("fault in grapnel"), "{what}: {err}");
        assert_eq!(outcome.status.code(), Some(0), "{what}: {:?} {err}", outcome.status);
        let report = grapnel([Path::new("report"), &recorded.trace()]);
        assert!(!report.err().contains("panicked"), "{what}: {}", report.err());
        assert!(report.status.code().is_some(), "{what}: {:?}", report.status);
    }
}

/// A thread doesn't wait for room in a ring that nobody reads any more, since its counters contradict each other.
#[test]
fn a_ring_that_was_given_up_is_not_waited_for() {
    let recorded = Case::ours("vandal").arg("tail").arg(RingPlace::of(1).control.to_string()).recorded();
    let (outcome, err) = (&recorded.outcome, recorded.outcome.err());
    assert_eq!(outcome.out(), "vandal\nstood at less, came to 1000000\n", "{err}");
    assert_eq!(outcome.status.code(), Some(0), "{:?} {err}", outcome.status);
    assert!(err.contains("a ring of "), "{err}");
    assert!(grapnel([Path::new("report"), &recorded.trace()]).status.success());
}

/// A program that reaches grapnel's descriptor of the session can't cut it off: that would kill all that map it.
#[test]
fn truncated_session() {
    let recorded = Case::ours("vandal").arg("truncate").recorded();
    let (outcome, err) = (&recorded.outcome, recorded.outcome.err());
    assert!(outcome.status.success(), "{:?} {err}", outcome.status);
    if outcome.out().starts_with("tried 0") {
        grapnel_tests::skipped("a truncated session", "its descriptor can't be opened here");
        return;
    }
    assert_eq!(outcome.out(), "tried 1 cut 0 refused 1\n", "{err}");
    assert!(recorded.report().totals.allocations >= 2000);
}

/// How many calls had returned when the process was killed: allocations, frees, reallocations.
fn counters(path: &Path) -> [u64; 3] {
    let bytes = std::fs::read(path).expect("the counters can be read");
    let numbers: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    std::array::from_fn(|which| numbers.chunks(16).map(|thread| thread[which]).sum())
}

/// Eight threads that allocate, killed at some instant: the trace is whole, and has each call that had returned.
/// A hundred and twenty times, or as often as four seconds allow.
#[test]
fn killed_at_any_instant() {
    const THREADS: u64 = 8;
    let program = programs::program("counters");
    let start = Instant::now();
    let mut done = 0;
    while done < 120 && (done < 20 || start.elapsed() < Duration::from_secs(4)) {
        let dir = temporary_dir();
        let file = dir.path().join("counters");
        std::fs::write(&file, [0; THREADS as usize * 128]).expect("the counters can be written");
        let mut child = Case::new(&program)
            .arg(&file)
            .grapnel_command(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("grapnel starts");
        let begun = Instant::now();
        while counters(&file)[0] == 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the program never starts");
            std::thread::sleep(Duration::from_micros(300));
        }
        // Another instant each time, up to twenty milliseconds.
        std::thread::sleep(Duration::from_micros(done * 7919 % 20_000));
        let pid = grapnel_tests::run::descendants(child.id()).into_iter().next().expect("the program runs");
        kill(Signal::KILL, pid);
        let status = wait(&mut child, Duration::from_secs(60)).expect("grapnel ends");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
        let report = grapnel_tests::run::report(&dir.path().join("t.grapnel"));
        let totals = report.totals;
        let expected = counters(&file);
        // glibc's own allocations for threads are in the trace too; calls under way may be.
        let own = 2 * THREADS;
        for (what, found, counted) in [
            ("allocations", totals.allocations, expected[0]),
            ("frees", totals.frees, expected[1]),
            ("reallocations", totals.reallocations, expected[2]),
        ] {
            assert!((counted..=counted + THREADS + own).contains(&found), "{what}: {found} of {counted}");
        }
        done += 1;
    }
}
