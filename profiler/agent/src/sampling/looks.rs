//! Adapting the mean, so that records take a part of a thread's time.

use super::hidden::{Hidden, Window};
use super::{BUDGET, LARGEST_MEAN, SMALLEST_MEAN, begin_gap, draw, with_own_floats};
use crate::record::ticks;
use crate::sys;
use crate::tls::Sampling;
use core::sync::atomic::Ordering;

/// Records of a thread from one look at what they cost to the next.
const LOOK_EVERY: u64 = 32;
/// What the way past the hooks takes of a block that isn't recorded, when it is got and when it is given back: in nanoseconds, between
/// the 2 of a loop and the 6 of a large program. It is part of what is held, but no mean makes it less.
const PASSING_NS: f64 = 3.0;
/// What part of the budget records have where passing takes all of it.
const LEAST_PART: f64 = 0.125;

/// What is known of what a thread's records cost. All zeroes at the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looks {
    /// The clocks at the last look: ticks, and in nanoseconds real time and the thread's.
    looked: (u64, u64, u64),
    /// The mean that is adapted; from look to look it is made larger or smaller by [`Hidden`].
    mean: f64,
    hidden: Hidden,
}

impl Looks {
    /// Every now and then, adapts the mean so that what records cost is the budget's part of the thread's time.
    #[inline]
    pub(crate) fn look(&mut self, sampling: &Sampling) {
        if sampling.records.get() >= LOOK_EVERY {
            with_own_floats(|(looks, sampling)| Self::look_now(looks, sampling), (self, sampling));
        }
    }

    #[cold]
    #[inline(never)]
    fn look_now(&mut self, sampling: &Sampling) {
        sampling.records.set(0);
        // Without it, the mean stays what it is.
        let Some(cpu_ns) = sys::thread_cpu_ns() else { return };
        let now = (ticks(), sys::monotonic_ns(), cpu_ns);
        let before = core::mem::replace(&mut self.looked, now);
        let (own_ticks, bytes, calls) =
            (sampling.own_ticks.take(), sampling.bytes.take(), sampling.calls.take());
        if before.0 == 0 {
            self.mean = sampling.mean.get() as f64;
        } else {
            let since = |now: u64, before: u64| now.saturating_sub(before) as f64;
            let ticks_per_ns = since(now.0, before.0) / since(now.1, before.1).max(1.0);
            let own_ns = own_ticks as f64 / ticks_per_ns.max(1e-3);
            let window = Window { cpu_ns: since(now.2, before.2), own_ns, bytes: bytes as f64 };
            self.adapt(window, calls, sampling.mean.get(), BUDGET.load(Ordering::Relaxed) as f64 / 1e6);
        }
        let factor = self.hidden.factor_of_mean(draw(sampling));
        sampling.mean.set(((self.mean * factor) as u64).clamp(SMALLEST_MEAN, LARGEST_MEAN));
        // The gap that has just begun was drawn with the mean before, and what ends it will be told as recorded by this one.
        begin_gap(sampling);
    }

    /// After a window with this mean, in which so many blocks were got: the mean by which records would have taken the `wanted`
    /// part of the program's own time.
    fn adapt(&mut self, window: Window, calls: f64, mean: u64, wanted: f64) {
        self.hidden.add(window);
        let own = window.own_ns * self.hidden.factor();
        // What is measured in a few records varies, and so does what a program does meanwhile.
        let program = (window.cpu_ns - own - PASSING_NS * calls).max(window.cpu_ns / 8.0).max(1.0);
        let wanted = (wanted - PASSING_NS * calls / program).max(wanted * LEAST_PART);
        let right = mean as f64 * own / program / wanted;
        self.mean =
            right.clamp(self.mean / 2.0, self.mean * 2.0).clamp(SMALLEST_MEAN as f64, LARGEST_MEAN as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{chosen, gap, next};
    use super::*;

    /// A program that takes `ns_per_byte` for what it allocates and does with it, in blocks of some size.
    #[derive(Clone, Copy)]
    struct Program {
        ns_per_byte: f64,
        block: f64,
        /// What passing takes for each block, and what records do, of which only a part is measured.
        passing_ns: f64,
        record_ns: f64,
        measured: f64,
    }

    impl Program {
        /// The part of its time that records and passing take, less those of the beginning.
        fn part_taken(self, first: u64, wanted: f64) -> f64 {
            let sampling = Sampling::default();
            let mut noise = first | 1;
            sampling.random.set(next(&mut noise) | 1);
            sampling.mean.set(first);
            let mut looks = Looks { mean: first as f64, ..Looks::default() };
            let (mut all_own, mut all_rest) = (0.0, 0.0);
            for look in 0..4000 {
                let (mut own, mut bytes) = (0.0, 0.0);
                for _ in 0..LOOK_EVERY {
                    bytes += gap(&sampling) as f64;
                    own += self.record_ns * (0.5 + next(&mut noise) as f64 / u64::MAX as f64);
                }
                let (rest, passing) = (bytes * self.ns_per_byte, bytes / self.block * self.passing_ns);
                let window = Window { cpu_ns: own + rest + passing, own_ns: own * self.measured, bytes };
                looks.adapt(window, bytes / self.block, sampling.mean.get(), wanted);
                let factor = looks.hidden.factor_of_mean(next(&mut noise));
                sampling.mean.set(((looks.mean * factor) as u64).clamp(SMALLEST_MEAN, LARGEST_MEAN));
                if look >= 400 {
                    (all_own, all_rest) = (all_own + own + passing, all_rest + rest);
                }
            }
            all_own / all_rest
        }
    }

    #[test]
    fn records_take_the_budgets_part_of_the_time() {
        for first in [512, 524_288, 1 << 31] {
            for wanted in [0.001, 0.01, 0.2] {
                for (ns_per_byte, record_ns) in [(0.05, 300.0), (1.0, 2000.0), (40.0, 500_000.0)] {
                    for measured in [1.0, 0.5, 0.25] {
                        let program =
                            Program { ns_per_byte, block: 1e9, passing_ns: 3.0, record_ns, measured };
                        let part = program.part_taken(first, wanted);
                        let right = 0.75..1.25;
                        assert!(
                            right.contains(&(part / wanted)),
                            "{part} for {wanted} from {first}: {measured}"
                        );
                    }
                }
            }
        }
        // Nothing is recorded more often than the smallest mean says, however much there is to spend.
        let dear =
            Program { ns_per_byte: 100.0, block: 1e9, passing_ns: 0.0, record_ns: 100.0, measured: 1.0 };
        assert!(dear.part_taken(512, 0.5) < 0.1);
    }

    /// Of blocks of a byte, also where each look changes the mean: records stand for the gaps before them, all together.
    #[test]
    fn gaps_are_as_long_as_the_mean_that_is_told_of_them() {
        const RECORDS: u32 = 1 << 22;
        let (sampling, mut looks) = (Sampling::default(), Looks::default());
        sampling.random.set(11);
        sampling.mean.set(65_536);
        begin_gap(&sampling);
        let (mut gaps, mut means) = (0.0, 0.0);
        for _ in 0..RECORDS {
            // It has lost its fraction.
            gaps += sampling.left.replace(-1) as f64 + 0.5;
            means += chosen(&sampling, 1, 1).unwrap() as f64;
            looks.mean = 65_536.0;
            sampling.own_ticks.set(1);
            looks.look(&sampling);
        }
        let error = (gaps / means - 1.0).abs();
        assert!(error < 4.0 / f64::from(RECORDS).sqrt(), "{error}");
    }

    /// Passing is what can't be made less; records have what it leaves of the budget, or a little.
    #[test]
    fn what_passing_takes_is_not_spent_on_records() {
        let program = |ns_per_byte| Program {
            ns_per_byte,
            block: 64.0,
            passing_ns: 3.0,
            record_ns: 1000.0,
            measured: 1.0,
        };
        // 3 ns of 150, and of 15.
        let part = program(150.0 / 64.0).part_taken(524_288, 0.05);
        assert!((0.04..0.06).contains(&part), "{part}");
        let part = program(15.0 / 64.0).part_taken(524_288, 0.05);
        assert!((0.2..0.22).contains(&part), "{part}");
    }
}
