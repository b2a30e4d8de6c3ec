//! Bytes as text of two digits each.

use crate::BadRequest;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// No digit.
const NONE: u8 = 0xff;

const VALUES: [u8; 256] = {
    let mut values = [NONE; 256];
    let mut digit = 0;
    while digit < 16 {
        values[DIGITS[digit] as usize] = digit as u8;
        values[DIGITS[digit].to_ascii_uppercase() as usize] = digit as u8;
        digit += 1;
    }
    values
};

/// Puts the bytes that `text` spells into `out`, instead of what was there.
pub(crate) fn decode(text: &str, out: &mut Vec<u8>) -> Result<(), BadRequest> {
    out.clear();
    out.reserve(text.len() / 2);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let mut all = 0;
    out.extend(pairs.iter().map(|&[high, low]| {
        let (high, low) = (VALUES[usize::from(high)], VALUES[usize::from(low)]);
        all |= high | low;
        high << 4 | low
    }));
    // A value is below 16, so that only NONE sets the high bits.
    if all > 15 || !rest.is_empty() {
        return Err(complaint(text));
    }
    if out.is_empty() { Err(BadRequest::NoBytes) } else { Ok(()) }
}

#[cold]
fn complaint(text: &str) -> BadRequest {
    match text.char_indices().find(|(_, found)| !found.is_ascii_hexdigit()) {
        Some((at, found)) => BadRequest::NotHex { found, at },
        None => BadRequest::OddHex { digits: text.len() },
    }
}

/// Appends the bytes as text.
pub(crate) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len() * 2);
    for &byte in bytes {
        out.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways() {
        let all: Vec<u8> = (0..=255).collect();
        let mut text = Vec::new();
        encode(&all, &mut text);
        let text = String::from_utf8(text).unwrap();
        let mut back = vec![1, 2, 3];
        for text in [text.to_uppercase(), text] {
            decode(&text, &mut back).unwrap();
            assert_eq!(back, all);
        }
    }

    #[test]
    fn what_is_no_hex_is_named() {
        let complaint = |text| decode(text, &mut Vec::new()).unwrap_err();
        assert_eq!(complaint(""), BadRequest::NoBytes);
        assert_eq!(complaint("9"), BadRequest::OddHex { digits: 1 });
        assert_eq!(complaint("909"), BadRequest::OddHex { digits: 3 });
        assert_eq!(complaint("90 90"), BadRequest::NotHex { found: ' ', at: 2 });
        assert_eq!(complaint("0x90"), BadRequest::NotHex { found: 'x', at: 1 });
        assert_eq!(complaint("90é"), BadRequest::NotHex { found: 'é', at: 2 });
        assert_eq!(complaint("9\u{0}"), BadRequest::NotHex { found: '\0', at: 1 });
    }
}
