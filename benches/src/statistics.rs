//! One figure for many runs.
//!
//! What disturbs a run (other guests of the machine, interrupts, other programs) only ever makes it slower, sometimes all runs
//! for seconds by half. So the least of many runs is the nearest to what the work itself takes: it is true as soon as one
//! run went by undisturbed. Where a tool is compared with a run without it that
//! stood beside it, the median of the differences is a second figure: what disturbs both is in neither.

/// The value that so much of all (0 to 1) lies below, in between two values by how far it is from each.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = part * last as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// The least of the values.
pub fn least(values: &[f64]) -> f64 {
    quantile(values, 0.0)
}

/// The value that a tenth of all lies below.
pub fn tenth(values: &[f64]) -> f64 {
    quantile(values, 0.1)
}

/// The middle of the values; the mean of the two in the middle if their number is even.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The median, with the least and the most.
pub fn spread(values: &[f64], digits: usize) -> String {
    if values.is_empty() {
        return "-".to_owned();
    }
    let (least, most) = (least(values), quantile(values, 1.0));
    format!("{:.digits$} ({least:.digits$}-{most:.digits$})", median(values))
}

/// The least, the tenth percentile and the median.
pub fn low(values: &[f64], digits: usize) -> String {
    format!("{:.digits$}, {:.digits$}, {:.digits$}", least(values), tenth(values), median(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn low_values() {
        let values: Vec<f64> = (0..=20).rev().map(f64::from).collect();
        assert_eq!((least(&values), tenth(&values)), (0.0, 2.0));
        assert_eq!(low(&[2.0, 1.0], 1), "1.0, 1.1, 1.5");
        assert_eq!(spread(&values, 0), "10 (0-20)");
    }
}
