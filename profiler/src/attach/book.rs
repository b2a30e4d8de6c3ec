//! The agent's ledger, as it is read from outside.
//!
//! All of it is the target's memory, which may hold anything: counts are bounded by what there is room for, and what is
//! done with the addresses is done to the target alone.

use super::memory::Memory;
use grapnel_trace::attached::{CHANGE_BYTES, CHANGES, Change, Ledger, MAPPINGS, Mapping};
use std::io;
use std::mem::offset_of;
use std::ops::Range;

/// A change of the program's code or data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) at: u64,
    pub(crate) old: Vec<u8>,
    pub(crate) new: Vec<u8>,
    /// Where the code is that does what was there; 0 where no code was.
    code: u64,
    /// Offsets of instructions from `at`, and of what does the same from `code`.
    ways: Vec<(u64, u64)>,
}

impl Edit {
    pub(crate) fn range(&self) -> Range<u64> {
        self.at..self.at.saturating_add(self.old.len() as u64)
    }

    /// Where a thread goes on that stood before the instruction at `pc`, inside what was changed.
    pub(crate) fn way(&self, pc: u64) -> Option<u64> {
        let inside = pc > self.at && self.range().contains(&pc);
        let way = self.ways.iter().find(|(from, _)| inside && self.at.wrapping_add(*from) == pc);
        way.map(|(_, to)| self.code.wrapping_add(*to))
    }

    /// Whether it is code that is reached by another edit only.
    pub(crate) fn is_padding(&self) -> bool {
        self.code != 0 && self.ways.is_empty()
    }

    /// Whether it is data.
    pub(crate) fn is_data(&self) -> bool {
        self.code == 0
    }

    /// Where calls may return to that were moved.
    pub(crate) fn returns(&self) -> impl Iterator<Item = u64> {
        self.ways.iter().filter(|(from, _)| *from != 0).map(|(_, to)| self.code.wrapping_add(*to))
    }
}

/// What the ledger says.
#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) stubs: Range<u64>,
    pub(crate) mappings: Vec<Held>,
    pub(crate) edits: Vec<Edit>,
}

/// A mapping of the agent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) range: Range<u64>,
    /// The address of the word that says where it begins; 0 where none does.
    pub(crate) entry: u64,
}

/// Words of 4 and 8 bytes of a structure that was read.
struct Raw<'b>(&'b [u8]);

impl Raw<'_> {
    fn half(&self, at: usize) -> u32 {
        self.0.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    fn word(&self, at: usize) -> u64 {
        self.0.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }
}

impl Book {
    /// Reads the ledger at `at`.
    pub(crate) fn read(memory: &Memory, at: u64) -> io::Result<Self> {
        let mut head = vec![0; offset_of!(Ledger, mappings)];
        memory.read(at, &mut head)?;
        let head = Raw(&head);
        let stubs = offset_of!(Ledger, stubs);
        let many = |offset: usize, size: usize, count: usize| {
            let mut bytes = vec![0; size * count];
            memory.read(at.wrapping_add(offset as u64), &mut bytes).map(|()| bytes)
        };
        let count = (head.half(offset_of!(Ledger, mapping_count)) as usize).min(MAPPINGS);
        let mappings = many(offset_of!(Ledger, mappings), size_of::<Mapping>(), count)?;
        let count = (head.half(offset_of!(Ledger, change_count)) as usize).min(CHANGES);
        let changes = many(offset_of!(Ledger, changes), size_of::<Change>(), count)?;
        let entry = |index: usize| {
            let offset =
                offset_of!(Ledger, mappings) + index * size_of::<Mapping>() + offset_of!(Mapping, start);
            at.wrapping_add(offset as u64)
        };
        let held = |(index, bytes)| Some(Held { range: mapping(bytes)?, entry: entry(index) });
        Ok(Self {
            stubs: head.word(stubs)..head.word(stubs + 8),
            mappings: mappings.chunks_exact(size_of::<Mapping>()).enumerate().filter_map(held).collect(),
            edits: changes.chunks_exact(size_of::<Change>()).filter_map(edit).collect(),
        })
    }

    /// That of an agent of which there is no more than mappings.
    pub(crate) fn mapped(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let held = |range| Held { range, entry: 0 };
        Self { stubs: 0..0, mappings: ranges.into_iter().map(held).collect(), edits: Vec::new() }
    }

    /// Makes all changes of code, or none if any of it isn't as it was. No thread runs meanwhile. Each is one write, which is
    /// made or isn't; what others lead to comes before them.
    pub(crate) fn make_edits(&self, memory: &Memory) -> io::Result<()> {
        for edit in &self.edits {
            let mut found = vec![0; edit.old.len()];
            memory.read(edit.at, &mut found)?;
            if found != edit.old {
                let text = format!("code at {:#x} was changed by somebody else meanwhile", edit.at);
                return Err(io::Error::other(text));
            }
        }
        let (padding, others): (Vec<_>, Vec<_>) = self.edits.iter().partition(|edit| edit.is_padding());
        padding.into_iter().chain(others).try_for_each(|edit| memory.write(edit.at, &edit.new))
    }

    /// Whether an address is the agent's.
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.mappings.iter().any(|mapping| mapping.range.contains(&address))
    }

    /// The edit whose bytes an address is one of.
    pub(crate) fn edit_at(&self, address: u64) -> Option<&Edit> {
        self.edits.iter().find(|edit| edit.range().contains(&address))
    }
}

/// What an agent whose ledger lies at `ledger` has mapped in a process; nothing if that can't be read.
pub(crate) fn own_mappings(pid: u32, ledger: u64) -> Vec<Range<u64>> {
    let book = Memory::open(pid).and_then(|memory| Book::read(&memory, ledger));
    book.map(|book| book.mappings.into_iter().map(|held| held.range).collect()).unwrap_or_default()
}

fn mapping(bytes: &[u8]) -> Option<Range<u64>> {
    let raw = Raw(bytes);
    let (start, len) = (raw.word(offset_of!(Mapping, start)), raw.word(offset_of!(Mapping, len)));
    (start != 0 && len != 0).then(|| start..start.saturating_add(len))
}

fn edit(bytes: &[u8]) -> Option<Edit> {
    let raw = Raw(bytes);
    let len = (raw.half(offset_of!(Change, len)) as usize).min(CHANGE_BYTES);
    let piece = |offset: usize| bytes.get(offset..offset + len).map(<[u8]>::to_vec);
    let ways = (raw.half(offset_of!(Change, way_count)) as usize).min(CHANGE_BYTES);
    let way = |index: usize| {
        let way = raw.half(offset_of!(Change, ways) + 4 * index);
        (u64::from(way & 0xffff), u64::from(way >> 16))
    };
    let edit = Edit {
        at: raw.word(offset_of!(Change, at)),
        old: piece(offset_of!(Change, old))?,
        new: piece(offset_of!(Change, new))?,
        code: raw.word(offset_of!(Change, code)),
        ways: (0..ways).map(way).collect(),
    };
    (len != 0).then_some(edit)
}
