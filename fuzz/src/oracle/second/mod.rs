//! A second opinion on decoding: length, flow and use of the program counter, against decoders of other descent.

mod x86_64;

use grapnel_relocator::{CodeAddr, Isa};

/// What the other decoder makes of code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Opinion {
    /// The same.
    Agrees,
    /// It knows no such instruction.
    Unknown,
    /// Something else.
    Differs(String),
}

/// Decoders of other descent.
pub struct Second {
    x86_64: x86_64::Second,
}

impl Second {
    /// Starts the decoders.
    ///
    /// # Errors
    ///
    /// If one can't be had.
    pub fn new() -> Result<Self, capstone::Error> {
        Ok(Self { x86_64: x86_64::Second::new()? })
    }

    /// Looks at each instruction of a window's code.
    #[must_use]
    pub fn opinion(&self, isa: Isa, from: CodeAddr, code: &[u8]) -> Opinion {
        match isa {
            Isa::X86_64 => self.x86_64.opinion(from, code),
            Isa::Aarch64 | Isa::A32 | Isa::T32 => Opinion::Unknown,
        }
    }
}
