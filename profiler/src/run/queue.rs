//! One ring's side of the merge.

use super::merge::{Output, Shared};
use super::nodes::Nodes;
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::wire::{self, HeapRecord, Order, Record, SHARDS, kind};
use grapnel_trace::{Event, FreedAs, MappingEvent, Mark, Module, Source};
use std::hint::cold_path;

/// The records of one ring, from where they were drained to where they go out.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Words drained from the ring and not yet parsed.
    words: Vec<u64>,
    /// How many of them were used up.
    used: usize,
    context: Context,
    broken: bool,
}

/// What a ring's records refer to.
#[derive(Debug, Default)]
struct Context {
    numbers: Numbers,
    thread: u32,
    /// What the clocks of records are near to.
    clock: u64,
    /// The clock of the last event that went out.
    ticks: u64,
    /// The upper part of the next size.
    large: u64,
    /// The heap of the next event; 0 for the program's own.
    heap: u32,
    /// The name of the next mark.
    name: Vec<u8>,
}

/// The ring's node numbers to the trace's. As long as all its nodes are new to the trace, they go up together.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// The first nodes, as many, have numbers of the trace from the one behind `before` on.
    together: u32,
    before: u32,
    /// Those of the others.
    others: Vec<u32>,
}

impl Numbers {
    /// 0 is the empty stack in both, and stands for what the ring never told.
    #[inline]
    pub(super) fn of(&self, local: u32) -> u32 {
        match local {
            0 => 0,
            _ if local <= self.together => self.before.wrapping_add(local),
            _ => self.others.get((local - self.together - 1) as usize).copied().unwrap_or(0),
        }
    }

    /// The next nodes have the next numbers behind this one.
    #[inline]
    pub(super) fn go_on(&mut self, behind: u32, count: u32) {
        if self.together == 0 {
            self.before = behind;
        }
        if self.others.is_empty() && self.before.wrapping_add(self.together) == behind {
            self.together = self.together.saturating_add(count);
        } else {
            self.others.extend((0..count).map(|at| behind.wrapping_add(1 + at)));
        }
    }

    /// The next node has this number.
    #[inline]
    pub(super) fn push(&mut self, number: u32) {
        self.others.push(number);
    }
}

impl Queue {
    /// Where words that were drained from the ring go.
    pub(crate) fn inlet(&mut self) -> &mut Vec<u64> {
        if self.broken {
            self.used = self.words.len();
        }
        // Seldom where much waits.
        if 2 * self.used >= self.words.len() {
            self.words.drain(..self.used);
            self.used = 0;
        }
        &mut self.words
    }

    fn front(&self) -> &[u64] {
        self.words.get(self.used..).unwrap_or(&[])
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.front().is_empty()
    }

    /// What comes from here on was written after this clock.
    pub(crate) fn is_later_than(&mut self, ticks: u64) {
        self.context.ticks = self.context.ticks.max(ticks);
    }

    /// The shard, the number and the clock of the first event, if it is numbered.
    pub(crate) fn place(&self) -> Option<(usize, u32, u64)> {
        let record = wire::whole_heap_record(self.front())?;
        let order = record.order?;
        Some((record.shard(), order.seq, order.ticks_near(self.context.clock)))
    }

    /// Uses up what has no place in the order at the front; the clock of the first event behind it. Where there is none,
    /// `more` puts in what else there is. What is no record ends the queue, and is noted in `shared`.
    #[inline(never)]
    pub(super) fn head(
        &mut self,
        shared: &mut Shared,
        more: &mut impl FnMut(&mut Vec<u64>) -> bool,
        out: &mut impl Output,
    ) -> Option<u64> {
        loop {
            if self.broken {
                self.used = self.words.len();
            }
            let Self { words, used, context, .. } = self;
            *used =
                hand_out_most::<0>(context, words, *used, &mut shared.done, out, |_, _, ticks| Ok(ticks)).0;
            if let Some(record) = wire::whole_heap_record(words.get(*used..).unwrap_or(&[])) {
                if let Some(order) = record.order {
                    return Some(order.ticks_near(context.clock));
                }
                *used += record.len;
                shared.done += 1;
                context.hand_out(&record, out);
                continue;
            }
            let front = words.get(*used..).unwrap_or(&[]);
            if let Some((parent, frames)) = wire::whole_nodes(front) {
                *used += 1 + frames.len();
                shared.done += 1;
                context.take_nodes(&mut shared.nodes, parent, frames, out);
                continue;
            }
            match wire::parse(front) {
                Ok(Some((record, len))) => {
                    self.used += len;
                    shared.done += 1;
                    self.context.take(record, shared, out);
                }
                Ok(None) if more(self.inlet()) => {}
                Ok(None) => return None,
                Err(error) => {
                    // Where the next record begins can't be known.
                    self.broken = true;
                    self.used = self.words.len();
                    shared.bad = Some(error);
                    return None;
                }
            }
        }
    }

    /// Hands out the first event if it is due, and those behind it up to the clock `until`. Returns the clock of the
    /// first that stays. The first must be one with a place in the order and lie before `until`.
    pub(super) fn run(
        &mut self,
        until: u64,
        next: &mut [u32; SHARDS],
        shared: &mut Shared,
        more: &mut impl FnMut(&mut Vec<u64>) -> bool,
        out: &mut impl Output,
    ) -> Option<u64> {
        loop {
            let Self { words, used, context, .. } = self;
            let mut turn = Turn { until, clock: context.clock, next, late: &mut shared.late };
            let is_due = |address, order, _| turn.take(wire::shard(address), order);
            let (at, stays) = hand_out_most::<1>(context, words, *used, &mut shared.done, out, is_due);
            *used = at;
            if stays.is_some() {
                return stays;
            }
            match self.one(until, u64::MAX, next, shared, out) {
                Some(Ok(())) => continue,
                Some(Err(stays)) => return Some(stays),
                None => {}
            }
            match self.head(shared, more, out) {
                Some(ticks) if ticks <= until => {}
                first => return first,
            }
        }
    }

    /// Hands out the first event, whose number is the next of its shard, as of the clock `ticks` if its own is later. Returns the
    /// clock of the next one.
    pub(super) fn first(
        &mut self,
        ticks: u64,
        next: &mut [u32; SHARDS],
        shared: &mut Shared,
        more: &mut impl FnMut(&mut Vec<u64>) -> bool,
        out: &mut impl Output,
    ) -> Option<u64> {
        self.one(u64::MAX, ticks, next, shared, out);
        self.head(shared, more, out)
    }

    /// Hands out the first event if it is due and not later than `until`, as of the clock `latest` if its own is later; else its
    /// clock is the error. `None` if there is none with a place in the order.
    #[inline(never)]
    fn one(
        &mut self,
        until: u64,
        latest: u64,
        next: &mut [u32; SHARDS],
        shared: &mut Shared,
        out: &mut impl Output,
    ) -> Option<Result<(), u64>> {
        let Self { words, used, context, .. } = self;
        let record = wire::whole_heap_record(words.get(*used..).unwrap_or(&[]))?;
        let mut turn = Turn { until, clock: context.clock, next, late: &mut shared.late };
        match turn.take(record.shard(), record.order?) {
            Ok(ticks) => context.ticks = ticks.min(latest),
            Err(stays) => return Some(Err(stays)),
        }
        *used += record.len;
        shared.done += 1;
        context.hand_out(&record, out);
        Some(Ok(()))
    }
}

/// The places in the order that may be taken.
struct Turn<'t> {
    until: u64,
    /// What the clocks of the ring's records are near to.
    clock: u64,
    next: &'t mut [u32; SHARDS],
    /// How many events came whose numbers had been passed over.
    late: &'t mut u64,
}

impl Turn<'_> {
    /// Takes the place of an event that is due, and gives its clock; that of one which isn't as an error.
    #[inline(always)]
    fn take(&mut self, shard: usize, order: Order) -> Result<u64, u64> {
        let ticks = order.ticks_near(self.clock);
        let expected = &mut self.next[shard];
        let early = order.seq.wrapping_sub(*expected) as i32;
        if ticks > self.until || early > 0 {
            return Err(ticks);
        }
        if early == 0 {
            *expected = expected.wrapping_add(1);
        } else {
            // A number from the past: its gap was passed over. Its event comes late, but it comes.
            cold_path();
            *self.late += 1;
        }
        Ok(ticks)
    }
}

/// Hands out the allocations and frees from `words[at]` on, which most events are, until something else stands there: those
/// that have a place in the order, if `ORDER` is the one word of it, or those that have none, if it is 0. `is_due` is given
/// the address, the place and the clock of the event before, and says the clock of the event, or as an error the one of what stays.
/// Returns where in the words it came to, and what stays.
///
/// Two kinds apart from all others: what becomes of each is then known when compiling, and takes half of the instructions.
#[inline(always)]
fn hand_out_most<const ORDER: usize>(
    context: &mut Context,
    words: &[u64],
    at: usize,
    done: &mut usize,
    out: &mut impl Output,
    mut is_due: impl FnMut(u64, Order, u64) -> Result<u64, u64>,
) -> (usize, Option<u64>) {
    let numbered = if ORDER == 0 { 0 } else { wire::NUMBERED };
    if context.heap != 0 || context.large != 0 {
        return (at, None);
    }
    let (thread, numbers) = (context.thread, &context.numbers);
    let mut ticks = context.ticks;
    let mut rest = words.get(at..).unwrap_or(&[]);
    let mut handed = 0;
    let stays = loop {
        let Some(first) = rest.first_chunk::<{ wire::HEAP_WORDS }>() else { break None };
        let (kind, address) = (first[0] as u8 ^ numbered, first[0] >> 8);
        let source = Source::from_u8(kind.wrapping_sub(kind::ALLOC));
        if kind != kind::FREE && source.is_none() {
            break None;
        }
        match is_due(address, Order::of(first[ORDER]), ticks) {
            Ok(due) => ticks = due,
            Err(stays) => break Some(stays),
        }
        handed += 1;
        if let Some(source) = source {
            let block = first[1 + ORDER];
            let (stack, size) = (numbers.of(block as u32), block >> 32);
            rest = &rest[2 + ORDER..];
            out.heap(ticks, HeapEvent::Alloc { thread, stack, address, size, source });
        } else {
            rest = &rest[1 + ORDER..];
            out.heap(ticks, HeapEvent::Free { thread, address });
        }
    };
    context.ticks = ticks;
    *done += handed;
    (words.len() - rest.len(), stays)
}

impl Context {
    /// Hands out the event of a record that has a place in the order, at the clock that the queue has come to.
    ///
    /// Inlined with all that is done with an event, up to the bytes that it becomes: so it is never put together in memory.
    #[inline(always)]
    fn hand_out(&mut self, record: &HeapRecord, out: &mut impl Output) {
        if record.is_of_many() {
            let event = self.of_many(record);
            return out.other(self.ticks, event);
        }
        let event = self.event(record);
        if self.heap == 0 {
            out.heap(self.ticks, event);
        } else {
            out.in_heap(self.ticks, std::mem::take(&mut self.heap), event);
        }
    }

    #[cold]
    fn of_many(&mut self, record: &HeapRecord) -> Event {
        let HeapRecord { address, old, .. } = *record;
        if record.kind == kind::HEAP_END {
            return Event::HeapEnd(address as u32);
        }
        if record.kind == kind::MARK {
            let name = std::mem::take(&mut self.name);
            // What it is can be anything: a target may write what it likes.
            let code = u8::try_from(address).unwrap_or(u8::MAX);
            return Event::Mark(Mark::from_code(code, &name).unwrap_or(Mark::Named(name)));
        }
        let (thread, stack) = (self.thread, self.numbers.of(record.node));
        // MAP_FAILED has no size, and none is large.
        let size = u64::from(record.size) | std::mem::take(&mut self.large);
        Event::Mapping(match (record.mapped(), record.kind) {
            (Some(mapped), _) => MappingEvent::Map { thread, stack, address, size, mapped },
            (None, kind::UNMAP) => MappingEvent::Unmap { thread, address, size },
            (None, kind::REMAP) => MappingEvent::Remap { thread, stack, address, size, old },
            (None, _) => MappingEvent::Failed { thread },
        })
    }

    #[inline(always)]
    fn event(&mut self, record: &HeapRecord) -> HeapEvent {
        let (thread, address) = (self.thread, record.address);
        let (stack, size) = (self.numbers.of(record.node), u64::from(record.size) | self.large);
        match record.source() {
            Some(source) => {
                self.large = 0;
                HeapEvent::Alloc { thread, stack, address, size, source }
            }
            None => match record.kind {
                kind::REALLOC_END => {
                    self.large = 0;
                    HeapEvent::ReallocEnd { thread, stack, address, size, old: record.old }
                }
                kind::REALLOC_BEGIN => HeapEvent::ReallocBegin { thread, address },
                kind::REALLOC_FAILED => HeapEvent::ReallocFailed { thread, address },
                _ => HeapEvent::Free { thread, address },
            },
        }
    }

    /// Takes nodes of the ring, of which each but the first is below the one before it.
    #[inline(never)]
    fn take_nodes(&mut self, nodes: &mut Nodes, parent: u32, frames: &[u64], out: &mut impl Output) {
        if nodes.has_left_out(frames) {
            return self.take_nodes_but(nodes, parent, frames, out);
        }
        let new = nodes.number_all(self.numbers.of(parent), frames, &mut self.numbers);
        if let Some(frames) = frames.get(new.known..).filter(|frames| !frames.is_empty()) {
            out.nodes(self.ticks, new.first, new.parent, frames);
        }
    }

    /// As [`Self::take_nodes`], where some are left out: what is below them is below their parents.
    #[cold]
    fn take_nodes_but(&mut self, nodes: &mut Nodes, parent: u32, frames: &[u64], out: &mut impl Output) {
        let mut parent = self.numbers.of(parent);
        for frame in frames {
            if nodes.are_left_out(wire::frame_of(*frame).1) {
                self.numbers.push(parent);
                continue;
            }
            let frame = core::slice::from_ref(frame);
            let new = nodes.number_all(parent, frame, &mut self.numbers);
            if new.known == 0 {
                out.nodes(self.ticks, new.first, new.parent, frame);
            }
            parent = if new.known == 0 { new.first } else { new.parent };
        }
    }

    /// Takes a record that has no place in the order.
    fn take(&mut self, record: Record, shared: &mut Shared, out: &mut impl Output) {
        let event = match record {
            Record::Node { parent, pc, module, flags } => {
                let parent = self.numbers.of(parent);
                if shared.nodes.are_left_out(module) {
                    return self.numbers.push(parent);
                }
                let (id, is_new) = shared.nodes.number(parent, pc, module, flags);
                self.numbers.push(id);
                if !is_new {
                    return;
                }
                Event::Node { id, parent, pc, module, flags }
            }
            Record::Nodes { parent, frames } => {
                return self.take_nodes(&mut shared.nodes, parent, &frames, out);
            }
            Record::Reset => {
                self.heap = 0;
                self.numbers = Numbers::default();
                return;
            }
            Record::Heap(heap) => Event::Heap(heap),
            Record::InHeap(id) => return self.heap = id,
            Record::Name(name) => return self.name = name,
            Record::Thread { tid, name } => {
                self.thread = shared.threads;
                shared.threads += 1;
                let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
                Event::Thread { index: self.thread, tid, name: name[..len].to_vec() }
            }
            Record::Module(module) => {
                if module.path == Module::AGENT {
                    shared.nodes.leave_out(module.id);
                }
                Event::Module(module)
            }
            Record::Unload(id) => Event::Unload(id),
            Record::Lost(count) => Event::Lost(count),
            Record::Large(upper) => return self.large = upper << 32,
            Record::Clock(ticks) => {
                self.clock = ticks;
                self.ticks = self.ticks.max(ticks);
                return;
            }
            // They may come out before other rings' events that come before theirs: they name the thread.
            Record::Aligned(alignment) => Event::Aligned { thread: self.thread, alignment },
            Record::Sampled(mean) => Event::Sampled { thread: self.thread, mean },
            Record::Unsampled(address) => Event::Unsampled { thread: self.thread, address },
            Record::FreedAs(said) => {
                Event::FreedAs(FreedAs { thread: self.thread, stack: self.numbers.of(said.stack), ..said })
            }
            Record::OfHeap(_) => return,
        };
        out.other(self.ticks, event);
    }
}
