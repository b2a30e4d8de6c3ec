//! Code as text, for people.

use alloc::{string::String, vec::Vec};

use crate::{CodeAddr, Isa, x86_64};
#[cfg(feature = "arm")]
use crate::{a32, aarch64, t32};

/// One instruction of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Where it is, counted from the first byte.
    pub offset: usize,
    /// How many bytes it takes.
    pub len: usize,
    /// It as text; `(bad)` for bytes that are no instruction.
    pub text: String,
}

/// Every instruction of `bytes`, which are code at `addr`, from one end to the other. In T32 the members of an IT block
/// are shown with their conditions. It allocates.
#[must_use]
pub fn listing(isa: Isa, addr: CodeAddr, bytes: &[u8]) -> Vec<Line> {
    let mut lines = Vec::new();
    #[cfg(feature = "arm")]
    let mut state = exarmo_aarch32::ItState::Outside;
    let mut offset = 0;
    while let Some(rest) = bytes.get(offset..).filter(|rest| !rest.is_empty()) {
        let at = addr.add(offset as u64);
        let (len, text) = match isa {
            Isa::X86_64 => match x86_64::decode(at, rest) {
                Ok(inst) => (inst.bytes().len(), x86_64::text(at, rest)),
                Err(_) => (rest.len(), String::from("(bad)")),
            },
            #[cfg(feature = "arm")]
            Isa::Aarch64 => (aarch64::INST_LEN, aarch64::text(at, rest)),
            #[cfg(feature = "arm")]
            Isa::A32 => (a32::INST_LEN, a32::text(at, rest)),
            #[cfg(feature = "arm")]
            Isa::T32 => t32::text_within(at, rest, &mut state),
            #[cfg(not(feature = "arm"))]
            Isa::Aarch64 | Isa::A32 | Isa::T32 => (rest.len(), String::from("(not built in)")),
        };
        lines.push(Line { offset, len: len.min(rest.len()), text });
        offset += len;
    }
    lines
}
