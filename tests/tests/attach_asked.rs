//! Snapshots and looks for leaks in a process that was attached to: on a signal, at a size, when somebody asks.

use grapnel_tests::attaching::{Running, may_trace};
use grapnel_tests::counted::{Attached, Counted, recorded};
use grapnel_tests::going::until;
use grapnel_tests::group::Group;
use grapnel_tests::programs::{self, Linking};
use grapnel_tests::run::{kill, report, temporary_dir};
use grapnel_tests::skipped;
use rustix::process::Signal;
use serde_json::Value;
use std::io::{BufRead, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

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

/// By the limit of the group that the process is in, not grapnel; and before the kernel ends the process.
#[test]
fn a_snapshot_comes_before_memory_ends() {
    const LIMIT: u64 = 200 << 20;
    if !may_trace() {
        return;
    }
    let Some(group) = Group::new(LIMIT) else {
        skipped("a snapshot before memory ends", "no control group with a limit can be made here");
        return;
    };
    let dir = temporary_dir();
    let first = "print('up', flush=True); sys.stdin.readline()";
    let mut command = Command::new("/usr/bin/python3");
    command.args(group.filler(LIMIT, first)).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Running(command.spawn().expect("the program starts"));
    program.out().read_line(&mut String::new()).expect("a line");
    let mut input = program.0.stdin.take().expect("its input");
    let attached = Attached::to(program.pid(), dir.path(), &["--snapshot-before-oom"]);
    let snapshot = dir.path().join("t.snapshot-1.grapnel");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!snapshot.exists(), "there is room");
    input.write_all(b"\n").expect("it goes on");
    until("a snapshot", || snapshot.exists().then_some(()));
    let live = report(&snapshot).totals.live_bytes;
    assert!(live > LIMIT / 10 * 8 && live < LIMIT, "{live}");
    // Now it is ended, and the recording with it.
    input.write_all(b"\n").expect("it goes on");
    let ended = program.0.wait().expect("it ends");
    assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()), "{ended:?}");
    let said = attached.ended();
    assert!(said.contains("t.snapshot-1.grapnel"), "{said}");
    assert!(report(&dir.path().join("t.grapnel")).totals.live_bytes >= live);
    assert!(!dir.path().join("t.snapshot-2.grapnel").exists(), "once is enough");
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
