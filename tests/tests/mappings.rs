//! What a program maps by itself: a kind of its own, apart from the heap, with all its ranges known by number.

use grapnel_tests::programs::marked_line;
use grapnel_tests::report::{MappingFigures, MappingSite, Report};
use grapnel_tests::run::{Case, Recorded};

const PAGE: u64 = 4096;

/// As without grapnel, and with the truth's figures of the heap.
fn agrees(case: &Case) -> Recorded {
    let bare = case.bare();
    assert_eq!(bare.out(), "done\n", "{}", bare.err());
    let recorded = case.recorded();
    recorded.outcome.same_as(&bare);
    let (_, counted) = case.counted(false);
    assert_eq!(recorded.report().totals(), counted[0].totals, "of the heap (left: grapnel)");
    recorded
}

fn figures(mappings: u64, mapped: u64, live_mappings: u64, live: u64, peak: u64) -> MappingFigures {
    let (mapped_bytes, live_bytes, peak_bytes) = (mapped, live, peak);
    MappingFigures { mappings, mapped_bytes, live_mappings, live_bytes, peak_bytes }
}

/// The sites whose leaf is the line with this mark.
fn at<'r>(report: &'r Report, mark: &str) -> Vec<&'r MappingSite> {
    let line = marked_line("mappings.c", &format!("/* MAP {mark} */"));
    let sites = report.mappings.sites.iter();
    sites.filter(|site| site.frames[0].is_at("mappings.c", line)).collect()
}

fn pages(sites: &[&MappingSite]) -> (u64, u64) {
    let sum = |figure: fn(&MappingSite) -> u64| sites.iter().map(|site| figure(site)).sum::<u64>();
    (sum(|site| site.mappings), sum(|site| site.mapped_bytes) / PAGE)
}

#[test]
fn every_way_is_counted_and_libcs_own_is_not() {
    let recorded = agrees(&Case::ours("mappings"));
    let report = recorded.report();
    // As they stand in the source, function by function.
    let anonymous_pages = 100 + (10 + 5) + (20 + 200 + 8 + 8 + 8 + 2 + 2 + 3 + 3) + 9 + 4 + 10 + 20;
    let anonymous = figures(34, anonymous_pages * PAGE, 5, (97 + 7 + 8 + 2) * PAGE, (97 + 200) * PAGE);
    let file = figures(1, 4 * PAGE, 0, 0, 4 * PAGE);
    let brk = figures(2, 5 * PAGE + PAGE / 2, 1, 3 * PAGE, 5 * PAGE);
    let shm = figures(2, 10 * PAGE, 1, 5 * PAGE, 10 * PAGE);
    for (kind, right) in [("anonymous", anonymous), ("file", file), ("brk", brk), ("shm", shm)] {
        assert_eq!(report.mappings.kinds[kind], right, "{kind}");
    }
    let all = anonymous_pages + 4 + 10;
    let live = 97 + 7 + 8 + 2 + 3 + 5;
    let totals = figures(39, all * PAGE + 5 * PAGE + PAGE / 2, 7, live * PAGE, (97 + 200) * PAGE);
    assert_eq!(report.mappings.totals, totals);
    for (mark, right) in [
        ("over", (1, 4)),
        ("anew", (1, 5)),
        ("grown", (1, 200)),
        ("moved", (1, 8)),
        ("left", (1, 2)),
        ("shared", (1, 3)),
        ("twice", (1, 3)),
        ("sbrk", (1, 3)),
        ("brk", (1, 2)),
        ("shmat", (2, 10)),
        ("handler", (10, 20)),
    ] {
        assert_eq!(pages(&at(&report, mark)), right, "{mark}");
    }
    // Each function that has them by `anonymous` is a site of its own.
    assert_eq!(pages(&at(&report, "anonymous")), (18, 100 + 10 + 20 + 8 + 8 + 2 + 9 + 4 + 10));
    assert!(at(&report, "anonymous").len() >= 6);
    let grown = at(&report, "grown");
    assert_eq!((grown[0].peak_bytes, grown[0].live_bytes), (200 * PAGE, 7 * PAGE));
    assert_eq!(grown[0].kinds, ["anonymous"]);
    assert_eq!(at(&report, "over")[0].kinds, ["file"]);
}

/// Of ranges with holes, of lengths that are no whole pages, and of calls that fail when they have unmapped something.
#[test]
fn what_is_live_is_what_the_kernel_has() {
    let case = Case::ours("mappings").arg("at random");
    let recorded = case.recorded();
    let out = recorded.outcome.out();
    let said = out.lines().find_map(|line| line.strip_prefix("mapped ")).expect("the program said it");
    let pages: u64 = said.parse().expect("a number");
    let report = recorded.report();
    assert_eq!(report.mappings.totals.live_bytes / PAGE, pages);
    assert!(report.mappings.totals.mappings > 5_000, "{:?}", report.mappings.totals);
}

/// Such a call returns into libc, as those do that libc makes itself.
#[test]
fn what_libc_calls_may_end_in_a_call_of_the_programs() {
    const MIB: u64 = 1 << 20;
    let report = agrees(&Case::ours("handed_mappings")).report();
    let right = figures(5, 31 * MIB, 1, 16 * MIB, 30 * MIB);
    assert_eq!(report.mappings.totals, right, "{:#?}", report.mappings.sites);
}

#[test]
fn a_sample_of_the_heap_has_all_mappings() {
    let all = agrees(&Case::ours("mappings")).report();
    let recorded = Case::ours("mappings").option("--sample=1048576").recorded();
    assert_eq!(recorded.report().mappings.totals, all.mappings.totals);
}

#[test]
fn ranges_that_threads_hand_over_and_reuse_are_right_at_every_moment() {
    let report = agrees(&Case::ours("mappings").arg("threads")).report();
    // At each barrier four threads have mapped sixteen ranges each, and none has unmapped any.
    let round = 4 * (6 + 5 * 2 + 5 * 3) * PAGE;
    assert_eq!(report.mappings.totals, figures(4 * 16 * 300, 300 * round, 0, 0, round));
}

#[test]
fn a_child_has_its_own() {
    let case = Case::ours("mappings").arg("children");
    let bare = case.bare();
    let recorded = case.recorded();
    recorded.outcome.same_as(&bare);
    let reports = recorded.reports();
    let totals: Vec<MappingFigures> = reports.iter().map(|report| report.mappings.totals).collect();
    let parent = figures(2, 31 * PAGE, 0, 0, 31 * PAGE);
    // What the child unmaps it never mapped.
    assert_eq!(totals, [parent, figures(1, 6 * PAGE, 1, 6 * PAGE, 6 * PAGE)]);
}

#[test]
fn the_text_tells_of_them_apart() {
    let recorded = Case::ours("mappings").recorded();
    let text = grapnel_tests::run::grapnel(["report".as_ref(), recorded.trace().as_os_str()]).out();
    let (heap, mappings) =
        text.split_once("Mappings, which are no part of the figures above\n").expect("the section is there");
    assert!(!heap.contains("in_part"), "{heap}");
    for part in [
        "34 times anonymous, at most 1.2 MiB; 1 time file, at most 16.0 KiB; 2 times brk, at most 20.0 KiB; 2 times shm",
        "1. 800.0 KiB  67.3%  (819,200 bytes at the peak; 1 mapping of 800.0 KiB in all, anonymous; 28.0 KiB live at the end)",
        "in_part",
    ] {
        assert!(mappings.contains(part), "{part}:\n{mappings}");
    }
    let plain = Case::ours("plain").recorded();
    let text = grapnel_tests::run::grapnel(["report".as_ref(), plain.trace().as_os_str()]).out();
    assert!(!text.contains("Mappings"), "{text}");
}
