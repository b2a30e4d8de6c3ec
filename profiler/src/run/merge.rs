//! From the rings of a process to one order of events.
//!
//! As long as a process has one ring, that ring's order is the order. From then on each event carries the number it
//! took in its shard of the address space, and the processor's clock. An event is due when its number is the next of
//! its shard; of those that are due, the one with the earliest clock goes first. Events of one ring stay in the ring's
//! order. All these orders are true, so their union has no circle, and some ring's first event is always due, unless a
//! thread took a number and never wrote its event: it was killed, or a signal handler left it for good. Such gaps are
//! passed over when all else is done that can be, and who waits has waited for long enough.
//!
//! An event without a number comes before all numbered ones of its block (see the agent's `record.rs`), so it is
//! always due. It must have been read when one of those is: ring 0, which alone has such events, is read last.
//!
//! An event may only go out when no earlier one can still come from another ring: up to the horizon, the clock at
//! the time when the rings were looked at, less what a store takes to be seen. A thread that was in the middle of an event then may
//! write an earlier one yet: its call isn't over, so any moment up to then is a true one for it. But one that is over may wait
//! for it, as the next of its shard, and then all that is later waits too, but for what clocks may be wrong by.
//!
//! A thread takes an event's number before it reads the clock. So what an event waits for was earlier, whatever its clock says,
//! and all that its ring has before it was earlier still: it is the first of its ring, or it hasn't been written. It goes out first, as
//! of the time of who waits for it.

use super::nodes::Nodes;
use super::queue::Queue;
use grapnel_trace::Event;
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::wire::{BadRecord, SHARDS};
use std::cmp::Reverse;

/// Takes the events in order, with the processor's clock of each.
pub(crate) trait Output {
    /// An event of the heap.
    fn heap(&mut self, ticks: u64, event: HeapEvent);
    /// An event of a heap besides the program's own.
    fn in_heap(&mut self, ticks: u64, heap: u32, event: HeapEvent);
    /// New nodes, numbered from `first`, each but the first below the one before it; `frames` are as
    /// [`grapnel_trace::wire::frame_of`] takes them.
    fn nodes(&mut self, ticks: u64, first: u32, parent: u32, frames: &[u64]);
    /// Any other.
    fn other(&mut self, ticks: u64, event: Event);
}

/// Where more words of a ring come from.
pub(crate) trait Source {
    /// Puts the next of a ring behind those that are there. False when there are none for now.
    fn more(&mut self, ring: usize, to: &mut Vec<u64>) -> bool;
}

/// What may go out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Events that have no clock of their own were written after this.
    pub(crate) since: u64,
    /// Where it isn't the last clock there is, nothing from this one on.
    pub(crate) horizon: u64,
    /// What comes before this clock and waits for an event that isn't there goes on without it.
    pub(crate) overdue: u64,
    /// A thread was in the middle of an event when the rings were looked at.
    pub(crate) under_way: bool,
}

/// By so many ticks two clocks may be read the other way round: a processor reads its clock while the number before it is on its
/// way.
const TURNED_ROUND: u64 = 4096;

/// A queue's first event with a place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Front {
    ticks: u64,
    index: usize,
}

/// A front that isn't due: the next number of its shard is that of an event which was no queue's first.
#[derive(Clone, Copy, Debug)]
struct Held {
    front: Front,
    shard: usize,
    waits_for: u32,
}

/// Puts a front where it belongs among others, the earliest of which is the last. The way is short: a queue whose turn it was
/// stays near the end, and few of a process's threads run at a time.
#[inline(always)]
fn put_back(fronts: &mut Vec<Front>, front: Front) {
    let mut at = fronts.len();
    fronts.push(front);
    while at > 0 && fronts[at - 1] < front {
        fronts[at] = fronts[at - 1];
        at -= 1;
    }
    fronts[at] = front;
}

/// As [`put_back`], of those that were held and wait no longer.
#[inline(never)]
fn put_back_held(fronts: &mut Vec<Front>, held: &mut Vec<Held>, next: &[u32; SHARDS]) {
    held.retain(|held| {
        let waits = next[held.shard] == held.waits_for;
        if !waits {
            put_back(fronts, held.front);
        }
        waits
    });
}

/// Takes the queue out of `fronts` whose first event has this number of a shard, if there is one. Returns which it is.
#[cold]
fn predecessor(queues: &[Queue], fronts: &mut Vec<Front>, shard: usize, number: u32) -> Option<usize> {
    let is_it = |other: &Front| {
        queues[other.index].place().is_some_and(|(other, seq, _)| (other, seq) == (shard, number))
    };
    let at = fronts.iter().position(is_it)?;
    Some(fronts.remove(at).index)
}

/// What all queues of a process share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) nodes: Nodes,
    /// How many threads there were.
    pub(super) threads: u32,
    /// How many records were used up in this run.
    pub(super) done: usize,
    /// How many events came whose numbers had been passed over.
    pub(super) late: u64,
    /// What stood in a ring and was no record.
    pub(super) bad: Option<BadRecord>,
}

/// The merge of a process.
#[derive(Debug)]
pub(crate) struct Merge {
    queues: Vec<Queue>,
    next: Box<[u32; SHARDS]>,
    /// While it runs: all fronts that may be due, the earliest last, and those that are not until something else has gone out.
    fronts: Vec<Front>,
    held: Vec<Held>,
    shared: Shared,
    /// Numbers that were passed over.
    passed: u64,
}

impl Default for Merge {
    fn default() -> Self {
        Self {
            queues: Vec::new(),
            fronts: Vec::new(),
            held: Vec::new(),
            next: Box::new([0; SHARDS]),
            shared: Shared::default(),
            passed: 0,
        }
    }
}

impl Merge {
    /// The number of a node that no ring tells of.
    pub(crate) fn number_of_mark(&mut self, flags: u8) -> u32 {
        self.shared.nodes.number(0, 0, 0, flags).0
    }

    /// How many frames were left out of stacks, since there are no numbers for more.
    pub(crate) fn lost_frames(&self) -> u64 {
        self.shared.nodes.lost_frames()
    }

    /// The queue of ring `index`.
    pub(crate) fn queue(&mut self, index: usize) -> &mut Queue {
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, Queue::default);
            if self.queues.len() > 1 {
                self.shared.nodes.of_several_rings();
            }
        }
        &mut self.queues[index]
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(Queue::is_empty)
    }

    /// Hands the events that are due and lie before the horizon to `out`, with their clock, in order. Of each ring that has a
    /// [queue](Self::queue), more words come from `source` when those that are there are used up. Returns how many records were used up.
    pub(crate) fn run(
        &mut self,
        bounds: Bounds,
        source: &mut impl Source,
        out: &mut impl Output,
    ) -> Result<usize, BadRecord> {
        let Self { queues, shared, fronts, held, .. } = self;
        shared.done = 0;
        fronts.clear();
        held.clear();
        for (index, queue) in queues.iter_mut().enumerate() {
            queue.is_later_than(bounds.since);
            let first = queue.head(shared, &mut |to| source.more(index, to), out);
            fronts.extend(first.map(|ticks| Front { ticks, index }));
        }
        fronts.sort_unstable_by_key(|front| Reverse(*front));
        self.go_out(bounds, source, out);
        while self.pass_gap(bounds.overdue) {
            self.go_out(bounds, source, out);
        }
        self.shared.bad.take().map_or(Ok(self.shared.done), Err)
    }

    /// Hands out what is due, in order, until what is left waits or is to stay.
    fn go_out(&mut self, bounds: Bounds, source: &mut impl Source, out: &mut impl Output) {
        let Bounds { horizon, under_way, .. } = bounds;
        let Self { queues, next, shared, fronts, held, .. } = self;
        // The last clock that may go out.
        let last = if horizon == u64::MAX { horizon } else { horizon.saturating_sub(1) };
        while let Some(front) = fronts.pop() {
            let mut until = fronts.last().map_or(last, |next| next.ticks.min(last));
            let mut must_stay = front.ticks > last;
            if let Some(earliest) = held.iter().map(|held| held.front.ticks).min() {
                let is_near = front.ticks <= earliest.saturating_add(TURNED_ROUND);
                must_stay |= under_way && !is_near;
                // What waits for this event comes right behind it.
                until = if is_near { front.ticks } else { until };
            }
            if must_stay {
                fronts.push(front);
                break;
            }
            let before = shared.done;
            let more = &mut |to: &mut Vec<u64>| source.more(front.index, to);
            let behind = queues[front.index].run(until, next, shared, more, out);
            if shared.done != before {
                if let Some(ticks) = behind {
                    put_back(fronts, Front { ticks, ..front });
                }
            } else if let Some((shard, ..)) = queues[front.index].place() {
                let waits_for = next[shard];
                let Some(first) = predecessor(queues, fronts, shard, waits_for) else {
                    held.push(Held { front, shard, waits_for });
                    continue;
                };
                let more = &mut |to: &mut Vec<u64>| source.more(first, to);
                if let Some(ticks) = queues[first].first(front.ticks, next, shared, more, out) {
                    put_back(fronts, Front { ticks, index: first });
                }
                put_back(fronts, front);
            }
            if !held.is_empty() {
                put_back_held(fronts, held, next);
            }
        }
    }

    /// All that can go out has. What has waited since before `overdue` goes on without what it waits for; only the earliest, since
    /// others may wait for an event that stands behind it. False if there is none.
    fn pass_gap(&mut self, overdue: u64) -> bool {
        let Self { queues, next, fronts, held, passed, .. } = self;
        let earliest = held.iter().map(|held| held.front).min().filter(|front| front.ticks < overdue);
        let Some((shard, seq, _)) = earliest.and_then(|front| queues[front.index].place()) else {
            return false;
        };
        *passed += u64::from(seq.wrapping_sub(next[shard]));
        next[shard] = seq;
        put_back_held(fronts, held, next);
        true
    }

    /// How many numbers were taken whose events never came.
    pub(crate) fn missing(&self) -> u64 {
        self.passed.saturating_sub(self.shared.late)
    }

    /// The clock of the earliest event before the horizon that had to stay in the last run: it waits for one that has not
    /// come.
    pub(crate) fn held_since(&self) -> Option<u64> {
        self.held.iter().map(|held| held.front.ticks).min()
    }
}

#[cfg(test)]
mod tests;
