//! How a block is given back, where that seems not to fit to how it was got.

/// Which family of functions takes a block back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Release {
    /// `free`.
    Free = 0,
    /// `realloc` or `reallocarray`.
    Realloc = 1,
    /// `operator delete`, in all its forms.
    Delete = 2,
    /// `operator delete[]`, in all its forms.
    DeleteArray = 3,
}

impl Release {
    /// The family with this number, as the wire and the file have it.
    pub fn from_u8(n: u8) -> Option<Self> {
        [Self::Free, Self::Realloc, Self::Delete, Self::DeleteArray].get(usize::from(n)).copied()
    }
}

/// The alignment that a caller asked for, a power of two; or that it asked for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Alignment(u8);

impl Alignment {
    /// None was asked for.
    pub const NONE: Self = Self(0);

    /// This many bytes, of which the highest bit counts; 0 is none.
    #[inline]
    pub fn of(bytes: u64) -> Self {
        Self((64 - bytes.leading_zeros()) as u8)
    }

    /// The bytes, if one was asked for.
    #[inline]
    pub fn bytes(self) -> Option<u64> {
        self.0.checked_sub(1).map(|log2| 1 << log2)
    }

    /// One more than the logarithm to base 2; 0 for none.
    #[inline]
    pub fn to_u8(self) -> u8 {
        self.0
    }

    /// The inverse of [`Alignment::to_u8`].
    #[inline]
    pub fn from_u8(n: u8) -> Option<Self> {
        (n <= 64).then_some(Self(n))
    }
}

/// What a caller said of a block when it gave it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedAs {
    /// The thread's number; in a ring of no meaning.
    pub thread: u32,
    /// The node of the caller's stack.
    pub stack: u32,
    /// Which functions were called.
    pub release: Release,
    /// The alignment that was passed to `operator delete`.
    pub alignment: Alignment,
    /// The size that was passed to it.
    pub size: Option<u64>,
}

impl FreedAs {
    /// All but thread, stack and size as one number below 2^24.
    pub(crate) fn code(&self) -> u64 {
        let sized = u64::from(self.size.is_some());
        self.release as u64 | u64::from(self.alignment.to_u8()) << 8 | sized << 16
    }

    /// The inverse of [`FreedAs::code`].
    pub(crate) fn from_code(thread: u32, stack: u32, code: u64, size: u64) -> Option<Self> {
        Some(Self {
            thread,
            stack,
            release: Release::from_u8(code as u8)?,
            alignment: Alignment::from_u8((code >> 8) as u8)?,
            size: (code >> 16 & 1 != 0).then_some(size),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alignment_is_a_power_of_two_or_none() {
        assert_eq!(Alignment::of(0), Alignment::NONE);
        assert_eq!(Alignment::NONE.bytes(), None);
        for log2 in 0..64 {
            let alignment = Alignment::of(1 << log2);
            assert_eq!(alignment.bytes(), Some(1 << log2));
            assert_eq!(Alignment::from_u8(alignment.to_u8()), Some(alignment));
        }
        assert_eq!(Alignment::from_u8(65), None);
    }

    #[test]
    fn what_was_said_comes_back() {
        for release in [Release::Free, Release::Realloc, Release::Delete, Release::DeleteArray] {
            for (alignment, size) in [(0, None), (64, Some(0)), (1, Some(u64::MAX))] {
                let said =
                    FreedAs { thread: 3, stack: 9, release, alignment: Alignment::of(alignment), size };
                let back = FreedAs::from_code(3, 9, said.code(), size.unwrap_or(7));
                assert_eq!(back, Some(said));
            }
        }
        assert_eq!(FreedAs::from_code(0, 0, 4, 0), None);
    }
}
