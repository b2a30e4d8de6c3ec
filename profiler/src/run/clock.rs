//! From the processor's ticks to the trace's time.

use super::process::monotonic_ns;
use crate::native::{guessed_ns_per_tick, ticks};

/// How far apart two times in a trace are at least.
const STEP_NS: u64 = 100_000;

/// Relates ticks to nanoseconds since a recording began.
#[derive(Debug)]
pub(crate) struct Clock {
    /// CLOCK_MONOTONIC, in nanoseconds, of time 0.
    started_ns: u64,
    /// Readings of both clocks: the first, and the last.
    first: (u64, u64),
    last: (u64, u64),
    told_ns: u64,
    /// Ticks before which there is nothing to tell.
    next: u64,
}

/// Readings nearer than this to each other give no good ratio.
const APART_NS: u64 = 1_000_000;

fn read() -> (u64, u64) {
    (ticks(), monotonic_ns())
}

impl Clock {
    /// A clock of a recording that began at `started_ns` of CLOCK_MONOTONIC.
    pub(crate) fn new(started_ns: u64) -> Self {
        let now = read();
        Self { started_ns, first: now, last: now, told_ns: 0, next: 0 }
    }

    /// Reads both clocks.
    pub(crate) fn measure(&mut self) {
        self.last = read();
    }

    /// Whether the time of an event may be worth telling.
    #[inline(always)]
    pub(crate) fn is_due(&self, ticks: u64) -> bool {
        ticks >= self.next
    }

    /// The time of an event, if it is worth telling: never earlier than what was told, and no later than now.
    pub(crate) fn step(&mut self, ticks: u64) -> Option<u64> {
        if !self.is_due(ticks) {
            return None;
        }
        let ns = self.nanoseconds(ticks);
        if ns < self.told_ns + STEP_NS {
            self.next = ticks.saturating_add(self.ticks_of(self.told_ns + STEP_NS - ns));
            return None;
        }
        self.told_ns = ns;
        self.next = ticks.saturating_add(self.ticks_of(STEP_NS));
        Some(ns)
    }

    /// How many ticks a short time takes, as far as that is known, else 0.
    fn ticks_of(&self, ns: u64) -> u64 {
        let ((first_ticks, first_ns), (last_ticks, last_ns)) = (self.first, self.last);
        let (span_ticks, span_ns) =
            (last_ticks.saturating_sub(first_ticks), last_ns.saturating_sub(first_ns));
        if span_ns < APART_NS {
            return 0;
        }
        let ticks = u128::from(ns.min(STEP_NS)) * u128::from(span_ticks) / u128::from(span_ns);
        u64::try_from(ticks).unwrap_or(0)
    }

    /// The time of a moment that is to lie behind all that was told.
    pub(crate) fn moment(&mut self, ticks: u64) -> u64 {
        self.told_ns = self.nanoseconds(ticks).max(self.told_ns + 1);
        self.next = ticks.saturating_add(self.ticks_of(STEP_NS));
        self.told_ns
    }

    /// How long a tick takes.
    pub(crate) fn ns_per_tick(&self) -> f64 {
        let ((first_ticks, first_ns), (last_ticks, last_ns)) = (self.first, self.last);
        let (ticks, ns) = (last_ticks.saturating_sub(first_ticks), last_ns.saturating_sub(first_ns));
        if ns < APART_NS || ticks == 0 { guessed_ns_per_tick() } else { ns as f64 / ticks as f64 }
    }

    fn nanoseconds(&self, ticks: u64) -> u64 {
        let ((first_ticks, first_ns), (last_ticks, last_ns)) = (self.first, self.last);
        let now = last_ns.saturating_sub(self.started_ns);
        let ago = last_ticks.saturating_sub(ticks);
        let (span_ticks, span_ns) = (last_ticks.saturating_sub(first_ticks), last_ns - first_ns);
        if span_ns < APART_NS || span_ticks == 0 {
            return now.saturating_sub((ago as f64 * guessed_ns_per_tick()) as u64);
        }
        let ago = u128::from(ago) * u128::from(span_ns) / u128::from(span_ticks);
        now.saturating_sub(u64::try_from(ago).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_neither_goes_back_nor_runs_ahead() {
        let mut clock = Clock {
            started_ns: 1000,
            first: (5000, 1000),
            last: (3_005_000, 1_001_000_000),
            told_ns: 0,
            next: 0,
        };
        assert_eq!(clock.step(3_005_000), Some(1_000_999_000));
        assert_eq!(clock.step(5000), None);
        assert_eq!(clock.step(u64::MAX), None);
    }

    #[test]
    fn a_time_is_told_as_soon_as_it_is_a_step_away() {
        // Three ticks to a nanosecond, and a second until now.
        let mut clock =
            Clock { started_ns: 0, first: (0, 0), last: (3_000_000_000, 1_000_000_000), told_ns: 0, next: 0 };
        let told: Vec<u64> = (0..10_000).filter_map(|n| clock.step(n * 3000)).collect();
        assert_eq!(told, (1..100).map(|n| n * STEP_NS).collect::<Vec<_>>());
    }
}
