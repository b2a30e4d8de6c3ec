//! Moments that the present is compared with: for growth, and for rates.
//!
//! A site keeps its place in the list of sites once it has one, so a moment is a list of figures by these places. Sites that
//! came later had nothing then.

use grapnel_analysis::Totals;
use grapnel_analysis::sites::Site;

/// Rates are of this long at least, and of twice as long at most, where the trace is read as it is written.
const PACE_NS: u64 = 1_000_000_000;
/// While a long trace is read, of this part of it: else there would be more moments than it is worth.
const PACE_PART: u64 = 64;

/// What a site had at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Had {
    pub(super) live_bytes: u64,
    pub(super) allocated_bytes: u64,
    pub(super) calls: u64,
}

impl Had {
    fn of(site: &Site) -> Self {
        let Site { live_bytes, allocated_bytes, allocations, .. } = *site;
        Self { live_bytes, allocated_bytes, calls: allocations }
    }

    fn of_all(totals: &Totals) -> Self {
        let calls = totals.allocations.saturating_add(totals.reallocations);
        Self { live_bytes: totals.live_bytes, allocated_bytes: totals.allocated_bytes, calls }
    }
}

/// A moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Base {
    pub(super) time_ns: u64,
    sites: Vec<Had>,
    all: Had,
}

impl Base {
    pub(super) fn new(time_ns: u64, sites: &[Site], totals: &Totals) -> Self {
        Self { time_ns, sites: sites.iter().map(Had::of).collect(), all: Had::of_all(totals) }
    }

    /// What the site at this place had then.
    fn had(&self, place: usize) -> Had {
        self.sites.get(place).copied().unwrap_or_default()
    }

    /// What its live bytes have grown by.
    pub(super) fn growth(&self, place: usize, site: &Site) -> i64 {
        site.live_bytes.wrapping_sub(self.had(place).live_bytes).cast_signed()
    }

    pub(super) fn growth_of_all(&self, totals: &Totals) -> i64 {
        totals.live_bytes.wrapping_sub(self.all.live_bytes).cast_signed()
    }
}

/// What is allocated in a second: since a moment that is not long ago.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    older: Base,
    newer: Base,
}

impl Pace {
    /// Whether the moment that is compared with is too long ago.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.newer.time_ns) >= PACE_NS.max(now_ns / PACE_PART)
    }

    pub(super) fn advance(&mut self, now: Base) {
        self.older = std::mem::replace(&mut self.newer, now);
    }

    fn seconds(&self, now_ns: u64) -> f64 {
        // Of a recording that has just begun nothing can be said but that it was short.
        now_ns.saturating_sub(self.older.time_ns).max(1_000_000) as f64 / 1e9
    }

    /// Bytes and blocks that a site allocates in a second.
    pub(super) fn of_site(&self, place: usize, site: &Site, now_ns: u64) -> (f64, f64) {
        rates(self.older.had(place), Had::of(site), self.seconds(now_ns))
    }

    pub(super) fn of_all(&self, totals: &Totals, now_ns: u64) -> (f64, f64) {
        rates(self.older.all, Had::of_all(totals), self.seconds(now_ns))
    }
}

fn rates(then: Had, now: Had, seconds: f64) -> (f64, f64) {
    let of = |then: u64, now: u64| now.saturating_sub(then) as f64 / seconds;
    (of(then.allocated_bytes, now.allocated_bytes), of(then.calls, now.calls))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(live_bytes: u64, allocated_bytes: u64) -> Site {
        Site { live_bytes, allocated_bytes, allocations: allocated_bytes / 10, ..Site::default() }
    }

    #[test]
    fn sites_that_came_later_have_grown_from_nothing() {
        let base = Base::new(5, &[site(100, 100)], &Totals { live_bytes: 100, ..Totals::default() });
        assert_eq!(base.growth(0, &site(40, 200)), -60);
        assert_eq!(base.growth(1, &site(40, 200)), 40);
        assert_eq!(base.growth_of_all(&Totals { live_bytes: 80, ..Totals::default() }), -20);
    }

    #[test]
    fn rates_are_of_the_last_second_or_two() {
        let mut pace = Pace::default();
        let at = |tenths: u64| tenths * 100_000_000;
        let mut seen = Vec::new();
        for tenths in 0..100 {
            // 1000 bytes in each tenth of a second, and from the sixth second on nothing.
            let now = site(0, 1000 * tenths.min(60));
            seen.push(pace.of_site(0, &now, at(tenths)));
            if pace.is_due(at(tenths)) {
                pace.advance(Base::new(at(tenths), &[now], &Totals::default()));
            }
        }
        assert!(
            seen[1..60].iter().all(|&(bytes, calls)| bytes.round() == 10_000.0 && calls.round() == 1000.0)
        );
        assert_eq!(seen[85], (0.0, 0.0));
        // A figure that went down, as an estimate can.
        assert_eq!(pace.of_site(0, &site(0, 1), at(200)), (0.0, 0.0));
    }

    #[test]
    fn a_long_trace_has_few_moments() {
        let mut pace = Pace::default();
        let moments = (0..100_000).filter(|second| {
            let due = pace.is_due(second * PACE_NS);
            if due {
                pace.advance(Base { time_ns: second * PACE_NS, ..Base::default() });
            }
            due
        });
        assert!(moments.count() < 1000);
    }
}
