//! Sizes on the command line.

/// A size as people write it.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err("the unit is none of K, M, G and T".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "there is no number".to_owned())?;
    Ok((number * (1_u64 << shift) as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("0", 0), ("1536", 1536), ("1.5K", 1536), ("2MiB", 2 << 20), ("1 gb", 1 << 30)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "M", "1x", "1.2.3K", "-1", "1 Kx"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
