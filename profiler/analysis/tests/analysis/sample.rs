//! Estimates from samples, against all that happened.

use crate::common::{Random, read, write};
use grapnel_analysis::live::RunningTotals;
use grapnel_analysis::weight::Errors;
use grapnel_trace::Module;
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
        Event::Alloc { thread: 7, stack: 1, address: 0x1010, size, source: Source::Malloc },
        Event::Free { thread: 0, address: 0x2000 },
    ];
    let analysis = read(&write(&events, 0));
    let totals = analysis.totals;
    assert_eq!((totals.allocations, totals.live_allocations, totals.frees), (4, 4, 0));
    assert!(totals.peak_bytes.abs_diff(4 * size) < 1000);
    let errors = analysis.sampling.expect("a sample").errors;
    // (1 - p) / p² is 2.
    assert!((errors.allocations - 2.0).abs() < 1e-6);
    assert!((errors.peak_bytes / size as f64 - 2.0).abs() < 1e-6);
}

const NODES: [Event; 2] = [
    Event::Node { id: 1, parent: 0, pc: 1, module: 0, flags: 0 },
    Event::Node { id: 2, parent: 0, pc: 2, module: 0, flags: 0 },
];

fn alloc(thread: u32, stack: u32, address: u64, size: u64) -> Event {
    Event::Alloc { thread, stack, address, size, source: Source::Malloc }
}

/// Small blocks of which few are live at the end, about as few as one that is recorded stands for: often none of these was
/// recorded. Their error has to reach to the truth in two runs out of three all the same.
#[test]
fn errors_reach_to_what_was_missed_altogether() {
    const RUNS: u64 = 200;
    const SIZE: u64 = 16;
    for live in [1, MEAN / SIZE / 3, MEAN / SIZE * 9 / 10] {
        let (mut within, mut none) = ([0; 4], 0);
        for seed in 1..=RUNS {
            let mut random = Random((seed * 1000 + live).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            let p = 1.0 - (-(SIZE as f64) / MEAN as f64).exp();
            let mut events = NODES.to_vec();
            events.push(Event::Sampled { thread: 0, mean: MEAN });
            for number in 1..=3000 {
                if (random.below(1 << 40) as f64) < p * (1u64 << 40) as f64 {
                    events.push(alloc(0, 1, number * 64, SIZE));
                    if number > live {
                        events.push(Event::Free { thread: 0, address: number * 64 });
                    }
                }
            }
            let analysis = read(&write(&events, 0));
            let (totals, site) = (analysis.totals, analysis.sites[0]);
            none += u64::from(totals.live_allocations == 0);
            let (errors, of_site) = (analysis.sampling.expect("a sample").errors, site.errors);
            let is_near = |estimate: u64, truth: u64, error: f64| estimate.abs_diff(truth) as f64 <= error;
            for (sum, is_within) in within.iter_mut().zip([
                is_near(totals.live_allocations, live, errors.live_allocations),
                is_near(totals.live_bytes, live * SIZE, errors.live_bytes),
                is_near(site.live_allocations, live, of_site.live_allocations),
                is_near(site.live_bytes, live * SIZE, of_site.live_bytes),
            ]) {
                *sum += u64::from(is_within);
            }
        }
        assert!(none > RUNS / 4, "{live} live: {none}");
        assert!(within.iter().all(|&within| within * 3 >= RUNS * 2), "{live} live: {within:?}");
    }
}

/// What is far larger than the mean is all there: a site of such has no error, whatever else may have been missed.
#[test]
fn what_is_exact_has_no_error() {
    let mut events = NODES.to_vec();
    events.push(Event::Sampled { thread: 0, mean: MEAN });
    events.extend((1..=5).map(|number| alloc(0, 1, number << 20, 100 * MEAN)));
    let analysis = read(&write(&events, 0));
    assert_eq!(analysis.sites[0].errors, Errors::default());
    // Of a small block none is known: as many as there may be.
    let errors = analysis.sampling.expect("a sample").errors;
    assert_eq!((errors.live_bytes, errors.peak_bytes, errors.allocated_bytes), (1000.0, 1000.0, 1000.0));
    assert_eq!((errors.live_allocations, errors.allocations), (62.5, 62.5));
    // One of another site, gone at the end.
    events.extend([alloc(0, 2, 0x40, 100), Event::Free { thread: 0, address: 0x40 }]);
    let analysis = read(&write(&events, 0));
    let [exact, small] = analysis.sites[..] else { panic!("{:?}", analysis.sites) };
    assert_eq!((exact.stack, exact.errors), (1, Errors::default()));
    assert_eq!((small.live_bytes, small.errors.live_bytes, small.errors.peak_bytes), (0, 1000.0, 1000.0));
    assert!((small.errors.live_allocations - 10.0).abs() < 1e-6, "{small:?}");
    let errors = analysis.sampling.expect("a sample").errors;
    assert_eq!((analysis.totals.live_bytes, errors.live_bytes), (500 * MEAN, 1000.0));
    assert!((errors.live_allocations - 10.0).abs() < 1e-6, "{errors:?}");
    // Where all is recorded nothing has any.
    let analysis = read(&write(&[&NODES[..], &[alloc(0, 2, 0x40, 100)]].concat(), 0));
    assert!(analysis.sampling.is_none());
    assert_eq!(analysis.sites[0].errors, Errors::default());
}

/// What a budget or another thread had as its mean, not only what came last.
#[test]
fn the_largest_mean_says_what_may_be_missed() {
    let mut events = NODES.to_vec();
    for (thread, stack, mean) in [(0, 1, 64 * MEAN), (0, 1, MEAN), (1, 2, 2 * MEAN)] {
        let address = mean * 16;
        events.push(Event::Sampled { thread, mean });
        events.extend([alloc(thread, stack, address, 10), Event::Free { thread, address }]);
    }
    let analysis = read(&write(&events, 0));
    let sampling = analysis.sampling.expect("a sample");
    assert_eq!((sampling.mean, sampling.errors.live_bytes), (2 * MEAN, 64_000.0));
    let of_sites = analysis.sites.iter().map(|site| (site.stack, site.errors.live_bytes));
    assert_eq!(of_sites.collect::<Vec<_>>(), [(1, 64_000.0), (2, 2000.0)]);
}

/// A library that is loaded time after time makes its sites no less certain.
#[test]
fn a_site_in_parts_has_one_least_error() {
    let mut events = Vec::new();
    for id in 1..=9 {
        let bias = u64::from(id) << 20;
        let path = b"/lib/again.so".to_vec();
        events.push(Event::Module(Module { id, bias, path, ..Module::default() }));
        events.push(Event::Node { id, parent: 0, module: id, pc: bias + 16, flags: 0 });
        events.push(Event::Sampled { thread: 0, mean: MEAN });
        let address = u64::from(id) * 64;
        events.push(alloc(0, id, address, 1));
        events.push(Event::Free { thread: 0, address });
    }
    let analysis = read(&write(&events, 0));
    let [site] = analysis.sites[..] else { panic!("{:?}", analysis.sites) };
    assert_eq!((site.live_bytes, site.errors.live_bytes), (0, 1000.0));
    // Of nine that were recorded, each with the variance of a mean.
    assert!((site.errors.allocated_bytes / 3000.0 - 1.0).abs() < 1e-3, "{site:?}");
}
