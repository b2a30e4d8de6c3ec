//! In which order blocks are told of, so that heaptrack counts the temporary ones that a report counts.
//!
//! heaptrack knows of no threads. It takes a block for a temporary one where the line that gives it back comes right behind
//! the line that gave it out, and tells blocks apart by size and stack only. In a report a block is temporary that a `free`
//! gave back before its thread got another one, whatever other threads did in between, and whatever else was freed. So:
//!
//! - The last block of each thread waits until it is known what becomes of it. One that turns out to be temporary is told of
//!   with both lines together. The next block of its thread, or its end, shows that it is none.
//! - Where the lines of a block that isn't temporary would come together, one of [`Told::apart`] comes between.
//! - A block that a `realloc` takes goes with the next line that gives one out: one that the `realloc` gives back since it
//!   failed was never gone, and isn't counted again.
//!
//! What waits is missing from what heaptrack takes for live. So nothing waits at the moment of the peak, whose figure and
//! make-up are those of the report, nor at the end; and at a line with a time no more than a [`PART`] of the peak does. Of
//! blocks that were told of for these reasons the last still counts, if it is freed before any other is given out: those that
//! are freed in between wait in their turn.

use crate::hash::FoldHash;
use crate::live::{Block, Watcher};
use grapnel_trace::Source;
use std::collections::{BTreeMap, HashMap};

/// A hundredth of the peak may wait while time passes.
const PART: u64 = 100;
/// So many may be gone without being told of.
const LEAVING: usize = 64;

/// Takes down what happened, in the order in which heaptrack is told.
pub(super) trait Told {
    /// What blocks have in common that heaptrack can't tell apart.
    fn kind(&mut self, block: &Block) -> u32;
    /// One more of a kind.
    fn came(&mut self, kind: u32);
    /// One less.
    fn went(&mut self, kind: u32);
    /// Something that changes no figure.
    fn apart(&mut self);
}

/// A block that went.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    address: u64,
    block: Block,
    /// Whether it was told of when it came.
    told: bool,
}

/// A [`Watcher`] that puts into order what it is told, and tells it on.
#[derive(Debug)]
pub(super) struct Order<T> {
    pub(super) told: T,
    /// The address of each thread's last block.
    last: HashMap<u32, u64, FoldHash>,
    /// Those of them that were not told of yet, by thread, and their bytes.
    waiting: BTreeMap<u32, Block>,
    waiting_bytes: u64,
    /// What went since the last block came, and was not told of.
    leaving: Vec<Leaving>,
    leaving_bytes: u64,
    /// Of the last line, if it gave a block out.
    came: Option<u32>,
    /// The thread and the address of the last line's block, while it is its thread's last and may turn out to be temporary.
    open: Option<(u32, u64)>,
    live: u64,
    peak: u64,
}

impl<T: Told> Order<T> {
    /// For a recording with this peak.
    pub(super) fn new(told: T, peak: u64) -> Self {
        Self {
            told,
            last: HashMap::default(),
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            leaving: Vec::new(),
            leaving_bytes: 0,
            came: None,
            open: None,
            live: 0,
            peak,
        }
    }

    /// Tells of what must not wait for longer, as a time follows.
    pub(super) fn before_time(&mut self) {
        if self.waiting_bytes.max(self.leaving_bytes) > self.peak / PART {
            self.finish();
        }
    }

    /// Tells of all that waits.
    pub(super) fn finish(&mut self) {
        self.tell_leaving();
        self.tell_waiting(None);
    }

    fn tell_leaving(&mut self) {
        self.leaving_bytes = 0;
        for Leaving { block, told, .. } in std::mem::take(&mut self.leaving) {
            if !told {
                self.comes_now(&block);
            }
            self.goes(&block, false);
        }
    }

    /// Tells of the blocks that wait, of one thread after all others.
    fn tell_waiting(&mut self, after: Option<u32>) {
        let own = after.and_then(|thread| Some((thread, self.waiting.remove(&thread)?)));
        let others = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        for (thread, block) in others.into_iter().chain(own) {
            self.comes(&block);
            self.open = self.last.get(&thread).map(|&address| (thread, address));
        }
    }

    fn waits(&mut self, block: Block) {
        self.waiting.insert(block.thread, block);
        self.waiting_bytes = self.waiting_bytes.wrapping_add(block.size);
    }

    /// The block of a thread that waits no longer.
    fn no_longer_waiting(&mut self, thread: u32) -> Option<Block> {
        let block = self.waiting.remove(&thread)?;
        self.waiting_bytes = self.waiting_bytes.wrapping_sub(block.size);
        Some(block)
    }

    fn comes(&mut self, block: &Block) {
        self.tell_leaving();
        self.comes_now(block);
    }

    fn comes_now(&mut self, block: &Block) {
        let kind = self.told.kind(block);
        self.told.came(kind);
        (self.came, self.open) = (Some(kind), None);
    }

    fn goes(&mut self, block: &Block, temporary: bool) {
        let kind = self.told.kind(block);
        if !temporary && self.came == Some(kind) {
            self.told.apart();
        }
        self.told.went(kind);
        (self.came, self.open) = (None, None);
    }

    fn leaves(&mut self, leaving: Leaving) {
        if self.leaving.len() == LEAVING {
            self.tell_leaving();
        }
        self.leaving_bytes = self.leaving_bytes.wrapping_add(leaving.block.size);
        self.leaving.push(leaving);
    }

    /// Takes note of live bytes, and has nothing wait where they are those of the peak.
    fn holds(&mut self, block: &Block, is_peak: bool) {
        self.live = self.live.wrapping_add(block.size);
        if is_peak && self.live == self.peak {
            self.tell_waiting(Some(block.thread));
        }
    }
}

impl<T: Told> Watcher for Order<T> {
    fn added(&mut self, address: u64, block: Block, peak: bool) {
        if block.source == Source::Before {
            self.comes(&block);
        } else {
            self.last.insert(block.thread, address);
            if let Some(before) = self.no_longer_waiting(block.thread) {
                self.comes(&before);
            }
            self.open = self.open.filter(|&(thread, _)| thread != block.thread);
            self.waits(block);
        }
        self.holds(&block, peak);
    }

    fn removed(&mut self, address: u64, block: Block, freed: bool) {
        self.live = self.live.wrapping_sub(block.size);
        let is_last = self.last.get(&block.thread) == Some(&address);
        let waited = is_last && self.no_longer_waiting(block.thread).is_some();
        if freed && waited {
            self.comes(&block);
            self.goes(&block, true);
        } else if freed && (self.open.is_none() || self.open == Some((block.thread, address))) {
            self.goes(&block, is_last);
        } else {
            self.leaves(Leaving { address, block, told: !waited });
        }
    }

    /// The block of a `realloc` that failed.
    fn restored(&mut self, address: u64, block: Block, peak: bool) {
        let is_it = |leaving: &Leaving| (leaving.address, leaving.block) == (address, block);
        match self.leaving.iter().rposition(is_it).map(|at| self.leaving.remove(at)) {
            Some(Leaving { told, .. }) => {
                self.leaving_bytes = self.leaving_bytes.wrapping_sub(block.size);
                if !told && self.last.get(&block.thread) == Some(&address) {
                    self.waits(block);
                } else if !told {
                    self.comes(&block);
                }
            }
            // Others came since: there is no line for a block that is live again.
            None => self.comes(&block),
        }
        self.holds(&block, peak);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::LiveBlocks;
    use crate::sites::Sites;
    use grapnel_trace::Event;

    /// What heaptrack makes of the lines.
    #[derive(Default)]
    struct Heaptrack {
        kinds: Vec<(u64, u32)>,
        /// Allocations, temporary ones and live bytes, by stack.
        stacks: HashMap<u32, (u64, u64, u64)>,
        last: Option<u32>,
        live: u64,
        peak: u64,
    }

    impl Told for Heaptrack {
        fn kind(&mut self, block: &Block) -> u32 {
            let kind = (block.size, block.stack);
            let at = self.kinds.iter().position(|&known| known == kind).unwrap_or_else(|| {
                self.kinds.push(kind);
                self.kinds.len() - 1
            });
            at as u32
        }

        fn came(&mut self, kind: u32) {
            let (size, stack) = self.kinds[kind as usize];
            let (allocations, _, live) = self.stacks.entry(stack).or_default();
            (*allocations, *live) = (*allocations + 1, *live + size);
            self.live += size;
            self.peak = self.peak.max(self.live);
            self.last = Some(kind);
        }

        fn went(&mut self, kind: u32) {
            let (size, stack) = self.kinds[kind as usize];
            let (_, temporary, live) = self.stacks.entry(stack).or_default();
            *temporary += u64::from(self.last.take() == Some(kind));
            *live -= size;
            self.live -= size;
        }

        fn apart(&mut self) {
            self.last = None;
        }
    }

    /// Both watch the same.
    struct Both<'w>(&'w mut Sites, &'w mut Order<Heaptrack>);

    impl Watcher for Both<'_> {
        fn added(&mut self, address: u64, block: Block, peak: bool) {
            self.0.added(address, block, peak);
            self.1.added(address, block, peak);
        }

        fn removed(&mut self, address: u64, block: Block, freed: bool) {
            self.0.removed(address, block, freed);
            self.1.removed(address, block, freed);
        }

        fn restored(&mut self, address: u64, block: Block, peak: bool) {
            self.0.restored(address, block, peak);
            self.1.restored(address, block, peak);
        }
    }

    fn told_of(events: &[Event], timed: bool) -> (Sites, LiveBlocks, Heaptrack) {
        let mut ahead = LiveBlocks::new();
        events.iter().for_each(|event| ahead.apply(event));
        let (mut live, mut sites) = (LiveBlocks::new(), Sites::new());
        let mut order = Order::new(Heaptrack::default(), ahead.totals().peak_bytes);
        for event in events {
            live.apply_watched(event, &mut Both(&mut sites, &mut order));
            if timed {
                order.before_time();
            }
        }
        order.finish();
        (sites, live, order.told)
    }

    /// Threads that allocate, free and reallocate in turns, some in vain, with few sizes and stacks.
    fn happened(seed: u64, threads: u64) -> Vec<Event> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = move |most: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % most
        };
        let (mut events, mut live) = (Vec::new(), Vec::<u64>::new());
        for number in 1..4000 {
            let (thread, stack) = (below(threads) as u32, 1 + below(3) as u32);
            let (address, size) = (number * 64, 16 << below(3));
            let newest = live.len().saturating_sub(1 + below(3) as usize);
            match below(5) {
                0 | 1 => {
                    events.push(Event::Alloc { thread, stack, address, size, source: Source::Malloc });
                    live.push(address);
                }
                _ if live.is_empty() => {}
                2 | 3 => events.push(Event::Free { thread, address: live.remove(newest) }),
                _ => {
                    let old = live.remove(newest);
                    events.push(Event::ReallocBegin { thread, address: old });
                    if below(4) == 0 {
                        events.push(Event::ReallocFailed { thread, address: old });
                        live.push(old);
                    } else {
                        events.push(Event::ReallocEnd { thread, stack, address, size, old });
                        live.push(address);
                    }
                }
            }
        }
        events
    }

    #[test]
    fn heaptrack_counts_what_a_report_counts() {
        for seed in 1..60 {
            for threads in [1, 2, 7] {
                let (sites, live, told) = told_of(&happened(seed, threads), false);
                let totals = live.totals();
                assert_eq!((told.peak, told.live), (totals.peak_bytes, totals.live_bytes));
                // Of what several threads hold at the peak.
                let most = if threads == 1 { 0 } else { threads };
                let mut missed = 0;
                for site in sites.finish() {
                    let (allocations, temporary, live) = told.stacks[&site.stack];
                    assert_eq!((allocations, live), (site.allocations, site.live_bytes), "{seed} {threads}");
                    assert!(temporary <= site.temporary_allocations, "{seed} {threads}");
                    missed += site.temporary_allocations - temporary;
                }
                assert!(sites.temporary_allocations() > 100, "{seed} {threads}");
                assert!(missed <= most, "{seed}: {missed} of {threads} threads");
            }
        }
    }

    #[test]
    fn nothing_large_waits_while_time_passes() {
        for seed in 1..20 {
            let events = happened(seed, 7);
            let (sites, live, told) = told_of(&events, true);
            let totals = live.totals();
            assert_eq!((told.peak, told.live), (totals.peak_bytes, totals.live_bytes));
            let temporary: u64 = told.stacks.values().map(|&(_, temporary, _)| temporary).sum();
            assert!(temporary <= sites.temporary_allocations());
        }
    }
}
