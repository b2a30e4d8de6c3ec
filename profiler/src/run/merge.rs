//! From the rings of a process to one order of events.
//!
//! Each event carries the number it took in its shard of the address space, and the processor's clock. An event is
//! due when its number is the next of its shard; of those that are due, the one with the earliest clock goes
//! first. Events of one ring stay in the ring's order. All these orders are true, so their union has no circle,
//! and some ring's first event is always due, unless a thread took a number and never wrote its event: it was
//! killed, or a signal handler left it for good. Such gaps are passed over when all else is done.
//!
//! An event may only go out when no earlier one can still come from another ring: up to the horizon, the clock at
//! the time when the rings were emptied, less what a store takes to be seen.

use grapnel_trace::heap::HeapEvent;
use grapnel_trace::wire::{self, BadRecord, HEAP_WORDS, HeapRecord, Order, Record, SHARDS, shard};
use grapnel_trace::{Event, Source};
use hashbrown::HashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Takes the events in order, with the processor's clock of each.
pub(crate) trait Output {
    /// An event of the heap.
    fn heap(&mut self, ticks: u64, event: HeapEvent);
    /// Any other.
    fn other(&mut self, ticks: u64, event: Event);
}

/// One ring's side of the merge.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Words drained from the ring and not yet parsed.
    words: Vec<u64>,
    /// How many of them were used up.
    used: usize,
    /// The ring's node numbers to the trace's.
    nodes: Vec<u32>,
    thread: u32,
    /// The clock of the last event that went out.
    ticks: u64,
    broken: bool,
}

/// The trace's nodes. Equal ones of several rings become one; while there is one ring, whose nodes differ, none is looked
/// up or kept. Those of that time may come once more from another ring: equal stacks are found again by the analysis.
#[derive(Debug, Default)]
struct Nodes {
    count: u32,
    several_rings: bool,
    known: HashMap<(u32, u64, u32, u8), u32>,
}

impl Nodes {
    /// The number of a node, and whether it is new.
    fn number(&mut self, parent: u32, pc: u64, module: u32, flags: u8) -> (u32, bool) {
        let next = self.count + 1;
        let number = match self.several_rings {
            true => *self.known.entry((parent, pc, module, flags)).or_insert(next),
            false => next,
        };
        self.count = self.count.max(number);
        (number, number == next)
    }
}

/// The merge of a process.
#[derive(Debug)]
pub(crate) struct Merge {
    queues: Vec<Queue>,
    next: Box<[u32; SHARDS]>,
    nodes: Nodes,
    threads: u32,
    /// Numbers that were taken and whose events never came.
    pub(crate) missing: u64,
}

impl Default for Merge {
    fn default() -> Self {
        Self {
            queues: Vec::new(),
            next: Box::new([0; SHARDS]),
            nodes: Nodes::default(),
            threads: 0,
            missing: 0,
        }
    }
}

impl Merge {
    /// The queue of ring `index`.
    pub(crate) fn queue(&mut self, index: usize) -> &mut Queue {
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, Queue::default);
            self.nodes.several_rings = self.queues.len() > 1;
        }
        &mut self.queues[index]
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.front().is_empty())
    }

    /// Hands the events that are due and lie before `horizon` to `out`, with their clock, in order. Returns how many
    /// records were used up.
    pub(crate) fn run(&mut self, horizon: u64, out: &mut impl Output) -> Result<usize, BadRecord> {
        let mut done = 0;
        let mut result = Ok(());
        let mut heap = BinaryHeap::new();
        for index in 0..self.queues.len() {
            let Self { queues, nodes, threads, .. } = self;
            match queues[index].head(nodes, threads, out, &mut done) {
                Ok(Some(ticks)) => heap.push(Reverse((ticks, index))),
                Ok(None) => {}
                Err(error) => result = Err(error),
            }
        }
        // Queues whose first event is not due, each until something else has gone out.
        let mut held = Vec::new();
        while let Some(Reverse((ticks, index))) = heap.pop() {
            if ticks >= horizon && horizon != u64::MAX {
                break;
            }
            let until = heap.peek().map_or(horizon, |Reverse((ticks, _))| (*ticks).min(horizon));
            let before = done;
            let Self { queues, next, nodes, threads, .. } = self;
            match queues[index].run(until, next, nodes, threads, out, &mut done) {
                Ok(Some(ticks)) if done != before => heap.push(Reverse((ticks, index))),
                Ok(Some(ticks)) => held.push(Reverse((ticks, index))),
                Ok(None) => {}
                Err(error) => result = Err(error),
            }
            if done != before {
                heap.extend(held.drain(..));
            }
        }
        result.map(|()| done)
    }

    /// Passes over one gap in front of each shard that something waits for. Call when no more can come, or after
    /// a long wait. False if nothing waits for one.
    pub(crate) fn pass_gaps(&mut self) -> bool {
        // Of the fronts that wait, only the earliest waits for what can't come any more: its predecessor was earlier still,
        // and all fronts are later. Others may wait for an event that stands behind this one.
        let fronts = self.queues.iter().filter_map(|queue| wire::place(queue.front()));
        let waiting = fronts.filter_map(|(address, Order { seq, ticks })| {
            let gap = seq.wrapping_sub(self.next[shard(address)]);
            // A number from the past waits for nothing; the record may be cut off.
            ((gap as i32) > 0).then_some((ticks, address, seq, gap))
        });
        let Some((_, address, seq, gap)) = waiting.min_by_key(|&(ticks, ..)| ticks) else { return false };
        self.missing += u64::from(gap);
        self.next[shard(address)] = seq;
        true
    }
}

impl Queue {
    /// Where words that were drained from the ring go.
    pub(crate) fn inlet(&mut self) -> &mut Vec<u64> {
        self.words.drain(..self.used);
        self.used = 0;
        if self.broken {
            self.words.clear();
        }
        &mut self.words
    }

    fn front(&self) -> &[u64] {
        self.words.get(self.used..).unwrap_or(&[])
    }

    /// Uses up what has no place in the order at the front; the clock of the first event behind it.
    fn head(
        &mut self,
        nodes: &mut Nodes,
        threads: &mut u32,
        out: &mut impl Output,
        done: &mut usize,
    ) -> Result<Option<u64>, BadRecord> {
        loop {
            if let Some((_, order)) = wire::place(self.front()) {
                return Ok(Some(order.ticks));
            }
            match wire::parse(self.front()) {
                Ok(Some((record, len))) => {
                    self.used += len;
                    *done += 1;
                    self.take(record, nodes, threads, out);
                }
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.give_up(error)),
            }
        }
    }

    /// Hands out the first event if it is due, and those behind it up to the clock `until`. Returns the clock of the
    /// first that stays. The first must be one with a place in the order and lie before `until`.
    fn run(
        &mut self,
        until: u64,
        next: &mut [u32; SHARDS],
        nodes: &mut Nodes,
        threads: &mut u32,
        out: &mut impl Output,
        done: &mut usize,
    ) -> Result<Option<u64>, BadRecord> {
        loop {
            let rest = self.words.get(self.used..).unwrap_or(&[]);
            // Most records have this many words behind their start, and need no further look at how many there are.
            let mut end = [0; HEAP_WORDS];
            let words = rest.first_chunk().unwrap_or_else(|| {
                end[..rest.len()].copy_from_slice(rest);
                &end
            });
            let Some(HeapRecord { address, order, node, size, source, old, kind, len }) =
                wire::heap_record(words)
            else {
                match self.head(nodes, threads, out, done)? {
                    Some(ticks) if ticks <= until => continue,
                    first => return Ok(first),
                }
            };
            if len > rest.len() {
                return Ok(None);
            }
            if order.ticks > until {
                return Ok(Some(order.ticks));
            }
            let expected = &mut next[shard(address)];
            // A number from the past: its gap was passed over. Its event comes late, but it comes.
            if (order.seq.wrapping_sub(*expected) as i32) > 0 {
                return Ok(Some(order.ticks));
            }
            if order.seq == *expected {
                *expected = expected.wrapping_add(1);
            }
            self.used += len;
            *done += 1;
            self.ticks = order.ticks;
            let thread = self.thread;
            out.heap(
                order.ticks,
                match kind {
                    wire::kind::ALLOC => {
                        let Some(source) = Source::from_u8(source) else {
                            return Err(self.give_up(BadRecord(wire::head(address, kind))));
                        };
                        HeapEvent::Alloc { thread, stack: self.node(node), address, size, source }
                    }
                    wire::kind::FREE => HeapEvent::Free { thread, address },
                    wire::kind::REALLOC_BEGIN => HeapEvent::ReallocBegin { thread, address },
                    wire::kind::REALLOC_END => {
                        HeapEvent::ReallocEnd { thread, stack: self.node(node), address, size, old }
                    }
                    _ => HeapEvent::ReallocFailed { thread, address },
                },
            );
        }
    }

    /// Where the next record begins can't be known.
    #[cold]
    fn give_up(&mut self, error: BadRecord) -> BadRecord {
        self.broken = true;
        self.used = self.words.len();
        error
    }

    #[inline]
    fn node(&self, local: u32) -> u32 {
        self.nodes.get((local as usize).wrapping_sub(1)).copied().unwrap_or(0)
    }

    /// Takes a record that has no place in the order.
    fn take(&mut self, record: Record, nodes: &mut Nodes, threads: &mut u32, out: &mut impl Output) {
        let event = match record {
            Record::Node { parent, pc, module, flags } => {
                let parent = self.node(parent);
                let (id, is_new) = nodes.number(parent, pc, module, flags);
                self.nodes.push(id);
                if !is_new {
                    return;
                }
                Event::Node { id, parent, pc, module, flags }
            }
            Record::Reset => return self.nodes.clear(),
            Record::Thread { tid, name } => {
                self.thread = *threads;
                *threads += 1;
                let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
                Event::Thread { index: self.thread, tid, name: name[..len].to_vec() }
            }
            Record::Module(module) => Event::Module(module),
            Record::Unload(id) => Event::Unload(id),
            Record::Lost(count) => Event::Lost(count),
            _ => return,
        };
        out.other(self.ticks, event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grapnel_trace::Source;

    fn at(seq: u32, ticks: u64) -> Order {
        Order { seq, ticks }
    }

    fn alloc(address: u64, order: Order, size: u64) -> [u64; 4] {
        wire::alloc(address, order, 0, size, Source::Malloc)
    }

    impl Output for Vec<Event> {
        fn heap(&mut self, _: u64, event: HeapEvent) {
            self.push(event.into());
        }

        fn other(&mut self, _: u64, event: Event) {
            self.push(event);
        }
    }

    fn run(merge: &mut Merge, horizon: u64) -> Vec<Event> {
        let mut events = Vec::new();
        merge.run(horizon, &mut events).expect("good records");
        events
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
        merge.queue(1).inlet().extend(wire::plain(wire::kind::FREE, address, at(1, 6)));
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
            merge.queue(ring).inlet().extend(alloc(0x1000 * ticks, at(0, ticks), ticks));
        }
        assert_eq!(sizes(&run(&mut merge, 45)), [10, 20, 30, 40]);
        assert!(!merge.is_empty());
        assert_eq!(sizes(&run(&mut merge, u64::MAX)), [50, 60, 70]);
    }

    #[test]
    fn a_gap_holds_up_only_until_it_is_passed() {
        let address = 0x1000;
        let mut merge = Merge::default();
        merge.queue(0).inlet().extend(alloc(address, at(5, 1), 8));
        assert!(run(&mut merge, 10).is_empty());
        merge.pass_gaps();
        assert_eq!(run(&mut merge, 10).len(), 1);
        assert_eq!(merge.missing, 5);
        // The one that was given up comes after all.
        merge.queue(1).inlet().extend(wire::plain(wire::kind::FREE, address, at(4, 2)));
        assert_eq!(run(&mut merge, 10).len(), 1);
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
            words.extend(wire::alloc(address, at(0, 1), leaf + 1, 8, Source::Malloc));
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
    fn rubbish_in_a_ring_stops_that_ring_only() {
        let mut merge = Merge::default();
        merge.queue(0).inlet().push(0xff);
        merge.queue(1).inlet().extend(alloc(0x4000, at(0, 1), 8));
        let mut events = Vec::new();
        assert!(merge.run(10, &mut events).is_err());
        assert_eq!(events.len(), 1);
        assert!(merge.is_empty());
    }
}
