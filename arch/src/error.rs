//! Why bytes can't be decoded.

/// Why bytes are no instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end inside the instruction.
    #[error("the bytes end inside an instruction")]
    Truncated,
    /// An A64 instruction lies at a multiple of 4 (DDI 0487, D1.6.3).
    #[error("the address is no multiple of 4")]
    Misaligned,
    /// The manual defines no instruction with these bytes.
    #[error("the bytes are not an instruction")]
    Undefined,
    /// The manual leaves open what the processor does (A32 and T32).
    #[error("the manual leaves open what these bytes do")]
    Unpredictable,
}
