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

/// The LEB128 form of a number of at most 57 bits, and how many bytes it has: the first eight of them as a word, the first
/// lowest. A ninth is the number's bit 56.
#[inline]
pub(crate) fn word(value: u64) -> (u64, usize) {
    // Seven bits to a byte, by halves.
    let word = (value & 0x0fff_ffff) | ((value & 0x00ff_ffff_f000_0000) << 4);
    let word = (word & 0x0000_3fff_0000_3fff) | ((word & 0x0fff_c000_0fff_c000) << 2);
    let word = (word & 0x007f_007f_007f_007f) | ((word & 0x3f80_3f80_3f80_3f80) << 1);
    let len = 1 + (value | 1).ilog2() / 7;
    // All but the last say that another follows.
    let follow = if len > 8 { u64::MAX } else { (1 << (8 * (len - 1))) - 1 };
    (word | (follow & 0x8080_8080_8080_8080), len as usize)
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

/// As [`get`], from the start of `bytes`, which it leaves behind. Made for many numbers in a row.
#[inline]
pub(crate) fn take(bytes: &mut &[u8]) -> Option<u64> {
    if let Some(&first) = bytes.first_chunk() {
        let word = u64::from_le_bytes(first);
        let ends = !word & 0x8080_8080_8080_8080;
        if ends != 0 {
            // The bytes up to the first without its highest bit.
            let own = ends ^ (ends - 1);
            let word = word & own & 0x7f7f_7f7f_7f7f_7f7f;
            // The inverse of `word`.
            let word = (word & 0x007f_007f_007f_007f) | ((word & 0x7f00_7f00_7f00_7f00) >> 1);
            let word = (word & 0x0000_3fff_0000_3fff) | ((word & 0x3fff_0000_3fff_0000) >> 2);
            *bytes = &bytes[own.count_ones() as usize / 8..];
            return Some((word & 0x0fff_ffff) | ((word & 0x0fff_ffff_0000_0000) >> 4));
        }
    }
    let mut at = 0;
    let number = get(bytes, &mut at)?;
    *bytes = bytes.get(at..)?;
    Some(number)
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
            // At the end of all bytes, and with others behind.
            for behind in 0..10 {
                let all = [&*out, &[0xa5; 10][..behind]].concat();
                let mut rest = &*all;
                assert_eq!(take(&mut rest), Some(value));
                assert_eq!(rest.len(), behind);
            }
            assert_eq!(unzigzag(zigzag(value)), value);
            assert_eq!(zigzag(unzigzag(value)), value);
        }
    }

    #[test]
    fn a_word_has_the_same_bytes() {
        let edges = (0..57).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for value in edges.chain([(1 << 57) - 1, 0x0123_4567_89ab_cdef >> 3]) {
            let mut long = Vec::new();
            put(&mut long, value);
            long.extend([0xff; 8]);
            assert_eq!(take(&mut &*long), Some(value));
            let (word, len) = word(value);
            let mut out = Vec::new();
            put(&mut out, value);
            let bytes = [&word.to_le_bytes()[..], &[(value >> 56) as u8]].concat();
            assert_eq!(&bytes[..len], out, "{value:#x}");
        }
    }

    #[test]
    fn overlong_and_cut_numbers_are_refused() {
        for bad in
            [&[0x80; 10][..], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], &[0x80], &[]]
        {
            assert_eq!(take(&mut &*bad), None);
        }
        assert_eq!(get(&[0x80; 10], &mut 0), None);
        assert_eq!(get(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], &mut 0), None);
        assert_eq!(get(&[0x80], &mut 0), None);
        assert_eq!(get(&[], &mut 0), None);
    }
}
