//! Figures in a few columns.

/// Bytes in at most five columns: `999`, `1.0K`, `12.3M`, `1020G`.
pub(super) fn bytes(value: f64) -> String {
    scaled(value, 1024.0, &["", "K", "M", "G", "T", "P", "E"])
}

/// A number in at most five columns: `999`, `1.0k`, `12.3M`.
pub(super) fn number(value: f64) -> String {
    scaled(value, 1000.0, &["", "k", "M", "G", "T", "P", "E"])
}

/// Bytes with their sign, in at most six columns.
pub(super) fn grown(bytes: i64) -> String {
    let sign = match bytes {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", self::bytes(bytes.unsigned_abs() as f64))
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (value, 0);
    // What would be rounded to a full step is the next unit's.
    while value.round() >= step && unit + 1 < units.len() {
        (value, unit) = (value / step, unit + 1);
    }
    let places = if unit == 0 || value >= 99.95 { 0 } else { 1 };
    format!("{value:.places$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_fit_their_columns() {
        for (value, text) in [
            (0.0, "0"),
            (999.4, "999"),
            (1023.0, "1023"),
            (1023.7, "1.0K"),
            (1536.0, "1.5K"),
            (100.0 * 1024.0, "100K"),
            (1023.99 * 1024.0, "1.0M"),
            (u64::MAX as f64, "16.0E"),
        ] {
            assert_eq!(bytes(value), text);
        }
        assert_eq!([number(999.0), number(1000.0), number(123_456.0)], ["999", "1.0k", "123k"]);
        assert_eq!([grown(0), grown(-2048), grown(1), grown(i64::MIN)], ["0", "-2.0K", "+1", "-8.0E"]);
        let mut value = 1.0;
        while value < 1e19 {
            assert!(bytes(value).len() <= 5 && number(value).len() <= 5, "{value}");
            value *= 1.037;
        }
    }
}
