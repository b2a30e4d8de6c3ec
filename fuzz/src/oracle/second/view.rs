//! What decoders must agree on.

use grapnel_relocator::CodeAddr;

/// One decoder's view of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct View {
    /// Its length in bytes.
    pub(super) len: usize,
    /// It may go elsewhere than to the next instruction, other than by an exception.
    pub(super) leaves: bool,
    /// Where a direct branch goes.
    pub(super) target: Option<CodeAddr>,
    /// The address of a literal, or that it computes from its own.
    pub(super) operand: Option<CodeAddr>,
    /// It reads the PC for something else than a branch's displacement or a link.
    pub(super) reads_pc: bool,
}

/// What comes of comparing an instruction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// Both decoders see the same.
    Agrees,
    /// The other knows no such instruction.
    Unknown,
    /// Only the other knows it.
    OnlyTheirs,
    /// We refuse it by name, whatever it does.
    Refused,
    /// They differ, in a way that is a known error of the other; this is what the manual says.
    TheirError(&'static str),
    /// They differ.
    Differs(String),
}

/// A known error of another decoder: which instructions it concerns, by the bits of a mask and their values, and what the
/// manual says of them. In T32 the first halfword is the upper.
pub(super) struct Erratum {
    pub(super) mask: u32,
    pub(super) value: u32,
    pub(super) reason: &'static str,
}

/// Compares our view of an instruction with another, of a decoder with these known errors.
pub(super) fn compare(word: u32, ours: &View, theirs: Option<View>, errata: &[Erratum]) -> Finding {
    match theirs {
        None => Finding::Unknown,
        Some(theirs) if theirs == *ours => Finding::Agrees,
        Some(_) if let Some(erratum) = errata.iter().find(|erratum| word & erratum.mask == erratum.value) => {
            Finding::TheirError(erratum.reason)
        }
        Some(theirs) => Finding::Differs(format!("ours   {ours:x?}\ntheirs {theirs:x?}")),
    }
}
