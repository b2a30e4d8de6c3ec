//! Which allocations are recorded when only some are: a Poisson process over the bytes that a thread allocates.
//!
//! Between two samples of a thread lie `gap` bytes, drawn from an exponential distribution with the session's mean. An
//! allocation in which a gap ends is recorded, and the next gap begins behind it. Since the distribution has no memory,
//! an allocation of `s` bytes is recorded with probability `1 - exp(-s / mean)`, whatever came before. A thread counts
//! down what is left of its gap ([`tls::Sampling::left`](crate::tls::Sampling)); it is below 0 in the allocation that is
//! to be recorded, and in the first of each thread, which has no gap yet.
//!
//! With a budget each thread measures what its records cost it, and makes its mean larger or smaller ([`Looks`]). An allocation is
//! recorded by the mean that its gap was drawn with, and the trace is told that one.

mod hidden;
mod looks;
pub(crate) mod others;

pub(crate) use looks::Looks;

use crate::native::floats::Floats;
use crate::record::ticks;
use crate::slots::{Frame, GIVES_RECORDED};
use crate::tls::{self, Sampling};
use crate::{meter, session};
use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};
use grapnel_trace::shared::SessionHeader;

/// The mean of the gaps in bytes; 0 where all allocations are recorded.
static MEAN: AtomicU64 = AtomicU64::new(0);
/// What this process's threads draw from: no two processes of a session choose alike, or their errors would be one.
static SEED: AtomicU64 = AtomicU64::new(0);
/// How many times the process has forked, as far as that was seen.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// The part of a thread's time that records may take, in millionths; 0 for any.
static BUDGET: AtomicU64 = AtomicU64::new(0);
/// Threads that were given a seed.
static THREADS: AtomicU64 = AtomicU64::new(0);

/// The mean is kept within these.
const SMALLEST_MEAN: u64 = 256;
const LARGEST_MEAN: u64 = 1 << 32;

/// Takes over what the session says. Whether only some allocations are recorded.
pub(crate) fn prepare(header: &SessionHeader) -> bool {
    let mean = header.sample_bytes.load(Ordering::Relaxed);
    let seed = header.sample_seed.load(Ordering::Relaxed);
    SEED.store(apart(seed, session::segment_number()), Ordering::Relaxed);
    BUDGET.store(header.budget_millionths.load(Ordering::Relaxed), Ordering::Relaxed);
    MEAN.store(mean, Ordering::Relaxed);
    mean != 0
}

/// A seed for the process with this number among those that have one in common: for number 0 that one.
fn apart(seed: u64, number: u64) -> u64 {
    let mut state = number;
    if number == 0 { seed } else { seed ^ next(&mut state) }
}

/// In a process that is about to fork: what the child is to [draw from](renew).
pub(crate) fn seed_of_child() -> u64 {
    let number = FORKS.fetch_add(1, Ordering::Relaxed) + 1;
    // Not as those that the session's seed is taken apart with.
    apart(SEED.load(Ordering::Relaxed), number << 32)
}

/// In the child of a fork, in its only thread: from now on it chooses by itself. Since gaps have no memory, it can begin anew anywhere.
pub(crate) fn renew(seed: u64) {
    SEED.store(seed, Ordering::Relaxed);
    THREADS.store(0, Ordering::Relaxed);
    FORKS.store(0, Ordering::Relaxed);
    let sampling = tls::sampling();
    sampling.passed.set(passed_so_far());
    let Sampling { left, random, own_ticks, records, drawn, bytes, calls, mean: _, chosen: _, passed: _ } =
        sampling;
    for one in [random, own_ticks, records, bytes] {
        one.set(0);
    }
    left.set(0);
    drawn.set(0);
    calls.set(0.0);
}

/// As [`renew`], in the child's own segment, behind its first event: for the child of a fork that nobody saw. For that of another it is once
/// more.
pub(crate) fn renew_at_first_event() {
    renew(apart(SEED.load(Ordering::Relaxed), session::segment_number()));
}

/// Whether only some allocations are recorded.
pub(crate) fn is_on() -> bool {
    MEAN.load(Ordering::Relaxed) != 0
}

/// Whether few allocations are recorded, now and later: so few that the processor's caches have forgotten one's record by the
/// next. A budget may make them many.
pub(crate) fn is_sparse() -> bool {
    MEAN.load(Ordering::Relaxed) >= 1 << 16 && !has_budget()
}

/// Whether records may take only a part of the time.
pub(crate) fn has_budget() -> bool {
    BUDGET.load(Ordering::Relaxed) != 0
}

/// Lowers what is left of this thread's gap by an allocation. The mean by which it is to be recorded, if it is. No block is as
/// large as half of the address space, and what is left would be raised by so many bytes.
#[inline]
pub(crate) fn passes(size: usize) -> Option<u64> {
    if size > isize::MAX as usize {
        return None;
    }
    let sampling = tls::sampling();
    sampling.left.set(sampling.left.get().wrapping_sub_unsigned(size as u64));
    chosen(sampling, size, BUDGET.load(Ordering::Relaxed))
}

/// As [`passes`], of an allocation by which the gap was lowered already. One of a size that no block has may have raised it: the next
/// begins then, which is as good as what was left, since neither has a memory.
#[inline]
pub(crate) fn passed(size: usize) -> Option<u64> {
    let sampling = tls::sampling();
    if size > isize::MAX as usize {
        begin_anew(sampling);
        return None;
    }
    chosen(sampling, size, BUDGET.load(Ordering::Relaxed))
}

/// Chooses before a function with a slot is called that gives a block of this size, for [`chosen_before`] to find. It may call others.
pub(crate) fn choose(size: usize, frame: &Frame) {
    let mean = if frame.is_lowered() { passed(size) } else { passes(size) };
    if let Some(mean) = mean {
        tls::sampling().chosen.set(mean);
        frame.note(GIVES_RECORDED);
    }
}

/// The mean by which that block is to be recorded, if it is. `noted`: see [`Frame::note`].
pub(crate) fn chosen_before(noted: usize) -> Option<u64> {
    (noted & GIVES_RECORDED != 0).then(|| tls::sampling().chosen.get())
}

/// The bytes that this thread has allocated; it wraps.
pub(crate) fn passed_so_far() -> usize {
    let Sampling { left, drawn, passed, .. } = tls::sampling();
    passed.get().wrapping_add(drawn.get().wrapping_sub(left.get()) as usize)
}

/// What is left of the gap is below 0 only while an allocation is being looked at, unless the handler of a signal left one for good
/// there. On x86-64 every malloc would pass then. So the next gap begins where a recorded block is given back, and in each allocation
/// that isn't malloc's; and `longjmp` sees to it ([`crate::jumps`]).
pub(crate) fn mend() {
    let sampling = tls::sampling();
    if sampling.left.get() < 0 {
        begin_anew(sampling);
    }
}

#[cold]
#[inline(never)]
fn begin_anew(sampling: &Sampling) {
    let begin_anew = |sampling: &Sampling| {
        if sampling.random.get() == 0 {
            begin(sampling);
        }
        begin_gap(sampling);
    };
    with_own_floats(begin_anew, sampling);
}

/// Computes with a floating-point state of its own: numbers with fractions would be where the program's arithmetic traps, or leave a mark in what it asks for afterwards.
/// Not inlined: the compiler doesn't know that the state around it matters.
#[inline]
fn with_own_floats<A, R>(compute: fn(A) -> R, argument: A) -> R {
    let state = Floats::now();
    Floats::OWN.set();
    let result = black_box(compute)(argument);
    state.set();
    result
}

#[unsafe(link_section = ".text.hot.grapnel")]
fn chosen(sampling: &Sampling, size: usize, budget: u64) -> Option<u64> {
    if sampling.left.get() >= 0 {
        return None;
    }
    with_own_floats(chosen_now, (sampling, size, budget))
}

/// Chooses where the gap has ended, or there is none yet.
#[unsafe(link_section = ".text.hot.grapnel")]
fn chosen_now((sampling, size, budget): (&Sampling, usize, u64)) -> Option<u64> {
    if sampling.random.get() == 0 {
        begin(sampling);
        let drawn = gap(sampling);
        let left = drawn.wrapping_add(sampling.left.get());
        sampling.drawn.set(drawn.wrapping_add(sampling.drawn.get()));
        sampling.left.set(left);
        if left >= 0 {
            return None;
        }
    }
    let _costs = Costs::begin_within(budget);
    let mean = sampling.mean.get();
    if budget != 0 {
        sampling.records.set(sampling.records.get() + 1);
        let passed = sampling.drawn.get().wrapping_sub(sampling.left.get()).max(0) as u64;
        sampling.bytes.set(sampling.bytes.get().wrapping_add(passed));
        sampling.calls.set(sampling.calls.get() + stands_for(size, mean));
    }
    begin_gap(sampling);
    Some(mean)
}

/// Begins the next gap, by the mean as it is now.
fn begin_gap(sampling: &Sampling) {
    let passed = sampling.drawn.get().wrapping_sub(sampling.left.get());
    sampling.passed.set(sampling.passed.get().wrapping_add(passed as usize));
    let left = gap(sampling);
    sampling.left.set(left);
    sampling.drawn.set(left);
}

#[cold]
fn begin(sampling: &Sampling) {
    let thread = THREADS.fetch_add(1, Ordering::Relaxed);
    let mut state = SEED.load(Ordering::Relaxed) ^ thread.wrapping_mul(0xd134_2543_de82_ef95);
    // The seeds of neighbours are alike; what comes of them is not.
    let _ = next(&mut state);
    sampling.random.set(next(&mut state) | 1);
    // A fork's child has its parent's, as adapted.
    if sampling.mean.get() == 0 {
        sampling.mean.set(MEAN.load(Ordering::Relaxed).clamp(1, LARGEST_MEAN));
    }
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The thread's next random number.
fn draw(sampling: &Sampling) -> u64 {
    let mut state = sampling.random.get();
    let random = next(&mut state);
    // 0 stands for a thread without a seed. The state is a counter, which meets 0 once.
    sampling.random.set(if state == 0 { 1 } else { state });
    random
}

/// The next gap: an allocation of `s` bytes ends it if `s` is larger. For whole `s` that is so exactly if `s` is larger than
/// the gap without its fraction.
fn gap(sampling: &Sampling) -> i64 {
    let random = draw(sampling);
    // Above 0, up to 1.
    let uniform = ((random >> 11) + 1) as f64 / (1u64 << 53) as f64;
    (-ln(uniform) * sampling.mean.get() as f64) as i64
}

/// How many allocations one of this size stands for that was recorded, or somewhat more.
fn stands_for(size: usize, mean: u64) -> f64 {
    // The beginning of the series of 1 / (1 - exp(-x)), which is enough for what it is used for.
    let x = size.max(1) as f64 / mean as f64;
    if x < 3.0 { 1.0 / x + 0.5 + x / 12.0 } else { 1.0 }
}

/// The natural logarithm of a normal number above 0, to some 12 digits.
fn ln(x: f64) -> f64 {
    const BIAS: i64 = 1023;
    let bits = x.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as i64 - BIAS;
    let mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | ((BIAS as u64) << 52));
    // ln m = 2 artanh((m - 1) / (m + 1)), whose argument is below a third.
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let square = t * t;
    let mut sum = 0.0;
    for odd in (0..13).rev() {
        sum = sum * square + 1.0 / (2 * odd + 1) as f64;
    }
    2.0 * t * sum + exponent as f64 * core::f64::consts::LN_2
}

/// Measures what is done for a record, but for the calls of the allocator amid it: to be dropped when it is done, or where such a call begins.
/// Without a budget nobody asks.
#[derive(Debug)]
pub(crate) struct Costs(Option<u64>);

impl Costs {
    #[inline]
    pub(crate) fn begin() -> Self {
        Self::begin_within(BUDGET.load(Ordering::Relaxed))
    }

    #[inline]
    fn begin_within(budget: u64) -> Self {
        Self((budget != 0).then(ticks))
    }
}

impl Drop for Costs {
    #[inline]
    fn drop(&mut self) {
        if let Some(begun) = self.0 {
            let sampling = tls::sampling();
            // A thread that lost its processor meanwhile has not spent all of that.
            let spent = ticks().wrapping_sub(begun).min(meter::INTERRUPTED_TICKS) + meter::around();
            sampling.own_ticks.set(sampling.own_ticks.get().wrapping_add(spent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(seed: u64, mean: u64) -> Sampling {
        let sampling = Sampling::default();
        let mut state = seed;
        sampling.random.set(next(&mut state) | 1);
        sampling.mean.set(mean);
        sampling.left.set(gap(&sampling));
        sampling
    }

    fn passes_in(sampling: &Sampling, size: u64) -> bool {
        sampling.left.set(sampling.left.get().wrapping_sub_unsigned(size));
        chosen(sampling, size as usize, 0).is_some()
    }

    #[test]
    fn the_logarithm_is_right() {
        for n in 1..100_000u32 {
            let x = f64::from(n) / 100_000.0;
            assert!((ln(x) - x.ln()).abs() < 1e-11, "{x}");
        }
        let smallest = 1.0 / (1u64 << 53) as f64;
        assert!((ln(smallest) - smallest.ln()).abs() < 1e-11);
    }

    /// How often allocations of a size are recorded, against the probability that is promised: within four standard errors.
    #[test]
    fn each_size_is_recorded_as_often_as_promised() {
        const ROUNDS: u32 = 200_000;
        let mean = 1000;
        for size in [1, 8, 100, 900, 1000, 5000, 20_000] {
            let sampling = thread(size ^ 0x1234, mean);
            let count = (0..ROUNDS).filter(|_| passes_in(&sampling, size)).count() as f64;
            let p = 1.0 - (-(size as f64) / mean as f64).exp();
            let rounds = f64::from(ROUNDS);
            let error = (rounds * p * (1.0 - p)).sqrt();
            assert!((count - rounds * p).abs() <= 4.0 * error + 1e-9, "{size}: {count} of {}", rounds * p);
        }
    }

    /// Sums estimated from what was recorded, of a mixture of sizes: unbiased, and as far off as they say.
    #[test]
    fn what_is_estimated_is_unbiased() {
        const RUNS: u32 = 400;
        let mean = 4096;
        let (mut sum_of_z, mut sum_of_squares) = (0.0, 0.0);
        for run in 0..RUNS {
            let sampling = thread(u64::from(run) * 977 + 5, mean);
            let mut sizes = u64::from(run) + 1;
            let (mut truth, mut estimate, mut variance) = (0.0, 0.0, 0.0);
            for _ in 0..3000 {
                // Mostly small, some large.
                let random = next(&mut sizes);
                let size = 1 + (random >> 20) % (16 << (random % 11));
                truth += size as f64;
                let p = 1.0 - (-(size as f64) / mean as f64).exp();
                if passes_in(&sampling, size) {
                    estimate += size as f64 / p;
                }
                variance += (size as f64).powi(2) * (1.0 - p) / p;
            }
            let z = (estimate - truth) / variance.sqrt();
            assert!(z.abs() < 6.0, "run {run}: {z}");
            sum_of_z += z;
            sum_of_squares += z * z;
        }
        let runs = f64::from(RUNS);
        // The mean of z has an error of 1 / sqrt(runs), that of its square about sqrt(2 / runs).
        assert!((sum_of_z / runs).abs() < 4.0 / runs.sqrt(), "{}", sum_of_z / runs);
        assert!(
            (sum_of_squares / runs - 1.0).abs() < 4.0 * (2.0 / runs).sqrt() + 0.1,
            "{}",
            sum_of_squares / runs
        );
    }

    /// Finding out that a record is due is part of what it costs, where that is asked for.
    #[test]
    fn the_choice_is_paid_for() {
        let own = || tls::sampling().own_ticks.get();
        for budget in [0, 50_000] {
            let (sampling, before) = (thread(9, 1), own());
            for _ in 0..100 {
                sampling.left.set(-1);
                assert!(chosen(&sampling, 16, budget).is_some());
            }
            assert_eq!(own() != before, budget != 0);
        }
    }

    #[test]
    fn a_record_stands_for_as_many_as_its_probability_says() {
        for (size, mean) in
            [(1, 1 << 20), (100, 4096), (4096, 4096), (12_000, 4096), (13_000, 4096), (1 << 30, 4096)]
        {
            let p = 1.0 - (-(f64::from(size) / mean as f64)).exp();
            assert!((stands_for(size as usize, mean) * p - 1.0).abs() < 0.06, "{size} of {mean}");
        }
    }

    #[test]
    fn a_gap_that_can_be_none_is_drawn_anew() {
        let sampling = tls::sampling();
        assert_eq!((sampling.random.get(), sampling.mean.get()), (0, 0));
        MEAN.store(1000, Ordering::Relaxed);
        let is_a_gap = || {
            (0..100_000).contains(&sampling.left.get())
                && (sampling.mean.get(), sampling.random.get()) > (999, 0)
        };
        for (left, size) in [(i64::MAX, usize::MAX), (5, 1 << 63), (-7, usize::MAX)] {
            sampling.left.set(left);
            assert_eq!((passed(size), is_a_gap()), (None, true), "{left} {size}");
        }
        sampling.left.set(-3);
        mend();
        assert!(is_a_gap());
        sampling.left.set(3);
        mend();
        assert_eq!(sampling.left.get(), 3);
        MEAN.store(0, Ordering::Relaxed);
        sampling.left.set(0);
    }

    #[test]
    fn what_has_no_size_is_never_recorded() {
        let sampling = thread(3, 1);
        assert!((0..1000).all(|_| !passes_in(&sampling, 0)));
    }
}
