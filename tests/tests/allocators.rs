//! Allocators besides libc's, real ones: preloaded, linked into the program, opened later, and found by their names alone.

use grapnel_tests::programs;
use grapnel_tests::report::{Frame, Heap, Report, ReportTotals, Site};
use grapnel_tests::run::{Case, Recorded, grapnel};
use std::ffi::OsStr;

const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

fn library(name: &str) -> String {
    let path = format!("{LIBRARIES}/{name}");
    assert!(std::path::Path::new(&path).exists(), "{path}: ./test installs it");
    path
}

fn agrees(case: &Case) -> Recorded {
    let bare = case.bare();
    assert_eq!(bare.out(), "done\n", "{}", bare.err());
    let recorded = case.recorded();
    recorded.outcome.same_as(&bare);
    recorded
}

/// Blocks, bytes, live blocks and live bytes of the sites in a function of the program.
fn of(sites: &[Site], function: &str) -> [u64; 4] {
    let own = sites.iter().filter(|site| site.frames.iter().any(|frame| frame.name().starts_with(function)));
    own.fold([0; 4], |[a, b, c, d], site| {
        let Site { allocations, allocated_bytes, live_allocations, live_bytes, .. } = *site;
        [a + allocations, b + allocated_bytes, c + live_allocations, d + live_bytes]
    })
}

/// What the program calls by libc's names is in its own heap, as it is with libc's functions.
fn has_all(report: &Report, libcs: &Report) {
    let own = |report: &Report, function: &str| of(&report.sites, function);
    assert_eq!(own(report, "by_libcs_names"), own(libcs, "by_libcs_names"));
    // libc asks for more per thread where a library has thread-local variables.
    assert_eq!(own(report, "in_threads")[0], own(libcs, "in_threads")[0]);
    // Libraries get some at their start.
    for (found, right) in [
        (report.totals.allocations, libcs.totals.allocations),
        (report.totals.frees, libcs.totals.frees),
        (report.totals.reallocations, libcs.totals.reallocations),
    ] {
        assert!((right..right + 20).contains(&found), "{found} for {right}: {:?}", report.totals);
    }
    assert!(report.mismatches.is_empty(), "{:?}", report.mismatches);
}

fn heap<'r>(report: &'r Report, name: &str) -> &'r Heap {
    let found = report.heaps.iter().find(|heap| heap.name == name && heap.kind == "allocator");
    found.unwrap_or_else(|| {
        panic!("no {name}: {:?}", report.heaps.iter().map(|heap| &heap.name).collect::<Vec<_>>())
    })
}

#[test]
fn an_allocator_that_is_preloaded_is_the_programs_heap() {
    let libcs = agrees(&Case::ours("allocators")).report();
    assert!(libcs.heaps.is_empty());
    for name in ["libjemalloc.so.2", "libmimalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let recorded = agrees(&Case::ours("allocators").env("LD_PRELOAD", library(name)));
        has_all(&recorded.report(), &libcs);
    }
}

/// Its operators too, which hand on to each other in their own ways.
#[test]
fn operators_of_an_allocator_that_is_preloaded_are_the_programs() {
    let case = Case::ours("operators_handed_on");
    let libcs = agrees(&case).report();
    let of = |report: &Report| report.totals.clone();
    for name in ["libjemalloc.so.2", "libmimalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let case = case.clone().env("LD_PRELOAD", library(name));
        let report = agrees(&case).report();
        let (found, right) = (of(&report), of(&libcs));
        // Where they are one function, nobody can tell which of them was called.
        let by_new = |totals: &ReportTotals| totals.functions["new"] + totals.functions["new[]"];
        for (found, right) in [
            (by_new(&found), by_new(&right)),
            (found.frees, right.frees),
            (found.live_allocations, right.live_allocations),
        ] {
            assert!((right..right + 20).contains(&found), "{name}: {found} for {right}: {:?}", report.totals);
        }
        assert!(report.mismatches.is_empty(), "{name}: {:?}", report.mismatches);
        let mut sum = 0.0;
        const SEEDS: u32 = 6;
        for seed in 1..=SEEDS {
            let case = case.clone().option("--sample=2000").option(&format!("--sample-seed={seed}"));
            let report = agrees(&case).report();
            let errors = report.sampling.expect("a sample").errors;
            let bytes = report.totals.allocated_bytes as f64 - right.allocated_bytes as f64;
            let distance = bytes / errors.allocated_bytes as f64;
            assert!(distance.abs() < 4.0, "{name}: {distance} by seed {seed}: {:?}", report.totals);
            assert!(
                report.totals.frees.abs_diff(report.totals.allocations) <= 10,
                "{name}: {:?}",
                report.totals
            );
            sum += distance;
        }
        assert!(sum.abs() < 4.0 * f64::from(SEEDS).sqrt(), "{name}: {sum}");
    }
}

/// Nearly every block is larger than the mean many times over.
#[test]
fn a_sample_of_other_heaps_is_one_of_all() {
    let near = |found: u64, right: u64| found.abs_diff(right) < right / 20 + 10;
    let family = Case::ours("own_family").option("--sample=1");
    let report = agrees(&family).report();
    let totals = &heap(&report, "own_malloc").totals;
    assert!(near(totals.allocations, 301) && near(totals.frees, 300), "{totals:?}");
    assert!(near(totals.reallocations, 99) && totals.live_allocations <= 2, "{totals:?}");
    for (name, prefix) in [("libmimalloc.so.2", "mi_"), ("libtcmalloc_minimal.so.4", "tc_")] {
        let case = Case::ours("allocators").arg(library(name)).arg(prefix);
        let all = agrees(&case).report();
        let some = agrees(&case.option("--sample=16").option("--sample-seed=1")).report();
        let (all, some) = (&heap(&all, name).totals, &heap(&some, name).totals);
        assert!(near(some.allocations, all.allocations), "{name}: {some:?} for {all:?}");
        assert!(near(some.frees, all.frees) && near(some.reallocations, all.reallocations), "{some:?}");
        assert!(near(some.live_bytes, all.live_bytes), "{name}: {some:?} for {all:?}");
    }
}

/// Of an allocator in a library that is opened late, whose `delete` is its `free`.
#[test]
fn operators_of_a_library_that_is_opened_late() {
    for (name, new, delete) in [
        ("libtcmalloc_minimal.so.4", "_Znwm", "_ZdlPv"),
        ("libtcmalloc_minimal.so.4", "tc_newarray", "tc_deletearray"),
        ("libmimalloc.so.2", "_Znwm", "_ZdlPv"),
        ("libmimalloc.so.2", "mi_new", "mi_free"),
    ] {
        let case = Case::ours("late_new").args([library(name).as_str(), new, delete]);
        let recorded = case.recorded();
        recorded.outcome.same_as(&case.bare());
        let report = recorded.report();
        let totals = &heap(&report, name).totals;
        // tcmalloc gets some for itself when it starts.
        assert_eq!(
            totals.allocations - totals.frees,
            50 + u64::from(name.contains("tcmalloc")) * 2,
            "{name}: {totals:?}"
        );
        assert!((50_000..50_100).contains(&totals.live_bytes), "{name}: {totals:?}");
    }
}

#[test]
fn a_sample_of_a_preloaded_allocator_is_one_of_all() {
    let libcs = agrees(&Case::ours("allocators")).report();
    let sampled = |library: &str| {
        let case = Case::ours("allocators").env("LD_PRELOAD", library).option("--sample=64");
        agrees(&case).report().totals
    };
    for name in ["libjemalloc.so.2", "libmimalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let totals = sampled(&library(name));
        // Nearly every block is larger than the mean many times over.
        let near = |found: u64, right: u64| found.abs_diff(right) < right / 20 + 20;
        assert!(near(totals.allocations, libcs.totals.allocations), "{name}: {totals:?}");
        assert!(near(totals.frees, libcs.totals.frees), "{name}: {totals:?}");
        assert!(near(totals.reallocations, libcs.totals.reallocations), "{name}: {totals:?}");
    }
}

#[test]
fn an_allocator_that_is_linked_into_the_program_is_its_heap() {
    let libcs = agrees(&Case::ours("allocators")).report();
    let program = programs::program_with("allocators", "libjemalloc.a");
    has_all(&agrees(&Case::new(program)).report(), &libcs);
}

#[test]
fn an_allocator_that_is_opened_later_is_a_heap_of_its_own() {
    for (name, prefix) in [("libmimalloc.so.2", "mi_"), ("libtcmalloc_minimal.so.4", "tc_")] {
        let case = Case::ours("allocators").arg(library(name)).arg(prefix);
        let report = agrees(&case).report();
        let found = &heap(&report, name).sites;
        let bytes = 500 * 100 + 400 * 10_000 + 20 * 110 + 5 * 333;
        assert_eq!(of(found, "by_prefix"), [500 + 400 + 20 + 5, bytes, 7, 700], "{name}");
        assert_eq!(report.heaps.len(), 1);
        // Its blocks are not those of malloc.
        assert_eq!(
            of(&report.sites, "by_libcs_names"),
            of(&agrees(&Case::ours("allocators")).report().sites, "by_libcs_names")
        );
    }
}

#[test]
fn a_family_that_is_exported_to_nobody_is_found_and_its_own_calls_are_part_of_it() {
    let report = agrees(&Case::ours("own_family")).report();
    let found = heap(&report, "own_malloc");
    let totals = &found.totals;
    assert_eq!((totals.allocations, totals.frees, totals.reallocations), (301, 300, 99));
    let bytes = 100 * 10 + 100 * 21 + 100 * 100 + (40..140).sum::<u64>();
    assert_eq!((totals.allocated_bytes, totals.live_allocations, totals.live_bytes), (bytes, 1, 139));
    // What it is made of is malloc's.
    assert!(report.totals.functions["malloc"] >= 300, "{:?}", report.totals);
    assert_eq!(report.totals.functions["aligned_alloc"], 100);
}

/// Families without a function for aligned blocks: those that are allocators count from their first block on, and who hands on to another is
/// none.
#[test]
fn families_of_fewer_functions_are_heaps_if_they_behave_as_allocators() {
    let case = Case::ours("may_be_allocators");
    for case in [case.clone(), case.option("--sample=1")] {
        let report = agrees(&case).report();
        let figures = |heap: &Heap| {
            let totals = &heap.totals;
            (totals.allocations, totals.reallocations, totals.frees, totals.live_bytes)
        };
        let mut found: Vec<_> = report.heaps.iter().map(|heap| (heap.name.as_str(), figures(heap))).collect();
        found.sort_unstable();
        let right = [
            ("arena_malloc", (402, 99, 401, 1000)),
            ("mapped_malloc", (300, 0, 300, 0)),
            ("nodes_malloc", (300, 0, 300, 0)),
            ("pieces_malloc", (1020, 0, 1010, 50_000)),
        ];
        assert_eq!(found, right);
        // Two pieces for small blocks, all else block for block, with those of the header: and stdout's.
        let ReportTotals { allocations, reallocations, frees, .. } = report.totals;
        assert_eq!((reallocations, frees), (6010, 12_290));
        assert!((18_300..18_320).contains(&allocations), "{:?}", report.totals);
        // Whether one of these is amid a call or not yet, or no more: its frames are left out.
        let is_ours = |frame: &Frame| frame.module.as_deref() == Some("[grapnel]");
        assert!(!report.sites.iter().flat_map(|site| &site.frames).any(is_ours));
        let by_header = |site: &&Site| {
            let leaf: Vec<_> = site.frames.iter().take(2).map(Frame::name).collect();
            leaf == ["header_malloc", "by_malloc"]
        };
        assert_eq!(report.sites.iter().filter(by_header).count(), 1);
    }
}

/// What C++'s operators are asked for amid a family's call is what that has asked for.
#[test]
fn a_family_that_hands_on_to_operators_is_no_heap() {
    for (program, option) in ["by_new", "new_by_family"]
        .into_iter()
        .flat_map(|program| ["--max-frames=100", "--sample=1"].map(|option| (program, option)))
    {
        let report = agrees(&Case::ours(program).option(option)).report();
        assert!(report.heaps.is_empty(), "{program}: {:?}", report.heaps);
        assert!((20..25).contains(&report.totals.allocations), "{program}: {:?}", report.totals);
    }
}

/// Names don't say what arguments a function has: whatever they are, it gets them, and its caller its result. What can't be
/// those of an allocator is not recorded as such.
#[test]
fn functions_with_names_of_allocators_do_what_they_did() {
    let case = Case::ours("alike");
    let bare = case.bare();
    assert_eq!(bare.out(), "1910 40 1070\n");
    for option in ["--sample=1", "--drop"] {
        case.clone().option(option).recorded().outcome.same_as(&bare);
    }
    let recorded = case.recorded();
    recorded.outcome.same_as(&bare);
    let trace = recorded.trace();
    let said = grapnel(
        ["run", "-o"]
            .map(OsStr::new)
            .into_iter()
            .chain([trace.as_ref(), "--".as_ref()])
            .chain([programs::program("alike").as_os_str()]),
    );
    assert!(said.err().contains("what pool_malloc gives is not recorded"), "{}", said.err());
    let report = recorded.report();
    // What all of them gave came from malloc and its kin: ten rounds of ten blocks, and stdout's.
    assert!((120..130).contains(&report.totals.allocations), "{:?}", report.totals);
    assert!(report.heaps.iter().all(|heap| heap.name != "pool_malloc" || heap.totals.allocations == 1));
}

/// Of an allocator of the program's that libc's stands behind, each call is one event of the program's heap.
#[test]
fn what_stands_behind_the_programs_malloc_is_another_heap() {
    let case = Case::ours("wrapped_malloc");
    let recorded = agrees(&case);
    let totals = recorded.report().totals;
    assert_eq!((totals.allocations, totals.reallocations, totals.frees), (1100, 100, 1100), "{totals:?}");
    assert_eq!((totals.peak_bytes, totals.live_bytes), (1_000_000, 0), "{totals:?}");
}

/// Functions that lie beside their callers may leave registers alone on which these count.
#[test]
fn callers_beside_an_allocator_find_their_registers_as_they_were() {
    let case = Case::ours("beside");
    let bare = case.bare();
    assert_eq!(bare.out(), "all as they were\n");
    // One that records all, ones that take the way through a stub always, often and hardly ever.
    for sample in ["--sample=1", "--sample=200", "--sample=1000000000"] {
        case.clone().option(sample).recorded().outcome.same_as(&bare);
    }
    let recorded = case.recorded();
    recorded.outcome.same_as(&bare);
    let report = recorded.report();
    assert_eq!(of(&report.sites, "call_full")[0], 1100);
    assert_eq!((report.totals.reallocations, report.totals.frees), (100, 900));
    let totals = &heap(&report, "beside_malloc").totals;
    assert_eq!((totals.allocations, totals.reallocations, totals.frees), (400, 100, 400));
}
