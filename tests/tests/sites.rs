//! Sites: leaks at their lines, temporaries by number, stacks whole and in order.

use grapnel_tests::programs::{self, marked_line};
use grapnel_tests::report::{Frame, Report, Site};
use grapnel_tests::run::Case;
use std::collections::BTreeMap;

/// The live blocks of glibc's own: a thread's vector of TLS blocks, and what dlopen leaves.
fn is_of_glibc(site: &Site) -> bool {
    let own = ["pthread_create", "dlopen", "dlclose", "dlsym"];
    site.frames.iter().any(|frame| own.iter().any(|name| frame.name().contains(name)))
}

/// The bytes of a pointer of the programs.
fn pointer() -> u64 {
    if programs::machine().is_some_and(|machine| machine.starts_with("arm")) { 4 } else { 8 }
}

/// The innermost frame in one of our sources.
fn ours<'a>(site: &'a Site, files: &[&str]) -> Option<&'a Frame> {
    site.frames.iter().find(|frame| files.iter().any(|file| frame.is_in(file)))
}

#[test]
fn leaks_all_and_only() {
    let recorded = Case::ours("leaks").arg(programs::library("leak_library")).recorded();
    let report = recorded.report();
    // mark, how many blocks, how many bytes
    let planted = [
        ("leaks.c", "LEAK inlined", 25, 25 * 64),
        ("leaks.c", "LEAK grown", 4, 4 * 80),
        ("leaks.c", "LEAK list", 20, 20 * (40 + pointer())),
        ("leaks.c", "LEAK aligned", 1, 300),
        ("leaks.c", "LEAK copied", 1, 21),
        ("leaks.c", "LEAK thread", 1, 77),
        ("leak_library.c", "LEAK library", 6, 6 * 48),
    ];
    let expected: BTreeMap<(String, u64), (u64, u64)> = planted
        .iter()
        .map(|(file, mark, count, bytes)| ((file.to_string(), marked_line(file, mark)), (*count, *bytes)))
        .collect();
    let mut found: BTreeMap<(String, u64), (u64, u64)> = BTreeMap::new();
    for site in report.sites.iter().filter(|site| site.live_allocations > 0 && !is_of_glibc(site)) {
        let frame = ours(site, &["leaks.c", "leak_library.c"])
            .unwrap_or_else(|| panic!("a leak outside of the sources:\n{}", site.stack()));
        let file = frame.file.as_deref().and_then(|file| file.rsplit('/').next()).unwrap_or_default();
        let entry = found.entry((file.to_owned(), frame.line.unwrap_or(0))).or_default();
        entry.0 += site.live_allocations;
        entry.1 += site.live_bytes;
    }
    assert_eq!(found, expected, "file, line: blocks, bytes (left: found)");
    let of_glibc = report.sites.iter().filter(|site| is_of_glibc(site)).map(|site| site.live_allocations);
    assert!(of_glibc.sum::<u64>() <= 3, "glibc's own blocks are few");
}

#[test]
fn inlined_frames() {
    let report = Case::ours("leaks").arg(programs::library("leak_library")).recorded().report();
    let line = marked_line("leaks.c", "LEAK inlined");
    let site = report
        .sites
        .iter()
        .find(|site| site.frames.iter().any(|frame| frame.is_at("leaks.c", line)))
        .expect("the inlined leak is there");
    let at = site.frames.iter().position(|frame| frame.is_at("leaks.c", line)).expect("just found");
    let facts: Vec<(&str, bool)> =
        site.frames[at..at + 3].iter().map(|frame| (frame.name(), frame.inlined)).collect();
    assert_eq!(facts, [("inlined_leak", true), ("inlined_twice", true), ("main", false)], "{}", site.stack());
}

/// The stack of a leak in a library that was closed long before the report.
#[test]
fn closed_library_keeps_its_names() {
    let report = Case::ours("leaks").arg(programs::library("leak_library")).recorded().report();
    let site = report
        .sites
        .iter()
        .find(|site| site.frames.iter().any(|frame| frame.name() == "library_leak"))
        .expect("the library's leak is there");
    let module =
        site.frames.iter().find(|frame| frame.name() == "library_leak").and_then(|f| f.module.clone());
    assert!(module.is_some_and(|module| module.ends_with("libleak_library.so")), "{}", site.stack());
    assert!(site.frames.iter().any(|frame| frame.name() == "main"), "{}", site.stack());
}

/// In a namespace of its own, with a libc of its own: stacks lead through it, and its libc's heap is one of its own.
#[test]
fn a_library_in_another_namespace() {
    let case = Case::ours("namespaces").arg(programs::library("namespaces_library"));
    let bare = case.bare();
    let recorded = case.option("--check-stacks").recorded();
    recorded.outcome.same_as(&bare);
    let report = recorded.report();
    let at = |name| named(&report, name);
    let called_back = at("called_back");
    assert_eq!(sum(&called_back, |site| (site.allocations, site.allocated_bytes)), (14, 14_000));
    for site in &called_back {
        let ours: Vec<&str> = names_of(site);
        assert_eq!(
            ours[..4],
            ["called_back", "namespace_through", "in_namespace", "main"],
            "{}",
            site.stack()
        );
        assert!(ends_at_start(site), "cut short:\n{}", site.stack());
    }
    let libc = report.heaps.iter().find(|heap| heap.name == "libc.so.6").expect("the library's libc");
    let totals = &libc.totals;
    assert_eq!((totals.allocations, totals.frees, totals.live_bytes), (22, 16, 3000), "{totals:?}");
}

/// A handler that came while the program ran code that the hooks have in place of libc's: its stack leads on through libc's function.
#[test]
fn a_handler_amid_a_hook() {
    let recorded = Case::ours("stopped_amid").recorded();
    let amid: u64 = recorded.outcome.err().trim().parse().expect("a number");
    assert!(amid > 0, "no signal came amid a hook's code");
    let report = recorded.report();
    let sites = named(&report, "stopped_amid");
    assert_eq!(sum(&sites, |site| (site.allocations, site.live_allocations)), (amid, 0));
    for site in sites {
        let names = names_of(site);
        assert!(names.contains(&"allocates"), "{}", site.stack());
        assert!(ends_at_start(site), "cut short:\n{}", site.stack());
    }
}

/// The sites with a function of this name in their stacks.
fn named<'r>(report: &'r Report, name: &str) -> Vec<&'r Site> {
    report.sites.iter().filter(|site| names_of(site).contains(&name)).collect()
}

fn names_of(site: &Site) -> Vec<&str> {
    site.frames.iter().map(|frame| frame.name()).collect()
}

/// Two libraries that lie at each other's addresses in turn are told apart in every round.
#[test]
fn libraries_in_turn() {
    let report =
        Case::ours("dlopen_loop").arg(programs::plug("a")).arg(programs::plug("b")).recorded().report();
    for (which, size) in [("a", 1000), ("b", 1001)] {
        let make = format!("plug_make_{which}");
        let sites: Vec<&Site> =
            report.sites.iter().filter(|s| s.frames.iter().any(|frame| frame.name() == make)).collect();
        let (blocks, bytes) = sum(&sites, |site| (site.allocations, site.allocated_bytes));
        assert_eq!((blocks, bytes), (40, 40 * size), "made by {make}");
        for site in sites {
            let inner = format!("inner_{which}");
            assert!(site.frames.iter().any(|frame| frame.name() == inner), "{}", site.stack());
            assert!(site.frames.iter().any(|frame| frame.name() == "main"), "{}", site.stack());
        }
    }
}

fn sum(sites: &[&Site], figures: fn(&Site) -> (u64, u64)) -> (u64, u64) {
    sites.iter().map(|site| figures(site)).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

#[test]
fn temporary_by_number() {
    let report = Case::ours("temporary").recorded().report();
    let planted = [
        ("SITE all", 100, 100),
        ("SITE outer", 0, 50),
        ("SITE inner", 50, 50),
        ("SITE half", 21, 40),
        ("SITE thread", 30, 30),
        ("SITE held", 0, 1),
    ];
    for (mark, temporary, all) in planted {
        let line = marked_line("temporary.c", mark);
        let at_line = |site: &&Site| ours(site, &["temporary.c"]).is_some_and(|f| f.line == Some(line));
        let sites: Vec<&Site> = report.sites.iter().filter(at_line).collect();
        let found = sum(&sites, |site| (site.temporary_allocations, site.allocations));
        assert_eq!(found, (temporary, all), "{mark}: temporary, all (left: found)");
    }
}

/// The names of a stack, leaf first, from the first of `deep.c` to `main`.
fn names(site: &Site) -> Vec<&str> {
    let ours = site.frames.iter().skip_while(|frame| !frame.is_in("deep.c"));
    ours.take_while(|frame| frame.is_in("deep.c")).map(Frame::name).collect()
}

fn ends_at_start(site: &Site) -> bool {
    site.frames.last().is_some_and(|frame| frame.name() == "_start")
}

fn check_deep(report: &Report, depth: usize) {
    let bottom: Vec<&Site> =
        report.sites.iter().filter(|s| s.frames.iter().any(|frame| frame.name() == "bottom")).collect();
    assert_eq!(sum(&bottom, |site| (site.allocations, site.allocated_bytes)), (3, 369));
    assert_eq!(bottom.len(), 1, "the same stack three times");
    let mut expected = vec!["bottom"];
    expected.extend((1..=depth).map(|level| if level % 2 == depth % 2 { "even" } else { "odd" }));
    expected.push("main");
    assert_eq!(names(bottom[0]), expected);
    assert!(ends_at_start(bottom[0]), "{}", bottom[0].stack());
    // One site per tenth level, each with its own length.
    let mut lengths: Vec<usize> = report
        .sites
        .iter()
        .filter(|site| names(site).first() == Some(&"even") && ends_at_start(site))
        .map(|site| names(site).len() - 1)
        .collect();
    lengths.sort_unstable();
    let levels: Vec<usize> = (1..=depth / 10).map(|tenth| (tenth - 1) * 10 + 1).collect();
    assert_eq!(lengths, levels);
}

#[test]
fn sixty_frames() {
    check_deep(&Case::ours("deep").arg("60").recorded().report(), 60);
}

#[test]
fn six_hundred_frames() {
    check_deep(&Case::ours("deep").arg("600").recorded().report(), 600);
}

/// Names of C++ are readable, and a stack passes through the standard library.
#[test]
fn demangled() {
    let report = Case::ours("cxx").recorded().report();
    let through = |name: &str| {
        report.sites.iter().filter(|s| s.frames.iter().any(|frame| frame.name().starts_with(name))).count()
    };
    assert!(through("thrown(int)") + through("thrown") > 0);
    assert!(through("std::") > 0);
    for site in &report.sites {
        for frame in &site.frames {
            assert!(!frame.name().starts_with("_ZN"), "not demangled: {}\n{}", frame.name(), site.stack());
        }
    }
}

/// Stacks of the main thread are whole in every program: they end at `_start`, or begin in the dynamic linker.
#[test]
fn whole_stacks() {
    for case in [
        Case::ours("every_function"),
        Case::ours("failures"),
        Case::ours("signals"),
        Case::ours("deep").arg("60"),
        Case::ours("flood").args(["20", "4096"]),
        Case::ours("dlopen_loop").arg(programs::plug("a")).arg(programs::plug("b")),
    ] {
        let report = case.recorded().report();
        for site in report.sites.iter().filter(|site| site.frames.iter().any(|f| f.name() == "main")) {
            assert!(ends_at_start(site), "cut short:\n{}", site.stack());
        }
        let from_main = report.sites.iter().filter(|s| s.frames.iter().any(|f| f.name() == "main"));
        let allocations: u64 = from_main.map(|site| site.allocations).sum();
        let all = report.totals.allocations + report.totals.reallocations;
        assert!(allocations + 20 >= all, "{allocations} of {all} come from main");
    }
}
