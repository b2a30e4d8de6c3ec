//! The hot path: from a hooked call to a record in the thread's ring.
//!
//! The way into a thread's context is `record/entering.rs`.

mod entering;
mod room;

pub(crate) use entering::{enter, expect, plain_quickly, under_way};
pub(crate) use room::push;
use room::{make_room, wait_for_room};

use crate::context::Context;
use crate::entry::SavedRegisters;
use crate::hot::HOT;
use crate::modules::{self, TableInUse};
use crate::sandbox::clock;
use crate::tls;
use crate::{native, sampling, session};
use core::hint::cold_path;
use core::sync::atomic::{AtomicU16, Ordering};
use grapnel_trace::ring::Producer;
use grapnel_trace::wire::{self, Order, kind};
use grapnel_trace::{Alignment, FreedAs, Source};
use grapnel_unwind::{Frame, MOST_TOLD, NodeId, Sink, WORD_FLAGS_AT, WORD_MODULE_AT};

/// The most words that are written from one [`Context::stop`] on before there is another: a clock that is due, the upper
/// part of a size, the mark of a heap, a clock that is far from the last one, and a record of the heap.
const STOP_WORDS: u64 = 2 + 1 + 1 + 2 + wire::HEAP_WORDS as u64;
/// The most words that stand before an event and belong to it, and are written like those of nodes.
const BEFORE_WORDS: u64 = 8;
/// So many words apart a clock is written, for the time of records that have none.
const CLOCK_EVERY: u64 = 4096;
/// When a ring has told so many nodes, they are numbered from 1 again: its reader keeps a number for each.
const MOST_NODES: u32 = 1 << 20;

/// From here on, all events of the process are numbered: it has more than one ring.
///
/// That is set by a thread before it writes the first event into a second ring, and read by the thread of ring 0 after
/// a block was given out and before one is given back. So an event that ring 0 writes without a number comes before
/// all events of its block in other rings: what another thread did with the block before would have come to this
/// thread together with the block, and that thread's store to this word with it.
pub(crate) fn number_events() {
    HOT.is_numbered.store(true, Ordering::SeqCst);
}

/// Whether they are, as far as the caller needs to know to be quick.
#[inline(always)]
pub(crate) fn are_numbered() -> bool {
    HOT.is_numbered.load(Ordering::Relaxed)
}

/// In the child of a fork, which has begun its rings anew: whether it has others than ring 0.
pub(crate) fn number_events_if(others: bool) {
    HOT.is_numbered.store(others, Ordering::SeqCst);
}

/// How many words a walk of so many frames may take with its event, in a ring of so many: where frames are allowed that no
/// ring has room for, half of it.
pub(crate) fn room_for_walk(max_frames: usize, ring: usize) -> u64 {
    let nodes = (max_frames as u64 + 1) * wire::NODE_WORDS as u64;
    (nodes + BEFORE_WORDS + STOP_WORDS).min(ring as u64 / 2)
}

/// Nothing was written: recording is over, or the session says to drop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NotWritten;

#[cold]
fn count_bad_stack() {
    if let Some(segment) = session::segment() {
        segment.bad_stacks.fetch_add(1, Ordering::Relaxed);
    }
}

#[cold]
fn count_lost() {
    if let Some(segment) = session::segment() {
        segment.lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// The processor's clock, or what stands for it in a thread that can't read it.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    if clock::is_lacking() { clock::ticks() } else { ticks_of_processor() }
}

/// The processor's clock.
pub(crate) use crate::native::ticks as ticks_of_processor;

/// Tells the ring of new nodes.
struct Nodes<'a>(&'a mut Producer<'static>);

const _: () = assert!(MOST_TOLD <= wire::MOST_NODES);
const _: () = assert!(WORD_FLAGS_AT == wire::FLAGS_AT && WORD_MODULE_AT == wire::MODULE_AT);

impl Sink for Nodes<'_> {
    #[inline(always)]
    fn nodes(&mut self, first: NodeId, parent: NodeId, frames: impl ExactSizeIterator<Item = Frame> + Clone) {
        let Self(ring) = self;
        let count = frames.len();
        if make_room(ring, 1 + count as u64).is_err() {
            return;
        }
        let mut fit = true;
        let words = frames.clone().map(|frame| {
            let word = wire::frame(frame.pc, frame.module, frame.flags.bits());
            fit &= word.is_some();
            word.unwrap_or(0)
        });
        ring.stage_all(1, words);
        if !fit {
            return self.one_by_one(first.0, parent.0, frames);
        }
        ring.stage(0, wire::nodes(parent.0, count));
        ring.publish(1 + count as u64);
    }

    #[inline(always)]
    fn told(&mut self, _first: NodeId, parent: NodeId, words: impl ExactSizeIterator<Item = u64> + Clone) {
        let Self(ring) = self;
        let count = words.len();
        if make_room(ring, 1 + count as u64).is_ok() {
            ring.put_all(wire::nodes(parent.0, count), words);
        }
    }
}

impl Nodes<'_> {
    /// Tells of nodes some of whose numbers are large: `first`, and the others below it.
    #[cold]
    fn one_by_one(&mut self, first: u32, parent: u32, frames: impl Iterator<Item = Frame>) {
        let mut parent = parent;
        for (id, frame) in (first..).zip(frames) {
            let _ = push(self.0, &wire::node(parent, frame.pc, frame.module, frame.flags.bits()));
            parent = id;
        }
    }
}

impl Context {
    /// The node of the caller's stack; nothing where its nodes have no room and the session says to drop.
    #[inline(always)]
    pub(crate) fn stack(&mut self, saved: &SavedRegisters) -> Result<u32, NotWritten> {
        if self.modules_seen != modules::version() {
            self.refresh()?;
        }
        let Self { walker, ring, reading, .. } = self;
        let mut sink = Nodes(ring);
        let resolver = &mut TableInUse(Some(reading));
        let node = walker.walk(saved, resolver, &mut sink);
        if self.check {
            cold_path();
            let full = walker.walk_unmemoised(saved, resolver, &mut sink);
            if full != node {
                count_bad_stack();
            }
        }
        Ok(node.0)
    }

    #[cold]
    #[inline(never)]
    fn refresh(&mut self) -> Result<(), NotWritten> {
        #[cfg(not(grapnel_attached))]
        let again = crate::bound::look(&mut self.ring);
        #[cfg(grapnel_attached)]
        let again = false;
        let refreshed = self.refresh_rules();
        if again {
            self.look_at_each_walk();
        }
        refreshed
    }

    /// Whether nodes are to be numbered from 1 again. Not where each stack is walked twice, whose nodes are to be the same.
    fn has_told_enough(&self) -> bool {
        self.walker.tree().len() >= MOST_NODES && !self.check
    }

    fn refresh_rules(&mut self) -> Result<(), NotWritten> {
        // Read first: a change in between is then seen again.
        let version = modules::version();
        if session::is_paused() {
            self.look_at_each_walk();
            return Err(NotWritten);
        }
        if let Some(words) = self.room_for_walk {
            // A node that is not told can't be taken back: there must be room for all that a walk may find.
            if !self.ring.has_room(words) {
                wait_for_room(&mut self.ring, words)?;
            }
            // Each walk is to come this way.
            self.modules_seen = !version;
        } else {
            self.modules_seen = version;
        }
        let known = core::mem::replace(&mut self.modules_known, version);
        let (is_new, have_gone) = modules::changes(known, version);
        if have_gone {
            self.walker.forget_stacks();
        }
        let removals = modules::removals();
        if core::mem::replace(&mut self.removals_seen, removals) != removals {
            self.walker.reset();
            self.forget_nodes();
            return Ok(());
        }
        if is_new {
            self.walker.flush();
        }
        if self.has_told_enough() {
            self.walker.renumber();
            self.forget_nodes();
        }
        Ok(())
    }

    /// Leads each walk through [`Context::refresh`].
    pub(crate) fn look_at_each_walk(&mut self) {
        self.modules_seen = !modules::version();
    }

    /// A block was given out.
    #[inline(always)]
    pub(crate) fn alloc(&mut self, saved: &SavedRegisters, address: u64, size: u64, source: Source) {
        let Ok(node) = self.stack(saved) else { return };
        self.write::<2, 3>(address, size, wire::alloc(address, node, size, source));
    }

    /// As [`Context::alloc`], of a block that may have been asked to be aligned.
    #[unsafe(link_section = ".text.hot.grapnel")]
    pub(crate) fn alloc_aligned(
        &mut self,
        saved: &SavedRegisters,
        address: u64,
        size: u64,
        source: Source,
        alignment: Alignment,
    ) {
        let Ok(node) = self.stack(saved) else { return };
        if alignment != Alignment::NONE && push(&mut self.ring, &wire::aligned(alignment)).is_err() {
            return;
        }
        self.write::<2, 3>(address, size, wire::alloc(address, node, size, source));
    }

    /// Before a record of a sample: says with which mean, unless that is known.
    pub(crate) fn tell_mean(&mut self, mean: u64) {
        if self.told_mean != mean && push(&mut self.ring, &[wire::head(mean, kind::SAMPLED)]).is_ok() {
            self.told_mean = mean;
        }
        if sampling::has_budget() {
            self.looks.look(tls::sampling());
        }
    }

    /// A `realloc` took a block that may be recorded, and gave one that isn't.
    pub(crate) fn gone(&mut self, address: u64) {
        let _ = push(&mut self.ring, &[wire::head(address, kind::UNSAMPLED)]);
    }

    /// As [`Context::plain`], of a block that seems to be given back in another way than it was got.
    #[cold]
    pub(crate) fn freed_as(&mut self, saved: &SavedRegisters, said: FreedAs, kind: u8, address: u64) {
        let Ok(stack) = self.stack(saved) else { return };
        if push(&mut self.ring, &wire::freed_as(&FreedAs { stack, ..said })).is_ok() {
            self.plain(kind, address);
        }
    }

    /// A block is about to be given back, or what [`wire::plain`] else says.
    #[inline(always)]
    pub(crate) fn plain(&mut self, kind: u8, address: u64) {
        self.write::<1, 2>(address, 0, wire::plain(kind, address));
    }

    /// A `realloc` succeeded.
    #[inline(always)]
    pub(crate) fn realloc_end(&mut self, saved: &SavedRegisters, address: u64, size: u64, old: u64) {
        let Ok(node) = self.stack(saved) else { return self.gone(old) };
        self.write::<3, 4>(address, size, wire::realloc_end(address, node, size, old));
    }

    /// Writes the record of an event at `address`, of `N` words, or of `M` with its number.
    #[inline(always)]
    pub(crate) fn write<const N: usize, const M: usize>(
        &mut self,
        address: u64,
        size: u64,
        record: [u64; N],
    ) {
        self.write_of::<N, M>(0, address, size, record);
    }

    /// As [`Context::write`], of an event of the heap with this number, or for 0 of the program's own.
    #[inline(always)]
    pub(crate) fn write_of<const N: usize, const M: usize>(
        &mut self,
        heap: u32,
        address: u64,
        size: u64,
        record: [u64; N],
    ) {
        let upper = wire::large(size);
        let is_due = self.ring.position() >= self.next_stop || upper.is_some() || heap != 0;
        if is_due && self.stop(upper).is_err() {
            return;
        }
        if heap != 0 {
            cold_path();
            self.ring.put([wire::head(u64::from(heap), kind::IN_HEAP)]);
        }
        // There is room: `stop` has seen to it, now or before. Where there is one ring, an instruction more or less is seen.
        if HOT.is_numbered.load(Ordering::Acquire) {
            cold_path();
            self.put_numbered::<N, M>(address, record, ticks);
        } else {
            self.ring.put(record);
        }
    }

    /// As [`Context::plain`] where nothing else is due, and empties `entry`. Whether that is so, and [whether events are
    /// numbered](are_numbered) as is said here; otherwise nothing is done.
    #[inline(always)]
    fn plain_quickly<const NUMBERED: bool>(
        &mut self,
        kind: u8,
        address: u64,
        entry: Option<&AtomicU16>,
    ) -> bool {
        let can = self.ring.position() < self.next_stop
            && !self.meter.is_timing()
            && NUMBERED == HOT.is_numbered.load(Ordering::Acquire)
            && !(NUMBERED && clock::is_lacking());
        if can {
            if let Some(entry) = entry {
                entry.store(0, Ordering::Relaxed);
            }
            let record = wire::plain(kind, address);
            if NUMBERED {
                self.put_numbered::<1, 2>(address, record, ticks_of_processor);
            } else {
                self.ring.put(record);
            }
        }
        can
    }

    /// Writes an event's record with its place in the order. There is room.
    #[inline(always)]
    fn put_numbered<const N: usize, const M: usize>(
        &mut self,
        address: u64,
        record: [u64; N],
        ticks: impl FnOnce() -> u64,
    ) {
        self.ring.open();
        let order = self.order(address, ticks);
        self.ring.put(wire::numbered::<N, M>(record, order));
        self.ring.close();
    }

    /// What is due before an event where the ring has come to `next_stop`, or where the event has a large size: room,
    /// before a sequence number is taken that nobody else may wait for in vain; a clock; and the `upper` part of the
    /// size.
    #[cold]
    #[inline(never)]
    fn stop(&mut self, upper: Option<[u64; 1]>) -> Result<(), NotWritten> {
        if !self.ring.has_room(STOP_WORDS) {
            wait_for_room(&mut self.ring, STOP_WORDS)?;
        }
        if self.ring.position() >= self.next_clock {
            self.next_clock = self.ring.position() + CLOCK_EVERY;
            if self.has_told_enough() {
                // Not before this event, whose node has its number.
                self.look_at_each_walk();
            }
            if self.ring.is_half_full() {
                session::wake_drain(false);
            }
            self.write_clock(ticks());
        }
        if self.ring.position() >= self.meter.next() {
            self.meter.choose(self.ring.position(), self.walker.tree().len());
        }
        if session::is_paused() {
            self.look_at_each_walk();
        }
        let full = self.ring.last_start(STOP_WORDS) + 1;
        self.next_stop = self.next_clock.min(self.meter.next()).min(full);
        if let Some(upper) = upper {
            self.ring.put(upper);
        }
        Ok(())
    }

    /// The place in the order of an event at `address`.
    #[inline(always)]
    fn order(&mut self, address: u64, ticks: impl FnOnce() -> u64) -> Order {
        let shard = wire::shard(address & !(native::TAGS as u64));
        let seq = self.segment.shards[shard].fetch_add(1, Ordering::AcqRel);
        let ticks = ticks();
        if !wire::is_near(ticks, self.clock) {
            self.write_clock(ticks);
        }
        Order { seq, ticks: ticks as u32 }
    }

    /// Tells the ring's reader the time. There is room.
    #[inline(always)]
    fn write_clock(&mut self, ticks: u64) {
        self.clock = ticks;
        self.ring.put(wire::clock(ticks));
    }
}

/// [`kind`]s of [`Context::plain`].
pub(crate) const FREE: u8 = kind::FREE;
pub(crate) const REALLOC_BEGIN: u8 = kind::REALLOC_BEGIN;
pub(crate) const REALLOC_FAILED: u8 = kind::REALLOC_FAILED;

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;
    use alloc::vec::Vec;
    use core::sync::atomic::AtomicU64;
    use grapnel_trace::ring::{Consumer, RingControl};
    use grapnel_trace::wire::Record;
    use grapnel_unwind::FrameFlags;

    /// The nodes that a ring tells, as it tells them: the first number, and parent, pc, module and flags of each.
    fn told(frames: &[Frame], first: u32, parent: u32) -> (bool, Vec<(u32, u64, u32, u8)>) {
        let control: &'static RingControl = Box::leak(Box::default());
        let words: &'static [AtomicU64] = Vec::leak((0..1024).map(|_| AtomicU64::new(0)).collect());
        // So that what is told goes around the ring's end.
        control.head.store(1020, Ordering::Relaxed);
        control.tail.store(1020, Ordering::Relaxed);
        let mut ring = Producer::new(control, words);
        Nodes(&mut ring).nodes(NodeId(first), NodeId(parent), frames.iter().copied());
        let mut out = Vec::new();
        Consumer::new(control, words).drain_into(&mut out).expect("a good ring");
        let (mut rest, mut nodes, mut is_one) = (&out[..], Vec::new(), true);
        while !rest.is_empty() {
            let (record, len) = wire::parse(rest).expect("good words").expect("whole records");
            rest = &rest[len..];
            match record {
                Record::Nodes { parent, frames } => {
                    for (at, frame) in (0..).zip(frames) {
                        let (pc, module, flags) = wire::frame_of(frame);
                        nodes.push((if at == 0 { parent } else { first + at - 1 }, pc, module, flags));
                    }
                }
                Record::Node { parent, pc, module, flags } => {
                    is_one = false;
                    nodes.push((parent, pc, module, flags));
                }
                other => panic!("{other:?}"),
            }
        }
        (is_one, nodes)
    }

    #[test]
    fn nodes_are_told_in_one_record_unless_a_number_is_large() {
        let frame = |n: u64, module| Frame { pc: 0x7000_0000 + n, module, flags: FrameFlags::SIGNAL };
        for (count, large) in
            [(1, None), (64, None), (1, Some(0)), (9, Some(0)), (9, Some(4)), (64, Some(63))]
        {
            let module = |n| if large == Some(n) { 1 << 12 } else { 7 };
            let frames: Vec<Frame> = (0..count).map(|n| frame(n, module(n))).collect();
            let (is_one, nodes) = told(&frames, 100, 33);
            assert_eq!(is_one, large.is_none());
            let expected = (0..).zip(&frames).map(|(n, frame)| {
                (if n == 0 { 33 } else { 99 + n }, frame.pc, frame.module, frame.flags.bits())
            });
            assert_eq!(nodes, expected.collect::<Vec<_>>(), "{count} {large:?}");
        }
    }
}
