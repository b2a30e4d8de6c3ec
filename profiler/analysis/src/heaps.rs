//! Heaps besides the program's own: pools that it reports itself, and other allocators. Each has totals and sites of its
//! own, by the definitions of [`crate::live`] and [`crate::sites`].
//!
//! Pools of the same name are told of together. When a pool ends or is emptied, the blocks that it still has are freed.
//! What these heaps give may lie in blocks of another heap, or in mappings: their figures must not be added up.
//!
//! Of a sample they are estimates, as the program's own heap's are ([`crate::weight`]). A block that was exchanged for one that isn't
//! recorded comes as freed amid its `realloc`.

mod figures;

use crate::analyse::Violation;
use crate::hash::FoldHash;
use crate::live::Totals;
use crate::sites::{Site, Sites};
use crate::weight::Sampling;
use figures::Figures;
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::heaps::MAX_NAME;
use grapnel_trace::{Heap, HeapKind, Source};
use std::collections::{HashMap, HashSet};

/// Names that are told apart; the rest are one heap.
const MOST_NAMES: usize = 1024;
/// The name of that one.
const OTHERS: &[u8] = b"(others)";
/// More heaps than there are at a time.
const MOST_HEAPS: usize = 1 << 20;
/// Threads whose means are kept.
const MOST_THREADS: usize = 1 << 20;
/// More live blocks than we keep, of all these heaps together.
const MOST_LIVE: u64 = 1 << 26;

/// What is said of the heaps of one name.
#[derive(Debug)]
pub struct HeapAnalysis {
    /// Their name. Any bytes.
    pub name: Vec<u8>,
    /// What they are.
    pub kind: HeapKind,
    /// How many there were; a pool that was emptied is counted once more.
    pub heaps: u64,
    /// How many of them there were at the end.
    pub live_heaps: u64,
    /// Their figures, all together. A peak is one of all of them.
    pub totals: Totals,
    /// How their figures were estimated, if only some allocations were recorded.
    pub sampling: Option<Sampling>,
    /// As [`crate::Analysis::functions`].
    pub functions: [u64; Source::ALL.len()],
    /// As [`crate::Analysis::sites`].
    pub sites: Vec<Site>,
}

/// Numbers that are given in the order in which others first come: what is kept by number then grows with what comes, not
/// with the largest number.
#[derive(Debug, Default)]
struct Dense {
    numbers: HashMap<u32, u32, FoldHash>,
    order: Vec<u32>,
}

impl Dense {
    fn number(&mut self, of: u32) -> u32 {
        *self.numbers.entry(of).or_insert_with(|| {
            self.order.push(of);
            self.order.len() as u32 - 1
        })
    }
}

/// The heaps of one name.
#[derive(Debug)]
struct Named {
    name: Vec<u8>,
    kind: HeapKind,
    /// It was told of as a [candidate](HeapKind::Candidate), and has one heap.
    on_trial: bool,
    heaps: u64,
    live: Figures,
    time_ns: u64,
    sites: Sites,
    stacks: Dense,
    threads: Dense,
    /// Keys of heaps that are no more.
    free_keys: Vec<u16>,
    next_key: u16,
}

/// A heap that there is.
#[derive(Debug)]
struct Instance {
    named: usize,
    /// Tells its addresses from those of others with its name: no address of a process has these bits.
    key: u16,
    /// Where its blocks lie, of those that may end before these.
    blocks: HashSet<u64, FoldHash>,
}

/// Brings the heaps up to date one event at a time.
#[derive(Debug, Default)]
pub(crate) struct Heaps {
    all: Vec<Named>,
    of_name: HashMap<(HeapKind, Vec<u8>), usize>,
    /// How many of them are [on trial](Named::on_trial).
    on_trial: usize,
    instances: HashMap<u32, Instance, FoldHash>,
    next: Option<u32>,
    live: u64,
    time_ns: u64,
    /// Of a sample.
    is_sampled: bool,
    means: HashMap<u32, u64, FoldHash>,
    last_mean: u64,
}

impl Heaps {
    /// By which mean a thread's allocations are recorded from here on.
    pub(crate) fn set_mean(&mut self, thread: u32, mean: u64) {
        (self.is_sampled, self.last_mean) = (true, mean);
        if self.means.len() < MOST_THREADS || self.means.contains_key(&thread) {
            self.means.insert(thread, mean);
        }
    }

    fn mean(&self, thread: u32) -> u64 {
        self.means.get(&thread).copied().unwrap_or(self.last_mean)
    }

    /// What comes from here on happened at this time.
    pub(crate) fn set_time(&mut self, ns: u64) {
        self.time_ns = ns;
    }

    /// The next event of a block is one of this heap's.
    pub(crate) fn mark(&mut self, id: u32) {
        self.next = Some(id);
    }

    /// Whose event the next one of a block is, if it isn't the program's own heap's.
    pub(crate) fn take_mark(&mut self) -> Option<u32> {
        self.next.take()
    }

    /// A heap was told of.
    pub(crate) fn define(&mut self, heap: &Heap) -> Result<(), Violation> {
        if let Some(instance) = self.instances.get(&heap.id) {
            let heaps = &mut self.all[instance.named];
            if heaps.on_trial && heap.kind != HeapKind::Pool {
                heaps.kind = heap.kind;
            }
            return Ok(());
        }
        if self.instances.len() >= MOST_HEAPS {
            return Err(Violation::TooMany { what: "heaps", limit: MOST_HEAPS as u64 });
        }
        let name = &heap.name[..heap.name.len().min(MAX_NAME)];
        let (all, is_sampled, on_trial) = (&mut self.all, self.is_sampled, heap.kind == HeapKind::Candidate);
        let mut add = |name: &[u8]| {
            let kind = heap.kind;
            all.push(Named {
                name: name.to_vec(),
                kind,
                on_trial,
                live: Figures::new(is_sampled),
                ..Named::none()
            });
            all.len() - 1
        };
        let named = if on_trial {
            // Each by itself: one may turn out to be an allocator, and another of its name not.
            if self.on_trial >= MOST_NAMES {
                return Ok(());
            }
            self.on_trial += 1;
            add(name)
        } else {
            let few =
                self.of_name.len() < MOST_NAMES || self.of_name.contains_key(&(heap.kind, name.to_vec()));
            let name = if few { name } else { OTHERS };
            *self.of_name.entry((heap.kind, name.to_vec())).or_insert_with(|| add(name))
        };
        let heaps = &mut self.all[named];
        heaps.heaps += 1;
        let key = heaps.free_keys.pop().unwrap_or_else(|| {
            heaps.next_key = heaps.next_key.wrapping_add(1);
            heaps.next_key.wrapping_sub(1)
        });
        self.instances.insert(heap.id, Instance { named, key, blocks: HashSet::default() });
        Ok(())
    }

    /// A heap is no more.
    pub(crate) fn end(&mut self, id: u32) {
        let Some(instance) = self.instances.remove(&id) else { return };
        let heaps = &mut self.all[instance.named];
        heaps.set_time(self.time_ns);
        let before = heaps.live.live_allocations();
        for &address in &instance.blocks {
            heaps.live.goes(instance.key_of(address), &mut heaps.sites);
        }
        heaps.free_keys.push(instance.key);
        self.live -= before - heaps.live.live_allocations();
        if heaps.kind == HeapKind::Candidate {
            // It counts for nothing, now and later.
            self.live -= heaps.live.live_allocations();
            self.on_trial -= 1;
            *heaps = Named::none();
        }
    }

    /// Takes in an event of a heap. One that isn't known, or no more, has none that count.
    pub(crate) fn apply(&mut self, id: u32, event: &HeapEvent) -> Result<(), Violation> {
        let mean = self.mean(event.thread());
        let Some(instance) = self.instances.get_mut(&id) else { return Ok(()) };
        let heaps = &mut self.all[instance.named];
        heaps.set_time(self.time_ns);
        let thread = heaps.threads.number(event.thread());
        let is_exchanged = heaps.live.is_exchanged(thread, instance.key_of(event.address()));
        if heaps.kind == HeapKind::Pool {
            match *event {
                HeapEvent::Alloc { address, .. }
                | HeapEvent::ReallocEnd { address, .. }
                | HeapEvent::ReallocFailed { address, .. } => instance.blocks.insert(address),
                // Another's by now, if it is anybody's.
                HeapEvent::Free { .. } if is_exchanged => false,
                HeapEvent::Free { address, .. } | HeapEvent::ReallocBegin { address, .. } => {
                    instance.blocks.remove(&address)
                }
            };
        }
        let of = |address: u64| instance.key_of(address);
        let event = match *event {
            HeapEvent::Alloc { stack, address, size, source, .. } => {
                let stack = heaps.stacks.number(stack);
                HeapEvent::Alloc { thread, stack, address: of(address), size, source }
            }
            HeapEvent::ReallocEnd { stack, address, size, old, .. } => {
                let stack = heaps.stacks.number(stack);
                HeapEvent::ReallocEnd { thread, stack, address: of(address), size, old: of(old) }
            }
            HeapEvent::Free { address, .. } => HeapEvent::Free { thread, address: of(address) },
            HeapEvent::ReallocBegin { address, .. } => {
                HeapEvent::ReallocBegin { thread, address: of(address) }
            }
            HeapEvent::ReallocFailed { address, .. } => {
                HeapEvent::ReallocFailed { thread, address: of(address) }
            }
        };
        let before = heaps.live.live_allocations();
        heaps.live.apply(&event, mean, &mut heaps.sites);
        self.live = self.live + heaps.live.live_allocations() - before;
        match self.live {
            0..=MOST_LIVE => Ok(()),
            _ => Err(Violation::TooMany { what: "live blocks of other heaps", limit: MOST_LIVE }),
        }
    }

    /// What there is to say, by allocated bytes, most first, under the first of equal stacks.
    pub(crate) fn finish(self, canonical: &[u32]) -> Vec<HeapAnalysis> {
        let mut live_heaps = vec![0; self.all.len()];
        self.instances.values().for_each(|instance| live_heaps[instance.named] += 1);
        let mut all: Vec<HeapAnalysis> =
            self.all.into_iter().zip(live_heaps).map(|(named, live)| named.finish(live, canonical)).collect();
        // An allocator that nobody called is of no interest, and what only has the names of one is none.
        all.retain(|heaps| {
            let Totals { allocations, reallocations, frees, .. } = heaps.totals;
            match heaps.kind {
                HeapKind::Pool => true,
                HeapKind::Candidate => false,
                _ => allocations | reallocations | frees != 0,
            }
        });
        let bytes = |heaps: &HeapAnalysis| heaps.totals.allocated_bytes;
        all.sort_by(|a, b| bytes(b).cmp(&bytes(a)).then(a.name.cmp(&b.name)));
        all
    }
}

impl Instance {
    fn key_of(&self, address: u64) -> u64 {
        address ^ u64::from(self.key) << 48
    }
}

impl Named {
    /// What is left of one that counts for nothing.
    fn none() -> Self {
        Self {
            name: Vec::new(),
            kind: HeapKind::Candidate,
            on_trial: true,
            heaps: 0,
            live: Figures::new(false),
            time_ns: 0,
            sites: Sites::new(),
            stacks: Dense::default(),
            threads: Dense::default(),
            free_keys: Vec::new(),
            next_key: 0,
        }
    }

    fn set_time(&mut self, ns: u64) {
        if self.time_ns != ns {
            self.time_ns = ns;
            self.live.set_time(ns);
        }
    }

    fn finish(self, live_heaps: u64, canonical: &[u32]) -> HeapAnalysis {
        let Self { name, kind, heaps, live, sites, stacks, .. } = self;
        let temporary_allocations = sites.temporary_allocations();
        let totals = Totals { temporary_allocations, ..live.totals() };
        let functions = sites.functions();
        // The first of those here whose stacks are equal.
        let mut firsts: HashMap<u32, u32, FoldHash> = HashMap::default();
        let stacks = stacks.order.iter().map(|&stack| canonical[stack as usize]);
        let (equal, stacks): (Vec<u32>, Vec<u32>) =
            (0..).zip(stacks).map(|(number, stack)| (*firsts.entry(stack).or_insert(number), stack)).unzip();
        let mut sites = sites.merged(&equal);
        for site in &mut sites {
            site.stack = stacks[site.stack as usize];
        }
        Site::sort(&mut sites);
        let sampling = live.sampling();
        HeapAnalysis { name, kind, heaps, live_heaps, totals, sampling, functions, sites }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heap(id: u32, name: &str) -> Heap {
        Heap { id, kind: HeapKind::Pool, name: name.into() }
    }

    fn alloc(stack: u32, address: u64, size: u64) -> HeapEvent {
        HeapEvent::Alloc { thread: 9, stack, address, size, source: Source::Malloc }
    }

    fn free(address: u64) -> HeapEvent {
        HeapEvent::Free { thread: 9, address }
    }

    /// Allocations, frees, live blocks, live bytes, peak.
    fn figures(found: &HeapAnalysis) -> [u64; 5] {
        let Totals { allocations, frees, live_allocations, live_bytes, peak_bytes, .. } = found.totals;
        assert_eq!(found.totals.inconsistent_events, 0);
        assert_eq!(found.sites.iter().map(|site| site.live_bytes).sum::<u64>(), live_bytes);
        assert_eq!(found.sites.iter().map(|site| site.peak_bytes).sum::<u64>(), peak_bytes);
        [allocations, frees, live_allocations, live_bytes, peak_bytes]
    }

    #[test]
    fn heaps_of_a_name_have_addresses_of_their_own_and_figures_together() {
        let mut heaps = Heaps::default();
        for id in [1, 2] {
            heaps.define(&heap(id, "a")).unwrap();
            heaps.apply(id, &alloc(5, 0x1000, 10)).unwrap();
        }
        heaps.define(&heap(3, "b")).unwrap();
        heaps.apply(3, &alloc(6, 0x1000, 7)).unwrap();
        heaps.apply(1, &free(0x1000)).unwrap();
        let found = heaps.finish(&[0, 1, 2, 3, 4, 5, 5]);
        assert_eq!(found.len(), 2);
        assert_eq!((figures(&found[0]), found[0].heaps, found[0].live_heaps), ([2, 1, 1, 10, 20], 2, 2));
        assert_eq!(figures(&found[1]), [1, 0, 1, 7, 7]);
        assert_eq!((found[0].sites[0].stack, found[1].sites[0].stack), (5, 5));
    }

    #[test]
    fn the_blocks_of_a_pool_go_with_it() {
        let mut heaps = Heaps::default();
        heaps.define(&heap(1, "a")).unwrap();
        heaps.define(&heap(2, "a")).unwrap();
        for n in 0..100 {
            heaps.apply(1, &alloc(n as u32, 0x1000 + 16 * n, 3)).unwrap();
            heaps.apply(2, &alloc(1000, 0x1000 + 16 * n, 5)).unwrap();
        }
        heaps.apply(1, &free(0x1000)).unwrap();
        let (begin, end) = (
            HeapEvent::ReallocBegin { thread: 9, address: 0x1010 },
            HeapEvent::ReallocEnd { thread: 9, stack: 3, address: 0x9000, size: 30, old: 0x1010 },
        );
        heaps.apply(1, &begin).unwrap();
        heaps.apply(1, &end).unwrap();
        heaps.end(1);
        // What comes too late is not believed.
        heaps.apply(1, &alloc(1, 0x5000, 1)).unwrap();
        heaps.end(1);
        assert_eq!(heaps.live, 100);
        let found = heaps.finish(&(0..=1000).collect::<Vec<u32>>());
        assert_eq!(figures(&found[0]), [200, 100, 100, 500, 797 + 27]);
        assert_eq!((found[0].heaps, found[0].live_heaps), (2, 1));
    }

    /// Also what it gave before that was known; and not what another of its name gave.
    #[test]
    fn a_candidate_counts_once_it_is_known_as_an_allocator() {
        let candidate = |id| Heap { kind: HeapKind::Candidate, ..heap(id, "a_malloc") };
        let known = |id| Heap { kind: HeapKind::Allocator, ..candidate(id) };
        let mut heaps = Heaps::default();
        for id in [1, 2, 3, 4] {
            heaps.define(&candidate(id)).unwrap();
            heaps.apply(id, &alloc(id, 0x1000, 10)).unwrap();
        }
        heaps.define(&known(2)).unwrap();
        heaps.end(3);
        heaps.apply(1, &alloc(1, 0x2000, 5)).unwrap();
        heaps.apply(2, &alloc(2, 0x2000, 5)).unwrap();
        // Of one it turns out otherwise.
        heaps.define(&known(4)).unwrap();
        heaps.define(&candidate(4)).unwrap();
        assert_eq!(heaps.live, 5);
        let found = heaps.finish(&[0, 1, 2, 3, 4]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].kind, figures(&found[0])), (HeapKind::Allocator, [2, 0, 2, 15, 15]));
    }

    /// As those of a library that is opened again and again.
    #[test]
    fn candidates_that_end_make_room() {
        let mut heaps = Heaps::default();
        for id in 1..=3 * MOST_NAMES as u32 {
            heaps.define(&Heap { kind: HeapKind::Candidate, ..heap(id, "a") }).unwrap();
            heaps.apply(id, &alloc(0, 0x1000, 1)).unwrap();
            heaps.end(id);
        }
        heaps.define(&Heap { kind: HeapKind::Candidate, ..heap(9999, "b") }).unwrap();
        heaps.apply(9999, &alloc(0, 0x1000, 7)).unwrap();
        heaps.define(&Heap { kind: HeapKind::Allocator, ..heap(9999, "b") }).unwrap();
        assert_eq!(heaps.live, 1);
        let found = heaps.finish(&[0]);
        assert_eq!((found.len(), figures(&found[0])), (1, [1, 0, 1, 7, 7]));
    }

    #[test]
    fn names_beyond_what_is_told_apart_are_one_heap() {
        let mut heaps = Heaps::default();
        for id in 1..=2 * MOST_NAMES as u32 {
            heaps.define(&heap(id, &format!("{id}"))).unwrap();
            heaps.apply(id, &alloc(1, 0x1000, 1)).unwrap();
        }
        let found = heaps.finish(&[0, 1]);
        assert_eq!(found.len(), MOST_NAMES + 1);
        assert_eq!(found[0].name, OTHERS);
        assert_eq!(figures(&found[0])[0], MOST_NAMES as u64);
    }
}
