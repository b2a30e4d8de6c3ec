//! How long events are waited for that others wait for, and clocks that don't come.

/// How long an event may wait for one with a lower number before that is given up.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Passes that lie further apart had something in between that kept them.
const STANDSTILL_NS: u64 = 500_000_000;

/// What was seen of passes. Times in nanoseconds, clocks in ticks.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// The time of the last pass that got on, or had nothing to do.
    progress_ns: u64,
    /// The clock of the first pass after a standstill.
    went_on: u64,
}

/// What a pass may give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenUp {
    /// Nothing has gone on for so long: clocks are no longer heeded.
    pub(super) clocks: bool,
    /// What came before this clock has waited for long enough.
    pub(super) overdue: u64,
}

impl Patience {
    /// A pass begins, at this clock and time; the one before began at `last_ns`.
    pub(super) fn pass(&mut self, now: u64, now_ns: u64, last_ns: u64, ns_per_tick: f64) -> GivenUp {
        // While this thread, or all of the machine, stood still, nothing was waited for.
        if now_ns.saturating_sub(last_ns) > STANDSTILL_NS {
            self.progress_ns = now_ns;
            self.went_on = now;
        }
        let overdue = now.saturating_sub((PATIENCE_NS as f64 / ns_per_tick) as u64);
        let overdue = if overdue < self.went_on { 0 } else { overdue };
        GivenUp { clocks: now_ns.saturating_sub(self.progress_ns) > PATIENCE_NS, overdue }
    }

    /// The pass that began at this time got on, or had nothing to do.
    pub(super) fn got_on(&mut self, now_ns: u64) {
        self.progress_ns = now_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pass each 10 ms from `from_ms` on, at 2 ticks to the nanosecond; what the last one may give up.
    fn passes(patience: &mut Patience, from_ms: u64, to_ms: u64, gets_on: bool) -> GivenUp {
        let mut last = GivenUp { clocks: false, overdue: 0 };
        for ms in (from_ms..=to_ms).step_by(10) {
            let now_ns = ms * 1_000_000;
            last = patience.pass(2 * now_ns, now_ns, now_ns.saturating_sub(10_000_000), 0.5);
            if gets_on {
                patience.got_on(now_ns);
            }
        }
        last
    }

    #[test]
    fn who_waits_for_a_second_goes_on_while_others_do() {
        let mut patience = Patience::default();
        assert_eq!(passes(&mut patience, 0, 900, true), GivenUp { clocks: false, overdue: 0 });
        let given_up = passes(&mut patience, 910, 5000, true);
        assert_eq!(given_up, GivenUp { clocks: false, overdue: 2 * 4_000_000_000 });
    }

    #[test]
    fn clocks_are_not_heeded_where_nothing_goes_on_for_a_second() {
        let mut patience = Patience::default();
        passes(&mut patience, 0, 300, true);
        assert!(!passes(&mut patience, 310, 1300, false).clocks);
        assert!(passes(&mut patience, 1310, 1310, false).clocks);
        assert!(!passes(&mut patience, 1320, 1330, true).clocks);
    }

    #[test]
    fn a_standstill_is_no_wait() {
        let mut patience = Patience::default();
        passes(&mut patience, 0, 1500, false);
        // Ten seconds later.
        let (now_ns, last_ns) = (11_500_000_000, 1_500_000_000);
        let nothing = GivenUp { clocks: false, overdue: 0 };
        assert_eq!(patience.pass(2 * now_ns, now_ns, last_ns, 0.5), nothing);
        assert_eq!(passes(&mut patience, 11_510, 12_490, false), nothing);
        let given_up = passes(&mut patience, 12_500, 12_510, false);
        assert_eq!(given_up, GivenUp { clocks: true, overdue: 2 * 11_510_000_000 });
    }
}
