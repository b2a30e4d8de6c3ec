//! The definitions of the figures, case by case, and traces that break off.

use crate::common::{read, write};
use grapnel_analysis::{Analysis, Ending};
use grapnel_trace::Mark;
use grapnel_trace::event::{Event, Source, node_flags};

fn node(id: u32) -> Event {
    Event::Node { id, parent: id - 1, pc: 0x1000 + u64::from(id), module: 0, flags: 0 }
}

fn alloc(thread: u32, stack: u32, address: u64, size: u64) -> Event {
    Event::Alloc { thread, stack, address, size, source: Source::Malloc }
}

fn free(thread: u32, address: u64) -> Event {
    Event::Free { thread, address }
}

fn begin(thread: u32, address: u64) -> Event {
    Event::ReallocBegin { thread, address }
}

fn end(thread: u32, stack: u32, address: u64, size: u64, old: u64) -> Event {
    Event::ReallocEnd { thread, stack, address, size, old }
}

fn run(events: &[Event]) -> Analysis {
    let all: Vec<Event> = [node(1), node(2), node(3)].iter().chain(events).cloned().collect();
    read(&write(&all, 0))
}

#[test]
fn a_realloc_ends_one_allocation_and_begins_another() {
    let analysis = run(&[alloc(0, 1, 0x10, 100), begin(0, 0x10), end(0, 2, 0x20, 40, 0x10)]);
    let totals = analysis.totals;
    assert_eq!((totals.allocations, totals.reallocations, totals.frees), (1, 1, 0));
    assert_eq!((totals.allocated_bytes, totals.peak_bytes), (140, 100));
    assert_eq!((totals.live_allocations, totals.live_bytes), (1, 40));
    let [first, second] = analysis.sites[..] else { panic!("{:?}", analysis.sites) };
    assert_eq!((first.stack, first.live_allocations, first.peak_bytes), (1, 0, 100));
    assert_eq!((second.stack, second.allocations, second.live_bytes, second.peak_bytes), (2, 1, 40, 0));
    assert_eq!(totals.temporary_allocations, 0);
}

#[test]
fn blocks_of_before_are_live_and_no_allocations() {
    let before = |address, size| Event::Alloc { thread: 0, stack: 4, address, size, source: Source::Before };
    let mark = Event::Node { id: 4, parent: 0, pc: 0, module: 0, flags: node_flags::BEFORE };
    let events = [
        mark,
        before(0x10, 100),
        before(0x20, 50),
        before(0x30, 7),
        Event::Mark(Mark::Attached),
        alloc(0, 1, 0x40, 10),
        free(0, 0x10),
        begin(1, 0x20),
        end(1, 2, 0x50, 60, 0x20),
    ];
    let analysis = run(&events);
    assert!(analysis.knows_before());
    let totals = analysis.totals;
    assert_eq!((totals.before_allocations, totals.before_bytes), (3, 157));
    assert_eq!((totals.allocations, totals.reallocations, totals.frees), (1, 1, 1));
    assert_eq!((totals.allocated_bytes, totals.peak_bytes), (70, 167));
    assert_eq!((totals.live_allocations, totals.live_bytes), (3, 77));
    assert_eq!((totals.temporary_allocations, totals.inconsistent_events), (0, 0));
    assert_eq!(analysis.functions.iter().sum::<u64>(), 2);
    let site = analysis.sites.iter().find(|site| site.stack == 4).expect("a site");
    assert_eq!((site.allocations, site.allocated_bytes, site.peak_bytes), (0, 0, 157));
    assert_eq!((site.live_allocations, site.live_bytes), (1, 7));
    assert_eq!(site.sources.iter().count(), 0);
    let why = Event::Mark(Mark::BeforeUnknown(b"why".to_vec()));
    assert!(!run(&[why, Event::Mark(Mark::Attached)]).knows_before());
}

#[test]
fn blocks_of_before_that_stay_are_among_lifetimes() {
    use grapnel_analysis::query::{By, Query, gather};
    use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
    let before = |address, size| Event::Alloc { thread: 0, stack: 4, address, size, source: Source::Before };
    let mark = Event::Node { id: 4, parent: 0, pc: 0, module: 0, flags: node_flags::BEFORE };
    let new = [
        alloc(0, 1, 0x40, 10),
        free(0, 0x10),
        begin(0, 0x20),
        Event::ReallocFailed { thread: 0, address: 0x20 },
    ];
    let old = [node(1), node(2), node(3), mark, before(0x10, 100), before(0x20, 50), before(0x30, 7)];
    let trace = write(&[&old[..], &new].concat(), 0);
    let query = Query { by: By::Lifetime, ..Query::default() };
    let (analysis, gathered) = gather(grapnel_trace::reader::Reader::new(&*trace).unwrap(), &query).unwrap();
    let store = FileStore::new();
    let answer = gathered.answer(&analysis, &mut Symbols::new(&store, SearchPath::default()));
    let [row] = &answer.rows[..] else { panic!("{answer:?}") };
    assert_eq!(row.name, "live at the end");
    let figures = row.figures;
    assert_eq!((figures.grown_blocks, figures.grown_bytes), (3, 67));
    assert_eq!(figures.grown_bytes.unsigned_abs(), analysis.totals.live_bytes);
    assert_eq!((figures.allocations, figures.allocated_bytes, figures.releases), (1, 10, 0));
}

#[test]
fn a_failed_realloc_changes_nothing() {
    let failed = Event::ReallocFailed { thread: 0, address: 0x10 };
    let analysis = run(&[alloc(0, 1, 0x10, 100), begin(0, 0x10), failed, free(1, 0x10)]);
    assert_eq!(analysis.totals.live_allocations, 0);
    assert_eq!(
        (analysis.totals.allocations, analysis.totals.reallocations, analysis.totals.frees),
        (1, 0, 1)
    );
    // Nothing was allocated since, so the block is a temporary one still.
    assert_eq!(analysis.totals.temporary_allocations, 1);
}

#[test]
fn an_address_handed_on_during_a_realloc_stays_its_new_owners() {
    // Thread 0's realloc frees 0x10 inside libc, thread 1 is given it before thread 0 returns.
    let analysis =
        run(&[alloc(0, 1, 0x10, 100), begin(0, 0x10), alloc(1, 3, 0x10, 7), end(0, 2, 0x20, 40, 0x10)]);
    assert_eq!((analysis.totals.live_allocations, analysis.totals.live_bytes), (2, 47));
    assert_eq!(analysis.totals.inconsistent_events, 0);
}

#[test]
fn a_signal_handler_may_realloc_inside_a_realloc() {
    let interrupted = [begin(0, 0x10), begin(0, 0x20), end(0, 2, 0x30, 7, 0x20), end(0, 2, 0x40, 5, 0x10)];
    let before = [alloc(0, 1, 0x10, 100), alloc(0, 1, 0x20, 200)];
    let analysis = run(&[&before[..], &interrupted].concat());
    assert_eq!((analysis.totals.live_bytes, analysis.totals.reallocations), (12, 2));
    assert_eq!(analysis.totals.inconsistent_events, 0);
}

#[test]
fn blocks_older_than_the_recording_count_as_freed_and_change_no_live_figure() {
    let analysis = run(&[free(0, 0x10), begin(0, 0x20), alloc(1, 1, 0x20, 5), end(0, 1, 0x30, 6, 0x20)]);
    let totals = analysis.totals;
    assert_eq!((totals.allocations, totals.frees, totals.reallocations), (1, 1, 1));
    assert_eq!((totals.live_bytes, totals.inconsistent_events), (11, 0));
}

#[test]
fn temporary_means_freed_before_the_next_allocation_of_the_allocating_thread() {
    let other_thread_frees = run(&[alloc(0, 1, 0x10, 1), alloc(1, 1, 0x20, 1), free(1, 0x10)]);
    assert_eq!(other_thread_frees.totals.temporary_allocations, 1);
    let too_late = run(&[alloc(0, 1, 0x10, 1), alloc(0, 1, 0x20, 1), free(0, 0x10)]);
    assert_eq!(too_late.totals.temporary_allocations, 0);
    let of_realloc = run(&[alloc(0, 1, 0x10, 1), begin(0, 0x10), end(0, 2, 0x10, 9, 0x10), free(0, 0x10)]);
    assert_eq!(of_realloc.totals.temporary_allocations, 1);
    assert_eq!(of_realloc.sites[0].temporary_allocations, 1);
}

#[test]
fn the_peak_is_the_first_moment_of_the_maximum() {
    let analysis = run(&[
        Event::Time(5),
        alloc(0, 1, 0x10, 10),
        Event::Time(9),
        free(0, 0x10),
        alloc(0, 2, 0x20, 10),
        Event::Time(20),
        free(0, 0x20),
    ]);
    assert_eq!((analysis.totals.peak_bytes, analysis.totals.peak_time_ns), (10, 5));
    let peak_of = |stack| analysis.sites.iter().find(|site| site.stack == stack).unwrap().peak_bytes;
    assert_eq!((peak_of(1), peak_of(2)), (10, 0));
}

#[test]
fn contradictions_are_counted_and_the_newer_event_is_believed() {
    let twice = run(&[alloc(0, 1, 0x10, 10), alloc(0, 2, 0x10, 20)]);
    assert_eq!((twice.totals.live_allocations, twice.totals.live_bytes), (1, 20));
    assert_eq!((twice.totals.inconsistent_events, twice.totals.frees), (1, 0));
    let without_begin = run(&[alloc(0, 1, 0x10, 10), end(0, 1, 0x20, 3, 0x10)]);
    assert_eq!((without_begin.totals.live_bytes, without_begin.totals.inconsistent_events), (3, 1));
}

#[test]
fn losses_come_from_the_end_or_else_from_the_events() {
    let events = [Event::Lost(3), Event::Time(77), Event::Lost(4)];
    let whole = write(&events, 9);
    assert_eq!(read(&whole).totals.lost_events, 9);
    // The end's block is the last; without its last byte the trace is cut.
    let cut = read(&whole[..whole.len() - 1]);
    assert!(matches!(cut.ending, Ending::Cut));
    assert_eq!((cut.totals.lost_events, cut.totals.duration_ns), (7, 77));
    assert_eq!(cut.exit, None);
}

#[test]
fn what_stands_before_damage_is_reported() {
    let bad = run(&[alloc(0, 1, 0x10, 10), alloc(0, 99, 0x20, 10), alloc(0, 1, 0x30, 10)]);
    assert!(bad.ending.is_damage());
    assert_eq!(bad.totals.allocations, 1);
    let huge = run(&[alloc(0, 1, 0x10, u64::MAX), alloc(0, 1, 0x20, u64::MAX), free(0, 0x10), free(0, 0x20)]);
    assert_eq!((huge.totals.live_bytes, huge.totals.allocated_bytes), (0, u64::MAX));
}
