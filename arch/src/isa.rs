//! The instruction sets.

use core::{fmt, str::FromStr};

/// An instruction set that can be decoded. Exhaustive on purpose: a new one must be dealt with wherever one is matched.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Isa {
    /// x86 in 64-bit mode.
    X86_64,
    /// Arm's 64-bit instruction set, also called A64.
    Aarch64,
    /// Arm's 32-bit instruction set with instructions of 32 bits.
    A32,
    /// Arm's 32-bit instruction set with instructions of 16 and 32 bits, also called Thumb. Addresses of code are without
    /// the lowest bit, which branches use to tell it from A32.
    T32,
}

impl Isa {
    /// Every instruction set, in the order of the folders.
    pub const ALL: &'static [Self] = &[Self::X86_64, Self::Aarch64, Self::A32, Self::T32];

    /// The name as written on command lines and in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
            Self::A32 => "a32",
            Self::T32 => "t32",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no instruction set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no such instruction set; the known ones are x86_64, aarch64, a32 and t32")]
pub struct UnknownIsa;

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(name: &str) -> Result<Self, UnknownIsa> {
        Self::ALL.iter().copied().find(|isa| isa.name() == name).ok_or(UnknownIsa)
    }
}
