//! LEB128 integers, and zigzag for deltas.

use alloc::vec::Vec;

#[inline]
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A difference (modulo 2^64) as a number that is small when it is near to 0 on either side.
#[inline]
pub(crate) fn zigzag(delta: u64) -> u64 {
    (delta << 1) ^ (((delta as i64) >> 63) as u64)
}

/// The inverse of [`zigzag`].
#[inline]
pub(crate) fn unzigzag(zigzag: u64) -> u64 {
    (zigzag >> 1) ^ (zigzag & 1).wrapping_neg()
}

/// Reads at `*at` and moves it on. `None` when the bytes end or the number has more than 64 bits.
pub(crate) fn get(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    let mut shift = 0;
    loop {
        let byte = *bytes.get(*at)?;
        *at += 1;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
        shift += 7;
        if shift > 63 {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_at_the_edges() {
        for value in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put(&mut out, value);
            let mut at = 0;
            assert_eq!(get(&out, &mut at), Some(value));
            assert_eq!(at, out.len());
            assert_eq!(unzigzag(zigzag(value)), value);
            assert_eq!(zigzag(unzigzag(value)), value);
        }
    }

    #[test]
    fn overlong_and_cut_numbers_are_refused() {
        assert_eq!(get(&[0x80; 10], &mut 0), None);
        assert_eq!(get(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], &mut 0), None);
        assert_eq!(get(&[0x80], &mut 0), None);
        assert_eq!(get(&[], &mut 0), None);
    }
}
