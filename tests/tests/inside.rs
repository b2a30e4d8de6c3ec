//! Programs whose own ways get between the agent and the program: interruptions, small stacks, functions that
//! the program brings along, environments that no setenv would make.

use grapnel_tests::attaching::{Running, State, may_trace, recorder};
use grapnel_tests::going::until;
use grapnel_tests::report::Report;
use grapnel_tests::run::{Case, kill, report, temporary_dir};
use grapnel_tests::{programs, skipped};
use rustix::process::Signal;
use std::io::{BufRead, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Twice what it takes on a busy machine. A hang would end it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A handler interrupts a recording and forks, and the child goes on where its parent was. It must not write
/// into its parent's ring, nor wait for its parent's locks.
#[test]
fn fork_in_a_handler() {
    let (blocks, report) = of_parent_of_many(&Case::ours("fork_in_handler"));
    let totals = report.totals();
    assert_eq!((totals.allocations, totals.frees, totals.live_allocations), (blocks, blocks, 0));
    assert_eq!(totals.allocated_bytes, 32 * blocks);
}

/// The same in a thread whose ring isn't in the first mapping of its segment, and by stacks that have much to tell.
#[test]
fn fork_in_a_handler_of_a_further_thread() {
    let case = Case::ours("fork_in_handler").arg("thread");
    for round in 0..3 {
        let (blocks, report) = of_parent_of_many(&case);
        assert_eq!(blocks_of_its_own(&report), blocks, "{round}: {:?}", report.totals);
    }
}

/// The same where the children aren't recorded: they are not to write on in their parent's ring either, whichever it is.
#[test]
fn fork_in_a_handler_of_children_that_are_not_followed() {
    for (round, arguments) in [&["thread"][..], &[]].into_iter().enumerate() {
        let case = Case::ours("fork_in_handler").args(arguments).option("--no-follow");
        let (blocks, report) = of_parent_of_many(&case);
        assert_eq!(blocks_of_its_own(&report), blocks, "{round}: {:?}", report.totals);
    }
}

/// The same by `_Fork`, of which nobody hears who asks to be told of forks.
#[test]
fn fork_in_a_handler_without_handlers_of_forks() {
    for arguments in [&["thread", "early"][..], &["early"]] {
        let case = Case::ours("fork_in_handler").args(arguments).option("--no-follow");
        let (blocks, report) = of_parent_of_many(&case);
        assert_eq!(blocks_of_its_own(&report), blocks, "{arguments:?}: {:?}", report.totals);
    }
    each_child_is_recorded(&Case::ours("fork_in_handler").arg("early"));
}

/// What such a child forks in its turn isn't amid a record of its parent's that goes into its own ring: so daemons begin.
#[test]
fn fork_in_a_handler_twice() {
    for arguments in [&["twice"][..], &["thread", "twice", "early"]] {
        each_child_is_recorded(&Case::ours("fork_in_handler").args(arguments));
    }
}

/// What takes a block in the handler of a recording that it interrupted has a ring of its own, and events have numbers from then on: in a child
/// none is taken for what goes on there when the handler returns.
#[test]
fn fork_in_a_handler_that_allocates() {
    each_child_is_recorded(&Case::ours("fork_in_handler").args(["thread", "early", "alloc"]));
}

/// Each trace is whole, that of the parent, and those of the children that return from its handler and take three blocks of 8 bytes.
fn each_child_is_recorded(case: &Case) {
    let recorded = case.clone().patience(PATIENCE).recorded();
    assert_eq!((recorded.outcome.status.code(), recorded.outcome.err()), (Some(0), String::new()));
    let mut reports = recorded.reports();
    let out = recorded.outcome.out();
    let lost: Vec<u64> =
        reports.iter().map(|report| report.totals.lost_events).filter(|&lost| lost != 0).collect();
    assert_eq!(lost, [0; 0], "{case:?}");
    assert_eq!(out, format!("{} 0\n", blocks_of_its_own(&reports.remove(0))), "{case:?}");
    let of_8_bytes = |report: &Report| -> u64 {
        let own = report.sites.iter().filter(|site| site.allocated_bytes == 8 * site.allocations);
        own.map(|site| site.allocations).sum()
    };
    let of_children: Vec<u64> = reports.iter().map(of_8_bytes).filter(|&blocks| blocks != 0).collect();
    assert_eq!(of_children, [3; 100], "{case:?}");
}

/// A child that is in the middle of a record which its ring has no room for doesn't wait for that: nobody reads there.
#[test]
fn fork_in_a_handler_amid_a_record_that_is_larger_than_the_ring() {
    let case =
        Case::ours("fork_in_handler").arg("deep").option("--sample=65536").option("--max-frames=65536");
    let (blocks, report) = of_parent_of_many(&case);
    let allocations = report.totals().allocations;
    assert!((blocks..blocks + 20).contains(&allocations), "{allocations} of {blocks}");
}

/// The same in a process that was attached to.
#[test]
fn fork_in_a_handler_of_a_process_that_is_attached_to() {
    if !may_trace() {
        return;
    }
    for arguments in [&["wait", "thread"][..], &["wait", "thread", "early"], &["wait"]] {
        let dir = temporary_dir();
        let mut command = Command::new(programs::program("fork_in_handler"));
        let mut program = Running::start(command.args(arguments).stdout(Stdio::piped()));
        let mut out = program.out();
        out.read_line(&mut String::new()).expect("a line");
        let before = State::of(program.pid()).code;
        let mut recorder = recorder(dir.path(), program.pid());
        until("it is attached to", || (State::of(program.pid()).code != before).then_some(()));
        kill(Signal::USR1, program.pid());
        let mut numbers = String::new();
        out.read_to_string(&mut numbers).expect("numbers");
        assert!(program.0.wait().expect("its end").success(), "{arguments:?}: {numbers}");
        assert!(recorder.0.wait().expect("its end").success(), "{arguments:?}");
        let report = report(&dir.path().join("t.grapnel"));
        assert_eq!(
            format!("{} 0\n", blocks_of_its_own(&report)),
            numbers,
            "{arguments:?}: {:?}",
            report.totals
        );
    }
}

/// How many of the program's own blocks were recorded: threads take some, too.
fn blocks_of_its_own(report: &Report) -> u64 {
    let own = report.sites.iter().filter(|site| site.allocated_bytes == 32 * site.allocations);
    own.map(|site| site.allocations).sum()
}

/// How many blocks the parent says that it allocated, and what was recorded.
fn of_parent_of_many(case: &Case) -> (u64, Report) {
    let recorded = case.clone().patience(PATIENCE).recorded();
    assert!(recorded.outcome.status.success(), "{:?} {}", recorded.outcome.status, recorded.outcome.err());
    assert_eq!(recorded.outcome.err(), "");
    let out = recorded.outcome.out();
    let numbers: Vec<u64> = out.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [blocks, 0] = numbers[..] else { panic!("a child hung: {out}") };
    (blocks, recorded.report())
}

/// An exec from a handler on the stack that sigaltstack(2) was once sure to have room for.
#[test]
fn exec_on_a_small_alternate_stack() {
    for size in [8192, 12288] {
        let case = Case::ours("alternate_exec").arg(size.to_string()).args(["/bin/echo", "restarted"]);
        let bare = case.bare();
        if !bare.status.success() {
            skipped("exec on an alternate stack", "signal frames of this processor are too large for it");
            continue;
        }
        assert_eq!(bare.out(), "restarted\n");
        case.recorded().outcome.same_as(&bare);
    }
}

/// What can't be executed fails with the same error, and at once: a FIFO would wait for its other end.
#[test]
fn exec_of_what_is_no_program() {
    let dir = temporary_dir();
    let fifo = dir.path().join("fifo");
    for mode in ["600", "700"] {
        let made = Command::new("mkfifo").args(["-m", mode]).arg(&fifo).status();
        assert!(made.is_ok_and(|status| status.success()), "a FIFO can be made");
        let case = Case::ours("exec_odd").arg(&fifo);
        let bare = case.bare();
        assert_eq!(bare.out(), "Permission denied\n");
        case.recorded().outcome.same_as(&bare);
        std::fs::remove_file(&fifo).expect("the FIFO can be removed");
    }
    for path in ["/dev/null", "/", "/nowhere", "/dev/tty"] {
        let case = Case::ours("exec_odd").arg(path);
        case.recorded().outcome.same_as(&case.bare());
    }
}

/// A program that exports functions which libraries call: the agent calls none of them, since they allocate.
#[test]
fn functions_of_the_program() {
    let case = Case::ours("own_functions").patience(PATIENCE);
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let report = recorded.report();
    let wanted = report.sites.iter().filter(|site| site.frames.iter().any(|frame| frame.name() == "wanted"));
    assert_eq!(wanted.map(|site| site.allocations).sum::<u64>(), 1000);
}

/// Entries that are no assignments, and two of one name: for a program's exec and for grapnel's own.
fn odd_environment_with(first: &Path, second: &Path) {
    let odd = programs::program("odd_environment");
    let case = Case::new(&odd).args([first, second, &odd]);
    let bare = case.bare();
    assert!(bare.out().starts_with("[NOEQUALS]\n"), "{}", bare.out());
    assert!(bare.out().contains("[A=1]\n[=]\n[]\n[LD_PRELOAD="), "{}", bare.out());
    let recorded = case.recorded();
    recorded.outcome.same_as(&bare);
    let followed = recorded.reports().iter().filter(|report| report.totals.allocations >= 57).count();
    assert_eq!(followed, 1, "the executed program was recorded");

    let case = Case::new(&odd).launcher([&odd, first, second]);
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    assert!(recorded.report().totals.allocations >= 57, "it was recorded");
}

#[test]
fn no_assignments_in_the_environment() {
    odd_environment_with(Path::new(""), &programs::plug("b"));
}

/// The loader takes the last LD_PRELOAD, getenv(3) the first.
#[test]
fn two_preloads() {
    odd_environment_with(&programs::plug("a"), &programs::plug("b"));
}

/// A large environment is made anew for each exec, in memory that the caller of posix_spawn keeps: not a new
/// piece each time.
#[test]
fn many_large_environments() {
    let recorded = Case::ours("many_variables").arg("/bin/true").patience(PATIENCE).recorded();
    assert!(recorded.outcome.status.success(), "{:?} {}", recorded.outcome.status, recorded.outcome.err());
    let grown: i64 = recorded.outcome.out().trim().parse().expect("a number");
    // 180 times 24 KiB if each stayed.
    assert!((-1000..1000).contains(&grown), "grown by {grown} KiB");
    assert_eq!(recorded.traces().len(), 201, "each was followed");
}

/// A profiler in the program that unwinds at any moment, and a debugger in it that steps through the code.
#[test]
fn unwinding_in_handlers_and_single_steps() {
    let case = Case::ours("looks_around");
    let bare = case.bare();
    assert_eq!(bare.out(), "done\n", "{}", bare.err());
    case.recorded().outcome.same_as(&bare);
}
