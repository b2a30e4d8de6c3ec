//! Recordings of some allocations: what is estimated from them, against the ground truth.
//!
//! The seeds are fixed, and which allocations of a thread are recorded follows from its seed and their sizes. So the
//! figures of programs with one thread are the same in each run.

use grapnel_tests::report::Report;
use grapnel_tests::run::{Case, finish, grapnel, report, report_with_losses, temporary_dir};
use grapnel_tests::truth::Totals;
use grapnel_tests::{programs, skipped};
use std::ffi::OsStr;
use std::process::Command;

fn sampled(case: &Case, bytes: u64, seed: u64) -> Report {
    let case = case.clone().option(&format!("--sample={bytes}")).option(&format!("--sample-seed={seed}"));
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    recorded.report()
}

/// How far an estimate is from the truth, in standard errors; errors are rounded up, and less than one is one.
fn distance(estimate: u64, truth: u64, error: u64) -> f64 {
    (estimate as f64 - truth as f64) / error.max(1) as f64
}

/// The distances of all figures that have an error.
///
/// The error of a few blocks is estimated from fewer still, perhaps from none. What is live is therefore judged by a bound
/// of the true error: a block of `s` bytes adds to the variance no more than `s * mean`, to that of the count `mean / s`.
fn distances(report: &Report, truth: &Totals) -> [f64; 4] {
    let (totals, sampling) = (&report.totals, report.sampling.expect("a sample"));
    let (errors, mean) = (sampling.errors, sampling.mean_bytes as f64);
    let bound = |truth: u64| (truth as f64 * mean).sqrt().ceil() as u64;
    [
        distance(
            totals.allocations + totals.reallocations,
            truth.allocations + truth.reallocations,
            errors.allocations,
        ),
        distance(totals.allocated_bytes, truth.allocated_bytes, errors.allocated_bytes),
        distance(totals.live_allocations, truth.live_allocations, bound(truth.live_allocations)),
        distance(totals.live_bytes, truth.live_bytes, bound(truth.live_bytes)),
    ]
}

/// What is drawn at random is computed in numbers with fractions, and the program's own arithmetic may trap where one is rounded.
#[test]
fn the_programs_arithmetic_is_left_alone() {
    let case = Case::ours("fractions");
    let bare = case.bare();
    assert_eq!(bare.out(), "0 met, round 1, traps 1\n");
    case.recorded().outcome.same_as(&bare);
    for option in ["--sample=1", "--sample=1000", "--sample=524288", "--budget=5"] {
        case.clone().option(option).recorded().outcome.same_as(&bare);
    }
}

#[test]
fn estimates_are_within_four_standard_errors_of_the_truth() {
    let cases = [
        (Case::ours("flood").args(["300", "2000"]), 2_000),
        (Case::ours("temporary"), 500),
        (Case::ours("leaks").arg(programs::library("leak_library")), 300),
        (Case::ours("cxx"), 3_000),
        (Case::ours("deep").arg("600"), 700),
    ];
    for (case, bytes) in cases {
        let (_, counted) = case.counted(false);
        let truth = counted[0].totals;
        let mut sum = [0.0; 4];
        const SEEDS: u64 = 6;
        for seed in 1..=SEEDS {
            let report = sampled(&case, bytes, seed);
            let found = distances(&report, &truth);
            assert!(found.iter().all(|distance| distance.abs() <= 4.0), "seed {seed} of {case:?}: {found:?}");
            for (sum, distance) in sum.iter_mut().zip(found) {
                *sum += distance;
            }
            // A maximum of estimates is somewhat above the estimate of a maximum.
            let error = (truth.peak_bytes as f64 * bytes as f64).sqrt().ceil() as u64;
            let peak = distance(report.totals.peak_bytes, truth.peak_bytes, error);
            assert!((-4.0..=6.0).contains(&peak), "seed {seed} of {case:?}: {peak}");
        }
        // The same of all seeds together: an error that is always on one side would show.
        let most = 4.0 * (SEEDS as f64).sqrt();
        assert!(sum.iter().all(|sum| sum.abs() <= most), "{case:?}: {sum:?}");
    }
}

/// So often that nearly every block is recorded: then each block that is freed by another thread, or exchanged, must be
/// found again, or it would look live.
#[test]
fn no_free_is_lost() {
    for program in ["threads", "every_function", "many_threads", "signals", "before_after"] {
        let case = Case::ours(program);
        let (_, counted) = case.counted(false);
        let truth = counted[0].totals;
        let report = sampled(&case, 1, 11);
        // Blocks of no bytes, of which some programs have a few, are never recorded; blocks of a few bytes seldom aren't.
        let near = |estimate: u64, truth: u64| estimate.abs_diff(truth) <= 8 + truth / 200;
        let totals = &report.totals;
        for (figure, estimate, truth) in [
            ("allocated bytes", totals.allocated_bytes, truth.allocated_bytes),
            ("live bytes", totals.live_bytes, truth.live_bytes),
            ("live blocks", totals.live_allocations, truth.live_allocations),
            ("frees", totals.frees, truth.frees),
        ] {
            assert!(near(estimate, truth), "{program}: {figure}: {estimate} for {truth}");
        }
    }
}

/// The same where no code is changed, and so no gates stand before what looks a block up. What libc calls itself isn't seen then.
#[test]
fn no_free_is_lost_by_tables_either() {
    for program in ["threads", "many_threads"] {
        let case = Case::ours(program).option("--via=got");
        let (_, counted) = case.counted(false);
        let (live, all) = (counted[0].totals.live_allocations, counted[0].totals.allocations);
        let totals = sampled(&case, 1, 11).totals;
        assert!(totals.allocations > all / 2, "{program}: {} for {all}", totals.allocations);
        let found = totals.live_allocations;
        assert!(found <= live + 8 + live / 200, "{program}: {found} live for {live}");
    }
}

/// Of an allocator whose blocks lie as close together as 8 bytes, and whose functions call each other: each block is recorded as
/// often as promised, and none stays.
#[test]
fn an_allocator_of_another_kind_is_sampled_rightly() {
    for (way, allocations, bytes) in [("8", 1_000_000, 8_000_000_u64), ("c", 400_000, 40_000_000)] {
        for options in [&["--sample=4096"][..], &["--sample=100000"], &["--sample=4096", "--budget=100"]] {
            let case = Case::ours("close_blocks").arg(way).option("--sample-seed=9");
            let case = options.iter().fold(case, |case, option| case.option(option));
            let recorded = case.recorded();
            recorded.outcome.same_as(&case.bare());
            let report = recorded.report();
            let (totals, errors) = (&report.totals, report.sampling.expect("a sample").errors);
            assert_eq!((totals.live_allocations, totals.live_bytes), (0, 0), "{way} {options:?}");
            let both = totals.allocations + totals.reallocations;
            for distance in [
                distance(totals.allocated_bytes, bytes, errors.allocated_bytes),
                distance(both, allocations, errors.allocations),
            ] {
                assert!(distance.abs() < 4.0, "{way} {options:?}: {distance}: {totals:?}");
            }
            // Not that far off by chance.
            if options == ["--sample=4096"] {
                assert!(totals.allocated_bytes.abs_diff(bytes) < bytes / 10, "{way}: {totals:?}");
            }
        }
    }
}

/// A size above half of the address space is no block's, and must not pass for a gap that is as much longer.
#[test]
fn what_no_block_is_as_large_as_hides_no_others() {
    for option in ["--sample=2000", "--budget=20"] {
        let case = Case::ours("overlarge").option(option).option("--sample-seed=3");
        let recorded = case.recorded();
        recorded.outcome.same_as(&case.bare());
        let allocated = recorded.report().totals.allocated_bytes;
        assert!((10_000_000..30_000_000).contains(&allocated), "{option}: {allocated}");
    }
}

/// What is left of the thread's gap may be below 0 then, in which no malloc would be recorded any more.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_handler_that_leaves_malloc_for_good_hides_no_others() {
    for way in [&[][..], &["context"]] {
        let truth: u64 = 8 * (500 + 20_000) * 1000;
        let report = sampled(&Case::ours("jump_out").args(way), 4096, 7);
        let allocated = report.totals.allocated_bytes;
        assert!(allocated.abs_diff(truth) < truth / 20, "{way:?}: {allocated} of {truth}");
    }
}

/// Rules are asked for ahead by words of the stack: none of them may lie in a stack that was there, and is gone.
#[test]
fn a_stack_that_is_gone_beside_one_that_is_walked_is_left_alone() {
    for way in [&[][..], &["unmapped"]] {
        for bytes in [4096, 1 << 16, 1 << 19] {
            let report = sampled(&Case::ours("stacks_side_by_side").args(way), bytes, 3);
            assert!(report.totals.allocations > 100, "{way:?}, {bytes}: {:?}", report.totals);
        }
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
fn nothing_that_is_given_back_is_no_block() {
    for bytes in [4096, 1 << 16, 1_000_000] {
        let report = sampled(&Case::ours("null_beside"), bytes, 3);
        assert!(report.totals.allocations >= 10, "{bytes}: {:?}", report.totals);
        assert!(report.totals.live_bytes < 1 << 20, "{bytes}: {:?}", report.totals);
    }
}

/// Where few are recorded little of a ring is used, and a program may fill that at once all the same: then it waits.
#[test]
fn more_than_a_small_ring_holds_is_waited_for() {
    const BLOCKS: u64 = 3 * 3000;
    let totals = sampled(&Case::ours("large_blocks").arg("3000"), 1 << 16, 3).totals;
    assert!((BLOCKS..BLOCKS + 20).contains(&totals.allocations), "{totals:?}");
    assert!(totals.live_bytes < 1 << 20, "{totals:?}");
    // So as not to wait: what there is no room for is counted.
    let case = Case::ours("large_blocks").arg("3000").option("--sample=65536").option("--drop");
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let dropping = report_with_losses(&recorded.trace()).totals;
    assert!((1000..BLOCKS + 20).contains(&dropping.allocations), "{dropping:?}");
    assert!(dropping.allocations + dropping.lost_events >= BLOCKS, "{dropping:?}");
}

#[test]
fn children_are_sampled_too() {
    let case = Case::ours("forks").option("--sample=64").option("--sample-seed=5");
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let reports = recorded.reports();
    assert!(reports.len() > 1);
    assert!(
        reports
            .iter()
            .filter(|report| report.totals.allocations > 100)
            .all(|report| report.sampling.is_some())
    );
}

/// Processes that do the same don't choose the same: what one misses another finds, and errors of sums are those of independent estimates.
#[test]
fn siblings_choose_apart() {
    let bytes: u64 = (0..5000).map(|i| 1 + i * 7919 % 2000).sum();
    for way in ["fork", "raw", "exec"] {
        let case = Case::ours("siblings").arg(way).option("--sample=100000").option("--sample-seed=4");
        let recorded = case.recorded();
        recorded.outcome.same_as(&case.bare());
        let parent = recorded.report().process.pid;
        let of_children = recorded.reports().into_iter().filter(|report| {
            // What is executed anew is a trace of its own, and the child before it has no event.
            report.process.pid != parent && report.totals.allocated_bytes > bytes / 4
        });
        let mut estimates: Vec<u64> = of_children.map(|report| report.totals.allocated_bytes).collect();
        assert_eq!(estimates.len(), 12, "{way}: {estimates:?}");
        let sum = estimates.iter().sum::<u64>() as f64;
        let (truth, error) = (12.0 * bytes as f64, (12.0 * bytes as f64 * 100_000.0).sqrt());
        assert!((sum - truth).abs() < 4.0 * error, "{way}: {sum} of {truth} +- {error}");
        estimates.sort_unstable();
        estimates.dedup();
        assert!(estimates.len() > 9, "{way}: {estimates:?}");
    }
}

#[test]
fn the_report_says_that_it_estimates() {
    let case = Case::ours("flood").args(["300", "2000"]).option("--sample=2000").option("--sample-seed=1");
    let recorded = case.recorded();
    let text = grapnel([OsStr::new("report"), recorded.trace().as_ref()]).out();
    for part in [" ± ", "all figures are estimates", "one in 2.0 KiB on average"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    assert!(!text.contains("temporary"), "{text}");
}

/// A program that does nothing but allocate can't be recorded in full within a thousandth of its time.
#[test]
fn a_budget_makes_samples_rarer() {
    let case = Case::ours("flood").args(["300", "20000"]);
    let case = case.option("--sample=512").option("--sample-seed=1").option("--budget=0.1");
    let recorded = case.recorded();
    recorded.outcome.same_as(&case.bare());
    let sampling = recorded.report().sampling.expect("a sample");
    assert!(sampling.mean_bytes > 512, "{sampling:?}");
    assert!(sampling.recorded > 0, "{sampling:?}");
}

/// What is said at once when a program has ended is what a report of its trace says, also where the mean has changed meanwhile.
#[test]
fn what_is_said_at_the_end_is_what_the_report_says() {
    let (dir, program) = (temporary_dir(), programs::program("flood"));
    let trace = dir.path().join("t.grapnel");
    let options = ["run", "--sample=512", "--sample-seed=1", "--budget=0.1", "-o"].map(OsStr::new);
    let program = [OsStr::new("--"), program.as_ref(), OsStr::new("300"), OsStr::new("20000")];
    let said = grapnel(options.into_iter().chain([trace.as_ref()]).chain(program)).err();
    let line = said.lines().find_map(|line| line.trim_start().strip_prefix("allocations "));
    let figure = line.and_then(|line| line.split_whitespace().next()).map(|figure| figure.replace(',', ""));
    let totals = report(&trace).totals;
    assert_eq!(figure.as_deref(), Some(totals.allocations.to_string().as_str()), "{said}");
}

/// Where nothing at all was recorded, as much as a mean may have been missed.
#[test]
fn a_sample_of_nothing_says_that_it_is_one() {
    let report = sampled(&Case::ours("plain"), 1 << 30, 1);
    let sampling = report.sampling.expect("a sample");
    assert_eq!((report.totals.allocations, sampling.recorded), (0, 0));
    assert_eq!((sampling.errors.live_bytes, sampling.mean_bytes), (1 << 30, 1 << 30));
}

#[test]
fn what_makes_no_sample_is_refused() {
    for option in ["--sample=0", "--sample=x", "--budget=0", "--budget=101", "--budget=x"] {
        let outcome = grapnel(["run", option, "--", "true"]);
        assert_eq!(outcome.status.code(), Some(2), "{option}: {}", outcome.err());
    }
}

/// Zeroes for a huge page would be most of what a short program waits for.
#[test]
fn samples_ask_for_no_huge_pages() {
    let asked = |options: &[&str]| {
        let dir = temporary_dir();
        let mut command = Command::new(programs::grapnel());
        command.args(["run", "-q", "-o"]).arg(dir.path().join("t.grapnel")).args(options);
        // How many of its own mappings may be huge pages.
        let outcome = finish(command.args(["--", "grep", "-c", " hg", "/proc/self/smaps"]), b"");
        outcome.out().trim().parse::<u32>().unwrap_or_else(|_| panic!("{} {}", outcome.out(), outcome.err()))
    };
    if asked(&[]) == 0 {
        return skipped("huge pages", "the kernel doesn't tell of them");
    }
    assert_eq!(asked(&["--sample=524288"]), 0);
}
