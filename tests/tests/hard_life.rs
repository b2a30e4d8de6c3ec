//! Programs that make it hard for what lives in them: that change who and where they are, share their memory with other
//! processes, are cancelled, have no room left, block what they can.

use grapnel_tests::report::Report;
use grapnel_tests::run::{
    Case, Outcome, descendants, grapnel, kill, report_with_losses, temporary_dir, wait,
};
use grapnel_tests::{is_root, programs, skipped};
use rustix::process::Signal;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// A hang would end it.
const PATIENCE: Duration = Duration::from_secs(120);

/// As without grapnel, and the same totals as by the counting library.
fn check(case: Case) {
    let case = case.patience(PATIENCE);
    let bare = case.bare();
    let (outcome, counted) = case.counted(false);
    outcome.same_as(&bare);
    let recorded = case.recorded();
    recorded.outcome.same_as(&bare);
    assert_eq!(recorded.report().totals(), counted[0].totals, "{case:?} (left: grapnel)");
}

/// What the sites with this function allocated.
fn allocations_in(report: &Report, function: &str) -> u64 {
    let sites = report.sites.iter().filter(|site| site.frames.iter().any(|frame| frame.name() == function));
    sites.map(|site| site.allocations).sum()
}

#[test]
fn cancelled_threads() {
    check(Case::ours("cancelled"));
}

#[test]
fn all_signals_blocked() {
    check(Case::ours("blocked"));
}

#[test]
fn ten_thousand_threads() {
    check(Case::ours("many_threads").arg("10000"));
}

#[test]
fn huge_stacks_and_tiny_ones() {
    check(Case::ours("huge_frames"));
}

/// The walk of a stack that nobody has seen before needs no lock of the dynamic linker.
#[test]
fn the_loaders_lock_is_held() {
    let case = Case::ours("loader_lock").patience(PATIENCE);
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    assert_eq!(recorded.outcome.out(), "finished 1\n");
    assert_eq!(allocations_in(&recorded.report(), "down"), 301);
}

/// Without its root directory and its rights, in threads and in a child.
#[test]
fn another_root_and_another_user() {
    if !is_root() {
        skipped("another root and another user", "both need root");
        return;
    }
    let root = temporary_dir();
    let case = Case::ours("becoming").arg(root.path()).patience(PATIENCE);
    let bare = case.bare();
    assert_eq!(bare.out(), "child 5 uid 65534\n", "{:?}", bare.status);
    let recorded = case.recorded();
    recorded.outcome.same_as(&bare);
    let reports = recorded.reports();
    assert_eq!(allocations_in(&reports[0], "afterwards"), 6000);
    assert_eq!(reports[1..].iter().map(|report| allocations_in(report, "in_child")).sum::<u64>(), 77);
}

#[test]
fn processes_made_by_clone() {
    let case = Case::ours("raw_clone").patience(PATIENCE);
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    assert_eq!(recorded.outcome.out(), "3\n4\n5\n");
    let reports = recorded.reports();
    // What a process allocates in its parent's memory is its parent's.
    assert_eq!(allocations_in(&reports[0], "shared"), 13);
    assert_eq!(allocations_in(&reports[0], "meanwhile"), 2000);
    assert_eq!(allocations_in(&reports[0], "copied"), 0);
    assert_eq!(reports[1..].iter().map(|report| allocations_in(report, "copied")).sum::<u64>(), 33);
}

/// Beside the thread whose memory and thread pointer they have.
#[test]
fn processes_that_share_a_threads_variables() {
    let maps = ["allocates", "maps", "several", "threads", "same", "vforks", "signalled", "crowd"];
    for how in maps.into_iter().chain(cfg!(target_arch = "x86_64").then_some("own")) {
        for option in ["--no-follow", "--sample=1", "--via=got"] {
            let case = Case::ours("guests").arg(how).option(option).patience(PATIENCE);
            let recorded = case.recorded();
            assert_eq!(
                (recorded.outcome.out(), recorded.outcome.err()),
                ("wrong 0\n".into(), String::new()),
                "{how}"
            );
            // What a handler does that comes before the guest has begun counts as lost.
            if how == "signalled" {
                continue;
            }
            let report = recorded.report();
            let of_guest = if how == "allocates" || how == "own" { 50_000 } else { 0 };
            if option != "--sample=1" {
                assert_eq!(allocations_in(&report, "of_guest"), of_guest, "{how}");
                let of_thread = if ["crowd", "same", "vforks"].contains(&how) { 40_000 } else { 20_000 };
                assert!(how == "maps" || allocations_in(&report, "of_thread") == of_thread, "{how}");
            }
            let text = grapnel(["report".as_ref(), recorded.trace().as_os_str()]).out();
            // Each guest counts as one, however many events it has.
            let told = text.split_once(" with ").and_then(|(_, rest)| rest.split_once(" thread"));
            let threads: u32 = told.map_or(0, |(number, _)| number.parse().unwrap_or(0));
            assert!((1..=122).contains(&threads), "{how}: {}", text.lines().next().unwrap_or_default());
        }
    }
}

#[test]
fn threads_of_c11() {
    for option in ["--no-follow", "--sample=1", "--via=got"] {
        let recorded = Case::ours("c11_threads").option(option).recorded();
        assert_eq!((recorded.outcome.status.code(), recorded.outcome.out()), (Some(0), "done\n".into()));
        if option != "--sample=1" {
            assert_eq!(allocations_in(&recorded.report(), "allocates"), 2_000);
        }
    }
}

/// Such a process is killed by itself, perhaps with a lock in its hand. Then the recording ends, and nobody waits.
#[test]
fn a_process_that_shares_a_threads_variables_is_killed() {
    for round in 0..3 {
        let recorded = Case::ours("guests").arg("killed").patience(PATIENCE).recorded();
        let (out, err) = (recorded.outcome.out(), recorded.outcome.err());
        assert_eq!((recorded.outcome.status.code(), &*out), (Some(0), "wrong 0\n"), "{round}: {err}");
        assert!(err.is_empty() || err.contains("that shares the program's memory was killed"), "{err}");
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_stack_that_is_not_aligned() {
    for option in ["--no-follow", "--sample=1", "--via=got"] {
        let recorded = Case::ours("misaligned").option(option).recorded();
        recorded.outcome.same_as(&Case::ours("misaligned").bare());
    }
}

/// Less than the agent's code takes, and less stack than its start takes.
#[test]
fn limits_of_files_and_of_stacks() {
    let variables = "i=0; while [ $i -lt 300 ]; do export V$i=$(printf %0250d $i); i=$((i+1)); done";
    for limits in [
        "ulimit -f 8",
        "ulimit -f 100",
        "ulimit -s 32",
        "ulimit -s 40",
        &format!("{variables}; ulimit -s 140"),
    ] {
        let script = format!("{limits}; /bin/echo one; /bin/true; echo $?");
        let case = Case::new("/bin/sh").args(["-c", &script]);
        let bare = case.bare();
        assert_eq!(bare.out(), "one\n0\n", "{limits}: {}", bare.err());
        case.recorded().outcome.same_as(&bare);
    }
}

/// Children that nobody hears of before they allocate use what their parents recorded with, and need no more.
#[test]
fn a_chain_of_forks_by_the_system_call() {
    const FORKS: usize = 60;
    let case = Case::ours("fork_chain").arg(FORKS.to_string()).patience(PATIENCE);
    let recorded = case.recorded();
    let size = |outcome: &Outcome| outcome.out().trim().parse::<u64>().expect("a size");
    let (bare, with) = (size(&case.bare()), size(&recorded.outcome));
    assert!(with < bare + (20 << 10), "{bare} kB, and recorded {with}");
    let reports = recorded.reports();
    assert_eq!(reports.len(), FORKS + 1);
    assert!(reports.iter().all(|report| report.totals().allocations >= 100));
}

#[test]
fn an_allocator_of_its_own() {
    let case = Case::ours("own_malloc");
    case.recorded().outcome.same_as(&case.bare());
}

/// What was not recorded is counted, event by event.
fn check_losses(case: &Case, trace: &Path) {
    let (_, counted) = case.counted(false);
    let (totals, truth) = (report_with_losses(trace).totals, counted[0].totals);
    let recorded = totals.allocations + totals.reallocations + totals.frees;
    let true_events = truth.allocations + truth.reallocations + truth.frees;
    assert!(totals.lost_events > 0, "{totals:?}");
    assert_eq!(recorded + totals.lost_events, true_events, "{totals:?}, truth {truth:?}");
}

/// Threads that there is no memory for to record.
#[test]
fn no_room_for_threads() {
    let case = Case::ours("no_room").patience(PATIENCE);
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    check_losses(&case, &recorded.trace());
}

/// With `--drop` the program doesn't wait for grapnel, which here does nothing until the program is done.
#[test]
fn dropped_events_are_counted() {
    let dir = temporary_dir();
    let case = Case::ours("flood").args(["1500", "4000"]).option("--drop").patience(PATIENCE);
    let flood = programs::program("flood");
    let mut child = case
        .grapnel_command(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("grapnel starts");
    let running = || {
        let is_flood =
            |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == flood);
        descendants(child.id()).into_iter().any(|pid| is_flood(&pid))
    };
    while !running() {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(Signal::STOP, child.id());
    // A process that ended and isn't waited for has no executable any more.
    while running() {
        std::thread::sleep(Duration::from_millis(5));
    }
    kill(Signal::CONT, child.id());
    let status = wait(&mut child, PATIENCE).expect("grapnel ends");
    assert!(status.success(), "{status:?}");
    check_losses(&case, &dir.path().join("t.grapnel"));
}

/// A handler leaves recordings in their middle, all at one place of the stack: no event is lost for that.
#[test]
fn recordings_that_are_left_at_one_place() {
    let case = Case::ours("leaps").patience(PATIENCE);
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    recorded.report();
}

/// Loaded and left off: no function has other bytes than before, and nothing is recorded.
#[test]
fn off() {
    let case = Case::ours("first_bytes");
    let bare = case.bare();
    let recorded = case.clone().option("--off").recorded();
    recorded.outcome.same_as(&bare);
    let report = recorded.report();
    assert_eq!((report.totals.allocations, report.totals.frees), (0, 0));
    // Else this would show nothing.
    let on = case.recorded();
    assert_ne!(on.outcome.out(), bare.out());
    assert!(on.report().totals.allocations >= 1000);
    let children = Case::ours("forks").option("--off").recorded();
    children.outcome.same_as(&Case::ours("forks").bare());
    assert!(children.reports().iter().all(|report| report.totals.allocations == 0));
}

/// One large block, handed on under a lock, is there once at any moment, whatever small ones are allocated at the same time by threads
/// that lose their processor anywhere.
#[test]
fn what_is_handed_on_is_there_once() {
    for (handing, others, held_up_us) in [(2, 1, 0), (4, 1, 0), (4, 2, 3000), (8, 1, 10_000)] {
        let case = Case::ours("handed_on");
        let case =
            case.arg(handing.to_string()).arg(others.to_string()).arg("800").arg(held_up_us.to_string());
        let recorded = case.recorded();
        assert!(recorded.outcome.status.success());
        let totals = recorded.reports()[0].totals();
        let largest = (64 + 4 * (handing - 1)) << 20;
        assert!(totals.peak_bytes < largest + (1 << 20), "{handing} threads: {totals:?}");
    }
}
