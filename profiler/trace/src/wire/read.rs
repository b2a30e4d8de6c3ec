//! Records read back from a ring, whose writer may be anybody.

use super::{MAX_WORDS, MOST_NODES, NUMBERED, Order, SIZE_MASK, decode_module, kind, shard};
use crate::event::{Module, Source};
use crate::heaps::Heap;
use crate::mapping::Mapped;
use crate::release::{Alignment, FreedAs};
use alloc::vec::Vec;

/// A record, read back from a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the constructors")]
pub enum Record {
    Node { parent: u32, pc: u64, module: u32, flags: u8 },
    Nodes { parent: u32, frames: Vec<u64> },
    OfHeap(HeapRecord),
    Large(u64),
    Clock(u64),
    Thread { tid: u32, name: [u8; 16] },
    Reset,
    Module(Module),
    Unload(u32),
    Lost(u64),
    Aligned(Alignment),
    FreedAs(FreedAs),
    Sampled(u64),
    Unsampled(u64),
    Heap(Heap),
    InHeap(u32),
    Name(Vec<u8>),
}

/// Words that are no record: the ring's writer is not the agent, or went astray. Nothing after them can be
/// trusted, since a record's length is in its first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("word {0:#x} in a ring is not the start of a record")]
pub struct BadRecord(pub u64);

/// The most words that a record of the heap has.
pub const HEAP_WORDS: usize = 4;

/// A record of the heap, of a mapping, of the end of a heap, or a mark: one that has a place in the order. What its kind does not have is rubbish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the constructors")]
pub struct HeapRecord {
    /// Without [`NUMBERED`].
    pub kind: u8,
    /// How many words it takes.
    pub len: usize,
    pub address: u64,
    /// Of one that is numbered.
    pub order: Option<Order>,
    pub node: u32,
    /// The lower 32 bits of it.
    pub size: u32,
    pub old: u64,
}

impl HeapRecord {
    /// Which function gave the block, of an ALLOC.
    #[inline]
    pub fn source(&self) -> Option<Source> {
        Source::from_u8(self.kind.wrapping_sub(kind::ALLOC))
    }

    /// What the range is of, of a MAP.
    pub fn mapped(&self) -> Option<Mapped> {
        Mapped::from_u8(self.kind.wrapping_sub(kind::MAP))
    }

    /// Whether it is of more than a block: of mappings, of a heap as a whole, or of none.
    #[inline]
    pub fn is_of_many(&self) -> bool {
        self.kind >= kind::MAP
    }

    /// The shard whose numbers it has.
    #[inline]
    pub fn shard(&self) -> usize {
        shard(if self.is_of_many() { 0 } else { self.address })
    }
}

/// Reads the record of the heap at the start of `words`; `None` for another, or for none. The fast way for the many:
/// words that are not there may be anything, and the caller looks whether `len` are.
#[inline]
pub fn heap_record(words: &[u64; HEAP_WORDS]) -> Option<HeapRecord> {
    let &[first, second, third, fourth] = words;
    let kind = first as u8 & !NUMBERED;
    let own = match kind {
        kind::FREE | kind::REALLOC_BEGIN | kind::REALLOC_FAILED => 1,
        kind::ALLOC..=LAST_ALLOC => 2,
        kind::REALLOC_END => 3,
        kind::MAP..=LAST_MAP | kind::UNMAP => 2,
        kind::REMAP => 3,
        kind::MAP_FAILED | kind::HEAP_END | kind::MARK => 1,
        _ => return None,
    };
    let numbered = first as u8 & NUMBERED != 0;
    let (order, block, old) =
        if numbered { (Some(Order::of(second)), third, fourth) } else { (None, second, third) };
    Some(HeapRecord {
        kind,
        len: own + usize::from(numbered),
        address: first >> 8,
        order,
        node: block as u32,
        size: (block >> 32) as u32,
        old,
    })
}

const LAST_ALLOC: u8 = kind::ALLOC + Source::LAST as u8;
const LAST_MAP: u8 = kind::MAP + Mapped::LAST as u8;
const _: () = assert!(LAST_MAP < kind::UNMAP);

/// As [`heap_record`], of words that may be fewer than it has. `None` also when it is not all there.
#[inline]
pub fn whole_heap_record(words: &[u64]) -> Option<HeapRecord> {
    let mut end = [0; HEAP_WORDS];
    // Most records have this many words behind their start, and need no further look at how many there are.
    let first = words.first_chunk().unwrap_or_else(|| {
        end[..words.len()].copy_from_slice(words);
        &end
    });
    heap_record(first).filter(|record| record.len <= words.len())
}

/// How many words a NODE takes.
pub const NODE_WORDS: usize = 2;

/// Reads the NODE at the start of `words`, if one is there and whole: parent, pc, module, flags. The fast way, as
/// [`heap_record`].
#[inline]
pub fn whole_node(words: &[u64]) -> Option<(u32, u64, u32, u8)> {
    let &[first, second] = words.first_chunk::<NODE_WORDS>()?;
    let place = (second >> 32) as u32;
    (first as u8 == kind::NODE).then_some((second as u32, first >> 8, place & 0xff_ffff, (place >> 24) as u8))
}

/// Reads the NODES at the start of `words`, if it is there and whole: parent, and each node as [`super::frame_of`] takes
/// it. The fast way, as [`heap_record`].
#[inline]
pub fn whole_nodes(words: &[u64]) -> Option<(u32, &[u64])> {
    let (&first, rest) = words.split_first()?;
    if first as u8 != kind::NODES {
        return None;
    }
    let count = nodes_of(first)?;
    Some(((first >> 16) as u32, rest.get(..count)?))
}

/// How many nodes a NODES record has; `None` for what it can't have.
#[inline]
fn nodes_of(first: u64) -> Option<usize> {
    let count = usize::from((first >> 8) as u8);
    (1..=MOST_NODES).contains(&count).then_some(count)
}

/// Reads the record at the start of `words` and says how many it takes. `Ok(None)` when it is not all there.
pub fn parse(words: &[u64]) -> Result<Option<(Record, usize)>, BadRecord> {
    let Some(&first) = words.first() else { return Ok(None) };
    if let Some(HeapRecord { len, .. }) = heap_record(&[first, 0, 0, 0]) {
        let heap = (len <= words.len()).then(|| whole_heap_record(words)).flatten();
        return Ok(heap.map(|heap| (Record::OfHeap(heap), len)));
    }
    let value = first >> 8;
    let bad = BadRecord(first);
    let len = match first as u8 {
        kind::RESET | kind::UNLOAD | kind::LOST | kind::LARGE | kind::ALIGNED => 1,
        kind::SAMPLED | kind::UNSAMPLED | kind::IN_HEAP => 1,
        kind::NODE | kind::CLOCK => 2,
        kind::NODES => 1 + nodes_of(first).ok_or(bad)?,
        kind::THREAD | kind::FREED_AS => 3,
        kind::MODULE | kind::HEAP | kind::NAME if value <= (8 * MAX_WORDS - 8) as u64 => {
            1 + (value as usize).div_ceil(8)
        }
        _ => return Err(bad),
    };
    let Some(words) = words.get(..len) else { return Ok(None) };
    let second = words.get(1).copied().unwrap_or(0);
    let record = match first as u8 {
        kind::RESET => Record::Reset,
        kind::UNLOAD => Record::Unload(value as u32),
        kind::LOST => Record::Lost(value),
        kind::LARGE => Record::Large(value & (SIZE_MASK >> 32)),
        kind::CLOCK => Record::Clock(second),
        kind::ALIGNED => {
            let alignment = u8::try_from(value).ok().and_then(Alignment::from_u8);
            Record::Aligned(alignment.ok_or(bad)?)
        }
        kind::SAMPLED if value != 0 => Record::Sampled(value),
        kind::SAMPLED => return Err(bad),
        kind::UNSAMPLED => Record::Unsampled(value),
        kind::IN_HEAP => Record::InHeap(value as u32),
        kind::FREED_AS => {
            let size = words.get(2).copied().unwrap_or(0);
            Record::FreedAs(FreedAs::from_code(0, second as u32, value, size).ok_or(bad)?)
        }
        kind::NODE => {
            let (parent, pc, module, flags) = whole_node(words).ok_or(bad)?;
            Record::Node { parent, pc, module, flags }
        }
        kind::NODES => {
            let (parent, frames) = whole_nodes(words).ok_or(bad)?;
            Record::Nodes { parent, frames: frames.to_vec() }
        }
        kind::THREAD => {
            let mut name = [0; 16];
            for (to, word) in name.chunks_mut(8).zip(&words[1..]) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            Record::Thread { tid: value as u32, name }
        }
        _ => {
            let mut bytes: Vec<u8> = words[1..].iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes.truncate(value as usize);
            match first as u8 {
                kind::HEAP => Record::Heap(Heap::decode(&bytes).ok_or(bad)?),
                kind::NAME => Record::Name(bytes),
                _ => Record::Module(decode_module(&bytes).ok_or(bad)?),
            }
        }
    };
    Ok(Some((record, len)))
}
