//! The live set: which blocks are allocated, and the totals over all of them.
//!
//! These definitions hold wherever Grapnel shows a figure, while it records and in every report:
//! - **allocations**: blocks given out by anything but a `realloc` of a block; `realloc(NULL, n)` is one.
//! - **frees**: blocks given back by anything but a `realloc` that gives another; `realloc(p, 0)` that frees
//!   is one. A block that was allocated before the recording began counts too.
//! - **reallocations**: `realloc`s that gave a block.
//! - **allocated bytes**: the sizes requested by allocations and reallocations, added up.
//! - **live**: given out and neither given back nor handed to a `realloc`. While a `realloc` runs, its block
//!   belongs to nobody; if it fails the block is live again.
//! - **before**: blocks that were live when the recording began in a process that ran already. They are live from then on,
//!   and neither allocations nor allocated bytes. Their sizes are what may be used of them.
//! - **peak**: the largest value that the live bytes had, and the first moment that they had it.
//! - **inconsistent events**: events that can't be true together, as when a block is given out at an
//!   address where one is live. There are none unless events were lost.
//!
//! Other sizes are what the caller requested, not what the allocator rounded them up to.

use crate::blocks::Blocks;
use crate::hash::FoldHash;
use crate::weight::{Doubt, Sampling, whole};
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::{Alignment, Event, Source};
use std::collections::HashMap;

/// Figures over a whole recording. See the [module's documentation](self) for what each means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Blocks given out by anything but a `realloc` of a block.
    pub allocations: u64,
    /// Blocks given back.
    pub frees: u64,
    /// `realloc`s that gave a block.
    pub reallocations: u64,
    /// Bytes requested by allocations and reallocations.
    pub allocated_bytes: u64,
    /// Blocks live now.
    pub live_allocations: u64,
    /// Bytes live now.
    pub live_bytes: u64,
    /// The most bytes that were ever live.
    pub peak_bytes: u64,
    /// When that was first so, in nanoseconds since the recording began.
    pub peak_time_ns: u64,
    /// Blocks freed before the thread that allocated them allocated again. Only a full analysis counts them.
    pub temporary_allocations: u64,
    /// Events that could not be recorded.
    pub lost_events: u64,
    /// Events that contradict earlier ones.
    pub inconsistent_events: u64,
    /// Length of the recording in nanoseconds, as far as it is known.
    pub duration_ns: u64,
    /// Blocks that were live before the recording began, as far as they are known.
    pub before_allocations: u64,
    /// What may be used of them, in bytes.
    pub before_bytes: u64,
}

/// A live block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Bytes requested.
    pub size: u64,
    /// The node of the stack that allocated it.
    pub stack: u32,
    /// The thread that allocated it.
    pub thread: u32,
    /// Which functions gave it.
    pub source: Source,
    /// The alignment that was asked for.
    pub alignment: Alignment,
    /// The mean of the sample that it is in; 0 where all blocks are recorded.
    pub mean: u64,
}

/// Is told of every change of the live set, in order.
pub trait Watcher {
    /// A block was given out, or was there before ([`Source::Before`]); `peak` when the live bytes have now reached a new maximum.
    fn added(&mut self, address: u64, block: Block, peak: bool);
    /// A block was given back by a `free` (`freed`), or was handed to a `realloc` or lost sight of.
    fn removed(&mut self, address: u64, block: Block, freed: bool);
    /// The block of a failed `realloc` is live again.
    fn restored(&mut self, address: u64, block: Block, peak: bool);
    /// A `realloc` gave a block at `to` for one at `from`: said after both were told of by themselves.
    fn reallocated(&mut self, _from: u64, _old: Block, _to: u64, _new: Block) {}
    /// Loads something of what is kept for a stack that is likely to come up soon, and gives back any part of it. The
    /// stack may be one that was never told of.
    fn peek(&self, _stack: u32) -> u64 {
        0
    }
    /// Whether [`Watcher::peek`] does anything.
    fn cares(&self) -> bool {
        false
    }
}

/// Watches nothing: the totals are all that is wanted.
impl Watcher for () {
    fn added(&mut self, _: u64, _: Block, _: bool) {}
    fn removed(&mut self, _: u64, _: Block, _: bool) {}
    fn restored(&mut self, _: u64, _: Block, _: bool) {}
}

/// Reallocs that may be under way at once: a few per thread, since a signal handler may interrupt one with
/// another. More than this come of a trace whose reallocs never end.
const MAX_HELD: usize = 1 << 20;

/// Events of a batch whose blocks are looked up before the first is used: enough for the processor to wait for many
/// cache lines at once, few enough for what was looked up to stay near.
const BATCH: usize = 64;

/// The live set with no more of each block than its size: enough for the totals.
pub type LiveTotals = Live<2>;

/// The live set with all of each [`Block`], where all blocks are recorded.
pub type LiveBlocks = Live<3>;

/// The live set of a sample.
pub type LiveSample = Live<4>;

/// The live set and its totals, brought up to date one event at a time. `W` says how much is kept of each block; see
/// [`LiveTotals`] and [`LiveBlocks`].
#[derive(Debug, Default)]
pub struct Live<const W: usize> {
    blocks: Blocks<W>,
    /// What threads' reallocs took out of the live set, by thread and address; `None` for a block that is
    /// older than the recording.
    held: HashMap<(u32, u64), Option<Block>, FoldHash>,
    /// The alignment of what a thread gets next, of the few that are asked for one.
    aligned: Vec<(u32, Alignment)>,
    totals: Totals,
    time_ns: u64,
    /// Of a sample.
    sample: Sample,
}

/// What is kept of a sample besides.
#[derive(Debug, Default)]
struct Sample {
    /// By which mean each thread's allocations are recorded.
    means: HashMap<u32, u64, FoldHash>,
    last_mean: u64,
    largest_mean: u64,
    recorded: u64,
    /// Live blocks, in units.
    live: u64,
    doubt: Doubt,
}

impl<const W: usize> Live<W> {
    /// Whether this is of a sample.
    const SAMPLED: bool = W > 3;

    /// The live blocks by address, in no order.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, Block)> {
        self.blocks.iter()
    }

    /// The live block at an address.
    pub fn at(&self, address: u64) -> Option<Block> {
        self.blocks.get(address)
    }

    /// Whether a `realloc` of this thread is under way that took what was at this address.
    pub(crate) fn holds(&self, thread: u32, address: u64) -> bool {
        self.held.contains_key(&(thread, address))
    }

    /// Blocks that a `realloc` under way took out of the live set, by address, in no order.
    pub fn held(&self) -> impl Iterator<Item = (u64, Block)> {
        self.held.iter().filter_map(|(&(_, address), block)| Some((address, (*block)?)))
    }

    /// Takes in the next event and tells `watcher` what it changed.
    #[inline]
    pub fn apply_watched(&mut self, event: &Event, watcher: &mut impl Watcher) {
        self.take(event, watcher);
    }

    /// As [`Live::apply_all`], and tells `watcher` what each event changed.
    #[inline]
    pub fn apply_all_watched(&mut self, events: &[HeapEvent], watcher: &mut impl Watcher) {
        self.take_all(events, watcher);
    }
}

impl<const W: usize> Live<W> {
    /// An empty live set.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty live set, at the time and with the losses of another.
    pub(crate) fn continued<const V: usize>(other: &Live<V>) -> Self {
        let totals = Totals { lost_events: other.totals.lost_events, ..Totals::default() };
        Self { time_ns: other.time_ns, totals, ..Self::default() }
    }

    /// The totals after the events so far.
    pub fn totals(&self) -> Totals {
        let totals = Totals { duration_ns: self.time_ns, ..self.totals };
        if !Self::SAMPLED {
            return Totals { live_allocations: self.live_allocations(), ..totals };
        }
        Totals {
            allocations: whole(totals.allocations),
            frees: whole(totals.frees),
            reallocations: whole(totals.reallocations),
            allocated_bytes: whole(totals.allocated_bytes),
            live_allocations: whole(self.sample.live),
            live_bytes: whole(totals.live_bytes),
            peak_bytes: whole(totals.peak_bytes),
            ..totals
        }
    }

    /// What is to be said of the sample, if it is one.
    pub fn sampling(&self) -> Option<Sampling> {
        let Sample { last_mean, largest_mean, recorded, doubt, .. } = self.sample;
        let errors = doubt.of_totals(largest_mean);
        Self::SAMPLED.then_some(Sampling { mean: last_mean, recorded, errors })
    }

    /// How many blocks are live, of those that are recorded.
    pub fn live_allocations(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Takes in many events at once, the faster for it: where each block lies in memory is looked up for all of them
    /// before the first is used, so that the processor waits for many lines at the same time.
    pub fn apply_all(&mut self, events: &[HeapEvent]) {
        self.take_all(events, &mut ());
    }

    /// Takes in the next event.
    pub fn apply(&mut self, event: &Event) {
        self.take(event, &mut ());
    }

    #[inline]
    fn take_all(&mut self, events: &[HeapEvent], watcher: &mut impl Watcher) {
        for events in events.chunks(BATCH) {
            if !self.blocks.are_few() || watcher.cares() {
                self.peek(events, watcher);
            }
            for event in events {
                self.take_heap(event, watcher);
            }
        }
    }

    /// Loads what will be used for these events.
    fn peek(&self, events: &[HeapEvent], watcher: &impl Watcher) {
        let mut stacks = [0; BATCH];
        for (event, stack) in events.iter().zip(&mut stacks) {
            *stack = self.blocks.peek(event.address());
        }
        if watcher.cares() {
            let mut seen = 0;
            for (event, &there) in events.iter().zip(&stacks) {
                seen |= watcher.peek(match *event {
                    HeapEvent::Alloc { stack, .. } | HeapEvent::ReallocEnd { stack, .. } => stack,
                    _ => there,
                });
            }
            std::hint::black_box(seen);
        }
        std::hint::black_box(stacks);
    }

    #[inline]
    fn take(&mut self, event: &Event, watcher: &mut impl Watcher) {
        match *event {
            Event::Time(time) => self.time_ns = time,
            Event::Lost(count) => self.totals.lost_events = self.totals.lost_events.saturating_add(count),
            Event::Aligned { thread, alignment } => self.is_aligned(thread, alignment),
            Event::Sampled { thread, mean } if Self::SAMPLED => {
                self.sample.last_mean = mean;
                self.sample.largest_mean = self.sample.largest_mean.max(mean);
                if self.sample.means.len() < MAX_HELD || self.sample.means.contains_key(&thread) {
                    self.sample.means.insert(thread, mean);
                }
            }
            Event::Unsampled { thread, address } => drop(self.held.remove(&(thread, address))),
            _ => {
                if let Some(event) = HeapEvent::of(event) {
                    self.take_heap(&event, watcher);
                }
            }
        }
    }

    #[inline]
    fn take_heap(&mut self, event: &HeapEvent, watcher: &mut impl Watcher) {
        match *event {
            HeapEvent::Alloc { thread, stack, address, size, source: source @ Source::Before } => {
                let block = Block { size, stack, thread, source, alignment: Alignment::NONE, mean: 0 };
                self.totals.before_allocations = self.totals.before_allocations.saturating_add(1);
                self.totals.before_bytes = self.totals.before_bytes.saturating_add(size);
                let peak = self.insert(address, block, watcher);
                watcher.added(address, block, peak);
            }
            HeapEvent::Alloc { thread, stack, address, size, source } => {
                let alignment = self.alignment_of_next(thread);
                let block = Block { size, stack, thread, source, alignment, mean: self.mean(thread) };
                self.totals.allocations = self.totals.allocations.saturating_add(block.weight().count);
                self.add(address, block, watcher);
            }
            HeapEvent::Free { address, .. } => {
                let freed = self.remove(address, true, watcher);
                // Of a block that was not recorded, a sample knows no weight.
                let count = if Self::SAMPLED { freed.map_or(0, |block| block.weight().count) } else { 1 };
                self.totals.frees = self.totals.frees.saturating_add(count);
            }
            HeapEvent::ReallocBegin { thread, address } => self.begin_realloc(thread, address, watcher),
            HeapEvent::ReallocEnd { thread, stack, address, size, old } => {
                let before = self.end_realloc(thread, old, watcher);
                let (source, alignment) = (Source::Realloc, Alignment::NONE);
                let block = Block { size, stack, thread, source, alignment, mean: self.mean(thread) };
                self.totals.reallocations = self.totals.reallocations.saturating_add(block.weight().count);
                self.add(address, block, watcher);
                if let Some(before) = before {
                    watcher.reallocated(old, before, address, block);
                }
            }
            HeapEvent::ReallocFailed { thread, address } => match self.held.remove(&(thread, address)) {
                Some(Some(block)) => self.restore(address, block, watcher),
                Some(None) => {}
                None => self.totals.inconsistent_events += 1,
            },
        }
    }

    /// By which mean the thread's allocations are recorded; 0 for all of them.
    #[inline]
    fn mean(&self, thread: u32) -> u64 {
        if Self::SAMPLED {
            self.sample.means.get(&thread).copied().unwrap_or(self.sample.last_mean)
        } else {
            0
        }
    }

    /// Notes what the thread gets next, if anything is kept of it.
    fn is_aligned(&mut self, thread: u32, alignment: Alignment) {
        /// No more can be under way than there are threads in the middle of a call.
        const MOST: usize = 1 << 12;
        if W > 2 && self.aligned.len() < MOST {
            self.aligned.push((thread, alignment));
        }
    }

    #[inline]
    fn alignment_of_next(&mut self, thread: u32) -> Alignment {
        if W <= 2 || self.aligned.is_empty() {
            return Alignment::NONE;
        }
        let at = self.aligned.iter().position(|&(of, _)| of == thread);
        at.map_or(Alignment::NONE, |at| self.aligned.swap_remove(at).1)
    }

    fn begin_realloc(&mut self, thread: u32, address: u64, watcher: &mut impl Watcher) {
        let block = self.remove(address, false, watcher);
        if self.held.len() >= MAX_HELD || self.held.insert((thread, address), block).is_some() {
            self.totals.inconsistent_events += 1;
        }
    }

    /// Gives the old block, as far as it is known.
    fn end_realloc(&mut self, thread: u32, old: u64, watcher: &mut impl Watcher) -> Option<Block> {
        // Without its beginning, `old` may still look live. With it, a block at `old` is another thread's, which
        // got the address since.
        // Of a sample it may be that the old block was not recorded.
        let held = self.held.remove(&(thread, old));
        if held.is_none() && !Self::SAMPLED {
            self.totals.inconsistent_events += 1;
            self.remove(old, false, watcher);
        }
        held.flatten()
    }

    #[inline]
    fn add(&mut self, address: u64, block: Block, watcher: &mut impl Watcher) {
        self.totals.allocated_bytes = self.totals.allocated_bytes.saturating_add(block.weight().bytes);
        if Self::SAMPLED {
            self.sample.recorded += 1;
            self.sample.doubt.allocated.add(block.variance());
            self.sample.doubt.small.see(&block);
        }
        let peak = self.insert(address, block, watcher);
        watcher.added(address, block, peak);
    }

    fn restore(&mut self, address: u64, block: Block, watcher: &mut impl Watcher) {
        let peak = self.insert(address, block, watcher);
        watcher.restored(address, block, peak);
    }

    /// Makes a block live and says whether the live bytes reached a new maximum by it.
    ///
    /// Live bytes wrap: each block is added and taken away once, so the figure is right whenever the true
    /// one fits into 64 bits, and sizes that no process can have do no harm.
    #[inline]
    fn insert(&mut self, address: u64, block: Block, watcher: &mut impl Watcher) -> bool {
        if let Some(old) = self.blocks.insert(address, &block) {
            self.totals.inconsistent_events += 1;
            self.no_longer_live(&old);
            watcher.removed(address, old, false);
        }
        self.totals.live_bytes = self.totals.live_bytes.wrapping_add(block.weight().bytes);
        if Self::SAMPLED {
            self.sample.live = self.sample.live.wrapping_add(block.weight().count);
            self.sample.doubt.live.add(block.variance());
        }
        let peak = self.totals.live_bytes > self.totals.peak_bytes;
        if peak {
            self.totals.peak_bytes = self.totals.live_bytes;
            self.totals.peak_time_ns = self.time_ns;
            if Self::SAMPLED {
                self.sample.doubt.peak_bytes = self.sample.doubt.live.bytes;
            }
        }
        peak
    }

    #[inline]
    fn no_longer_live(&mut self, block: &Block) {
        self.totals.live_bytes = self.totals.live_bytes.wrapping_sub(block.weight().bytes);
        if Self::SAMPLED {
            self.sample.live = self.sample.live.wrapping_sub(block.weight().count);
            self.sample.doubt.live.take(block.variance());
        }
    }

    #[inline]
    fn remove(&mut self, address: u64, freed: bool, watcher: &mut impl Watcher) -> Option<Block> {
        let block = self.blocks.remove(address)?;
        self.no_longer_live(&block);
        watcher.removed(address, block, freed);
        Some(block)
    }
}

/// The totals of a recording, whether all its allocations are recorded or some.
#[derive(Debug)]
pub enum RunningTotals {
    /// All of them, as far as is known.
    All(Box<LiveTotals>),
    /// Some: the figures are estimates.
    Sampled(Box<LiveSample>),
}

impl Default for RunningTotals {
    fn default() -> Self {
        Self::All(Box::default())
    }
}

impl RunningTotals {
    /// As [`Live::apply_all`].
    pub fn apply_all(&mut self, events: &[HeapEvent]) {
        match self {
            Self::All(live) => live.apply_all(events),
            Self::Sampled(live) => live.apply_all(events),
        }
    }

    /// As [`Live::apply`].
    pub fn apply(&mut self, event: &Event) {
        match self {
            // What comes before the first sample is no allocation.
            Self::All(live) if matches!(event, Event::Sampled { .. }) => {
                let mut sample = Box::new(LiveSample::continued(&**live));
                sample.apply(event);
                *self = Self::Sampled(sample);
            }
            Self::All(live) => live.apply(event),
            Self::Sampled(live) => live.apply(event),
        }
    }

    /// The totals so far.
    pub fn totals(&self) -> Totals {
        match self {
            Self::All(live) => live.totals(),
            Self::Sampled(live) => live.totals(),
        }
    }
}
