//! Children of fork and exec, and their traces.

use grapnel_tests::programs;
use grapnel_tests::report::{Report, Site};
use grapnel_tests::run::{Case, Recorded};
use std::collections::BTreeSet;
use std::time::Duration;

fn names(recorded: &Recorded) -> Vec<String> {
    recorded.traces().iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect()
}

/// Each way to start a program leaves a trace, told by its number of allocations.
#[test]
fn each_way_to_start() {
    let recorded = Case::ours("spawns").recorded();
    let counts: BTreeSet<u64> = recorded
        .reports()
        .iter()
        .filter(|report| report.process.command.len() > 1 && report.process.command[0].ends_with("spawns"))
        .map(|report| report.totals.allocations)
        .collect();
    let expected: BTreeSet<u64> = (101..=117).collect();
    assert_eq!(counts, expected, "left: found; 110 has an empty environment");
}

/// What isn't an environment is for the kernel to refuse, as it does without grapnel.
#[test]
fn pointers_that_lead_nowhere_are_the_kernels_to_refuse() {
    let case = Case::ours("bad_pointers");
    let bare = case.bare();
    assert_eq!(bare.out().matches(": Bad address\n").count(), bare.out().lines().count(), "{}", bare.out());
    case.recorded().outcome.same_as(&bare);
}

/// What a child of vfork records with in its parent's memory is no other thread's, also when the child is gone.
#[test]
fn first_in_a_vfork() {
    let case = Case::ours("first_in_a_vfork");
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let report = recorded.report();
    assert_eq!(report.totals.lost_events, 0);
    let of_work = |site: &&Site| site.frames.iter().any(|frame| frame.name() == "work");
    let blocks: u64 = report.sites.iter().filter(of_work).map(|site| site.allocations).sum();
    assert_eq!(blocks, 60 * 8 * (300 + 2), "rounds, threads, blocks of the thread and of its child");
}

/// All traces of a run sort together, and say which process and which program.
#[test]
fn named_together() {
    let recorded = Case::ours("spawns").recorded();
    for (trace, report) in recorded.traces().iter().zip(recorded.reports()) {
        let name = trace.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name == "t.grapnel" {
            assert_eq!(report.process.command.len(), 1, "the program's own");
            continue;
        }
        assert!(name.starts_with(&format!("t.{}", report.process.pid)), "{name}: {:?}", report.process);
    }
}

#[test]
fn a_fork_has_a_trace_of_its_own() {
    let recorded = Case::ours("forks").recorded();
    let mut counts: Vec<u64> = recorded.reports().iter().map(|report| report.totals.allocations).collect();
    counts.retain(|count| *count > 0);
    counts[1..].sort_unstable();
    // The parent's own are few; its first is the longest lived.
    assert_eq!(counts[1..], [1, 7, 11, 13], "{:?}", names(&recorded));
}

/// How each process ended is in its trace as far as grapnel can know it: its own child's end always.
#[test]
fn exit_is_recorded() {
    use grapnel_tests::report::Exit;
    for (how, exit) in [("_exit", Exit::Code(7)), ("kill", Exit::Signal(9)), ("segv", Exit::Signal(11))] {
        let recorded = Case::ours("ends").arg(how).recorded();
        assert_eq!(recorded.report().process.exit, Some(exit), "{how}");
    }
}

#[test]
fn not_followed_when_asked() {
    for program in ["spawns", "forks"] {
        let case = Case::ours(program).option("--no-follow");
        let recorded = case.recorded();
        recorded.outcome.same_as(&case.bare());
        assert_eq!(names(&recorded), ["t.grapnel"], "{program}");
        let followed = Case::ours(program).recorded();
        assert_eq!(recorded.report().totals(), followed.report().totals(), "{program}");
    }
}

/// A shell pipeline: many processes at once, with the usual result.
#[test]
fn pipeline() {
    let case = Case::new("/bin/sh").args(["-c", "seq 1000 | sort -r | head -3; (exit 3); exit $?"]);
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let programs: BTreeSet<String> = recorded
        .reports()
        .iter()
        .filter_map(|report| {
            report.process.command.first().and_then(|name| name.rsplit('/').next().map(str::to_owned))
        })
        .collect();
    for name in ["sh", "seq", "sort", "head"] {
        assert!(programs.contains(name), "{name} in {programs:?}");
    }
}

/// A child that may not see what the agent needs runs as ever, without a word on stderr: another user, and
/// another namespace of processes.
#[test]
fn children_out_of_reach() {
    if !grapnel_tests::is_root() {
        grapnel_tests::skipped("children of another user", "becoming one needs root");
        return;
    }
    let elsewhere: [&[&str]; 2] = [
        &[
            "/usr/bin/setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "/bin/sh",
            "-c",
            "id -u; ls /; true",
        ],
        &[
            "/usr/bin/unshare",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "/bin/sh",
            "-c",
            "echo $$; ls /; true",
        ],
    ];
    for arguments in elsewhere {
        let case = Case::new(arguments[0]).args(&arguments[1..]);
        let bare = case.bare();
        if !bare.status.success() {
            grapnel_tests::skipped(arguments[0], &bare.err());
            continue;
        }
        case.recorded().outcome.same_as(&bare);
    }
}

/// Forks while other threads open libraries, whose list the agent then reads: no child waits for a lock that a thread of its parent
/// had, and each is recorded.
#[test]
fn fork_while_threads_open_libraries() {
    let case = Case::ours("fork_while_opening").arg(programs::plug("a")).patience(Duration::from_secs(120));
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    assert_eq!(recorded.traces().len(), 1001, "the parent and its children");
}

/// A child of a fork in the moment in which another thread opens a library, and the agent reads the linker's list, can open one
/// too.
#[test]
fn a_child_of_a_fork_amid_loading_can_load() {
    let [first, second, childs] = ["a", "b", "c"].map(programs::opened);
    let hangs = |round: &u32| {
        let case = Case::ours("load_in_child").arg((round * 137 % 1500).to_string());
        !case.arg(&first).arg(&second).arg(&childs).recorded().outcome.status.success()
    };
    // glibc itself holds that lock for a moment, which it doesn't make new in a child: that happens once in thousands of forks.
    assert!((0..12).filter(hangs).count() <= 1);
}

/// Checks that each child has the hundred allocations that it made itself, and nothing of its parent's.
fn each_has_its_own(children: &[Report]) {
    for child in children {
        let totals = child.totals();
        assert_eq!(
            (totals.allocations, totals.frees, totals.live_bytes),
            (100, 0, 2100),
            "{:?}",
            child.process
        );
    }
}

/// Forks while other threads allocate: no child hangs, and each has exactly its own events.
#[test]
fn fork_while_threads_allocate() {
    let case = Case::ours("fork_race");
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let reports = recorded.reports();
    assert_eq!(reports.len(), 61, "the parent and sixty children");
    each_has_its_own(&reports[1..]);
    let parent = reports[0].totals();
    assert_eq!(parent.allocations, parent.frees + parent.live_allocations);
}

/// Forks while other threads begin to record: none does so just then, each child is recorded, and no thread waits for a fork that
/// waits for it.
#[test]
fn fork_while_threads_begin() {
    let case = Case::ours("fork_at_starts");
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let reports = recorded.reports();
    assert_eq!(reports.len(), 101, "the parent and a hundred children");
    each_has_its_own(&reports[1..]);
}

/// Execs while other threads allocate: each program of the pid has its trace, the last is exact.
#[test]
fn exec_while_threads_allocate() {
    let recorded = Case::ours("exec_race").arg("6").recorded();
    assert!(recorded.outcome.status.success(), "{}", recorded.outcome.err());
    let reports = recorded.reports();
    assert_eq!(reports.len(), 7);
    let last = reports.iter().find(|report| report.process.command.last().is_some_and(|arg| arg == "0"));
    let last = last.expect("the last program has a trace").totals();
    assert_eq!((last.allocations, last.frees, last.live_bytes), (123, 0, 1107));
    assert!(reports.iter().filter(|report| report.totals.allocations > 1000).count() >= 4);
}

/// Without --wait grapnel ends with its program; with it, when the last process that it started has ended.
#[test]
fn wait_for_all() {
    let script = "(sleep 1; echo late) & echo early";
    let case = Case::new("/bin/sh").args(["-c", script]).option("--wait");
    let start = std::time::Instant::now();
    let recorded = case.recorded();
    assert!(start.elapsed().as_millis() >= 1000, "it waited");
    assert_eq!(recorded.outcome.out(), "early\nlate\n");
    let reports = recorded.reports();
    let slept =
        reports.iter().find(|report| report.process.command.first().is_some_and(|name| name == "sleep"));
    assert!(slept.is_some_and(|report| report.totals.allocations > 0), "the late process is recorded");

    // A process that ends only when it is told to, which is when grapnel has ended.
    let dir = grapnel_tests::run::temporary_dir();
    let fifo = dir.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.is_ok_and(|status| status.success()), "a FIFO can be made");
    let script = "(read word < $FIFO; echo late) >/dev/null 2>&1 & echo early";
    let recorded = Case::new("/bin/sh").args(["-c", script]).env("FIFO", &fifo).recorded();
    assert_eq!(recorded.outcome.out(), "early\n");
    std::fs::write(&fifo, "go on\n").expect("it still waits");
}

/// Processes that go on after grapnel's program has ended, and grapnel with it, run as ever.
#[test]
fn children_that_outlive_grapnel() {
    for _ in 0..6 {
        let dir = grapnel_tests::run::temporary_dir();
        let err = dir.path().join("err");
        let file = std::fs::File::create(&err).expect("a file for stderr");
        let case = Case::new("/bin/sh")
            .args(["-c", "(for i in 1 2 3; do sleep 0.1; done; echo late >&2) & echo early"]);
        let mut child = case
            .grapnel_command(dir.path())
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(file)
            .spawn()
            .expect("grapnel starts");
        assert!(child.wait().expect("grapnel ends").success());
        let start = std::time::Instant::now();
        loop {
            let text = std::fs::read_to_string(&err).expect("stderr");
            if text.contains("late") {
                assert_eq!(text, "late\n");
                break;
            }
            assert!(start.elapsed().as_secs() < 120, "the child never ended: {text}");
            std::thread::sleep(Duration::from_millis(10));
        }
        for trace in grapnel_tests::run::traces_in(dir.path()) {
            grapnel_tests::run::report(&trace);
        }
    }
}

/// Daemons: --wait waits for processes whose parents were gone before they did anything.
#[test]
fn wait_for_daemons() {
    for _ in 0..4 {
        let recorded = Case::ours("daemon").option("--wait").recorded();
        assert!(recorded.outcome.status.success(), "{}", recorded.outcome.err());
        assert_eq!((recorded.outcome.out(), recorded.outcome.err()), ("daemon\n".into(), String::new()));
        let daemon = recorded.reports().into_iter().filter(|report| report.totals.allocations == 500).count();
        assert_eq!(daemon, 1, "the daemon's trace: {:?}", names(&recorded));
    }
}

/// Runs a script that starts `flood` in pid namespaces, with and without --wait: nobody hangs, and the floods are
/// recorded whole, told by their thousands of allocations.
fn in_pid_namespaces(script: &str, thousands: &[u64]) {
    let flood = programs::program("flood");
    for wait in [false, true] {
        let patience = Duration::from_secs(60);
        let mut case = Case::new("/bin/sh").args(["-c", script]).env("FLOOD", &flood).patience(patience);
        let bare = case.bare();
        if !bare.status.success() || !bare.err().is_empty() {
            grapnel_tests::skipped("other pid namespaces", &bare.err());
            return;
        }
        if wait {
            case = case.option("--wait");
        }
        let recorded = case.recorded();
        recorded.outcome.same_as(&bare);
        let mut found: Vec<u64> = recorded
            .reports()
            .iter()
            .filter(|report| report.process.command.first().is_some_and(|name| name.ends_with("/flood")))
            .map(|report| report.totals.allocations / 1000)
            .collect();
        found.sort_unstable();
        assert_eq!(found, thousands, "--wait {wait}: {:?}", names(&recorded));
    }
}

/// In another namespace pids are not what grapnel sees: it must not watch a stranger of the same number.
#[test]
fn other_pid_namespace() {
    let script = "unshare -pf sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done; \"$FLOOD\" 300 100'";
    in_pid_namespaces(script, &[300]);
}

/// Two namespaces at once: both floods have pid 1 where they are.
#[test]
fn equal_pids_in_two_namespaces() {
    let script = "unshare -pf \"$FLOOD\" 300 100 & unshare -pf \"$FLOOD\" 200 100 & wait; echo end";
    in_pid_namespaces(script, &[200, 300]);
}

/// What is paused or goes on in a child is the child's recording: not its parent's, whether the child is recorded or not, and noticed by then or not.
#[test]
fn a_child_that_pauses() {
    for (arguments, option) in [
        (&[][..], None),
        (&["early"][..], None),
        (&[], Some("--no-follow")),
        (&["early"], Some("--no-follow")),
    ] {
        let case = Case::ours("paused_child").args(arguments);
        let bare = case.bare();
        let case = option.into_iter().fold(case, |case, option| case.option(option));
        let recorded = case.recorded();
        recorded.outcome.same_as(&bare);
        let of = |report: &Report, size: u64| -> u64 {
            let sites = report.sites.iter().filter(|site| site.allocated_bytes == size * site.allocations);
            sites.map(|site| site.allocations).sum()
        };
        let reports = recorded.reports();
        assert_eq!(of(&reports[0], 54321), 33, "{case:?}");
        let of_children = reports[1..].iter().map(|child| of(child, 12345)).filter(|&blocks| blocks != 0);
        let of_children: Vec<u64> = of_children.collect();
        assert_eq!(of_children, if option.is_none() { vec![5] } else { vec![] }, "{case:?}");
    }
}
