//! Cuts the changes of the live set into buckets, as they come.

use super::History;
use super::bucket::{Bucket, Cell};
use crate::analyse::Tally;
use crate::live::{Block, Watcher};
use crate::peak::{PeakClock, PeakShare};
use crate::sites::Sites;
use grapnel_trace::Source;

/// More buckets than these are put together.
const MAX_BUCKETS: usize = 512;
/// More cells than these too: some 30 MB, since most figures are small.
const MAX_CELLS: usize = 3 << 20;
/// However many cells there are, so many buckets stay.
const MIN_BUCKETS: usize = 16;
/// What the first buckets have room for.
const FIRST_CHANGES: u64 = 64;
const FIRST_NS: u64 = 1_000_000;
/// How far behind the clock an event may be at most.
const TICK_NS: u64 = 10_000_000;

/// Which changes are to be seen, by their numbers: from the first, up to the last, which isn't one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// How many changes come before.
    pub from: u64,
    /// How many changes there are up to its end.
    pub to: u64,
}

impl Window {
    /// The whole recording.
    pub const ALL: Self = Self { from: 0, to: u64::MAX };
}

/// A site in the bucket that is open.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    /// The bucket that the cell is of; of another than the open one, all begins anew.
    bucket: u64,
    cell: Cell,
    peak: PeakShare,
    live_bytes: u64,
    most_bytes: u64,
}

/// A tally of the sites that also keeps what each did over time.
#[derive(Debug)]
pub struct Recorder {
    sites: Sites,
    window: Window,
    prelude: Option<Bucket>,
    buckets: Vec<Bucket>,
    cells: usize,
    /// What a bucket has room for.
    room_changes: u64,
    room_ns: u64,
    open: Bucket,
    /// The open one's number, counted from 1 and never reused.
    number: u64,
    start_ns: u64,
    touched: Vec<u32>,
    states: Vec<Open>,
    clock: PeakClock,
    live_bytes: u64,
    changes: u64,
    time_ns: u64,
    /// How many changes there were when the clock was last read.
    changes_at_time: u64,
}

impl Recorder {
    /// Nothing yet.
    pub fn new(window: Window) -> Self {
        Self {
            sites: Sites::new(),
            window,
            prelude: None,
            buckets: Vec::new(),
            cells: 0,
            room_changes: FIRST_CHANGES,
            room_ns: FIRST_NS,
            open: Bucket::default(),
            number: 1,
            start_ns: 0,
            touched: Vec::new(),
            states: Vec::new(),
            clock: PeakClock::default(),
            live_bytes: 0,
            changes: 0,
            time_ns: 0,
            changes_at_time: 0,
        }
    }

    /// Whether a change is in the window now; those that come behind it are not looked at.
    #[inline]
    fn is_over(&self) -> bool {
        self.changes >= self.window.to
    }

    /// What came before the window is one bucket.
    #[inline]
    fn is_prelude(&self) -> bool {
        self.changes < self.window.from
    }

    pub(super) fn finish(mut self, duration_ns: u64) -> History {
        if !self.is_over() {
            let end_ns = self.time_ns.max(duration_ns);
            self.settle(end_ns);
            let quiet = end_ns - self.time_ns > 2 * TICK_NS && !self.is_prelude();
            if quiet && self.open.changes > 0 {
                // As in `moment`, however wide buckets are by now.
                self.close(self.time_ns + TICK_NS, true);
            }
            self.time_ns = end_ns;
        }
        self.settle(self.time_ns);
        if self.open.changes > 0 || self.time_ns > self.start_ns || self.buckets.is_empty() {
            self.close(self.time_ns, true);
        }
        let most_bytes = self.states.iter().map(|state| state.most_bytes).collect();
        let stacks = self.sites.stacks().collect();
        History {
            prelude: self.prelude,
            buckets: self.buckets,
            stacks,
            most_bytes,
            canonical: Vec::new(),
            in_units: false,
        }
    }

    /// The state of a block's site, which has just been told of the block.
    #[inline]
    fn state(&mut self, stack: u32) -> Option<&mut Open> {
        let site = self.sites.number_of(stack)?;
        let at = site as usize;
        if at >= self.states.len() {
            self.states.resize(at + 1, Open::default());
        }
        let state = &mut self.states[at];
        if state.bucket != self.number {
            state.bucket = self.number;
            state.cell = Cell { site, ..Cell::default() };
            self.touched.push(site);
        }
        // The value at the bucket's beginning belongs to the version that the bucket began with.
        self.clock.before_change(&mut state.peak, state.cell.grown);
        Some(state)
    }

    fn hold(&mut self, block: Block, allocated: bool) {
        if self.is_over() {
            return;
        }
        let weight = block.weight();
        if let Some(state) = self.state(block.stack) {
            state.cell.grown = state.cell.grown.wrapping_add(weight.bytes);
            state.live_bytes = state.live_bytes.wrapping_add(weight.bytes);
            state.most_bytes = state.most_bytes.max(state.live_bytes);
            if allocated {
                state.cell.allocations = state.cell.allocations.saturating_add(weight.count);
                state.cell.allocated_bytes = state.cell.allocated_bytes.saturating_add(weight.bytes);
            }
        }
        self.live_bytes = self.live_bytes.wrapping_add(weight.bytes);
        let open = &mut self.open;
        if self.live_bytes > open.peak_bytes {
            open.peak_bytes = self.live_bytes;
            self.clock.new_peak();
        }
        let class = open.sizes.of(block.size);
        class.grown_blocks = class.grown_blocks.wrapping_add(weight.count);
        class.grown_bytes = class.grown_bytes.wrapping_add(weight.bytes);
        if allocated {
            class.allocations = class.allocations.saturating_add(weight.count);
            class.allocated_bytes = class.allocated_bytes.saturating_add(weight.bytes);
            open.allocations = open.allocations.saturating_add(weight.count);
            open.allocated_bytes = open.allocated_bytes.saturating_add(weight.bytes);
        }
        self.changed();
    }

    fn give_up(&mut self, block: Block, temporary: bool) {
        if self.is_over() {
            return;
        }
        let weight = block.weight();
        if let Some(state) = self.state(block.stack) {
            state.cell.grown = state.cell.grown.wrapping_sub(weight.bytes);
            state.live_bytes = state.live_bytes.wrapping_sub(weight.bytes);
            state.cell.temporary = state.cell.temporary.saturating_add(u32::from(temporary));
        }
        self.live_bytes = self.live_bytes.wrapping_sub(weight.bytes);
        let class = self.open.sizes.of(block.size);
        class.grown_blocks = class.grown_blocks.wrapping_sub(weight.count);
        class.grown_bytes = class.grown_bytes.wrapping_sub(weight.bytes);
        self.open.temporary += u64::from(temporary);
        self.changed();
    }

    #[inline]
    fn changed(&mut self) {
        self.changes += 1;
        self.open.changes += 1;
        let is_full = self.open.changes >= self.room_changes && !self.is_prelude();
        if is_full || self.changes == self.window.from || self.changes == self.window.to {
            self.close(self.time_ns, false);
        }
    }

    /// Ends the open bucket here and begins the next.
    fn close(&mut self, end_ns: u64, is_exact: bool) {
        self.touched.sort_unstable();
        let clock = self.clock;
        let cells = self.touched.drain(..).map(|site| {
            let state = &self.states[site as usize];
            Cell { grown_at_peak: clock.share(&state.peak, state.cell.grown), ..state.cell }
        });
        let mut closed = core::mem::take(&mut self.open);
        closed.cells = cells.collect();
        closed.end_ns = end_ns.max(self.start_ns);
        closed.is_exact = is_exact;
        closed.end_change = self.changes;
        closed.live_bytes = self.live_bytes;
        self.start_ns = closed.end_ns;
        self.open.peak_bytes = self.live_bytes;
        self.number += 1;
        // What a site holds now is what it holds at the first moment of the next.
        self.clock.new_peak();
        if self.window.from > 0 && self.prelude.is_none() {
            self.prelude = Some(closed);
            // What counts is what a site held within the window.
            self.states.iter_mut().for_each(|state| state.most_bytes = state.live_bytes);
            return;
        }
        self.cells += closed.cells.len();
        self.buckets.push(closed);
        while self.buckets.len() > MAX_BUCKETS || self.cells > MAX_CELLS && self.buckets.len() > MIN_BUCKETS {
            self.widen();
        }
    }

    /// Buckets of twice the size from now on, and neighbours together where that size allows.
    fn widen(&mut self) {
        self.room_changes = self.room_changes.saturating_mul(2);
        self.room_ns = self.room_ns.saturating_mul(2);
        let mut start_ns = self.prelude.as_ref().map_or(0, |prelude| prelude.end_ns);
        let mut wide: Vec<Bucket> = Vec::with_capacity(self.buckets.len());
        for bucket in self.buckets.drain(..) {
            match wide.last_mut() {
                Some(last)
                    if last.changes + bucket.changes <= self.room_changes
                        && bucket.end_ns.saturating_sub(start_ns) <= self.room_ns =>
                {
                    last.append(&bucket);
                }
                last => {
                    start_ns = last.map_or(start_ns, |last| last.end_ns);
                    wide.push(bucket);
                }
            }
        }
        self.cells = wide.iter().map(|bucket| bucket.cells.len()).sum();
        self.buckets = wide;
    }

    /// Buckets that were closed since the clock was last read get times by the share of changes before them.
    fn settle(&mut self, now_ns: u64) {
        let from_ns = self.time_ns.min(now_ns);
        let span_ns = (now_ns - from_ns).min(TICK_NS) as f64;
        let changes = (self.changes - self.changes_at_time).max(1) as f64;
        let unsettled = self.buckets.iter_mut().rev().take_while(|bucket| !bucket.is_exact);
        for bucket in unsettled.chain(self.prelude.as_mut().filter(|prelude| !prelude.is_exact)) {
            let before = bucket.end_change.saturating_sub(self.changes_at_time) as f64;
            bucket.end_ns = from_ns + (span_ns * (before / changes).min(1.0)) as u64;
            bucket.is_exact = true;
        }
        self.start_ns = match (self.buckets.last(), &self.prelude) {
            (Some(last), _) | (None, Some(last)) => last.end_ns,
            (None, None) => 0,
        };
    }
}

impl Watcher for Recorder {
    #[inline]
    fn added(&mut self, address: u64, block: Block, peak: bool) {
        self.sites.added(address, block, peak);
        self.hold(block, block.source != Source::Before);
    }

    #[inline]
    fn removed(&mut self, address: u64, block: Block, freed: bool) {
        let before = self.sites.temporary_allocations();
        self.sites.removed(address, block, freed);
        self.give_up(block, self.sites.temporary_allocations() != before);
    }

    #[inline]
    fn restored(&mut self, address: u64, block: Block, peak: bool) {
        self.sites.restored(address, block, peak);
        self.hold(block, false);
    }

    #[inline]
    fn peek(&self, stack: u32) -> u64 {
        self.sites.peek(stack)
    }

    #[inline]
    fn cares(&self) -> bool {
        self.sites.cares()
    }
}

impl Tally for Recorder {
    fn sites(&self) -> &Sites {
        &self.sites
    }

    fn begin_anew(&mut self) {
        *self = Self::new(self.window);
    }

    fn moment(&mut self, ns: u64) {
        if ns <= self.time_ns {
            return;
        }
        self.settle(ns);
        if self.is_over() {
            return;
        }
        let quiet = ns - self.time_ns > 2 * TICK_NS && !self.is_prelude();
        if quiet && ns - self.start_ns >= self.room_ns && self.open.changes > 0 {
            // What was done was done when the clock was last read, not all through the wait.
            self.close(self.time_ns + TICK_NS, true);
        }
        self.time_ns = ns;
        self.changes_at_time = self.changes;
        if ns - self.start_ns >= self.room_ns && !self.is_prelude() {
            self.close(ns, true);
        }
    }
}
