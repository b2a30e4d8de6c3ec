//! Memory that the program maps: events of ranges of addresses, apart from those of the heap's blocks.
//!
//! A range that is mapped takes the place of whatever lay there. One that is unmapped may be part of a mapping, or hold
//! several. What goes is recorded before the kernel takes it, so that whoever gets the addresses next is recorded later;
//! should the call fail, [`MappingEvent::Failed`] puts it back.

use crate::columns::{Columns, Cursors};
use crate::encode::tag;
use crate::model::Model;

/// What a mapping is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Mapped {
    /// Memory without a file: `mmap` with `MAP_ANONYMOUS`.
    Anonymous = 0,
    /// A file, or what else has a descriptor: `mmap`.
    File = 1,
    /// What lies below the program's break: `brk`, `sbrk`.
    Break = 2,
    /// A shared memory segment of System V: `shmat`.
    Segment = 3,
}

impl Mapped {
    /// All of them, each at its number.
    pub const ALL: [Self; 4] = [Self::Anonymous, Self::File, Self::Break, Self::Segment];

    /// The last of them.
    pub const LAST: Self = Self::Segment;

    /// That with this number, as the wire and the file have it.
    pub fn from_u8(n: u8) -> Option<Self> {
        Self::ALL.get(usize::from(n)).copied()
    }
}

/// What became of a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MappingEvent {
    /// The range was mapped.
    Map {
        /// The thread's number.
        thread: u32,
        /// The stack's node.
        stack: u32,
        /// The range's start.
        address: u64,
        /// Its length in bytes.
        size: u64,
        /// What it is of.
        mapped: Mapped,
    },
    /// The range goes: it is unmapped, or moved or resized, of which [`MappingEvent::Remap`] then tells.
    Unmap {
        /// The thread's number.
        thread: u32,
        /// The range's start.
        address: u64,
        /// Its length in bytes; 0 for all of the [`Mapped::Segment`] that was mapped at this address.
        size: u64,
    },
    /// `mremap` gave this range.
    Remap {
        /// The thread's number.
        thread: u32,
        /// The stack's node.
        stack: u32,
        /// The range's start.
        address: u64,
        /// Its length in bytes.
        size: u64,
        /// Where the mapping lay that it continues. It is of what that one was of.
        old: u64,
    },
    /// What the thread's last [`MappingEvent::Unmap`] took is mapped as before: the call failed.
    Failed {
        /// The thread's number.
        thread: u32,
    },
}

impl MappingEvent {
    /// The stack's node, of those that have one.
    pub fn stack(&self) -> Option<u32> {
        match *self {
            Self::Map { stack, .. } | Self::Remap { stack, .. } => Some(stack),
            Self::Unmap { .. } | Self::Failed { .. } => None,
        }
    }

    /// Appends the record: a tag and numbers, as the table in [`crate::encode`] has it.
    pub(crate) fn write(&self, columns: &mut Columns) {
        let (tag, thread, numbers): (u8, u32, [Option<u64>; 4]) = match *self {
            Self::Map { thread, stack, address, size, mapped } => {
                let numbers = [u64::from(stack), address, size, mapped as u64];
                (tag::MAP, thread, numbers.map(Some))
            }
            Self::Unmap { thread, address, size } => {
                (tag::UNMAP, thread, [Some(address), Some(size), None, None])
            }
            Self::Remap { thread, stack, address, size, old } => {
                (tag::REMAP, thread, [u64::from(stack), address, size, old].map(Some))
            }
            Self::Failed { thread } => (tag::MAP_FAILED, thread, [None; 4]),
        };
        columns.tag(tag);
        columns.number(u64::from(thread));
        numbers.into_iter().flatten().for_each(|number| columns.number(number));
    }

    /// The inverse of [`MappingEvent::write`], behind the tag.
    pub(crate) fn read(tag: u8, cursors: &mut Cursors, content: &[u8]) -> Option<Self> {
        let thread = Model::thread_of(cursors.number(content)?)?;
        let mut number = || cursors.number(content);
        Some(match tag {
            tag::MAP => {
                let (stack, address, size) = (u32::try_from(number()?).ok()?, number()?, number()?);
                let mapped = Mapped::from_u8(u8::try_from(number()?).ok()?)?;
                Self::Map { thread, stack, address, size, mapped }
            }
            tag::UNMAP => Self::Unmap { thread, address: number()?, size: number()? },
            tag::REMAP => {
                let (stack, address, size) = (u32::try_from(number()?).ok()?, number()?, number()?);
                Self::Remap { thread, stack, address, size, old: number()? }
            }
            tag::MAP_FAILED => Self::Failed { thread },
            _ => return None,
        })
    }
}
