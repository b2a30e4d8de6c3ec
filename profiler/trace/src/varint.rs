//! LEB128 integers and zigzag deltas.

use alloc::vec::Vec;

pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The difference `value - base` (modulo 2^64), small when the two are near on either side.
pub(crate) fn put_delta(out: &mut Vec<u8>, value: u64, base: u64) {
    let delta = value.wrapping_sub(base) as i64;
    put(out, ((delta << 1) ^ (delta >> 63)) as u64);
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

pub(crate) fn get_delta(bytes: &[u8], at: &mut usize, base: u64) -> Option<u64> {
    let zigzag = get(bytes, at)?;
    let delta = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
    Some(base.wrapping_add(delta as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_at_the_edges() {
        for value in [0, 1, 0x7f, 0x80, 0x3fff, 0x4000, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put(&mut out, value);
            put_delta(&mut out, value, 77);
            put_delta(&mut out, 77, value);
            let mut at = 0;
            assert_eq!(get(&out, &mut at), Some(value));
            assert_eq!(get_delta(&out, &mut at, 77), Some(value));
            assert_eq!(get_delta(&out, &mut at, value), Some(77));
            assert_eq!(at, out.len());
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
