//! What can go wrong when a walker is made.

/// Why a [`Walker`](crate::Walker) could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The global allocator refused the memory.
    #[error("no memory for {bytes} bytes of unwinder state")]
    OutOfMemory {
        /// How much was asked for.
        bytes: usize,
    },
}
