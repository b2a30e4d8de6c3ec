//! The figures of each site. A site is a distinct stack that allocated: stacks are the same if their frames lie
//! at the same offsets of the same files.

use crate::hash::FoldHash;
use crate::live::{Block, Watcher};
use crate::merge::{is_each_its_own, merge_sites};
use crate::peak::{PeakClock, PeakShare};
use crate::weight::{Doubt, Errors, Small, Variance, whole};
use grapnel_trace::Source;
use std::collections::HashMap;

/// What one stack allocated, and what became of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Site {
    /// The stack's node; 0 where no frame is known.
    pub stack: u32,
    /// Blocks that it gave out, by allocations and by reallocations.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// Of these blocks, those live at the end.
    pub live_allocations: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Bytes that the site held at the moment of the process's peak.
    pub peak_bytes: u64,
    /// Blocks freed before the thread that allocated them allocated again.
    pub temporary_allocations: u64,
    /// Which functions gave the blocks.
    pub sources: Sources,
    /// Standard errors, where the figures are estimates.
    pub errors: Errors,
}

/// A set of families of functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sources(u8);

const _: () = assert!(Source::ALL.len() <= 8);

impl Sources {
    /// The same with another one.
    #[inline]
    #[must_use]
    pub fn with(self, source: Source) -> Self {
        Self(self.0 | 1 << source as u8)
    }

    /// Those that are in it.
    pub fn iter(self) -> impl Iterator<Item = Source> {
        Source::ALL.into_iter().filter(move |&source| self.0 & 1 << source as u8 != 0)
    }
}

impl Site {
    /// By allocated bytes, most first; those with equal bytes by their allocations, then in the order of their stacks.
    pub(crate) fn sort(sites: &mut [Self]) {
        sites.sort_unstable_by(|a, b| {
            let key = |site: &Self| (site.allocated_bytes, site.allocations);
            key(b).cmp(&key(a)).then(a.stack.cmp(&b.stack))
        });
    }

    /// Adds the figures of another part of the same site, but for its errors: see [`Sites::merged`].
    pub(crate) fn add(&mut self, part: &Self) {
        self.allocations += part.allocations;
        self.allocated_bytes = self.allocated_bytes.saturating_add(part.allocated_bytes);
        self.live_allocations += part.live_allocations;
        self.live_bytes = self.live_bytes.wrapping_add(part.live_bytes);
        self.peak_bytes = self.peak_bytes.wrapping_add(part.peak_bytes);
        self.temporary_allocations += part.temporary_allocations;
        self.sources.0 |= part.sources.0;
    }
}

/// A site being built: one cache line, since each event touches another.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct State {
    allocations: u64,
    allocated_bytes: u64,
    live_allocations: u64,
    live_bytes: u64,
    temporary_allocations: u64,
    peak: PeakShare,
    stack: u32,
    sources: Sources,
}

const _: () = assert!(size_of::<State>() == 64);

/// What is kept of a site besides, of a sample.
#[derive(Clone, Copy, Debug, Default)]
struct Spread {
    allocated: Variance,
    live: Variance,
    /// The variance of the bytes at the peak, by its bits.
    peak: PeakShare,
    small: Small,
}

impl Spread {
    fn doubt(&self, clock: PeakClock) -> Doubt {
        let Self { allocated, live, ref peak, small } = *self;
        let peak_bytes = f64::from_bits(clock.share(peak, live.bytes.to_bits()));
        Doubt { allocated, live, peak_bytes, small }
    }
}

const NO_SITE: u32 = u32::MAX;

/// Builds the sites from the changes of the live set.
#[derive(Debug, Default)]
pub struct Sites {
    states: Vec<State>,
    /// Which state a stack's node has.
    of_stack: Vec<u32>,
    /// The address of the last block that a thread got. A block is its thread's last one exactly when it
    /// lies there: had the thread got another since, this would name that one.
    last_of_thread: Vec<u64>,
    clock: PeakClock,
    temporary: u64,
    /// By the states' numbers, as far as anything is known: nothing where all blocks are recorded.
    spreads: Vec<Spread>,
    functions: [u64; Source::ALL.len()],
}

impl Sites {
    /// No sites yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Temporary allocations of all sites.
    pub fn temporary_allocations(&self) -> u64 {
        self.temporary
    }

    /// The number of a stack's site: its place in what [`Sites::finish`] gives.
    #[inline]
    pub(crate) fn number_of(&self, stack: u32) -> Option<u32> {
        self.of_stack.get(stack as usize).copied().filter(|&index| index != NO_SITE)
    }

    /// The stack of each site.
    pub(crate) fn stacks(&self) -> impl Iterator<Item = u32> {
        self.states.iter().map(|state| state.stack)
    }

    /// Blocks that each family of functions gave out, at the source's number.
    pub fn functions(&self) -> [u64; Source::ALL.len()] {
        if self.spreads.is_empty() { self.functions } else { self.functions.map(whole) }
    }

    /// The finished sites, in the order of their first allocation.
    pub fn finish(&self) -> Vec<Site> {
        let (clock, spreads) = (self.clock, &self.spreads);
        let is_sample = !spreads.is_empty();
        let figure = |value: u64| if is_sample { whole(value) } else { value };
        let finish = |(index, state): (usize, &State)| Site {
            stack: state.stack,
            allocations: figure(state.allocations),
            allocated_bytes: figure(state.allocated_bytes),
            live_allocations: figure(state.live_allocations),
            live_bytes: figure(state.live_bytes),
            peak_bytes: figure(clock.share(&state.peak, state.live_bytes)),
            temporary_allocations: state.temporary_allocations,
            sources: state.sources,
            errors: spreads.get(index).map_or(Errors::default(), |spread| spread.doubt(clock).of_site()),
        };
        self.states.iter().enumerate().map(finish).collect()
    }

    /// The finished sites, those with equal stacks as one under the first, by [`Site::sort`]. Errors of such
    /// a one are made from all of its parts: its least error is that of one site, however many parts it has.
    pub(crate) fn merged(&self, canonical: &[u32]) -> Vec<Site> {
        let mut sites = merge_sites(self.finish(), canonical);
        if !self.spreads.is_empty() && !is_each_its_own(canonical) {
            let mut doubts: HashMap<u32, Doubt, FoldHash> = HashMap::default();
            for (state, spread) in self.states.iter().zip(&self.spreads) {
                let doubt = doubts.entry(canonical[state.stack as usize]).or_default();
                doubt.add(&spread.doubt(self.clock));
            }
            for site in &mut sites {
                site.errors = doubts.get(&site.stack).map_or(Errors::default(), Doubt::of_site);
            }
        }
        Site::sort(&mut sites);
        sites
    }

    #[inline]
    fn state(&mut self, stack: u32) -> &mut State {
        let at = stack as usize;
        if at >= self.of_stack.len() {
            self.of_stack.resize(at + 1, NO_SITE);
        }
        let mut index = self.of_stack[at];
        if index == NO_SITE {
            index = self.states.len() as u32;
            self.of_stack[at] = index;
            self.states.push(State { stack, ..State::default() });
        }
        &mut self.states[index as usize]
    }

    /// What is kept besides of a stack that has a state.
    #[cold]
    fn spread(&mut self, stack: u32) -> &mut Spread {
        let index = self.of_stack[stack as usize] as usize;
        if self.spreads.len() <= index {
            self.spreads.resize(index + 1, Spread::default());
        }
        &mut self.spreads[index]
    }

    #[inline]
    fn hold(&mut self, block: Block, peak: bool, allocated: bool) {
        let (clock, weight) = (self.clock, block.weight());
        let site = self.state(block.stack);
        clock.before_change(&mut site.peak, site.live_bytes);
        site.live_bytes = site.live_bytes.wrapping_add(weight.bytes);
        site.live_allocations = site.live_allocations.wrapping_add(weight.count);
        if allocated {
            site.allocations = site.allocations.saturating_add(weight.count);
            site.allocated_bytes = site.allocated_bytes.saturating_add(weight.bytes);
            site.sources = site.sources.with(block.source);
        }
        if block.mean != 0 {
            let spread = self.spread(block.stack);
            let variance = block.variance();
            clock.before_change(&mut spread.peak, spread.live.bytes.to_bits());
            spread.live.add(variance);
            if allocated {
                spread.allocated.add(variance);
                spread.small.see(&block);
            }
        }
        if peak {
            self.clock.new_peak();
        }
    }
}

impl Watcher for Sites {
    #[inline]
    fn added(&mut self, address: u64, block: Block, peak: bool) {
        if block.source == Source::Before {
            return self.hold(block, peak, false);
        }
        self.hold(block, peak, true);
        let given = &mut self.functions[block.source as usize];
        *given = given.saturating_add(block.weight().count);
        let thread = block.thread as usize;
        if thread >= self.last_of_thread.len() {
            self.last_of_thread.resize(thread + 1, 0);
        }
        self.last_of_thread[thread] = address;
    }

    #[inline]
    fn removed(&mut self, address: u64, block: Block, freed: bool) {
        let temporary =
            freed && block.mean == 0 && self.last_of_thread.get(block.thread as usize) == Some(&address);
        self.temporary += u64::from(temporary);
        let (clock, weight) = (self.clock, block.weight());
        let site = self.state(block.stack);
        clock.before_change(&mut site.peak, site.live_bytes);
        site.live_bytes = site.live_bytes.wrapping_sub(weight.bytes);
        site.live_allocations = site.live_allocations.wrapping_sub(weight.count);
        site.temporary_allocations += u64::from(temporary);
        if block.mean != 0 {
            let spread = self.spread(block.stack);
            clock.before_change(&mut spread.peak, spread.live.bytes.to_bits());
            spread.live.take(block.variance());
        }
    }

    #[inline]
    fn restored(&mut self, _address: u64, block: Block, peak: bool) {
        self.hold(block, peak, false);
    }

    #[inline]
    fn peek(&self, stack: u32) -> u64 {
        let index = self.of_stack.get(stack as usize).copied().unwrap_or(NO_SITE);
        self.states.get(index as usize).map_or(0, |state| state.live_bytes)
    }

    #[inline]
    fn cares(&self) -> bool {
        // Fewer are near by themselves.
        self.states.len() > 2048
    }
}
