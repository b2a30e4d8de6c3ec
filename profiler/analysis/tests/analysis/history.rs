//! What sites did over time, against a list of all changes.

use crate::common::{Random, info};
use grapnel_analysis::history::{History, Window, analyse_over_time};
use grapnel_analysis::live::{Block, LiveBlocks, Watcher};
use grapnel_trace::event::{Event, Source};
use grapnel_trace::reader::Reader;
use grapnel_trace::writer::Writer;
use std::collections::BTreeMap;

const STACKS: u32 = 40;
const END_NS: u64 = 90_000_000_000;

/// Bursts and waits, of three threads; reallocations too.
fn events(seed: u64, count: u64) -> Vec<Event> {
    let mut random = Random(seed);
    let mut events = Vec::new();
    for id in 1..=STACKS {
        let parent = random.below(u64::from(id)) as u32;
        events.push(Event::Node { id, parent, pc: u64::from(id), module: 0, flags: 0 });
    }
    let mut live = vec![false; 300];
    let mut time = 0;
    for done in 0..count {
        match random.below(2000) {
            0 => time += 1_000_000_000,
            1..100 => time += random.below(3_000_000),
            _ => {}
        }
        events.push(Event::Time(time));
        // Which stacks allocate changes.
        let stack = 1 + (done * 4 / count * 9 + random.below(10)) as u32;
        let slot = random.below(live.len() as u64) as usize;
        let address = 0x1000 + 16 * slot as u64;
        let digits = random.below(14);
        let (thread, size) = (random.below(3) as u32, random.below(1 << digits));
        let moves = live[slot] && random.below(6) == 0;
        events.push(match live[slot] {
            false => Event::Alloc { thread, stack, address, size, source: Source::Malloc },
            true if moves => Event::ReallocBegin { thread, address },
            true => Event::Free { thread, address },
        });
        if moves {
            events.push(Event::ReallocEnd { thread, stack, address, size, old: address });
        }
        live[slot] = moves || !live[slot];
    }
    events
}

#[derive(Clone, Copy)]
struct Change {
    stack: u32,
    grown: i64,
    allocated: Option<u64>,
    temporary: bool,
}

/// Writes all changes down.
#[derive(Default)]
struct List {
    changes: Vec<Change>,
    last: BTreeMap<u32, u64>,
}

impl Watcher for List {
    fn added(&mut self, address: u64, block: Block, _: bool) {
        self.last.insert(block.thread, address);
        let size = block.size;
        self.changes.push(Change {
            stack: block.stack,
            grown: size as i64,
            allocated: Some(size),
            temporary: false,
        });
    }

    fn removed(&mut self, address: u64, block: Block, freed: bool) {
        let temporary = freed && self.last.get(&block.thread) == Some(&address);
        self.changes.push(Change {
            stack: block.stack,
            grown: -(block.size as i64),
            allocated: None,
            temporary,
        });
    }

    fn restored(&mut self, _: u64, _: Block, _: bool) {
        unreachable!("no realloc fails here");
    }
}

fn list(events: &[Event]) -> Vec<Change> {
    let (mut live, mut list) = (LiveBlocks::new(), List::default());
    events.iter().for_each(|event| live.apply_watched(event, &mut list));
    list.changes
}

fn history(events: &[Event], window: Window) -> History {
    let mut writer = Writer::new(Vec::new(), &info(), 1).unwrap();
    events.iter().for_each(|event| writer.push(event).unwrap());
    let trace = writer.finish(None, END_NS, 0).unwrap();
    analyse_over_time(Reader::new(&*trace).unwrap(), window).1
}

/// Grown, grown at the peak, allocations, bytes, temporary ones.
type Figures = BTreeMap<u32, (i64, i64, u64, u64, u32)>;

/// What the changes from `start` to `end` were, and the most that was live.
fn figures(changes: &[Change], start: usize, end: usize) -> (Figures, i64) {
    let mut found: Figures = BTreeMap::new();
    let mut live: i64 = changes[..start].iter().map(|change| change.grown).sum();
    let mut peak = live;
    for change in &changes[start..end] {
        let of = found.entry(change.stack).or_default();
        of.0 += change.grown;
        of.2 += u64::from(change.allocated.is_some());
        of.3 += change.allocated.unwrap_or(0);
        of.4 += u32::from(change.temporary);
        live += change.grown;
        if live > peak {
            peak = live;
            found.values_mut().for_each(|of| of.1 = of.0);
        }
    }
    (found, peak)
}

/// Every bucket says what the changes in it say.
fn compare(history: &History, changes: &[Change]) {
    let mut start = 0;
    let mut start_ns = 0;
    for bucket in history.all() {
        let end = bucket.end_change as usize;
        let (expected, peak) = figures(changes, start, end);
        let cells = bucket.cells.iter().map(|cell| {
            let stack = history.stacks[cell.site as usize];
            let grown = (cell.grown as i64, cell.grown_at_peak as i64);
            (stack, (grown.0, grown.1, cell.allocations, cell.allocated_bytes, cell.temporary))
        });
        assert_eq!(cells.collect::<Figures>(), expected, "changes {start} to {end}");
        assert_eq!(bucket.peak_bytes as i64, peak);
        assert_eq!(bucket.live_bytes as i64, changes[..end].iter().map(|change| change.grown).sum::<i64>());
        assert_eq!(bucket.changes as usize, end - start);
        let sizes: u64 = bucket.sizes.iter().map(|class| class.allocated_bytes).sum();
        assert_eq!(sizes, bucket.allocated_bytes);
        assert_eq!(sizes, expected.values().map(|of| of.3).sum::<u64>());
        assert!(bucket.end_ns >= start_ns);
        (start, start_ns) = (end, bucket.end_ns);
    }
}

#[test]
fn every_bucket_is_exact_however_often_they_were_widened() {
    for (seed, count) in [(1, 300), (2, 6_000), (3, 90_000)] {
        let events = events(0x9e37_79b9 * seed, count);
        let changes = list(&events);
        let history = history(&events, Window::ALL);
        assert!(history.prelude.is_none());
        let last = history.buckets.last().unwrap();
        assert_eq!((last.end_change as usize, last.end_ns), (changes.len(), END_NS));
        assert!(history.buckets.len() <= 512);
        assert!(count < 6000 || history.buckets.len() > 100, "{}", history.buckets.len());
        compare(&history, &changes);
        // What each site held at most is no estimate.
        let mut held: BTreeMap<u32, (i64, i64)> = BTreeMap::new();
        for change in &changes {
            let of = held.entry(change.stack).or_default();
            of.0 += change.grown;
            of.1 = of.1.max(of.0);
        }
        for (stack, most) in history.stacks.iter().zip(&history.most_bytes) {
            assert_eq!(held[stack].1 as u64, *most);
        }
    }
}

#[test]
fn a_wait_is_no_part_of_what_was_done_before_it() {
    let alloc = |address| Event::Alloc { thread: 0, stack: 0, address, size: 10, source: Source::Malloc };
    let mut events: Vec<Event> = (0..100).map(|n| alloc(16 + 16 * n)).collect();
    events.push(Event::Time(60_000_000_000));
    events.extend((0..100).map(|n| Event::Free { thread: 0, address: 16 + 16 * n }));
    let history = history(&events, Window::ALL);
    let wait = history.buckets.iter().find(|bucket| bucket.end_ns == 60_000_000_000).unwrap();
    assert_eq!((wait.changes, wait.live_bytes, wait.peak_bytes), (0, 1000, 1000));
    let before = history.buckets.iter().take_while(|bucket| bucket.changes > 0);
    assert!(before.clone().count() > 0 && before.clone().all(|bucket| bucket.end_ns <= 10_000_000));
    let [.., freed, end] = &history.buckets[..] else { panic!("{} buckets", history.buckets.len()) };
    assert!(freed.changes > 0 && freed.end_ns <= 60_010_000_000);
    assert_eq!((end.changes, end.live_bytes, end.end_ns), (0, 0, END_NS));
    compare(&history, &list(&events));
}

#[test]
fn a_window_is_seen_in_more_detail_and_with_all_that_came_before() {
    let events = events(5, 90_000);
    let changes = list(&events);
    for (from, to) in [(0, 20_000), (20_000, 30_000), (89_000, u64::MAX), (500_000, 600_000)] {
        let history = history(&events, Window { from, to });
        compare(&history, &changes);
        assert_eq!(history.prelude.is_some(), from > 0);
        let last = history.all().last().unwrap();
        assert_eq!(last.end_change, to.min(changes.len() as u64));
        if let Some(prelude) = &history.prelude {
            assert_eq!(prelude.end_change, from.min(changes.len() as u64));
        }
        if to == 30_000 {
            assert!(history.buckets.len() > 100, "{}", history.buckets.len());
            assert!(history.buckets.iter().all(|bucket| bucket.changes <= 128));
        }
    }
}
