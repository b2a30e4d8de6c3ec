//! Orders that must come out of rings, whatever the clocks say.

use super::*;
use grapnel_trace::Source as From;
use grapnel_trace::wire::{self, Order};

fn at(seq: u32, ticks: u32) -> Order {
    Order { seq, ticks }
}

fn alloc(address: u64, order: Order, size: u64) -> [u64; 3] {
    wire::numbered(wire::alloc(address, 0, size, From::Malloc), order)
}

fn free(address: u64, order: Order) -> [u64; 2] {
    wire::numbered(wire::plain(wire::kind::FREE, address), order)
}

impl Output for Vec<Event> {
    fn heap(&mut self, _: u64, event: HeapEvent) {
        self.push(event.into());
    }

    fn in_heap(&mut self, _: u64, heap: u32, event: HeapEvent) {
        self.extend([Event::InHeap(heap), event.into()]);
    }

    fn nodes(&mut self, _: u64, first: u32, mut parent: u32, frames: &[u64]) {
        for (id, frame) in (first..).zip(frames) {
            let (pc, module, flags) = wire::frame_of(*frame);
            self.push(Event::Node { id, parent, pc, module, flags });
            parent = id;
        }
    }

    fn other(&mut self, _: u64, event: Event) {
        self.push(event);
    }
}

fn run(merge: &mut Merge, horizon: u64) -> Vec<Event> {
    let mut events = Vec::new();
    merge.run(up_to(horizon), &mut Nothing, &mut events).expect("good records");
    events
}

fn up_to(horizon: u64) -> Bounds {
    Bounds { since: 0, horizon, overdue: 0, under_way: false }
}

struct Nothing;

impl Source for Nothing {
    fn more(&mut self, _: usize, _: &mut Vec<u64>) -> bool {
        false
    }
}

fn sizes(events: &[Event]) -> Vec<u64> {
    let size = |event: &Event| if let Event::Alloc { size, .. } = event { Some(*size) } else { None };
    events.iter().filter_map(size).collect()
}

#[test]
fn a_block_handed_to_another_thread_is_freed_before_it_is_given_out_again() {
    let address = 0x1000;
    let mut merge = Merge::default();
    // The clocks lie; the numbers do not.
    merge.queue(0).inlet().extend(alloc(address, at(2, 1), 8));
    merge.queue(1).inlet().extend(alloc(address, at(0, 5), 4));
    merge.queue(1).inlet().extend(free(address, at(1, 6)));
    let events = run(&mut merge, 10);
    assert!(matches!(events[0], Event::Alloc { size: 4, .. }));
    assert!(matches!(events[1], Event::Free { .. }));
    assert!(matches!(events[2], Event::Alloc { size: 8, .. }));
    assert!(merge.is_empty());
}

#[test]
fn blocks_that_never_meet_go_by_the_clock() {
    let mut merge = Merge::default();
    for (ring, ticks) in [(0, 10), (1, 20), (2, 30), (0, 40), (2, 50), (1, 60), (1, 70)] {
        let ticks_too = u64::from(ticks);
        merge.queue(ring).inlet().extend(alloc(0x1000 * ticks_too, at(0, ticks), ticks_too));
    }
    assert_eq!(sizes(&run(&mut merge, 45)), [10, 20, 30, 40]);
    assert!(!merge.is_empty());
    assert_eq!(sizes(&run(&mut merge, u64::MAX)), [50, 60, 70]);
}

#[test]
fn rings_that_take_turns_go_by_the_clock() {
    // How many of the second ring's events come behind each of the first's, and a third that comes now and then.
    let of_turns = [1, 1, 2, 1, 0, 3, 1, 1, 70, 0, 0, 1, 200, 1, 1, 1, 5];
    let (mut merge, mut seqs) = (Merge::default(), std::collections::HashMap::new());
    let mut ticks = 0;
    let mut put = |merge: &mut Merge, ring| {
        ticks += 1;
        let (address, words) = (0x1_0000_0000 + 16 * u64::from(ticks), merge.queue(ring).inlet());
        let seq = seqs.entry(wire::shard(address)).or_insert(0);
        words.extend(alloc(address, at(*seq, ticks), u64::from(ticks)));
        *seq += 1;
        if ticks % 3 == 0 {
            words.extend(free(address, at(*seq, ticks)));
            *seq += 1;
        }
    };
    for (turn, &count) in of_turns.iter().cycle().take(400).enumerate() {
        put(&mut merge, 0);
        (0..count).for_each(|_| put(&mut merge, 1));
        if turn % 9 == 0 {
            put(&mut merge, 2);
        }
    }
    let last = u64::from(ticks);
    let mut found = Vec::new();
    for horizon in [3, 4, 50, last / 2, u64::MAX] {
        found.extend(sizes(&run(&mut merge, horizon)));
    }
    assert!(found.iter().copied().eq(1..=last), "{found:?}");
    assert!(merge.is_empty());
}

#[test]
fn a_gap_holds_up_only_until_it_is_passed() {
    let address = 0x1000;
    let mut merge = Merge::default();
    merge.queue(0).inlet().extend(alloc(address, at(5, 1), 8));
    assert!(run(&mut merge, 10).is_empty());
    assert_eq!(merge.held_since(), Some(1));
    let mut events = Vec::new();
    for (overdue, passed) in [(1, 0), (2, 1)] {
        merge.run(Bounds { overdue, ..up_to(10) }, &mut Nothing, &mut events).expect("good records");
        assert_eq!(events.len(), passed);
    }
    assert_eq!(merge.held_since(), None);
    assert_eq!(merge.missing(), 5);
    // The one that was given up comes after all.
    merge.queue(1).inlet().extend(free(address, at(4, 2)));
    assert_eq!(run(&mut merge, 10).len(), 1);
    assert_eq!(merge.missing(), 4);
}

#[test]
fn an_event_that_was_under_way_comes_late_and_in_its_place() {
    let address = 0x1000;
    let mut merge = Merge::default();
    // Ring 1's thread took the place at 3, and has no processor.
    merge.queue(1);
    merge.queue(0).inlet().extend([alloc(0x2000, at(0, 2), 2), alloc(0x3000, at(0, 5), 5)].concat());
    merge.queue(2).inlet().extend([alloc(address, at(1, 6), 6), alloc(0x4000, at(0, 7), 7)].concat());
    assert_eq!(sizes(&run(&mut merge, 10)), [2, 5]);
    merge.queue(1).inlet().extend(free(address, at(0, 3)));
    let events = run(&mut merge, 20);
    assert!(matches!(events[0], Event::Free { .. }));
    assert_eq!(sizes(&events), [6, 7]);
    assert_eq!(merge.missing(), 0);
}

#[test]
fn what_an_event_waited_for_goes_right_before_it() {
    let address = 0x1000;
    let mut merge = Merge::default();
    // Ring 1's thread took its number, and read its clock late.
    merge.queue(0).inlet().extend([alloc(address, at(1, 5), 5), alloc(0x5000, at(0, 60), 60)].concat());
    merge.queue(1).inlet().extend([alloc(address, at(0, 50), 4), alloc(0x2000, at(0, 52), 52)].concat());
    merge.queue(2).inlet().extend([alloc(0x3000, at(0, 3), 3), alloc(0x4000, at(0, 7), 7)].concat());
    assert_eq!(sizes(&run(&mut merge, 40)), [3, 4, 5, 7]);
    assert_eq!(sizes(&run(&mut merge, 100)), [52, 60]);
}

/// The clocks that events go out with.
#[derive(Default)]
struct Clocks(Vec<u64>);

impl Output for Clocks {
    fn heap(&mut self, ticks: u64, _: HeapEvent) {
        self.0.push(ticks);
    }

    fn in_heap(&mut self, ticks: u64, _: u32, _: HeapEvent) {
        self.0.push(ticks);
    }

    fn nodes(&mut self, ticks: u64, _: u32, _: u32, _: &[u64]) {
        self.0.push(ticks);
    }

    fn other(&mut self, ticks: u64, _: Event) {
        self.0.push(ticks);
    }
}

#[test]
fn what_an_event_waited_for_was_no_later_than_it() {
    let address = 0x1000;
    let mut merge = Merge::default();
    merge.queue(0).inlet().extend(alloc(address, at(2, 5), 5));
    merge.queue(1).inlet().extend(alloc(address, at(0, 50), 4));
    merge.queue(2).inlet().extend(alloc(address, at(1, 70), 4));
    let mut clocks = Clocks::default();
    merge.run(up_to(40), &mut Nothing, &mut clocks).expect("good records");
    assert_eq!(clocks.0, [5, 5, 5]);
}

#[test]
fn what_waits_looks_again_when_it_waits_for_another() {
    let address = 0x1000;
    let mut merge = Merge::default();
    // The first of what ring 0 waits for comes in its own turn, the second has a late clock.
    merge.queue(0).inlet().extend(alloc(address, at(2, 10), 10));
    merge.queue(1).inlet().extend([alloc(0x2000, at(0, 12), 12), alloc(address, at(0, 14), 14)].concat());
    merge.queue(2).inlet().extend([alloc(address, at(1, 9000), 9)].concat());
    merge.queue(3).inlet().extend(alloc(0x3000, at(0, 8000), 8));
    assert_eq!(sizes(&run(&mut merge, u64::MAX)), [12, 14, 9, 10, 8]);
}

#[test]
fn what_becomes_due_goes_before_what_is_later() {
    let address = 0x1000;
    let mut merge = Merge::default();
    // The clocks were read the other way round, and ring 1 has another event in between.
    merge.queue(0).inlet().extend(alloc(address, at(1, 5), 5));
    let words = [alloc(0x2000, at(0, 6), 6), alloc(address, at(0, 7), 7), alloc(0x3000, at(0, 8), 8)];
    merge.queue(1).inlet().extend(words.concat());
    assert_eq!(sizes(&run(&mut merge, 40)), [6, 7, 5, 8]);
}

#[test]
fn nothing_overtakes_an_event_that_waits_for_one_under_way() {
    let address = 0x1000;
    let later = 10 + TURNED_ROUND as u32;
    let mut merge = Merge::default();
    merge.queue(1);
    merge.queue(0).inlet().extend(alloc(address, at(1, 5), 5));
    let words = [alloc(0x2000, at(0, 2), 2), alloc(0x2000, at(1, later), 20)].concat();
    merge.queue(2).inlet().extend(words);
    let mut events = Vec::new();
    let bounds = Bounds { under_way: true, ..up_to(u64::MAX) };
    merge.run(bounds, &mut Nothing, &mut events).expect("good records");
    assert_eq!(sizes(&events), [2]);
    assert_eq!(merge.held_since(), Some(5));
    // Now it is there, and was read late.
    merge.queue(1).inlet().extend(alloc(address, at(0, 2 * later), 4));
    merge.run(bounds, &mut Nothing, &mut events).expect("good records");
    assert_eq!(sizes(&events), [2, 4, 5, 20]);
    // Where nobody is in the middle of one, it waits for what comes in its own time, or never.
    merge.queue(0).inlet().extend(alloc(address, at(3, 3 * later), 6));
    merge.queue(2).inlet().extend(alloc(0x2000, at(2, 5 * later), 30));
    assert_eq!(sizes(&run(&mut merge, u64::MAX)), [30]);
}

/// Rings whose words come in pieces.
struct Pieces {
    rings: Vec<Vec<u64>>,
    piece: usize,
}

impl Source for Pieces {
    fn more(&mut self, ring: usize, to: &mut Vec<u64>) -> bool {
        let piece = self.piece.min(self.rings[ring].len());
        to.extend(self.rings[ring].drain(..piece));
        piece != 0
    }
}

/// Events of three threads, which give each other's blocks back, as their rings have them: without numbers at first, and
/// with nodes, clocks, large sizes and marks of heaps in between.
fn rings_of_three() -> Vec<Vec<u64>> {
    let mut rings = vec![Vec::new(); 3];
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (random >> 33) % below
    };
    let mut seqs = std::collections::HashMap::new();
    let mut live = Vec::new();
    for address in (0..50).map(|number| 0x10_0000 + 16 * number) {
        rings[0].extend(wire::alloc(address, 0, address, From::Malloc));
        live.push(address);
    }
    for ticks in 1..3000 {
        let ring = next(3) as usize;
        let mut order = |address| {
            let seq = seqs.entry(wire::shard(address)).or_insert(0);
            *seq += 1;
            at(*seq - 1, ticks)
        };
        match next(8) {
            0 => rings[ring].extend(wire::node(0, u64::from(ticks), 1, 0)),
            1 => rings[ring].extend(wire::clock(u64::from(ticks))),
            2 => {
                rings[ring].extend(wire::large(5 << 32).expect("it is large"));
                let address = 0x20_0000 + 16 * u64::from(ticks);
                rings[ring].extend(alloc(address, order(address), 7));
                live.push(address);
            }
            3 => rings[ring].push(wire::head(3, wire::kind::IN_HEAP)),
            4 | 5 if !live.is_empty() => {
                let address = live.swap_remove(next(live.len() as u64) as usize);
                rings[ring].extend(free(address, order(address)));
            }
            _ => {
                let address = 0x30_0000 + 16 * u64::from(ticks);
                rings[ring].extend(alloc(address, order(address), u64::from(ticks)));
                live.push(address);
            }
        }
    }
    rings
}

#[test]
fn what_comes_in_pieces_comes_out_the_same() {
    let rings = rings_of_three();
    let mut whole = Merge::default();
    for (ring, words) in rings.iter().enumerate() {
        whole.queue(ring).inlet().extend(words);
    }
    let expected = run(&mut whole, u64::MAX);
    assert!(whole.is_empty());
    assert!(expected.len() > 2500, "{}", expected.len());
    for piece in [1, 2, 3, 5, 8, 64, 1000] {
        let mut merge = Merge::default();
        merge.queue(2);
        let mut source = Pieces { rings: rings.clone(), piece };
        let mut events = Vec::new();
        // Up to some horizons, what lies behind stays where it is.
        for horizon in [1, 700, 700, 2999, u64::MAX] {
            merge.run(up_to(horizon), &mut source, &mut events).expect("good records");
        }
        assert_eq!(events, expected, "{piece} words at a time");
        assert!(merge.is_empty());
    }
}

#[test]
fn what_the_only_ring_wrote_comes_before_what_is_numbered() {
    let mut merge = Merge::default();
    // No clock says so.
    merge.queue(1).inlet().extend(free(0x1000, at(0, 1)));
    let first = merge.queue(0).inlet();
    first.extend(wire::clock(9));
    first.extend(wire::alloc(0x1000, 0, 1, From::Malloc));
    first.extend(wire::large(5 << 32).expect("it is large"));
    first.extend(wire::alloc(0x2000, 0, (5 << 32) + 2, From::Malloc));
    first.extend(alloc(0x3000, at(0, 3), 3));
    let events = run(&mut merge, 2);
    assert_eq!(sizes(&events), [1, (5 << 32) + 2]);
    assert!(matches!(events[2], Event::Free { .. }));
    assert_eq!(sizes(&run(&mut merge, 10)), [3]);
}

#[test]
fn half_a_clock_refers_to_the_last_whole_one() {
    let mut merge = Merge::default();
    let hour = 1 << 44;
    for (ring, ticks) in [(0, hour + 3), (1, hour + 1), (2, hour - 7)] {
        let words = merge.queue(ring).inlet();
        words.extend(wire::clock(hour));
        words.extend(alloc(0x1000 * (ring as u64 + 1), at(0, ticks as u32), ring as u64));
    }
    assert_eq!(sizes(&run(&mut merge, hour + 2)), [2, 1]);
    assert_eq!(sizes(&run(&mut merge, u64::MAX)), [0]);
}

#[test]
fn the_mark_of_a_heap_is_of_the_next_event_of_its_ring() {
    use grapnel_trace::wire::{head, kind};
    let mut merge = Merge::default();
    let first = merge.queue(0).inlet();
    first.push(head(7, kind::IN_HEAP));
    first.extend(alloc(0x1000, at(0, 5), 1));
    first.extend(free(0x1000, at(1, 7)));
    merge.queue(1).inlet().extend(alloc(0x2000, at(0, 4), 2));
    merge.queue(1).inlet().extend(wire::numbered::<1, 2>(wire::plain(kind::HEAP_END, 7), at(0, 6)));
    let events = run(&mut merge, 10);
    assert!(matches!(events[0], Event::Alloc { size: 2, .. }), "{events:?}");
    assert!(matches!(events[1..3], [Event::InHeap(7), Event::Alloc { size: 1, .. }]), "{events:?}");
    assert!(matches!(events[3..], [Event::HeapEnd(7), Event::Free { .. }]), "{events:?}");
}

#[test]
fn mappings_have_one_order_wherever_they_lie() {
    use grapnel_trace::wire::kind;
    use grapnel_trace::{Mapped, MappingEvent};
    let mut merge = Merge::default();
    let map =
        |address, size, order| wire::numbered::<2, 3>(wire::map(address, 0, size, Mapped::Anonymous), order);
    // The clocks lie; the numbers do not.
    let first = merge.queue(0).inlet();
    first.extend(map(0x7000_0000, 0x9000, at(0, 5)));
    first.extend(wire::large(1 << 32).expect("it is large"));
    first.extend(wire::numbered::<2, 3>(wire::unmap(0x7000_1000, 1 << 32), at(1, 6)));
    let second = merge.queue(1).inlet();
    second.extend(map(0x7000_4000, 0x1000, at(2, 1)));
    second.extend(wire::numbered::<1, 2>(wire::plain(kind::MAP_FAILED, 0), at(3, 7)));
    let events = run(&mut merge, 10);
    let found: Vec<(u64, u64)> = events
        .iter()
        .map(|event| match *event {
            Event::Mapping(MappingEvent::Map { address, size, .. }) => (address, size),
            Event::Mapping(MappingEvent::Unmap { address, size, .. }) => (address, size),
            Event::Mapping(MappingEvent::Failed { .. }) => (0, 0),
            _ => panic!("{event:?}"),
        })
        .collect();
    let right = [(0x7000_0000, 0x9000), (0x7000_1000, 1 << 32), (0x7000_4000, 0x1000), (0, 0)];
    assert_eq!(found, right);
}

#[test]
fn equal_stacks_of_two_rings_are_one() {
    let mut merge = Merge::default();
    merge.queue(1);
    for index in 0..2 {
        let words = merge.queue(index).inlet();
        if index == 1 {
            words.extend(wire::node(0, 0x999, 1, 0));
        }
        words.extend(wire::node(0, 0x10, 1, 0));
        let leaf = 1 + index as u32;
        words.extend(wire::node(leaf, 0x20, 1, 0));
        let address = 0x4000 + index as u64 * 0x100;
        let alloc = wire::alloc(address, leaf + 1, 8, From::Malloc);
        words.extend(wire::numbered::<2, 3>(alloc, at(0, 1)));
    }
    let events = run(&mut merge, 10);
    let stacks: Vec<u32> = events
        .iter()
        .filter_map(|event| if let Event::Alloc { stack, .. } = event { Some(*stack) } else { None })
        .collect();
    assert_eq!(stacks, [2, 2]);
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Node { .. })).count(), 3);
}

#[test]
fn nodes_told_at_once_are_those_told_one_by_one() {
    let frame = |pc| wire::frame(pc, 1, 0).expect("small numbers");
    let alloc =
        |seq, node| wire::numbered::<2, 3>(wire::alloc(0x4000, node, 8, From::Malloc), at(seq, 1 + seq));
    let mut merge = Merge::default();
    // While there is one ring, nodes that differ have the numbers that the ring gave them.
    merge.queue(0).inlet().extend([wire::nodes(0, 2), frame(0x70), frame(0x80)]);
    assert_eq!(run(&mut merge, 10).len(), 2);
    merge.queue(1);
    merge.queue(0).inlet().extend([wire::node(0, 0x10, 1, 0), wire::node(3, 0x20, 1, 0)].concat());
    merge.queue(0).inlet().extend([alloc(0, 4), alloc(1, 2)].concat());
    let words = merge.queue(1).inlet();
    words.extend([wire::nodes(0, 3), frame(0x10), frame(0x20), frame(0x30)]);
    words.extend([wire::nodes(2, 2), frame(0x40), frame(0x10)]);
    words.extend([wire::nodes(0, 2), frame(0x10), frame(0x20)]);
    words.extend((1..=7).flat_map(|node| alloc(1 + node, node)));
    let (mut told, mut stacks) = (Vec::new(), Vec::new());
    for event in run(&mut merge, 100) {
        match event {
            Event::Node { id, parent, pc, .. } => told.push((id, parent, pc)),
            Event::Alloc { stack, .. } => stacks.push(stack),
            _ => panic!("{event:?}"),
        }
    }
    assert_eq!(told, [(3, 0, 0x10), (4, 3, 0x20), (5, 4, 0x30), (6, 4, 0x40), (7, 6, 0x10)]);
    assert_eq!(stacks, [4, 2, 3, 4, 5, 6, 7, 3, 4]);
}

#[test]
fn rubbish_in_a_ring_stops_that_ring_only() {
    let mut merge = Merge::default();
    merge.queue(0).inlet().push(0xff);
    merge.queue(1).inlet().extend(alloc(0x4000, at(0, 1), 8));
    let mut events = Vec::new();
    assert!(merge.run(up_to(10), &mut Nothing, &mut events).is_err());
    assert_eq!(events.len(), 1);
    assert!(merge.is_empty());
}

/// Threads that take numbers and read clocks late, write what they have in pieces, and are killed before they have written: however
/// they do, each event comes out once, in the order of its ring and, but for what is lost, of its shard.
#[test]
fn every_event_comes_out_once_in_the_order_of_its_ring_and_of_its_shard() {
    for seed in 1..3000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (rings, addresses) = (random.usize(1..7), random.u64(1..5));
        let (late, killed) = (random.u32(1..20_000), random.u32(0..3) == 0);
        // Numbers go round.
        let first = if random.bool() { 0 } else { u32::MAX - 10 };
        // As it was: which ring's event each is, and of which address. The size is its place.
        let mut numbers = std::collections::HashMap::<usize, u32>::new();
        let mut written: Vec<std::collections::VecDeque<[u64; 3]>> = vec![Default::default(); rings];
        let mut expected = Vec::new();
        let mut last = vec![0; rings];
        for place in 0..random.u32(1..60) {
            let (ring, address) = (random.usize(..rings), 0x10_0000 * random.u64(1..=addresses));
            let number = numbers.entry(wire::shard(address)).or_insert(first);
            let ticks = (place * 1000 + random.u32(..late)).max(last[ring]);
            last[ring] = ticks;
            let is_lost = killed && random.u32(0..8) == 0;
            if !is_lost {
                written[ring].push_back(alloc(address, at(*number, ticks), u64::from(place)));
            }
            expected.push((ring, wire::shard(address), is_lost));
            *number = number.wrapping_add(1);
        }
        let (mut merge, mut events) = (Merge::default(), Vec::new());
        merge.next.fill(first);
        while written.iter().any(|ring| !ring.is_empty()) {
            for (index, ring) in written.iter_mut().enumerate() {
                let now = random.usize(..=ring.len());
                merge.queue(index).inlet().extend(ring.drain(..now).flatten());
            }
            let horizon = random.u64(..80_000);
            let overdue = if killed { random.u64(..80_000) } else { 0 };
            let bounds = Bounds { since: 0, horizon, overdue, under_way: random.bool() };
            merge.run(bounds, &mut Nothing, &mut events).expect("good records");
        }
        let overdue = if killed { u64::MAX } else { 0 };
        let all = Bounds { overdue, ..up_to(u64::MAX) };
        merge.run(all, &mut Nothing, &mut events).expect("good records");
        let out: Vec<usize> = sizes(&events).into_iter().map(|place| place as usize).collect();
        let mut once = out.clone();
        once.sort_unstable();
        let all_written = (0..expected.len()).filter(|&place| !expected[place].2);
        assert!(once.into_iter().eq(all_written), "{seed}: {out:?}");
        // What nothing of its shard follows is not missed.
        let is_followed = |place: usize| {
            expected[place..].iter().any(|(_, shard, is_lost)| !is_lost && *shard == expected[place].1)
        };
        let missed = (0..expected.len()).filter(|&place| expected[place].2 && is_followed(place)).count();
        assert_eq!(merge.missing(), missed as u64, "{seed}");
        let in_order = |of: &dyn Fn(usize) -> usize| {
            let mut seen = std::collections::HashMap::new();
            out.iter().all(|&place| seen.insert(of(place), place).is_none_or(|before| before < place))
        };
        assert!(in_order(&|place| expected[place].0), "{seed}: {out:?}");
        assert!(killed || in_order(&|place| expected[place].1), "{seed}: {out:?}");
    }
}
