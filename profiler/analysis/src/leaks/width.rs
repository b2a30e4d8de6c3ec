//! How long a process's words are. It may be another machine's than the one that looks.

/// The width of a word, and so of a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// Four bytes.
    Bits32,
    /// Eight bytes.
    Bits64,
}

impl Width {
    /// Bytes of a word.
    #[inline]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bits32 => 4,
            Self::Bits64 => 8,
        }
    }

    /// The words that bytes begin with, as many as there is room for, and how many these are. The bytes are in this machine's order.
    pub fn words(self, bytes: &[u8], words: &mut [u64]) -> usize {
        match self {
            Self::Bits32 => fill(bytes, words, |word| u32::from_ne_bytes(word).into()),
            Self::Bits64 => fill(bytes, words, u64::from_ne_bytes),
        }
    }
}

fn fill<const N: usize>(bytes: &[u8], words: &mut [u64], value: impl Fn([u8; N]) -> u64) -> usize {
    let found = bytes.as_chunks::<N>().0;
    words.iter_mut().zip(found).for_each(|(word, bytes)| *word = value(*bytes));
    found.len().min(words.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_words_of_either_width() {
        let bytes = [0x1122_3344_u32, 0xffff_fff0, 7].map(u32::to_ne_bytes).concat();
        let read = |width: Width, bytes: &[u8]| {
            let mut words = [1; 4];
            (width.words(bytes, &mut words), words)
        };
        assert_eq!(read(Width::Bits32, &bytes), (3, [0x1122_3344, 0xffff_fff0, 7, 1]));
        assert_eq!(read(Width::Bits32, &bytes[..7]), (1, [0x1122_3344, 1, 1, 1]));
        let (count, words) = read(Width::Bits64, &bytes);
        assert_eq!((count, words[0].to_ne_bytes().as_slice(), words[1]), (1, &bytes[..8], 1));
        assert_eq!(Width::Bits32.words(&bytes, &mut [0; 2]), 2, "no more than there is room for");
    }
}
