//! What the second pass over a trace adds up for a question.

use super::classes::{NEVER, OTHERS, of_lifetime, of_size};
use super::{By, Figures, Query};
use crate::analyse::Tally;
use crate::hash::{AddressMap, FoldHash};
use crate::live::{Block, Watcher};
use crate::peak::{PeakClock, PeakShare};
use crate::sites::Sites;
use crate::suppressions::Pattern;
use grapnel_trace::Source;
use std::collections::HashMap;

/// More groups of stacks than this have no parts of their own any more.
const MOST: usize = 1 << 21;
/// Slices of time, of all stacks together.
const MOST_SLICES: usize = 1 << 19;
/// Threads that have a name.
const MOST_THREADS: usize = 1 << 16;

const NS_PER_MS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    figures: Figures,
    held: u64,
    peak: PeakShare,
}

/// A block of which it is to be known how long it lives.
#[derive(Clone, Copy, Debug)]
struct Born {
    ns: u64,
    size: u64,
    stack: u32,
    /// It is older than the recording: nobody knows how long it had lived when that began.
    before: bool,
}

/// What was collected: figures by stack and class, what classes are, and what there was before.
pub(super) struct Collected {
    pub(super) cells: Vec<((u32, u32), Figures)>,
    pub(super) threads: HashMap<u32, String, FoldHash>,
    /// Milliseconds of a slice of time.
    pub(super) slice: u64,
    /// Bytes that each stack held when the window began.
    pub(super) before: HashMap<u32, u64, FoldHash>,
}

pub(super) struct Collector<'q> {
    /// What every analysis has.
    sites: Sites,
    query: &'q Query,
    /// By stack and by class.
    cells: HashMap<(u32, u32), Cell, FoldHash>,
    /// The live blocks of the window, where lifetimes are asked for.
    born: AddressMap<Born>,
    /// See [`crate::sites::Sites`].
    last_of_thread: Vec<u64>,
    threads: HashMap<u32, String, FoldHash>,
    chosen: HashMap<u32, bool, FoldHash>,
    before: HashMap<u32, u64, FoldHash>,
    clock: PeakClock,
    now: u64,
    /// The logarithm of a slice's length in milliseconds.
    shift: u32,
}

impl<'q> Collector<'q> {
    pub(super) fn new(query: &'q Query) -> Self {
        Self {
            sites: Sites::new(),
            query,
            cells: HashMap::default(),
            born: AddressMap::default(),
            last_of_thread: Vec::new(),
            threads: HashMap::default(),
            chosen: HashMap::default(),
            before: HashMap::default(),
            clock: PeakClock::default(),
            now: 0,
            shift: 0,
        }
    }

    fn counts(&self, block: &Block) -> bool {
        let thread_is_known = block.source != Source::Before;
        self.query.sizes.contains(&block.size)
            && (self.query.threads.is_empty()
                || thread_is_known && self.chosen.get(&block.thread).copied().unwrap_or(false))
    }

    fn is_in_window(&self) -> bool {
        self.query.window.contains(&self.now)
    }

    /// The class of a block, but for lifetimes.
    fn class(&self, block: &Block) -> u32 {
        match self.query.by {
            // Who allocated it isn't known.
            By::Thread if block.source == Source::Before => OTHERS - 1,
            By::Thread => block.thread,
            By::Size => of_size(block.size),
            By::Source => block.source as u32,
            By::Time => u32::try_from(self.now / NS_PER_MS).unwrap_or(OTHERS - 1) >> self.shift,
            _ => 0,
        }
    }

    fn cell(&mut self, stack: u32, class: u32) -> &mut Cell {
        let mut key = (stack, class);
        let is_full = self.cells.len() >= MOST_SLICES && self.shift < u32::BITS - 1;
        if self.query.by == By::Time && is_full && !self.cells.contains_key(&key) {
            self.widen();
            key.1 = class >> 1;
        } else if self.cells.len() >= MOST && !self.cells.contains_key(&key) {
            key.1 = OTHERS;
        }
        self.cells.entry(key).or_default()
    }

    /// Makes slices of time twice as wide.
    fn widen(&mut self) {
        self.shift += 1;
        for ((stack, class), cell) in std::mem::take(&mut self.cells) {
            self.cells.entry((stack, class >> 1)).or_default().figures.add(&cell.figures);
        }
    }

    /// Takes in a block that becomes live or is so no longer.
    fn change(&mut self, block: &Block, comes: bool) {
        let counts = self.counts(block);
        if counts && self.query.by != By::Lifetime {
            let (class, in_window, clock) = (self.class(block), self.is_in_window(), self.clock);
            // A time's share of the peak has no meaning.
            let has_peak = self.query.by != By::Time;
            if !in_window && !has_peak {
                return self.change_before(block, comes);
            }
            let cell = self.cell(block.stack, class);
            if has_peak {
                clock.before_change(&mut cell.peak, cell.held);
            }
            let sign = if comes { 1 } else { -1 };
            let bytes = block.size.cast_signed().wrapping_mul(sign);
            cell.held = cell.held.wrapping_add(bytes.cast_unsigned());
            if in_window {
                cell.figures.grown_blocks += sign;
                cell.figures.grown_bytes = cell.figures.grown_bytes.wrapping_add(bytes);
            }
        }
        self.change_before(block, comes);
    }

    fn change_before(&mut self, block: &Block, comes: bool) {
        if self.now < *self.query.window.start() && self.counts(block) {
            let held = self.before.entry(block.stack).or_default();
            *held = if comes { held.wrapping_add(block.size) } else { held.wrapping_sub(block.size) };
        }
    }

    /// Adds to the figures of a block's group.
    fn tell(&mut self, block: &Block, change: impl FnOnce(&mut Figures)) {
        if self.query.by != By::Lifetime && self.is_in_window() && self.counts(block) {
            let class = self.class(block);
            change(&mut self.cell(block.stack, class).figures);
        }
    }

    /// From here on it is watched how long the block lives, if that is asked for.
    fn is_born(&mut self, address: u64, block: &Block) {
        if self.query.by == By::Lifetime && self.is_in_window() && self.counts(block) {
            let before = block.source == Source::Before;
            self.born.insert(address, Born { ns: self.now, size: block.size, stack: block.stack, before });
        }
    }

    /// Adds a block whose life is known, in the group of that.
    fn lived(&mut self, Born { size, stack, before, .. }: Born, class: u32, temporary: bool) {
        // Of an older one that went, nothing is known that belongs to a group.
        if before && class != NEVER {
            return;
        }
        let figures = &mut self.cell(stack, class).figures;
        if !before {
            figures.allocations += 1;
            figures.allocated_bytes = figures.allocated_bytes.saturating_add(size);
        }
        if class == NEVER {
            figures.grown_blocks += 1;
            figures.grown_bytes = figures.grown_bytes.wrapping_add(size.cast_signed());
        } else {
            figures.releases += 1;
            figures.temporary_allocations += u64::from(temporary);
        }
    }

    pub(super) fn finish(mut self) -> Collected {
        for (_, born) in std::mem::take(&mut self.born) {
            self.lived(born, NEVER, false);
        }
        let clock = self.clock;
        let finish = |(key, cell): ((u32, u32), Cell)| {
            (key, Figures { peak_bytes: clock.share(&cell.peak, cell.held), ..cell.figures })
        };
        let has_peak = !matches!(self.query.by, By::Time | By::Lifetime);
        let cells = self.cells.into_iter().map(finish).map(|(key, figures)| {
            (key, if has_peak { figures } else { Figures { peak_bytes: 0, ..figures } })
        });
        Collected {
            cells: cells.collect(),
            threads: self.threads,
            slice: 1 << self.shift,
            before: self.before,
        }
    }
}

impl Watcher for Collector<'_> {
    fn added(&mut self, address: u64, block: Block, peak: bool) {
        self.sites.added(address, block, peak);
        self.change(&block, true);
        self.is_born(address, &block);
        if block.source == Source::Before {
            if peak {
                self.clock.new_peak();
            }
            return;
        }
        self.tell(&block, |figures| {
            figures.allocations += 1;
            figures.allocated_bytes = figures.allocated_bytes.saturating_add(block.size);
        });
        let thread = block.thread as usize;
        if thread >= self.last_of_thread.len() {
            self.last_of_thread.resize(thread + 1, 0);
        }
        self.last_of_thread[thread] = address;
        if peak {
            self.clock.new_peak();
        }
    }

    fn removed(&mut self, address: u64, block: Block, freed: bool) {
        self.sites.removed(address, block, freed);
        let temporary = freed && self.last_of_thread.get(block.thread as usize) == Some(&address);
        self.change(&block, false);
        self.tell(&block, |figures| {
            figures.releases += 1;
            figures.temporary_allocations += u64::from(temporary);
        });
        if let Some(born) = self.born.remove(&address) {
            let class = if self.now > *self.query.window.end() {
                NEVER
            } else {
                of_lifetime(self.now.saturating_sub(born.ns))
            };
            self.lived(born, class, temporary);
        }
    }

    /// As if it had never gone, but that its life begins anew.
    fn restored(&mut self, address: u64, block: Block, peak: bool) {
        self.sites.restored(address, block, peak);
        self.change(&block, true);
        self.tell(&block, |figures| figures.releases = figures.releases.saturating_sub(1));
        self.is_born(address, &block);
        if peak {
            self.clock.new_peak();
        }
    }

    fn reallocated(&mut self, from: u64, old: Block, to: u64, new: Block) {
        self.tell(&new, |figures| {
            figures.reallocations += 1;
            if from != to {
                figures.copied_bytes = figures.copied_bytes.saturating_add(old.size.min(new.size));
            }
        });
    }
}

impl Tally for Collector<'_> {
    fn sites(&self) -> &Sites {
        &self.sites
    }

    fn begin_anew(&mut self) {
        self.sites = Sites::new();
    }

    fn moment(&mut self, ns: u64) {
        self.now = ns;
    }

    fn thread(&mut self, index: u32, tid: u32, name: &[u8]) {
        let name = format!("{} ({tid})", String::from_utf8_lossy(name));
        let id = tid.to_string();
        let plain = &name[..name.len() - id.len() - 3];
        let is_chosen = |pattern: &Pattern| pattern.matches(plain) || pattern.text() == id;
        if !self.query.threads.is_empty() && self.chosen.len() < MOST_THREADS {
            self.chosen.insert(index, self.query.threads.iter().any(is_chosen));
        }
        if self.query.by == By::Thread && self.threads.len() < MOST_THREADS {
            self.threads.insert(index, name);
        }
    }
}
