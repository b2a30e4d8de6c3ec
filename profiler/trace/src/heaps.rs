//! Heaps other than the program's own: pools that a program reports, allocators that it has besides.
//!
//! The program's own heap is that of `malloc` and of C++'s operators. Its events come by the million, and don't say whose
//! they are; an event of another heap has a mark before it. What these heaps give may lie in blocks of each other: an
//! address means something only together with its heap.

use alloc::vec::Vec;

/// What a heap is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum HeapKind {
    /// One that the program reports itself (`grapnel_heap.h`).
    Pool = 0,
    /// An allocator's functions, found by their names.
    Allocator = 1,
    /// Functions with an allocator's names that count for nothing as long as nothing says that they are one's: they may hand on to another. If something does, it is told
    /// of again, as an [`Allocator`](Self::Allocator), under the same number, and as this if it turns out otherwise later.
    Candidate = 2,
}

impl HeapKind {
    /// The kind with this number, if there is one.
    pub fn from_u8(n: u8) -> Option<Self> {
        [Self::Pool, Self::Allocator, Self::Candidate].get(usize::from(n)).copied()
    }
}

/// A heap besides the program's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heap {
    /// Its number, never used again: a pool that is emptied goes on under another one. Not 0.
    pub id: u32,
    /// What it is.
    pub kind: HeapKind,
    /// Its name, which it may share with others. Any bytes.
    pub name: Vec<u8>,
}

/// Names are cut to this many bytes.
pub const MAX_NAME: usize = 64;

impl Heap {
    /// `id u32, kind u8`, then the name; little-endian.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_le_bytes());
        out.push(self.kind as u8);
        out.extend_from_slice(&self.name[..self.name.len().min(MAX_NAME)]);
    }

    /// The inverse of [`Heap::encode`]; `None` for bytes that it can't have made.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (id, rest) = bytes.split_first_chunk()?;
        let (kind, name) = rest.split_first()?;
        let id = u32::from_le_bytes(*id);
        let kind = HeapKind::from_u8(*kind)?;
        (id != 0 && name.len() <= MAX_NAME).then(|| Self { id, kind, name: name.to_vec() })
    }
}
