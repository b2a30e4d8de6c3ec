//! What is compared: a window at its address, and the code that is to do the same at another.

use grapnel_relocator::Isa;

use crate::oracle::Subject;

/// Code at two places, as the judge sees it.
#[derive(Clone, Debug)]
pub struct Pair<'a> {
    /// The instruction set of both.
    pub isa: Isa,
    /// The window's address.
    pub from: u64,
    /// The other code's address.
    pub to: u64,
    /// The bytes at `from`, past the window's end.
    pub source: &'a [u8],
    /// How many of them are the window's instructions.
    pub code_len: usize,
    /// How many of them the window takes, with padding.
    pub window_len: usize,
    /// The other code, and its literals.
    pub relocated: &'a [u8],
    /// How many of its bytes are executed.
    pub relocated_len: usize,
    /// Offsets in the window against offsets in the other code, ascending, as in a `PcMap`.
    pub map: Vec<(usize, usize)>,
    /// The registers that the other code may change, as bits by number.
    pub clobbers: u32,
    /// The window is at a function's entry.
    pub entry: bool,
}

impl<'a> Pair<'a> {
    /// A relocation as it came out.
    #[must_use]
    pub fn new(subject: &Subject<'a>) -> Self {
        let (case, relocated) = (subject.case, subject.relocated);
        Self {
            isa: case.isa,
            from: case.from.0,
            to: case.to.0,
            source: &case.source,
            code_len: subject.window.code_len(),
            window_len: subject.window.len(),
            relocated: relocated.bytes(),
            relocated_len: relocated.map().code_len(),
            map: relocated.map().iter().collect(),
            clobbers: relocated.clobbers().numbers().fold(0, |mask, number| mask | 1 << number),
            entry: case.options.entry,
        }
    }

    pub(super) fn code(&self) -> &'a [u8] {
        &self.source[..self.code_len]
    }

    /// The address of what follows the window.
    pub(super) fn behind(&self) -> u64 {
        self.from.wrapping_add(self.window_len as u64)
    }

    pub(super) fn relocated_code(&self) -> &'a [u8] {
        &self.relocated[..self.relocated_len]
    }

    /// The offset in the window of the instruction that an offset in the other code belongs to.
    pub(super) fn origin(&self, offset: usize) -> Option<usize> {
        let &(_, start) = self.map.iter().take_while(|&&(_, to)| to <= offset).last()?;
        // Several that share their code.
        self.map.iter().find(|&&(_, to)| to == start).map(|&(from, _)| from)
    }

    /// The last entry of the map that is not behind an offset in the window: several instructions can be in one.
    pub(super) fn entry_of(&self, offset: usize) -> Option<(usize, usize)> {
        let &(_, start) = self.map.iter().take_while(|&&(from, _)| from <= offset).last()?;
        self.map.iter().find(|&&(_, to)| to == start).copied()
    }

    /// The offset in the window of a return address's offset in the other code.
    pub(super) fn return_to_original(&self, offset: u64) -> Option<usize> {
        self.map.iter().find(|&&(_, to)| to as u64 == offset).map(|&(from, _)| from)
    }
}
