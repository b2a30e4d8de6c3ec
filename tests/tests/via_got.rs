//! `--via got`: recordings by changed tables, without a change in code.

use grapnel_tests::programs;
use grapnel_tests::report::Report;
use grapnel_tests::run::{Case, Recorded, grapnel};
use std::ffi::OsStr;
use std::time::Duration;

fn got(case: &Case) -> Recorded {
    let recorded = case.clone().option("--via").option("got").recorded();
    recorded.outcome.same_as(&case.bare());
    recorded
}

/// Allocations, frees, reallocations, allocated bytes, live bytes.
fn figures(report: &Report) -> [u64; 5] {
    let of = report.totals();
    [of.allocations, of.frees, of.reallocations, of.allocated_bytes, of.live_bytes]
}

#[test]
fn figures_are_those_of_a_recording_by_hooks_in_code() {
    for program in ["every_function", "reallocs", "plain"] {
        let case = Case::ours(program);
        let inline = figures(&case.recorded().report());
        assert_eq!(figures(&got(&case).report()), inline, "{program} (left: through tables)");
    }
    // What the dynamic linker allocates for a thread's variables goes through no table.
    let threads = Case::ours("threads");
    let [inline, tables] = [threads.recorded(), got(&threads)].map(|recorded| figures(&recorded.report()));
    assert!(tables[0] < inline[0] && tables[0] + 20 > inline[0], "{tables:?} {inline:?}");
    assert_eq!(tables[2], inline[2]);
}

/// A handler's child by `_Fork` amid a recording doesn't write on in its parent's ring.
#[test]
fn fork_in_a_handler() {
    for option in ["--no-follow", "--no-mappings"] {
        let case = Case::ours("fork_in_handler").args(["thread", "early"]).option(option);
        let recorded = case.option("--via").option("got").recorded();
        let (outcome, report) = (&recorded.outcome, recorded.report());
        assert_eq!((outcome.status.code(), outcome.err()), (Some(0), String::new()));
        let own = report.sites.iter().filter(|site| site.allocated_bytes == 32 * site.allocations);
        let blocks: u64 = own.map(|site| site.allocations).sum();
        assert_eq!(outcome.out(), format!("{blocks} 0\n"), "{option}: {:?}", report.totals);
    }
}

#[test]
fn libraries_that_are_opened_later_are_seen_from_the_next_lookup_on() {
    let case = Case::ours("dlopen_loop").args([programs::plug("a"), programs::plug("b")]);
    let report = got(&case).report();
    // Their constructors come before anybody can look; what is asked of them by `dlsym` comes after.
    let made = report.totals().allocations;
    assert!(made >= 80, "each of 40 rounds asks both: {made}");
    for (which, size) in [("a", 1000), ("b", 1001)] {
        assert_eq!(made_by(&report, which), 40 * size, "made by {which}");
    }
}

/// The bytes that a library's function has allocated.
fn made_by(report: &Report, which: &str) -> u64 {
    let make = format!("plug_make_{which}");
    let sites = report.sites.iter().filter(|site| site.frames.iter().any(|frame| frame.name() == make));
    sites.map(|site| site.allocated_bytes).sum()
}

#[test]
fn libraries_may_go_while_other_threads_look_at_them_and_children_find_the_list_free() {
    // An emulator takes a minute or two for it.
    let case = Case::ours("unloads").args([programs::plug("a"), programs::plug("b")]);
    let case = case.patience(Duration::from_secs(600));
    let recorded = got(&case);
    assert_eq!(recorded.outcome.out(), "30\n", "{}", recorded.outcome.err());
    // Events of the other threads don't use up the looks at what this one loads.
    let report = recorded.report();
    assert_eq!([made_by(&report, "a"), made_by(&report, "b")], [75 * 1000, 75 * 1001]);
}

/// The linker protects a table that it has filled, just when a word of it would be written.
#[test]
fn tables_that_the_linker_is_at_work_on_are_left_to_it() {
    let case = Case::ours("opens_beside").arg("20").patience(Duration::from_secs(600));
    assert_eq!(got(&case).outcome.out(), "done\n");
}

#[test]
fn the_report_and_the_summary_say_what_kind_of_recording_it_is() {
    let recorded = got(&Case::ours("plain"));
    let text = grapnel([OsStr::new("report"), recorded.trace().as_os_str()]);
    assert!(text.out().contains("note: recorded through tables of addresses"), "{}", text.out());
    let inline = Case::ours("plain").recorded();
    let text = grapnel([OsStr::new("report"), inline.trace().as_os_str()]);
    assert!(!text.out().contains("tables of addresses"), "{}", text.out());
    let refused = Case::ours("plain").option("--via").option("got").option("--leaks").recorded().outcome;
    assert_eq!(refused.status.code(), Some(125));
    assert_eq!(
        refused.err(),
        "grapnel: --via got: the end of a program is seen by a change in code only; record without --leaks\n"
    );
    let options = Case::ours("plain").env("LIBC_DEBUG_MALLOC_OPTIONS", "guard");
    let left = options.option("--via").option("got").recorded().outcome;
    assert!(left.status.success(), "{}", left.err());
    assert_eq!(
        left.err(),
        "malloc_debug: LIBC_DEBUG_MALLOC_OPTIONS: grapnel records through tables of addresses. Nothing is done\n"
    );
}
