//! Bytes as text of two digits each.

use data_encoding::HEXLOWER_PERMISSIVE;

use crate::BadRequest;

/// Puts the bytes that `text` spells into `out`, instead of what was there.
pub(crate) fn decode(text: &str, out: &mut Vec<u8>) -> Result<(), BadRequest> {
    let length = HEXLOWER_PERMISSIVE.decode_len(text.len()).map_err(|_| complaint(text))?;
    out.clear();
    out.resize(length, 0);
    match HEXLOWER_PERMISSIVE.decode_mut(text.as_bytes(), out) {
        Ok(0) => Err(BadRequest::NoBytes),
        Ok(_) => Ok(()),
        Err(_) => Err(complaint(text)),
    }
}

#[cold]
fn complaint(text: &str) -> BadRequest {
    match text.char_indices().find(|(_, found)| !found.is_ascii_hexdigit()) {
        Some((at, found)) => BadRequest::NotHex { found, at },
        None => BadRequest::OddHex { digits: text.len() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_of_both_cases_are_read() {
        let mut bytes = vec![1, 2, 3];
        for text in ["00ff7fab", "00FF7FAB"] {
            decode(text, &mut bytes).unwrap();
            assert_eq!(bytes, [0x00, 0xff, 0x7f, 0xab]);
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
