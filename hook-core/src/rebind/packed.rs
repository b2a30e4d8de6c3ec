//! Android's packed relocations (`DT_ANDROID_REL` and `DT_ANDROID_RELA`), as `ld.lld --pack-dyn-relocs=android` writes them.
//!
//! Behind `APS2` come numbers in SLEB128: how many relocations there are and an offset, and then groups. A group says how many it
//! has and what these have in common; the others have the rest of it, offsets and addends as the difference from the
//! last one's.

use crate::elf::{Rel, Rela};

const MAGIC: [u8; 4] = *b"APS2";

/// What a group's flags say of its relocations.
const SAME_INFO: usize = 1;
const SAME_DISTANCE: usize = 2;
const SAME_ADDEND: usize = 4;
const HAS_ADDEND: usize = 8;

/// A number, of which the bits that this machine's numbers have are kept.
fn number(next: &mut impl FnMut() -> Option<u8>) -> Option<usize> {
    let (mut value, mut shift) = (0usize, 0);
    loop {
        let byte = next()?;
        if shift < usize::BITS {
            value |= usize::from(byte & 0x7f) << shift;
        }
        shift += 7;
        if byte & 0x80 == 0 {
            if byte & 0x40 != 0 && shift < usize::BITS {
                value |= usize::MAX << shift;
            }
            return Some(value);
        }
        if shift > 2 * u64::BITS {
            return None;
        }
    }
}

/// Calls `each` with the relocations of a table whose bytes `next` gives, at most `most` of them; `None` if the table is no such, or
/// ends before it should.
pub(super) fn unpack(
    next: &mut impl FnMut() -> Option<u8>,
    most: usize,
    each: &mut dyn FnMut(Rela),
) -> Option<()> {
    for byte in MAGIC {
        if next()? != byte {
            return None;
        }
    }
    let mut left = number(next)?.min(most);
    let mut last = Rela { rel: Rel { offset: number(next)?, info: 0 }, addend: 0 };
    while left != 0 {
        let count = number(next)?.min(left);
        let flags = number(next)?;
        let has = |flag: usize| flags & flag != 0;
        let distance = if has(SAME_DISTANCE) { Some(number(next)?) } else { None };
        if has(SAME_INFO) {
            last.rel.info = number(next)?;
        }
        if !has(HAS_ADDEND) {
            last.addend = 0;
        } else if has(SAME_ADDEND) {
            last.addend = last.addend.wrapping_add_unsigned(number(next)?);
        }
        if count == 0 {
            return None;
        }
        for _ in 0..count {
            let step = match distance {
                Some(distance) => distance,
                None => number(next)?,
            };
            last.rel.offset = last.rel.offset.wrapping_add(step);
            if !has(SAME_INFO) {
                last.rel.info = number(next)?;
            }
            if has(HAS_ADDEND) && !has(SAME_ADDEND) {
                last.addend = last.addend.wrapping_add_unsigned(number(next)?);
            }
            each(last);
        }
        left -= count;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(bytes: &[u8]) -> (bool, Vec<(usize, usize, isize)>) {
        let (mut bytes, mut found) = (bytes.iter(), Vec::new());
        let whole = unpack(&mut || bytes.next().copied(), 100, &mut |Rela { rel, addend }| {
            found.push((rel.offset, rel.info, addend));
        });
        (whole.is_some(), found)
    }

    /// Of a library with tables of functions and of pointers, by `ld.lld` 14 for armv7.
    const ARM: [u8; 44] = [
        0x41, 0x50, 0x53, 0x32, 0x0d, 0x00, 0x04, 0x01, 0x17, 0xc4, 0x88, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x01,
        0x82, 0x0a, 0x64, 0x04, 0x04, 0x04, 0x05, 0x00, 0xe0, 0xff, 0x7b, 0x95, 0x0e, 0x84, 0x80, 0x04, 0x82,
        0x04, 0x04, 0x82, 0x06, 0x04, 0x82, 0x04, 0x04, 0x82, 0x08,
    ];

    #[test]
    fn relocations_without_addends() {
        // As `llvm-readelf -r` shows them.
        let expected = [
            (0x30444, 0x17),
            (0x30448, 0x17),
            (0x3044c, 0x17),
            (0x30450, 0x17),
            (0x30434, 0x502),
            (0x30438, 0x502),
            (0x3043c, 0x502),
            (0x30440, 0x502),
            (0x20420, 0x715),
            (0x30424, 0x202),
            (0x30428, 0x302),
            (0x3042c, 0x202),
            (0x30430, 0x402),
        ];
        assert_eq!(unpacked(&ARM), (true, expected.map(|(offset, info)| (offset, info, 0)).to_vec()));
    }

    /// The same library for AArch64.
    #[cfg(target_pointer_width = "64")]
    #[test]
    fn relocations_with_addends() {
        let bytes = [
            0x41, 0x50, 0x53, 0x32, 0x0d, 0x00, 0x04, 0x09, 0x83, 0x08, 0xe8, 0x8c, 0x0c, 0xa8, 0x8d, 0x0c,
            0x08, 0x04, 0x08, 0x04, 0x08, 0x0c, 0x04, 0x01, 0x81, 0x82, 0x80, 0x80, 0xd0, 0x00, 0x48, 0x08,
            0x08, 0x08, 0x05, 0x08, 0xc0, 0xff, 0x7b, 0x81, 0x88, 0x80, 0x80, 0xf0, 0x00, 0x00, 0x88, 0x80,
            0x04, 0x81, 0x82, 0x80, 0x80, 0x20, 0x00, 0x08, 0x81, 0x82, 0x80, 0x80, 0x30, 0x00, 0x08, 0x81,
            0x82, 0x80, 0x80, 0x20, 0x00, 0x08, 0x81, 0x82, 0x80, 0x80, 0xc0, 0x00, 0x00,
        ];
        let expected = [
            (0x30668, 0x403, 0x306a8),
            (0x30670, 0x403, 0x306ac),
            (0x30678, 0x403, 0x306b0),
            (0x30680, 0x403, 0x306bc),
            (0x30648, 0x5_0000_0101, 0),
            (0x30650, 0x5_0000_0101, 0),
            (0x30658, 0x5_0000_0101, 0),
            (0x30660, 0x5_0000_0101, 0),
            (0x20620, 0x7_0000_0401, 0),
            (0x30628, 0x2_0000_0101, 0),
            (0x30630, 0x3_0000_0101, 0),
            (0x30638, 0x2_0000_0101, 0),
            (0x30640, 0x4_0000_0101, 0),
        ];
        assert_eq!(unpacked(&bytes), (true, expected.to_vec()));
    }

    #[test]
    fn what_is_no_such_table_ends() {
        let (_, all) = unpacked(&ARM);
        for len in 0..ARM.len() {
            let (whole, found) = unpacked(&ARM[..len]);
            assert!(!whole && all.starts_with(&found));
        }
        assert_eq!(unpacked(b"APS1\x01\x00\x01\x00\x04\x17"), (false, vec![]));
        // More than any table has, all in a group; none in a group, without an end; and a number without one.
        let (whole, found) = unpacked(b"APS2\xff\xff\xff\xff\x07\x00\xff\xff\xff\xff\x07\x03\x04\x17");
        assert!(whole && found.len() == 100);
        assert_eq!(unpacked(b"APS2\x05\x00\x00\x03\x04\x17\x00\x03\x04\x17"), (false, vec![]));
        assert_eq!(unpacked(&[&MAGIC[..], &[0xff; 99]].concat()), (false, vec![]));
    }
}
