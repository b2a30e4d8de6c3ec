//! The live bytes over the whole of a recording, in bounded memory.

/// Twice the number of points that are kept at least.
const MOST: usize = 256;
/// The first distance of two points.
const FIRST_NS: u64 = 10_000_000;

/// The largest value in each of many stretches of equal length. When there are too many, two become one.
#[derive(Debug)]
pub(super) struct Trend {
    points: Vec<u64>,
    length_ns: u64,
    last: u64,
}

impl Default for Trend {
    fn default() -> Self {
        Self { points: Vec::new(), length_ns: FIRST_NS, last: 0 }
    }
}

impl Trend {
    /// At `time_ns` the value is this one, and stays so until the next is told.
    pub(super) fn push(&mut self, time_ns: u64, value: u64) {
        while time_ns / self.length_ns >= MOST as u64 {
            self.points = self.points.chunks(2).map(|two| two.iter().copied().max().unwrap_or(0)).collect();
            self.length_ns *= 2;
        }
        let at = (time_ns / self.length_ns) as usize;
        while self.points.len() <= at {
            self.points.push(self.last);
        }
        self.points[at] = self.points[at].max(value);
        self.last = value;
    }

    pub(super) fn points(&self) -> &[u64] {
        &self.points
    }
}

/// As many values as there are columns: the largest of those that fall together, the same again where there are too few.
pub(super) fn fitted(points: &[u64], columns: usize) -> Vec<u64> {
    let place = |column: usize| column * points.len() / columns.max(1);
    let range = |column: usize| place(column)..place(column + 1).max(place(column) + 1).min(points.len());
    let largest = |column| points.get(range(column)).and_then(|part| part.iter().copied().max());
    (0..columns).map(|column| largest(column).unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_stay_however_long_it_takes() {
        let mut trend = Trend::default();
        for second in 0..100_000_u64 {
            let value = if second == 31_000 { 1_000_000 } else { second % 10 };
            trend.push(second * 1_000_000_000, value);
        }
        assert!((MOST / 2..=MOST).contains(&trend.points().len()), "{}", trend.points().len());
        assert_eq!(trend.points().iter().max(), Some(&1_000_000));
        let at = trend.points().iter().position(|&value| value == 1_000_000).unwrap();
        assert_eq!(at * 100 / trend.points().len(), 30);
        // A time that no clock can have.
        trend.push(u64::MAX, 7);
        assert!(trend.points().len() <= MOST);
    }

    #[test]
    fn a_value_stays_until_the_next() {
        let mut trend = Trend::default();
        trend.push(0, 5);
        trend.push(FIRST_NS * 3, 2);
        assert_eq!(trend.points(), [5, 5, 5, 5]);
        trend.push(FIRST_NS * 5, 1);
        assert_eq!(trend.points(), [5, 5, 5, 5, 2, 2]);
    }

    #[test]
    fn points_fit_any_width() {
        assert_eq!(fitted(&[1, 9, 2, 3], 2), [9, 3]);
        assert_eq!(fitted(&[1, 2], 4), [1, 1, 2, 2]);
        assert_eq!(fitted(&[], 3), [0, 0, 0]);
        assert_eq!(fitted(&[1], 0), [0; 0]);
    }
}
