//! Random traces against a model that keeps everything and recomputes every figure from scratch.

use crate::common::{Random, read, write};
use grapnel_analysis::sites::Site;
use grapnel_analysis::{Ending, LiveTotals, Totals};
use grapnel_trace::event::{Event, Source};
use std::collections::BTreeMap;

const STACKS: u32 = 12;
const THREADS: u64 = 4;

#[derive(Clone, Copy, Debug)]
struct Block {
    size: u64,
    stack: u32,
    thread: u32,
    /// The number of the allocation, over all threads.
    serial: u64,
}

/// The definitions of the documentation, as literally as they can be written down.
#[derive(Default)]
struct Model {
    live: BTreeMap<u64, Block>,
    held: BTreeMap<u32, (u64, Option<Block>)>,
    /// Serial of the last block of each thread.
    last: BTreeMap<u32, u64>,
    totals: Totals,
    sites: BTreeMap<u32, Site>,
    /// What each site held at the highest moment until now.
    at_peak: BTreeMap<u32, u64>,
    time: u64,
    serial: u64,
}

impl Model {
    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Time(time) => self.time = time,
            Event::Alloc { thread, stack, address, size, source } => {
                self.totals.allocations += 1;
                self.allocate(thread, stack, address, size, source);
            }
            Event::ReallocEnd { thread, stack, address, size, old } => {
                assert_eq!(self.held.remove(&thread).unwrap().0, old);
                self.totals.reallocations += 1;
                self.allocate(thread, stack, address, size, Source::Realloc);
            }
            Event::Free { address, .. } => {
                self.totals.frees += 1;
                if let Some(block) = self.live.remove(&address)
                    && self.last[&block.thread] == block.serial
                {
                    self.totals.temporary_allocations += 1;
                    self.sites.get_mut(&block.stack).unwrap().temporary_allocations += 1;
                }
            }
            Event::ReallocBegin { thread, address } => {
                self.held.insert(thread, (address, self.live.remove(&address)));
            }
            Event::ReallocFailed { thread, address } => {
                let (old, block) = self.held.remove(&thread).unwrap();
                assert_eq!(old, address);
                self.live.extend(block.map(|block| (address, block)));
            }
            _ => {}
        }
        let bytes = self.live.values().map(|block| block.size).sum();
        if bytes > self.totals.peak_bytes {
            self.totals.peak_bytes = bytes;
            self.totals.peak_time_ns = self.time;
            self.at_peak.clear();
            self.live.values().for_each(|block| *self.at_peak.entry(block.stack).or_default() += block.size);
        }
    }

    fn allocate(&mut self, thread: u32, stack: u32, address: u64, size: u64, source: Source) {
        self.serial += 1;
        self.last.insert(thread, self.serial);
        assert!(self.live.insert(address, Block { size, stack, thread, serial: self.serial }).is_none());
        self.totals.allocated_bytes += size;
        let site = self.sites.entry(stack).or_insert(Site { stack, ..Site::default() });
        site.allocations += 1;
        site.allocated_bytes += size;
        site.sources = site.sources.with(source);
    }

    fn finish(mut self) -> (Totals, BTreeMap<u32, Site>) {
        self.totals.live_allocations = self.live.len() as u64;
        self.totals.live_bytes = self.live.values().map(|block| block.size).sum();
        for block in self.live.values() {
            let site = self.sites.get_mut(&block.stack).unwrap();
            site.live_allocations += 1;
            site.live_bytes += block.size;
        }
        for site in self.sites.values_mut() {
            site.peak_bytes = self.at_peak.get(&site.stack).copied().unwrap_or(0);
        }
        (self.totals, self.sites)
    }
}

/// A trace that could truly have happened, with frees and reallocs of blocks that nobody saw allocated.
fn random_events(seed: u64, count: u64) -> Vec<Event> {
    let mut random = Random(seed);
    let mut events = Vec::new();
    for id in 1..=STACKS {
        let parent = random.below(u64::from(id)) as u32;
        events.push(Event::Node { id, parent, pc: u64::from(id), module: 0, flags: 0 });
    }
    let mut live: Vec<u64> = Vec::new();
    // Threads inside a realloc: the old address, and whether somebody was given that address since, which
    // means that the realloc moved the block and can't fail any more.
    let mut reallocs: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
    let hand_out = |address: u64, live: &mut Vec<u64>, reallocs: &mut BTreeMap<u32, (u64, bool)>| {
        live.push(address);
        reallocs.values_mut().filter(|(old, _)| *old == address).for_each(|(_, moved)| *moved = true);
    };
    // Few addresses, so that they are used again soon and by other threads.
    let fresh = |random: &mut Random, live: &[u64]| loop {
        let address = 0x1000 + 16 * random.below(live.len() as u64 + 8);
        if !live.contains(&address) {
            break address;
        }
    };
    let mut time = 0;
    let grows = 30 + random.below(30);
    while (events.len() as u64) < count {
        let thread = random.below(THREADS) as u32;
        let stack = random.below(u64::from(STACKS) + 1) as u32;
        let size = if random.below(4) == 0 { 0 } else { random.below(200) };
        if random.below(20) == 0 {
            time += 1 + random.below(1000);
            events.push(Event::Time(time));
        }
        if let Some((old, moved)) = reallocs.remove(&thread) {
            if random.below(4) == 0 && !moved {
                events.push(Event::ReallocFailed { thread, address: old });
                if old < 0x9000_0000 {
                    live.push(old);
                }
            } else {
                let address = if moved || random.below(2) == 0 { fresh(&mut random, &live) } else { old };
                hand_out(address, &mut live, &mut reallocs);
                events.push(Event::ReallocEnd { thread, stack, address, size, old });
            }
            continue;
        }
        match random.below(100) {
            n if n < grows || live.is_empty() => {
                let address = fresh(&mut random, &live);
                hand_out(address, &mut live, &mut reallocs);
                let source = Source::ALL[random.below(Source::ALL.len() as u64) as usize];
                events.push(Event::Alloc { thread, stack, address, size, source });
            }
            n if n < 80 => {
                // Often the newest: temporary ones.
                let at = if random.below(2) == 0 {
                    live.len() - 1
                } else {
                    random.below(live.len() as u64) as usize
                };
                events.push(Event::Free { thread, address: live.swap_remove(at) });
            }
            n if n < 95 => {
                let address = live.swap_remove(random.below(live.len() as u64) as usize);
                reallocs.insert(thread, (address, false));
                events.push(Event::ReallocBegin { thread, address });
            }
            97 => {
                let address = 0x9000_0000 + 16 * u64::from(thread);
                reallocs.insert(thread, (address, false));
                events.push(Event::ReallocBegin { thread, address });
            }
            _ => events.push(Event::Free { thread, address: 0x9000_0000 }),
        }
    }
    events
}

#[test]
fn random_traces_agree_with_the_model() {
    for seed in 1..=200_u64 {
        let events = random_events(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), 1500);
        let mut model = Model::default();
        let mut light = LiveTotals::new();
        for event in &events {
            model.apply(event);
            light.apply(event);
        }
        let (totals, sites) = model.finish();
        let analysis = read(&write(&events, 0));
        assert!(matches!(analysis.ending, Ending::InOrder));
        assert_eq!(analysis.totals, Totals { duration_ns: 2_500_000_000, ..totals }, "seed {seed}");
        let found: BTreeMap<u32, Site> = analysis.sites.iter().map(|site| (site.stack, *site)).collect();
        assert_eq!(found, sites, "seed {seed}");
        assert_eq!(found.len(), analysis.sites.len());
        assert_eq!(sites.values().map(|site| site.peak_bytes).sum::<u64>(), totals.peak_bytes);
        let light_totals = light.totals();
        assert_eq!(
            Totals { temporary_allocations: totals.temporary_allocations, duration_ns: 0, ..light_totals },
            Totals { duration_ns: 0, ..totals }
        );
    }
}
