//! Numbers out of a slice, each checked against its end.

/// What is left to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

/// Nothing here allocates, locks or panics. `None` says that the bytes are at their end, or are no such number.
impl<'a> Bytes<'a> {
    /// Where the next byte lies in memory.
    pub(super) fn address(&self) -> u64 {
        self.0.as_ptr().addr() as u64
    }

    /// The next bytes, apart.
    #[inline]
    pub(super) fn split(&mut self, len: u64) -> Option<Self> {
        let (head, tail) = self.0.split_at_checked(len.try_into().ok()?)?;
        self.0 = tail;
        Some(Bytes(head))
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_ne_bytes)
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    /// A number of 32 bits, sign-extended: to be added.
    #[inline]
    pub(super) fn offset(&mut self) -> Option<u64> {
        Some(i64::from(self.u32()?.cast_signed()).cast_unsigned())
    }

    /// An unsigned LEB128 number of up to nine bytes.
    #[inline]
    pub(super) fn uleb(&mut self) -> Option<u64> {
        self.leb(false)
    }

    /// A signed LEB128 number of up to nine bytes.
    #[inline]
    pub(super) fn sleb(&mut self) -> Option<i64> {
        self.leb(true).map(u64::cast_signed)
    }

    /// One copy for all: code that isn't in the processor's caches is what takes time.
    #[inline(never)]
    #[unsafe(link_section = ".text.hot.grapnel")]
    fn leb(&mut self, is_signed: bool) -> Option<u64> {
        let (mut value, mut bits) = (0, 0);
        while bits < 63 {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << bits;
            bits += 7;
            if byte < 0x80 {
                let above = if is_signed { 64 - bits } else { 0 };
                return Some(((value << above).cast_signed() >> above).cast_unsigned());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_that_gimli_reads() {
        use gimli::{EndianSlice, NativeEndian, Reader};
        let mut random = fastrand::Rng::with_seed(11);
        let mut given_up = 0;
        for _ in 0..100_000 {
            let len = random.usize(0..12);
            let bytes: Vec<u8> = (0..len).map(|_| random.u8(..) | (random.u8(..4) << 7)).collect();
            let (mut unsigned, mut signed) = (EndianSlice::new(&bytes, NativeEndian), Bytes(&bytes));
            let expected = unsigned.read_uleb128().ok();
            match Bytes(&bytes).uleb() {
                None => given_up += u32::from(expected.is_some()),
                found => assert_eq!(found, expected, "{bytes:x?}"),
            }
            if let Some(found) = signed.sleb() {
                let mut expected = EndianSlice::new(&bytes, NativeEndian);
                assert_eq!(expected.read_sleb128(), Ok(found), "{bytes:x?}");
                assert_eq!(expected.slice(), signed.0);
            }
        }
        assert!(given_up < 1000, "{given_up}");
    }

    #[test]
    fn nothing_is_read_behind_the_end() {
        let mut bytes = Bytes(&[1, 2, 3]);
        assert_eq!(bytes.u32(), None);
        assert_eq!(bytes.split(4).map(|head| head.0), None);
        assert_eq!(bytes.split(u64::MAX).map(|head| head.0), None);
        assert_eq!(bytes.u16(), Some(u16::from_ne_bytes([1, 2])));
        assert_eq!(bytes.u16(), None);
        assert_eq!(bytes.u8(), Some(3));
        assert_eq!(bytes.u8(), None);
        assert_eq!(Bytes(&[0x80]).uleb(), None);
    }
}
