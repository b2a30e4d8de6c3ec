//! What each site held at the process's peak, in one pass and constant time per event.
//!
//! Every new maximum of the live bytes begins a new *version* of the peak. A site remembers a value and the
//! version that it belongs to. The invariant: if the version is the clock's, the value is what the site
//! held at the last peak; if it is older, the site has not changed since that peak, so what it holds now is
//! the value. Before a site changes, its value is therefore taken if its version is old; a new peak costs
//! one increment, however many sites there are.

/// Counts the peaks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeakClock {
    version: u64,
}

/// A site's value at the peak of a version.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeakShare {
    value: u64,
    version: u64,
}

impl PeakClock {
    /// The live bytes have just reached a new maximum.
    #[inline]
    pub(crate) fn new_peak(&mut self) {
        self.version += 1;
    }

    /// To be called before what a site holds changes from `held`.
    #[inline]
    pub(crate) fn before_change(self, share: &mut PeakShare, held: u64) {
        if share.version < self.version {
            *share = PeakShare { value: held, version: self.version };
        }
    }

    /// What a site held at the last peak, if it holds `held` now.
    pub(crate) fn share(self, share: &PeakShare, held: u64) -> u64 {
        if share.version < self.version { held } else { share.value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_untouched_since_the_peak_has_what_it_holds() {
        let mut clock = PeakClock::default();
        let mut share = PeakShare::default();
        clock.before_change(&mut share, 0);
        clock.new_peak();
        assert_eq!(clock.share(&share, 70), 70);
        clock.before_change(&mut share, 70);
        assert_eq!(clock.share(&share, 10), 70);
        clock.new_peak();
        assert_eq!(clock.share(&share, 10), 10);
    }
}
