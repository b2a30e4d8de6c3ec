//! Snapshots and looks for leaks in a process that was attached to: on a signal, at a size, when somebody asks.

use grapnel_tests::attaching::may_trace;
use grapnel_tests::counted::{Attached, Counted, recorded};
use grapnel_tests::going::until;
use grapnel_tests::programs::{self, Linking};
use grapnel_tests::run::{kill, report, temporary_dir};
use rustix::process::Signal;
use serde_json::Value;
use std::process::Command;

#[test]
fn snapshots_come_on_a_signal_and_at_a_size() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let mut counted = Counted::start(&mut Command::new(programs::program("counted")));
    let options = ["--snapshot-on", "SIGUSR2", "--snapshot-at", "8M"];
    let attached = Attached::to(counted.running.pid(), dir.path(), &options);
    let snapshot = |number: u32| dir.path().join(format!("t.snapshot-{number}.grapnel"));
    // Nothing is live yet.
    kill(Signal::USR2, attached.pid());
    until("a snapshot on the signal", || snapshot(1).exists().then_some(()));
    assert_eq!(recorded(&report(&snapshot(1))).got, 0);
    let done = counted.work();
    assert!(done.live_bytes > 8 << 20, "{done:?}");
    until("a snapshot at the size", || snapshot(2).exists().then_some(()));
    let totals = report(&snapshot(2)).totals;
    assert!(totals.live_bytes >= 8 << 20, "{totals:?}");
    // It goes on.
    counted.work();
    let (report, said) = attached.end();
    assert_eq!(recorded(&report).got, 2 * done.got);
    assert!(said.contains("t.snapshot-1.grapnel") && said.contains("t.snapshot-2.grapnel"), "{said}");
}

/// All that the program keeps is reached from a variable of its own, wherever its libc lies.
#[test]
fn what_is_held_is_not_lost() {
    if !may_trace() {
        return;
    }
    for linking in [Linking::Glibc, Linking::GlibcStatic, Linking::Musl, Linking::MuslStatic] {
        let dir = temporary_dir();
        let mut counted = Counted::start(&mut Command::new(programs::linked_program("counted", linking)));
        let pid = counted.running.pid().to_string();
        let attached = Attached::to(counted.running.pid(), dir.path(), &[]);
        let done = counted.work();
        let found: Value =
            serde_json::from_str(&attached.ask(&["leaks", "--format", "json", &pid])).expect("JSON");
        let blocks = |what: &str| found["totals"][what]["blocks"].as_u64().expect("a number");
        let lost = ["direct", "indirect", "possible"].map(blocks);
        assert_eq!(lost, [0; 3], "{linking:?}: {found}");
        assert!(blocks("reachable") >= done.live, "{linking:?}: {found}");
        attached.end();
    }
}
