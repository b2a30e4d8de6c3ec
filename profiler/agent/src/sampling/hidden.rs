//! What records cost beyond what is measured in them.
//!
//! A record takes more of a program's time than passes from its beginning to its end: the way in and out is predicted wrongly, and what
//! it pushed out of the processor's caches has to come back. In a loop that does nothing but allocate that is twice the rest. It can't be
//! measured where it happens, but it shows: a thread spends more time on each byte that it allocates where more of its allocations are
//! recorded. So looks at the clock come in pairs, one behind records by a larger mean and one by a smaller one, in an order that is
//! drawn at random. What the program does meanwhile has nothing to do with that order, so over many pairs the difference is what
//! records cost.
//!
//! Of a pair, `x` is the time per byte, and `u` what of it was measured in records. The factor `k` that is sought is the one
//! with which `x₁ - x₂` is `k (u₁ - u₂)` over the sum of all pairs, each taken with the sign of its order, and in
//! parts of its time per byte, so that a few slow ones don't decide. As long as pairs are few or differ much, it
//! is drawn to what it is most often.

/// What was seen from one look to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    /// The thread's processor time in nanoseconds.
    pub(crate) cpu_ns: f64,
    /// What of that was measured in records.
    pub(crate) own_ns: f64,
    /// The bytes that were allocated.
    pub(crate) bytes: f64,
}

/// What the factor most often is, and how far off that may be.
const USUAL: f64 = 2.0;
const USUAL_ERROR: f64 = 1.0;
const LARGEST: f64 = 8.0;
/// How much of the sums is left when a pair is added: programs change.
const KEPT: f64 = 1.0 - 1.0 / 4096.0;

/// How many times what is measured in records they cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hidden {
    /// The first of a pair.
    first: Window,
    /// Whether there is one, and its mean was the smaller one.
    has_first: bool,
    first_is_dense: bool,
    /// Sums over pairs: of products of the differences, v of `x` and u of `u`, with each other and with the sign.
    zv: f64,
    zu: f64,
    vv: f64,
    uv: f64,
    uu: f64,
}

impl Hidden {
    /// By what the mean is to be multiplied until the next look. `random` has a bit in its uppermost place.
    pub(crate) fn factor_of_mean(&mut self, random: u64) -> f64 {
        let is_dense = if self.has_first {
            !self.first_is_dense
        } else {
            self.first_is_dense = random >> (u64::BITS - 1) != 0;
            self.first_is_dense
        };
        if is_dense { core::f64::consts::FRAC_1_SQRT_2 } else { core::f64::consts::SQRT_2 }
    }

    /// Adds what was seen, by the mean that the last [`Hidden::factor_of_mean`] made.
    pub(crate) fn add(&mut self, window: Window) {
        if !self.has_first {
            (self.first, self.has_first) = (window, true);
            return;
        }
        self.has_first = false;
        let (first, second) = (self.first, window);
        let per_byte = |window: &Window, ns: f64| ns / window.bytes.max(1.0);
        let (x, y) = (per_byte(&first, first.cpu_ns), per_byte(&second, second.cpu_ns));
        let (u, w) = (per_byte(&first, first.own_ns), per_byte(&second, second.own_ns));
        let mean = (x + y) / 2.0;
        if mean <= 0.0 {
            return;
        }
        let (v, u) = ((x - y) / mean, (u - w) / mean);
        let z = if self.first_is_dense { 1.0 } else { -1.0 };
        for (sum, product) in [
            (&mut self.zv, z * v),
            (&mut self.zu, z * u),
            (&mut self.vv, v * v),
            (&mut self.uv, u * v),
            (&mut self.uu, u * u),
        ] {
            *sum = *sum * KEPT + product;
        }
    }

    /// The factor, from 1 on.
    pub(crate) fn factor(&self) -> f64 {
        const USUAL_WEIGHT: f64 = 1.0 / (USUAL_ERROR * USUAL_ERROR);
        if self.zu <= 0.0 {
            return USUAL;
        }
        let seen = self.zv / self.zu;
        // What the differences have besides, which is no less than nothing but for rounding.
        let rest = (self.vv - 2.0 * seen * self.uv + seen * seen * self.uu).max(1e-12);
        let weight = self.zu * self.zu / rest;
        ((USUAL * USUAL_WEIGHT + seen * weight) / (USUAL_WEIGHT + weight)).clamp(1.0, LARGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::super::next;
    use super::*;

    /// From 0 up to 1.
    fn uniform(state: &mut u64) -> f64 {
        (next(state) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The factor that is found of a program that takes `noise` times its time more or less for a byte, from pair to pair as within
    /// one, and whose records take `share` of it as they are measured.
    fn found(factor: f64, share: f64, noise: f64, pairs: u32) -> f64 {
        let (mut hidden, mut random) = (Hidden::default(), 5);
        let mut pace = 1.0;
        for _ in 0..pairs {
            // Phases that are slow and fast, and adapt the mean.
            pace *= 1.0 + noise * (uniform(&mut random) - 0.5);
            let own = share * 30_000.0;
            for _ in 0..2 {
                let bytes =
                    hidden.factor_of_mean(next(&mut random)) * 30_000.0 * (0.8 + 0.4 * uniform(&mut random))
                        / pace;
                let rest = bytes * pace * (1.0 + noise * (2.0 * uniform(&mut random) - 1.0));
                hidden.add(Window { cpu_ns: rest + factor * own, own_ns: own, bytes });
            }
        }
        hidden.factor()
    }

    #[test]
    fn what_records_cost_is_found_from_pairs() {
        for factor in [1.0, 1.5, 3.0, 5.0] {
            for (share, noise, pairs) in [(0.05, 0.0, 10), (0.05, 0.1, 2_000), (0.2, 0.5, 2_000)] {
                let found = found(factor, share, noise, pairs);
                assert!((found / factor - 1.0).abs() < 0.2, "{found} for {factor}: {share}, {noise}");
            }
        }
    }

    #[test]
    fn where_little_is_seen_it_is_what_it_usually_is() {
        assert_eq!(Hidden::default().factor(), USUAL);
        for factor in [1.0, 5.0] {
            let found = found(factor, 0.001, 0.5, 100);
            assert!((found - USUAL).abs() < 0.5, "{found}");
        }
        // Blocks larger than gaps: how many are recorded has nothing to do with the mean.
        let mut hidden = Hidden::default();
        let mut random = 6;
        for _ in 0..2_000 {
            let _ = hidden.factor_of_mean(next(&mut random));
            let bytes = 1e6 * (0.1 + uniform(&mut random));
            hidden.add(Window { cpu_ns: 40_000.0, own_ns: 1_000.0, bytes });
        }
        assert!((hidden.factor() - USUAL).abs() < 0.7, "{}", hidden.factor());
    }
}
