//! What the recording cost the program, estimated from the calls of it that were timed.
//!
//! Calls that took a stack and calls that did not are estimated apart: of each class, the mean of those that were timed,
//! times how many there were. What each call takes besides, from the hooked function to the recording and back, and what
//! it took to begin, were measured and are added.
//!
//! The standard error has two parts: that of the means, and what the way of measuring leaves open. A processor works on
//! several calls at once, which a look at the clock prevents; and what the recording takes from the program's caches costs
//! time elsewhere. Beside the true difference between runs with and without recording, estimates were off by up to 15 ns
//! per event either way, or by a fifth where events cost a hundred and more (`benches/results/`).

use grapnel_trace::Meter;
use grapnel_trace::meter::Timed;

/// The standard error of an event's cost that comes of measuring it, in nanoseconds and as a part of it.
const MEASURING_NS: f64 = 10.0;
const MEASURING_PART: f64 = 0.15;

/// Timed calls from which on a mean is worth saying.
const ENOUGH: u64 = 16;

/// An estimate of what a recording cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overhead {
    /// Events that were recorded.
    pub events: u64,
    /// How many of them were timed.
    pub timed: u64,
    /// Processor time of the program that recording took, in nanoseconds. `None` where too few calls were timed to say.
    pub added: Option<Estimate>,
    /// The program's processor time, of which that is a part, in nanoseconds; `None` where it isn't known.
    pub program_cpu_ns: Option<u64>,
}

/// An estimate and its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The estimate.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
}

impl Estimate {
    fn times(self, factor: f64) -> Self {
        Self { value: self.value * factor, error: self.error * factor }
    }

    fn plus(self, other: Self) -> Self {
        Self { value: self.value + other.value, error: self.error.hypot(other.error) }
    }
}

/// The mean of a class, if it can be told.
fn mean(timed: &Timed) -> Option<Estimate> {
    let calls = timed.calls as f64;
    let value = timed.ns as f64 / calls;
    let variance = (timed.squares as f64 / calls - value * value).max(0.0);
    (timed.calls >= 2).then(|| Estimate { value, error: (variance / (calls - 1.0)).sqrt() })
}

impl Overhead {
    /// What a trace's meter says.
    pub fn of(meter: &Meter) -> Self {
        let classes = [&meter.given, &meter.taken];
        let events = classes.iter().fold(0, |sum: u64, timed| sum.saturating_add(timed.events));
        let timed = classes.iter().fold(0, |sum: u64, timed| sum.saturating_add(timed.calls));
        // A class of which too few were timed costs about what the other does, more or less all of that.
        let known = classes.iter().filter_map(|timed| mean(timed)).map(|mean| mean.value);
        let otherwise = known.reduce(f64::max).map(|value| Estimate { value, error: value });
        let empty = Estimate { value: meter.empty_ps as f64 / 1000.0, error: 0.0 };
        let setup = Estimate { value: meter.setup_ns as f64, error: 0.0 };
        let sum = classes.iter().try_fold(setup, |sum, timed| {
            let mean = mean(timed).or(otherwise)?;
            Some(sum.plus(mean.plus(empty).times(timed.events as f64)))
        });
        let added = sum.filter(|_| timed >= ENOUGH).map(|sum| {
            let measuring = (MEASURING_NS * events as f64).hypot(MEASURING_PART * sum.value);
            Estimate { error: sum.error.hypot(measuring), ..sum }
        });
        Self { events, timed, added, program_cpu_ns: Some(meter.program_cpu_ns).filter(|ns| *ns != 0) }
    }

    /// Of each event, in nanoseconds.
    pub fn per_event(&self) -> Option<Estimate> {
        self.added.filter(|_| self.events != 0).map(|added| added.times(1.0 / self.events as f64))
    }

    /// How many percent more processor time the program took than it would have without. `None` where that isn't known, or
    /// where the estimate comes near to all of it.
    pub fn slowdown_percent(&self) -> Option<Estimate> {
        let (added, with) = (self.added?, self.program_cpu_ns? as f64);
        let without = with - added.value;
        (without > with / 100.0).then(|| {
            // d(added / (with - added)) = with / (with - added)² d(added)
            let error = with / (without * without) * added.error;
            Estimate { value: added.value / without, error }.times(100.0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `calls` of so many nanoseconds by turns.
    fn timed(events: u64, calls: u64, ns: [u64; 2]) -> Timed {
        let each = calls / 2;
        Timed { events, calls, ns: each * (ns[0] + ns[1]), squares: each * (ns[0] * ns[0] + ns[1] * ns[1]) }
    }

    fn meter() -> Meter {
        Meter {
            given: timed(1_000_000, 100, [40, 60]),
            taken: timed(500_000, 400, [20, 20]),
            empty_ps: 10_000,
            setup_ns: 5_000_000,
            program_cpu_ns: 400_000_000,
            ..Meter::default()
        }
    }

    #[test]
    fn each_class_counts_as_often_as_it_came() {
        let overhead = Overhead::of(&meter());
        let added = overhead.added.unwrap();
        // 1,000,000 of 50 + 10, 500,000 of 20 + 10, and the start.
        assert_eq!(added.value, 60e6 + 15e6 + 5e6);
        // The deviation is 10, of 100 calls; and 10 ns of each event, and 15 % of all.
        let errors = [1e6 * 10.0 / 99f64.sqrt(), 15e6, 12e6];
        let error = errors.iter().map(|error| error * error).sum::<f64>().sqrt();
        assert!((added.error - error).abs() < 1.0, "{added:?}");
        let each = overhead.per_event().unwrap();
        assert!((each.value - 80.0 / 1.5).abs() < 1e-9, "{each:?}");
        // 80 of 400 ms: a quarter of the rest.
        let slowdown = overhead.slowdown_percent().unwrap();
        assert!((slowdown.value - 25.0).abs() < 1e-9, "{slowdown:?}");
        let near = |by: f64| Estimate { value: added.value + by * added.error, error: 0.0 };
        let more = Overhead { added: Some(near(0.01)), ..overhead };
        let moved = more.slowdown_percent().unwrap().value - slowdown.value;
        assert!((100.0 * moved / slowdown.error - 1.0).abs() < 0.02, "{moved} {slowdown:?}");
    }

    #[test]
    fn nothing_is_said_of_too_little() {
        let few = Meter { given: timed(100, 2, [40, 60]), taken: timed(100, 2, [40, 60]), ..meter() };
        assert_eq!(Overhead::of(&few).added, None);
        assert_eq!(Overhead::of(&Meter::default()).per_event(), None);
        // One class only was timed.
        let one = Overhead::of(&Meter { taken: timed(500_000, 0, [0, 0]), ..meter() });
        let added = one.added.unwrap();
        assert_eq!(added.value, 60e6 + 30e6 + 5e6);
        assert!(added.error > 500_000.0 * 50.0, "{added:?}");
        // All of the time, or more: the estimate is of no use.
        let all = Overhead::of(&Meter { program_cpu_ns: 80_000_000, ..meter() });
        assert!(all.added.is_some() && all.slowdown_percent().is_none());
        assert!(Overhead::of(&Meter { program_cpu_ns: 0, ..meter() }).slowdown_percent().is_none());
    }

    #[test]
    fn numbers_of_a_hostile_trace_do_no_harm() {
        let most = Timed { events: u64::MAX, calls: u64::MAX, ns: u64::MAX, squares: 0 };
        let meter = Meter { given: most, taken: most, empty_ps: u64::MAX, ..Meter::default() };
        let overhead = Overhead::of(&meter);
        assert!(overhead.per_event().is_some_and(|each| each.value.is_finite()));
    }
}
