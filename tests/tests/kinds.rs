//! `operator new` and `operator delete`: each allocation is one event, of the function that the program called, and what
//! is given back in the wrong way is reported with both stacks.

use grapnel_tests::programs::{self, marked_line};
use grapnel_tests::report::{Frame, Mismatch, Report};
use grapnel_tests::run::{Case, Recorded, grapnel};
use std::ffi::{OsStr, OsString};

/// As without grapnel, and with the totals of the truth library, in runs apart and in one.
fn agrees(case: &Case) -> Recorded {
    let bare = case.bare();
    assert!(bare.status.success(), "{}", bare.err());
    let (outcome, counted) = case.counted(false);
    outcome.same_as(&bare);
    let recorded = case.recorded();
    recorded.outcome.same_as(&bare);
    assert_eq!(counted.len(), 1);
    assert_eq!(recorded.report().totals(), counted[0].totals, "in runs apart (left: grapnel)");
    let (both, counted) = case.both(false);
    let report = both.reports().into_iter().find(|report| report.process.command == counted[0].command);
    assert_eq!(report.map(|report| report.totals()), Some(counted[0].totals), "in one run (left: grapnel)");
    recorded
}

fn given_by(report: &Report, function: &str) -> u64 {
    report.totals.functions[function]
}

/// Blocks that were got in a function whose name begins so, or in what it calls.
fn blocks_in(report: &Report, function: &str) -> u64 {
    let is_in = |frame: &Frame| frame.name().starts_with(function);
    let sites = report.sites.iter().filter(|site| site.frames.iter().any(is_in));
    sites.map(|site| site.allocations).sum()
}

/// The line in `kinds.cc` of the first frame that lies there.
fn line(frames: &[Frame], file: &str) -> u64 {
    let frame = frames.iter().find(|frame| frame.is_in(file));
    frame.and_then(|frame| frame.line).unwrap_or_else(|| panic!("no frame in {file}: {frames:#?}"))
}

#[test]
fn all_forms_are_told_apart_and_counted_once() {
    let recorded = agrees(&Case::ours("kinds"));
    let report = recorded.report();
    // As they stand in the source: `right` has each three times, and once more at its end; one after the exception.
    assert_eq!(given_by(&report, "new"), 3 * 9 + 1 + 1);
    assert_eq!(given_by(&report, "new[]"), 3 * 7);
    assert_eq!(given_by(&report, "aligned_alloc"), 3);
    assert!(report.mismatches.is_empty(), "{:#?}", report.mismatches);
    // The operators themselves are no frames, those with nothrow among them: the first is that of who called them.
    for site in report.sites.iter().filter(|site| site.functions.iter().any(|name| name.starts_with("new"))) {
        assert!(site.frames[0].is_in("kinds.cc"), "{}", site.stack());
    }
}

#[test]
fn every_wrong_way_is_reported_with_both_stacks() {
    let case = Case::ours("kinds").arg("wrong");
    let recorded = agrees(&case);
    let report = recorded.report();
    type Row<'r> = (&'r str, &'r str, Option<u64>, u64, &'r str, Option<u64>, Option<u64>);
    let rows: [Row<'_>; 11] = [
        ("function", "new[]", None, 1000, "free", None, None),
        ("function", "new[]", None, 1001, "delete", None, None),
        ("function", "new", None, 1002, "delete[]", None, None),
        ("function", "malloc", None, 1003, "delete", None, None),
        ("function", "calloc", None, 1004, "delete[]", None, None),
        ("function", "new", None, 1005, "realloc", None, None),
        ("size", "new", None, 1006, "delete", None, Some(1007)),
        ("alignment", "new", Some(64), 1007, "delete", None, None),
        ("alignment", "new", None, 1008, "delete", Some(64), None),
        ("alignment", "new[]", Some(64), 1009, "delete[]", Some(4096), None),
        ("size", "new", Some(64), 1010, "delete", Some(64), Some(1011)),
    ];
    assert_eq!(report.mismatches.len(), rows.len(), "{:#?}", report.mismatches);
    for (number, row) in (1..).zip(rows) {
        let at = marked_line("kinds.cc", &format!("// A{number:02}"));
        let is_it = |found: &&Mismatch| line(&found.allocated_frames, "kinds.cc") == at;
        let found: Vec<&Mismatch> = report.mismatches.iter().filter(is_it).collect();
        let [found] = found[..] else { panic!("{} mismatches of A{number}", found.len()) };
        let got: Row<'_> = (
            &found.fault,
            &found.allocated_by,
            found.allocated_alignment,
            found.allocated_size,
            &found.freed_by,
            found.freed_alignment,
            found.freed_size,
        );
        assert_eq!(got, row, "A{number}");
        assert_eq!(
            line(&found.freed_frames, "kinds.cc"),
            marked_line("kinds.cc", &format!("// F{number:02}"))
        );
        assert_eq!((found.count, found.bytes), (2, 2 * row.3), "A{number}");
    }
    let text =
        grapnel([OsStr::new("report"), "--top".as_ref(), "0".as_ref(), recorded.trace().as_ref()]).out();
    for sentence in [
        "Blocks given back in the wrong way",
        "new[], then free, of 1,000 bytes",
        "new of 1,006 bytes, delete of 1,007 bytes",
        "new with alignment 64, delete without an alignment",
    ] {
        assert!(text.contains(sentence), "{sentence:?} in {text}");
    }
}

/// The operators of the program are what is called: their headers and helpers are part of what they do.
#[test]
fn operators_of_the_program_are_followed() {
    let case = Case::ours("own_new");
    let bare = case.bare();
    let recorded = case.recorded();
    recorded.outcome.same_as(&bare);
    let report = recorded.report();
    assert_eq!((given_by(&report, "new"), given_by(&report, "new[]")), (100, 100));
    assert!(report.mismatches.is_empty(), "{:#?}", report.mismatches);
    let site = |size: u64| report.sites.iter().filter(move |site| site.allocated_bytes == 100 * size);
    assert_eq!(site(100).count(), 1, "100 blocks of 100 bytes come of one place");
    assert_eq!(site(200).count(), 1, "100 blocks of 200 bytes come of one place");
    // malloc's own: the block after the exception, the text that is thrown, and stdout's buffer.
    assert!(given_by(&report, "malloc") <= 4, "{:?}", report.totals.functions);
}

/// Where `malloc` is called in the runtime's place there is nothing to be seen of that, with memory and without.
#[test]
fn operators_of_the_runtime_do_what_they_do() {
    let recorded = agrees(&Case::ours("plain_new"));
    let report = recorded.report();
    assert_eq!((given_by(&report, "new"), given_by(&report, "new[]")), (2 * 3 * 200 + 20, 2 * 3 * 200 + 20));
    assert!(report.mismatches.is_empty(), "{:#?}", report.mismatches);
    // 3 times of each form's 20, and once where there is memory after that: QEMU's user mode has no limits to a program's memory.
    let asked = if programs::machine().is_some() { 180 } else { 220 };
    let said = format!("the handler was asked {asked} times");
    assert!(recorded.outcome.out().contains(&said), "{}", recorded.outcome.out());
}

/// Those of libstdc++ call the program's where it has its own, each time.
#[test]
fn operators_of_the_program_are_called_each_time() {
    let case = Case::ours("counted_new");
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    assert!(recorded.outcome.out().contains("made 800, gone 800"), "{}", recorded.outcome.out());
    let report = recorded.report();
    assert_eq!((given_by(&report, "new"), given_by(&report, "new[]")), (400, 400));
}

/// Whoever puts a function between the runtime and `malloc` has it called.
#[test]
fn what_is_put_between_operators_and_malloc_is_called() {
    let case = Case::ours("rebound_new");
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    assert!(recorded.outcome.out().contains("400 given, 400 taken"), "{}", recorded.outcome.out());
    let report = recorded.report();
    assert_eq!((given_by(&report, "new"), given_by(&report, "new[]")), (400, 400));
}

/// A malloc of the program's may fail at will: new fails as often, and asks it as often.
#[test]
fn a_malloc_that_fails_is_asked_once() {
    let case = Case::ours("failing_malloc");
    let bare = case.bare();
    assert_eq!(bare.out(), "116 calls, 16 thrown\n");
    for option in ["--drop", "--sample=1", "--wait"] {
        case.clone().option(option).recorded().outcome.same_as(&bare);
    }
}

/// Nobody is passed over who patches an operator that others of the runtime lead to.
#[test]
fn a_patch_of_an_operator_is_met_by_those_that_lead_to_it() {
    let case = Case::ours("patched_new");
    let bare = case.bare();
    assert_eq!(bare.out(), "made 20, gone 20\n");
    case.recorded().outcome.same_as(&bare);
}

/// More operators than there is room for: nothing is said to be given back in the wrong way, and why.
#[test]
fn operators_beyond_those_that_are_hooked_make_no_mismatches() {
    // Below the root of another machine too.
    let dir = tempfile::tempdir_in(programs::target_dir()).expect("a directory for libraries");
    let plug = programs::bound_cxx_library("operators_plug");
    let mut case = Case::ours("many_operators");
    for number in 0..140 {
        let copy = dir.path().join(format!("{number}.so"));
        std::fs::copy(&plug, &copy).expect("the library can be copied");
        case = case.arg(copy);
    }
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let report = recorded.report();
    assert!(report.mismatches.is_empty(), "{:#?}", report.mismatches);
    let trace = recorded.trace();
    let mut words: Vec<OsString> = ["run", "-o"].map(OsString::from).to_vec();
    words.extend([trace.into(), "--".into(), programs::program("many_operators").into()]);
    words.extend((0..140).map(|number| dir.path().join(format!("{number}.so")).into()));
    let said = Case::new(programs::recorder()).args(words).bare();
    assert!(said.err().contains("more operators than grapnel has room for"), "{}", said.err());
}

/// Blocks that lie closer together than glibc's come late: each wrong way is found, of those and of what was got before.
#[test]
fn operators_that_come_late_and_give_small_blocks_hide_no_mismatch() {
    let case = Case::ours("late_pool").arg(programs::bound_cxx_library("pool_plug"));
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let report = recorded.report();
    let rows = [
        ("pool_plug.cc", "// SECOND", "function", "delete[]"),
        ("pool_plug.cc", "// FIRST", "function", "delete"),
        ("pool_plug.cc", "// SIZED", "size", "delete"),
        ("late_pool.cc", "// BEFORE", "function", "delete"),
    ];
    assert_eq!(report.mismatches.len(), rows.len(), "{:#?}", report.mismatches);
    for (file, mark, fault, freed_by) in rows {
        let at = marked_line(file, mark);
        let is_it = |found: &&Mismatch| {
            found.allocated_frames.iter().any(|frame| frame.is_in(file) && frame.line == Some(at))
        };
        let found = report
            .mismatches
            .iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("{mark}: {:#?}", report.mismatches));
        assert_eq!((&found.fault[..], &found.freed_by[..], found.count), (fault, freed_by, 1), "{mark}");
    }
}

/// A new_handler may leave them by a jump: what comes then is no part of them.
#[test]
fn operators_that_are_left_by_a_jump_hide_nothing() {
    let case = Case::ours("left_new");
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let report = recorded.report();
    assert_eq!(given_by(&report, "new"), 1);
    let found = ["below_what_was_left", "further_down"].map(|function| blocks_in(&report, function));
    assert_eq!(found, [10, 190]);
}

/// One that calls operators and leaves these leaves the call around them as it was: what it gets is its own.
#[test]
fn operators_around_those_that_are_left_go_on() {
    let case = Case::ours("around_new");
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let report = recorded.report();
    assert_eq!(given_by(&report, "new"), 20);
    // What the handlers call is left without a block, but for what the runtime gets for 15 exceptions.
    assert_eq!(blocks_in(&report, "outer"), 20 + 15);
}

/// What a new_handler gives back by a jump, and the block of an exception that an operator catches, come from the operator's own
/// code, as it seems.
#[test]
fn what_is_given_back_amid_a_new_is_counted() {
    for (program, said) in [("reserve_new", "100 thrown"), ("quiet_new", "20 refused")] {
        let recorded = agrees(&Case::ours(program));
        assert!(recorded.outcome.out().contains(said), "{}", recorded.outcome.out());
    }
}

/// However much of the stack they take; and what the runtime gets for what they throw is not theirs.
#[test]
fn operators_that_take_much_of_the_stack_are_counted_once() {
    let report = agrees(&Case::ours("large_new")).report();
    assert_eq!((given_by(&report, "new"), given_by(&report, "new[]")), (900, 1000));
    assert!(report.mismatches.is_empty(), "{:#?}", report.mismatches);
}

/// What helpers do on their behalf is theirs, wherever on the stack, and what the handler of a signal does there is not.
#[test]
fn functions_of_others_are_counted_once_with_what_their_helpers_do() {
    let report = agrees(&Case::ours("helped_new")).report();
    let totals = &report.totals;
    assert_eq!((given_by(&report, "new"), given_by(&report, "malloc")), (1000, 102), "{totals:?}");
    assert_eq!((totals.frees, totals.live_allocations), (1100, 2), "{totals:?}");
    assert!(report.mismatches.is_empty(), "{:#?}", report.mismatches);
    let case = Case::ours("helped_malloc");
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let report = recorded.report();
    let totals = &report.totals;
    assert_eq!((given_by(&report, "malloc"), given_by(&report, "calloc")), (1000, 1000), "{totals:?}");
    assert_eq!((totals.reallocations, totals.frees, totals.live_allocations), (1000, 2000, 0), "{totals:?}");
    assert_eq!(totals.allocated_bytes, 1000 * (100 + 200 + 150), "{totals:?}");
    let sampled = case.option("--sample=1").option("--sample-seed=3").recorded().report().totals;
    assert!(sampled.allocations.abs_diff(2000) < 20 && sampled.frees.abs_diff(2000) < 20, "{sampled:?}");
    assert!(sampled.reallocations.abs_diff(1000) < 10 && sampled.live_allocations == 0, "{sampled:?}");
}

/// It can't be hooked, and needn't be.
#[test]
fn a_free_that_does_nothing_is_left_alone() {
    let case = Case::ours("idle_free");
    let recorded = case.recorded();
    assert_eq!((recorded.outcome.out(), recorded.outcome.status.code()), ("done\n".into(), Some(0)));
    let totals = recorded.report().totals;
    assert!(totals.allocations >= 50, "{totals:?}");
    // Elsewhere a return is as long as a jump.
    let is_left = programs::machine().is_none();
    assert_eq!(totals.live_allocations == totals.allocations, is_left, "{totals:?}");
}

/// Their `delete` is seen as `free`, which is no mismatch.
#[test]
fn operators_that_are_exported_to_nobody_make_no_mismatches() {
    let program = programs::program_with_runtime("hidden_operators");
    let recorded = Case::new(program).arg(programs::cxx_library("gives_blocks")).recorded();
    assert_eq!(recorded.outcome.out(), "done\n", "{}", recorded.outcome.err());
    let report = recorded.report();
    assert_eq!((given_by(&report, "new"), given_by(&report, "new[]")), (10, 10));
    assert!(report.mismatches.is_empty(), "{:#?}", report.mismatches);
}

#[test]
fn operators_of_libraries_that_come_later_are_followed() {
    let case = Case::ours("late_cxx").arg(programs::cxx_library("cxx_plug"));
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let report = recorded.report();
    assert_eq!((given_by(&report, "new"), given_by(&report, "new[]")), (100, 102));
    let [found] = &report.mismatches[..] else { panic!("{:#?}", report.mismatches) };
    assert_eq!((found.count, found.freed_by.as_str()), (2, "free"));
    assert_eq!(line(&found.allocated_frames, "cxx_plug.cc"), marked_line("cxx_plug.cc", "// ALLOCATED"));
    assert_eq!(line(&found.freed_frames, "cxx_plug.cc"), marked_line("cxx_plug.cc", "// FREED"));
}
