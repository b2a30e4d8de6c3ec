//! Memory for code, of which there is none here.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CodeSlot {
    pub(crate) at: usize,
    pub(crate) len: usize,
}
