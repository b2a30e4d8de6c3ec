//! Estimates from samples, against all that happened.

use crate::common::{Random, read, write};
use grapnel_analysis::live::RunningTotals;
use grapnel_trace::event::{Event, Source};

const MEAN: u64 = 1000;
const STACKS: u32 = 4;

/// What truly happened to a stack.
#[derive(Clone, Copy, Debug, Default)]
struct Truth {
    allocations: u64,
    allocated_bytes: u64,
    live_allocations: u64,
    live_bytes: u64,
}

/// A trace of a sample, and the truth of each stack.
fn sample(seed: u64) -> (Vec<Event>, [Truth; STACKS as usize + 1]) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut truth = [Truth::default(); STACKS as usize + 1];
    let mut events: Vec<Event> = (1..=STACKS)
        .map(|id| Event::Node { id, parent: 0, pc: u64::from(id), module: 0, flags: 0 })
        .collect();
    events.push(Event::Sampled { thread: 0, mean: MEAN });
    let mut live: Vec<(u64, u64, u32, bool)> = Vec::new();
    let recorded = |size: u64, random: &mut Random| {
        let uniform = random.below(1 << 40) as f64 / (1u64 << 40) as f64;
        uniform < 1.0 - (-(size as f64) / MEAN as f64).exp()
    };
    for number in 1..6000 {
        let stack = 1 + random.below(u64::from(STACKS)) as u32;
        let most = 16 << random.below(8);
        // An error that is estimated from blocks of which one in a thousand is recorded says little.
        let size = 200 + random.below(most);
        let is_recorded = recorded(size, &mut random);
        let old = (random.below(3) == 0 && !live.is_empty())
            .then(|| live.swap_remove(random.below(live.len() as u64) as usize));
        let address = number * 64;
        let counted = &mut truth[stack as usize];
        counted.allocations += 1;
        counted.allocated_bytes += size;
        // A third exchange an old block.
        match old {
            Some((old, _, _, was_recorded)) => {
                if was_recorded {
                    events.push(Event::ReallocBegin { thread: 0, address: old });
                }
                match (is_recorded, was_recorded) {
                    (true, _) => events.push(Event::ReallocEnd { thread: 0, stack, address, size, old }),
                    (false, true) => events.push(Event::Unsampled { thread: 0, address: old }),
                    (false, false) => {}
                }
            }
            None if is_recorded => {
                events.push(Event::Alloc { thread: 0, stack, address, size, source: Source::New });
            }
            None => {}
        }
        live.push((address, size, stack, is_recorded));
        if random.below(2) == 0 {
            let (address, _, _, was_recorded) = live.swap_remove(random.below(live.len() as u64) as usize);
            if was_recorded {
                events.push(Event::Free { thread: 0, address });
            }
        }
    }
    for (_, size, stack, _) in live {
        truth[stack as usize].live_allocations += 1;
        truth[stack as usize].live_bytes += size;
    }
    (events, truth)
}

/// Over many samples, each figure of each stack is off by nothing on average, and as far as its error says.
#[test]
fn figures_are_unbiased_and_know_how_far_off_they_are() {
    const RUNS: u64 = 60;
    let mut sums = [(0.0, 0.0); 4];
    let mut count = 0.0;
    for seed in 1..=RUNS {
        let (events, truth) = sample(seed);
        let analysis = read(&write(&events, 0));
        let sampling = analysis.sampling.expect("a sample");
        assert_eq!((sampling.mean, analysis.totals.inconsistent_events), (MEAN, 0));
        for site in &analysis.sites {
            let truth = truth[site.stack as usize];
            let errors = site.errors;
            let distances = [
                (site.allocations as f64 - truth.allocations as f64) / errors.allocations,
                (site.allocated_bytes as f64 - truth.allocated_bytes as f64) / errors.allocated_bytes,
                (site.live_allocations as f64 - truth.live_allocations as f64) / errors.live_allocations,
                (site.live_bytes as f64 - truth.live_bytes as f64) / errors.live_bytes,
            ];
            for ((sum, squares), distance) in sums.iter_mut().zip(distances) {
                assert!(distance.abs() < 7.0, "seed {seed}: {distances:?}");
                *sum += distance;
                *squares += distance * distance;
            }
            count += 1.0;
        }
        let totals = analysis.totals;
        let sum = |figure: fn(&Truth) -> u64| truth.iter().map(figure).sum::<u64>() as f64;
        let given = (totals.allocations + totals.reallocations) as f64;
        assert!((given - sum(|truth| truth.allocations)).abs() < 5.0 * sampling.errors.allocations);
        let bytes = totals.allocated_bytes as f64;
        assert!((bytes - sum(|truth| truth.allocated_bytes)).abs() < 5.0 * sampling.errors.allocated_bytes);
        // The drain's are the same.
        let mut running = RunningTotals::default();
        events.iter().for_each(|event| running.apply(event));
        assert_eq!(running.totals().allocated_bytes, totals.allocated_bytes);
        assert_eq!(running.totals().live_bytes, totals.live_bytes);
    }
    for (figure, (sum, squares)) in sums.into_iter().enumerate() {
        // Errors are estimated from the same sample, too small where too little was recorded: hence the room.
        assert!((sum / count).abs() < 4.0 / count.sqrt() + 0.15, "figure {figure}: {}", sum / count);
        assert!((0.7..1.5).contains(&(squares / count)), "figure {figure}: {}", squares / count);
    }
}

/// A block whose probability is a half, because the mean is such, counts twice.
#[test]
fn a_block_stands_for_as_many_as_were_left_out() {
    let size = 1 << 30;
    let mean = (size as f64 / core::f64::consts::LN_2) as u64;
    let events = [
        Event::Node { id: 1, parent: 0, pc: 1, module: 0, flags: 0 },
        Event::Sampled { thread: 7, mean },
        Event::Alloc { thread: 7, stack: 1, address: 0x1000, size, source: Source::Malloc },
        Event::Free { thread: 0, address: 0x2000 },
    ];
    let analysis = read(&write(&events, 0));
    let totals = analysis.totals;
    assert_eq!((totals.allocations, totals.live_allocations, totals.frees), (2, 2, 0));
    assert!(totals.peak_bytes.abs_diff(2 * size) < 1000);
    let errors = analysis.sampling.expect("a sample").errors;
    // (1 - p) / p² is 2.
    assert!((errors.allocations - 2f64.sqrt()).abs() < 1e-6);
    assert!((errors.peak_bytes / size as f64 - 2f64.sqrt()).abs() < 1e-6);
}
