//! The events of the heap alone: those of [`Event`] that come by the million, small enough to be kept in batches.

use crate::event::{Event, Source};

/// An event that concerns a block. The variants are those of [`Event`] with the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of `Event`")]
pub enum HeapEvent {
    Alloc { thread: u32, stack: u32, address: u64, size: u64, source: Source },
    Free { thread: u32, address: u64 },
    ReallocBegin { thread: u32, address: u64 },
    ReallocEnd { thread: u32, stack: u32, address: u64, size: u64, old: u64 },
    ReallocFailed { thread: u32, address: u64 },
}

impl HeapEvent {
    /// The event, if it is one of these.
    #[inline]
    pub fn of(event: &Event) -> Option<Self> {
        Some(match *event {
            Event::Alloc { thread, stack, address, size, source } => {
                Self::Alloc { thread, stack, address, size, source }
            }
            Event::Free { thread, address } => Self::Free { thread, address },
            Event::ReallocBegin { thread, address } => Self::ReallocBegin { thread, address },
            Event::ReallocEnd { thread, stack, address, size, old } => {
                Self::ReallocEnd { thread, stack, address, size, old }
            }
            Event::ReallocFailed { thread, address } => Self::ReallocFailed { thread, address },
            _ => return None,
        })
    }

    /// The thread's number.
    #[inline]
    pub fn thread(&self) -> u32 {
        match *self {
            Self::Alloc { thread, .. }
            | Self::Free { thread, .. }
            | Self::ReallocBegin { thread, .. }
            | Self::ReallocEnd { thread, .. }
            | Self::ReallocFailed { thread, .. } => thread,
        }
    }

    /// The block that it concerns: of a `ReallocEnd` the new one.
    #[inline]
    pub fn address(&self) -> u64 {
        match *self {
            Self::Alloc { address, .. }
            | Self::Free { address, .. }
            | Self::ReallocBegin { address, .. }
            | Self::ReallocEnd { address, .. }
            | Self::ReallocFailed { address, .. } => address,
        }
    }
}

impl From<HeapEvent> for Event {
    #[inline]
    fn from(event: HeapEvent) -> Self {
        match event {
            HeapEvent::Alloc { thread, stack, address, size, source } => {
                Self::Alloc { thread, stack, address, size, source }
            }
            HeapEvent::Free { thread, address } => Self::Free { thread, address },
            HeapEvent::ReallocBegin { thread, address } => Self::ReallocBegin { thread, address },
            HeapEvent::ReallocEnd { thread, stack, address, size, old } => {
                Self::ReallocEnd { thread, stack, address, size, old }
            }
            HeapEvent::ReallocFailed { thread, address } => Self::ReallocFailed { thread, address },
        }
    }
}
