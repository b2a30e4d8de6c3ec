//! Stacks that the program itself knows: each block of `told` has a size that follows from the functions that led to it.
//! `--check-stacks` compares walks in the process, where each node is looked up; this is of traces as they are recorded.

use grapnel_tests::report::{Report, Site};
use grapnel_tests::run::{Case, report_with_losses};

/// The size of a block that was asked for from here; `None` outside of `work`.
fn size_of(site: &Site) -> Option<u64> {
    let names: Vec<&str> = site.frames.iter().rev().map(|frame| frame.name()).collect();
    let work = names.iter().position(|&name| name == "work")?;
    let hash = names[work + 1..].iter().enumerate().fold(2_166_136_261_u32, |hash, (at, name)| {
        let way = name.strip_prefix("way_").and_then(|way| way.parse::<u32>().ok());
        assert_eq!((at % 2 == 1, at % 2 == 0), (way.is_some(), *name == "wander"), "{names:?}");
        way.map_or(hash, |way| (hash ^ (way + 1)).wrapping_mul(16_777_619))
    });
    Some(1 + u64::from(hash % 65521))
}

/// How many blocks were asked for in `work`. Each must have the size that its stack says.
fn blocks(report: &Report) -> u64 {
    let of_work = report.sites.iter().filter_map(|site| Some((site, size_of(site)?)));
    of_work
        .map(|(site, size)| {
            assert_eq!(site.allocated_bytes, size * site.allocations, "{site:?}");
            site.allocations
        })
        .sum()
}

/// The blocks of each trace, the fewest first.
fn recorded(blocks_of_each: u64, who: &str, options: &[&str]) -> Vec<u64> {
    let case = Case::ours("told").arg(blocks_of_each.to_string()).arg(who);
    let case = options.iter().fold(case, |case, option| case.option(option));
    let mut found: Vec<u64> = case.recorded().reports().iter().map(blocks).collect();
    found.sort_unstable();
    found
}

#[test]
fn of_the_first_thread() {
    assert_eq!(recorded(100_000, "first", &[]), [100_000]);
    assert_eq!(recorded(100_000, "first", &["--via=got"]), [100_000]);
}

/// Its nodes are numbered from 1 again on the way.
#[test]
fn of_more_nodes_than_a_thread_numbers() {
    assert_eq!(recorded(4_000_000, "first", &[]), [4_000_000]);
}

#[test]
fn of_several_threads() {
    assert_eq!(recorded(40_000, "threads", &[]), [5 * 40_000]);
}

#[test]
fn of_children() {
    // A child has the stacks of what it does itself.
    assert_eq!(recorded(40_000, "forks", &["--wait"]), [40_000, 40_000, 2 * 40_000]);
    assert_eq!(recorded(40_000, "thread-forks", &["--wait"]), [3 * 40_000, 3 * 40_000]);
}

/// What is recorded where events are dropped has its stack all the same.
#[test]
fn of_those_that_are_not_dropped() {
    let case = Case::ours("told").arg("100000").arg("threads").option("--drop");
    let found = blocks(&report_with_losses(&case.recorded().trace()));
    assert!((1..=5 * 100_000).contains(&found), "{found}");
}
