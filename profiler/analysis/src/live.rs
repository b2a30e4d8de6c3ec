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
//! - **peak**: the largest value that the live bytes had, and the first moment that they had it.
//! - **inconsistent events**: events that can't be true together, as when a block is given out at an
//!   address where one is live. There are none unless events were lost.
//!
//! Sizes are what the caller requested, not what the allocator rounded them up to.

use crate::hash::{AddressMap, FoldHash};
use grapnel_trace::Event;
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
}

/// Is told of every change of the live set, in order.
pub trait Watcher {
    /// A block was given out; `peak` when the live bytes have now reached a new maximum.
    fn added(&mut self, address: u64, block: Block, peak: bool);
    /// A block was given back by a `free` (`freed`), or was handed to a `realloc` or lost sight of.
    fn removed(&mut self, address: u64, block: Block, freed: bool);
    /// The block of a failed `realloc` is live again.
    fn restored(&mut self, address: u64, block: Block, peak: bool);
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

/// The live set and its totals, brought up to date one event at a time.
#[derive(Debug, Default)]
pub struct LiveTotals {
    blocks: AddressMap<Block>,
    /// What threads' reallocs took out of the live set, by thread and address; `None` for a block that is
    /// older than the recording.
    held: HashMap<(u32, u64), Option<Block>, FoldHash>,
    totals: Totals,
    time_ns: u64,
}

impl LiveTotals {
    /// An empty live set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The totals after the events so far.
    pub fn totals(&self) -> Totals {
        Totals { duration_ns: self.time_ns, live_allocations: self.blocks.len() as u64, ..self.totals }
    }

    /// The live blocks by address, in no order.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, Block)> {
        self.blocks.iter().map(|(&address, &block)| (address, block))
    }

    /// How many blocks are live.
    pub fn live_allocations(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Takes in many events at once, the faster for it: where each block lies in memory is looked up for all of them
    /// before the first is used, so that the processor waits for many lines at the same time.
    pub fn apply_all(&mut self, events: &[Event]) {
        for events in events.chunks(64) {
            let mut known = 0usize;
            for event in events {
                if let Event::Alloc { address, .. }
                | Event::Free { address, .. }
                | Event::ReallocBegin { address, .. }
                | Event::ReallocEnd { address, .. } = event
                {
                    known += usize::from(self.blocks.contains_key(address));
                }
            }
            std::hint::black_box(known);
            for event in events {
                self.apply(event);
            }
        }
    }

    /// Takes in the next event.
    pub fn apply(&mut self, event: &Event) {
        self.apply_watched(event, &mut ());
    }

    /// Takes in the next event and tells `watcher` what it changed.
    #[inline]
    pub fn apply_watched(&mut self, event: &Event, watcher: &mut impl Watcher) {
        match *event {
            Event::Alloc { thread, stack, address, size, .. } => {
                self.totals.allocations += 1;
                self.add(address, Block { size, stack, thread }, watcher);
            }
            Event::Free { address, .. } => {
                self.totals.frees += 1;
                self.remove(address, true, watcher);
            }
            Event::ReallocBegin { thread, address } => {
                let block = self.remove(address, false, watcher);
                if self.held.len() >= MAX_HELD || self.held.insert((thread, address), block).is_some() {
                    self.totals.inconsistent_events += 1;
                }
            }
            Event::ReallocEnd { thread, stack, address, size, old } => {
                self.totals.reallocations += 1;
                // Without its beginning, `old` may still look live. With it, a block at `old` is another
                // thread's, which got the address since.
                if self.held.remove(&(thread, old)).is_none() {
                    self.totals.inconsistent_events += 1;
                    self.remove(old, false, watcher);
                }
                self.add(address, Block { size, stack, thread }, watcher);
            }
            Event::ReallocFailed { thread, address } => match self.held.remove(&(thread, address)) {
                Some(Some(block)) => self.restore(address, block, watcher),
                Some(None) => {}
                None => self.totals.inconsistent_events += 1,
            },
            Event::Time(time) => self.time_ns = time,
            Event::Lost(count) => self.totals.lost_events = self.totals.lost_events.saturating_add(count),
            _ => {}
        }
    }

    fn add(&mut self, address: u64, block: Block, watcher: &mut impl Watcher) {
        self.totals.allocated_bytes = self.totals.allocated_bytes.saturating_add(block.size);
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
    fn insert(&mut self, address: u64, block: Block, watcher: &mut impl Watcher) -> bool {
        if let Some(old) = self.blocks.insert(address, block) {
            self.totals.inconsistent_events += 1;
            self.totals.live_bytes = self.totals.live_bytes.wrapping_sub(old.size);
            watcher.removed(address, old, false);
        }
        self.totals.live_bytes = self.totals.live_bytes.wrapping_add(block.size);
        let peak = self.totals.live_bytes > self.totals.peak_bytes;
        if peak {
            self.totals.peak_bytes = self.totals.live_bytes;
            self.totals.peak_time_ns = self.time_ns;
        }
        peak
    }

    fn remove(&mut self, address: u64, freed: bool, watcher: &mut impl Watcher) -> Option<Block> {
        let block = self.blocks.remove(&address)?;
        self.totals.live_bytes = self.totals.live_bytes.wrapping_sub(block.size);
        watcher.removed(address, block, freed);
        Some(block)
    }
}
