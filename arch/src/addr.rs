//! The address that code has when it runs.

use core::fmt;

/// The address that an instruction has when it runs, in the address space of the program it belongs to.
///
/// It is no pointer: the bytes of that instruction may lie elsewhere (a copy, a file, another process).
/// Arithmetic wraps, as the program counter does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CodeAddr(pub u64);

impl CodeAddr {
    /// `self + offset`, wrapping.
    #[must_use]
    pub const fn add(self, offset: u64) -> Self {
        Self(self.0.wrapping_add(offset))
    }

    /// `self + offset`, wrapping.
    #[must_use]
    pub const fn offset(self, offset: i64) -> Self {
        Self(self.0.wrapping_add_signed(offset))
    }

    /// The displacement `d` with `base + d == self`.
    #[must_use]
    pub const fn displacement_from(self, base: Self) -> i64 {
        self.0.wrapping_sub(base.0).cast_signed()
    }

    /// How far `self` lies behind `base`, if it lies in `base .. base + len`.
    #[must_use]
    pub const fn offset_within(self, base: Self, len: u64) -> Option<u64> {
        let offset = self.0.wrapping_sub(base.0);
        if offset < len { Some(offset) } else { None }
    }
}

impl fmt::Display for CodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for CodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::LowerHex for CodeAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

impl From<u64> for CodeAddr {
    fn from(address: u64) -> Self {
        Self(address)
    }
}

#[cfg(test)]
mod tests {
    use super::CodeAddr;

    #[test]
    fn displacements_wrap_like_the_program_counter() {
        assert_eq!(CodeAddr(0x10).displacement_from(CodeAddr(0x30)), -0x20);
        assert_eq!(CodeAddr(0).displacement_from(CodeAddr(u64::MAX)), 1);
        assert_eq!(CodeAddr(u64::MAX).add(2), CodeAddr(1));
    }

    #[test]
    fn an_offset_within_excludes_the_end() {
        assert_eq!(CodeAddr(0x1004).offset_within(CodeAddr(0x1000), 5), Some(4));
        assert_eq!(CodeAddr(0x1005).offset_within(CodeAddr(0x1000), 5), None);
        assert_eq!(CodeAddr(0xfff).offset_within(CodeAddr(0x1000), 5), None);
    }
}
