//! The entry for a pc: `.ARM.exidx` and `.ARM.extab`, EHABI32, sections 5 to 7 and 10.
//!
//! # Safety
//! Slices of mapped memory are made here; see [`memory`](crate::memory) for what that relies on.

use crate::memory::{Slice, mapped_slice};
use crate::module::{Module, ModuleTable, Span};

/// What the tables say of a function.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    /// `EXIDX_CANTUNWIND`: no caller can be found, or there is none.
    CantUnwind,
    /// How to leave its frame.
    Program(Program),
    /// Nothing that the specification or gcc's personality routines know.
    Unknown,
}

/// Unwinding instructions as they lie in words: the highest byte of each comes first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    /// The first ones, ahead of those in `rest`: its lowest `in_head` bytes.
    head: u32,
    in_head: u32,
    rest: Slice,
}

impl Program {
    pub(super) fn bytes(&self) -> impl Iterator<Item = u8> {
        let (head, in_head) = (self.head.to_be_bytes(), self.in_head as usize);
        let (words, _) = self.rest.slice().as_chunks::<4>();
        let rest = words.iter().flat_map(|word| u32::from_le_bytes(*word).to_be_bytes());
        head.into_iter().skip(4 - in_head).chain(rest)
    }
}

/// What is known of an address in code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'a> {
    pub(super) module: &'a Module,
    /// The entry for it, if there is one.
    pub(super) entry: Option<Entry>,
    /// The readable code that this holds for. `None` where it can't be read.
    pub(super) code: Option<Span>,
}

impl ModuleTable {
    /// The module whose code holds `address`, and its entry for that, if it has one.
    pub(super) fn arm_entry(&self, address: u64) -> Option<Found<'_>> {
        let module = self.code_at(address)?;
        let found = module.arm_exidx.and_then(|index| entry(module, index, address));
        let (entry, span) = found.map_or((None, None), |(entry, span)| (entry, Some(span)));
        let code = module.segment_at(address).map(|segment| match span {
            Some(Span { start, end }) => Span { start: segment.start.max(start), end: segment.end.min(end) },
            None => segment,
        });
        Some(Found { module, entry, code })
    }
}

/// The entry for an address, and what it is for.
fn entry(module: &Module, index: Span, address: u64) -> Option<(Option<Entry>, Span)> {
    // SAFETY: the index was clamped to a mapped segment when the table was built.
    let slice = unsafe { mapped_slice(index.start, index.end) }.slice();
    let (entries, _) = slice.as_chunks::<8>();
    let place = |number: usize| index.start.wrapping_add(8 * number as u64);
    let start = |number: usize| {
        let [a, b, c, d, ..] = *entries.get(number)?;
        Some(prel31(place(number), u32::from_le_bytes([a, b, c, d])))
    };
    let (mut from, mut to) = (0, entries.len());
    // The first entry behind the address.
    while from < to {
        let middle = from.midpoint(to);
        if start(middle)? <= address {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    let end = start(from).unwrap_or(u64::MAX);
    let Some(number) = from.checked_sub(1) else { return Some((None, Span { start: 0, end })) };
    let [.., a, b, c, d] = *entries.get(number)?;
    let word = u32::from_le_bytes([a, b, c, d]);
    let entry = match word {
        1 => Entry::CantUnwind,
        // In line: the compact form that has no more than this word.
        0x8000_0000..=0x80ff_ffff => Entry::Program(Program { head: word, in_head: 3, rest: none() }),
        0x8100_0000.. => Entry::Unknown,
        _ => extab(module, prel31(place(number).wrapping_add(4), word)).unwrap_or(Entry::Unknown),
    };
    Some((Some(entry), Span { start: start(number)?, end }))
}

/// The entry at `address`. `None` where it is not whole.
fn extab(module: &Module, address: u64) -> Option<Entry> {
    let span = module.rest_of_segment(address)?;
    // SAFETY: the span lies in one mapped segment.
    let bytes = unsafe { mapped_slice(span.start, span.end) }.slice();
    let first = word(bytes, 0)?;
    let (head, in_head, more, at) = match first >> 24 {
        // The personality routines of the specification: 0 has three instructions here, 1 and 2 have two and a count
        // of words.
        0x80 => (first, 3, 0, 4),
        0x81 | 0x82 => (first, 2, first >> 16 & 0xff, 4),
        0x83.. => return Some(Entry::Unknown),
        // A routine of the language's own. Those of gcc, clang and Rust go on as routine 1 does, with three.
        _ => {
            let second = word(bytes, 4)?;
            (second, 3, second >> 24, 8)
        }
    };
    let rest = bytes.get(at..at + 4 * more as usize)?;
    Some(Entry::Program(Program { head, in_head, rest: Slice::new(rest, gimli::NativeEndian) }))
}

fn none() -> Slice {
    Slice::new(&[], gimli::NativeEndian)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_le_bytes(*four))
}

/// What a 31-bit offset at `place` leads to. Bit 31 is of another meaning.
fn prel31(place: u64, word: u32) -> u64 {
    let offset = (word << 1).cast_signed() >> 1;
    place.wrapping_add_signed(offset.into())
}
