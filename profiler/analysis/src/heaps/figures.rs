//! The live blocks of the heaps of one name, of a recording of all or of some.

use crate::live::{LiveBlocks, LiveSample, Totals, Watcher};
use crate::weight::Sampling;
use grapnel_trace::Event;
use grapnel_trace::heap::HeapEvent;

/// As [`RunningTotals`](crate::live::RunningTotals), with blocks that are watched.
#[derive(Debug)]
pub(super) enum Figures {
    All(Box<LiveBlocks>),
    /// Of a sample, with the mean that each thread was last said to have.
    Sampled(Box<LiveSample>, Vec<u64>),
}

impl Figures {
    pub(super) fn new(is_sampled: bool) -> Self {
        if is_sampled { Self::Sampled(Box::default(), Vec::new()) } else { Self::All(Box::default()) }
    }

    pub(super) fn set_time(&mut self, ns: u64) {
        match self {
            Self::All(live) => live.apply(&Event::Time(ns)),
            Self::Sampled(live, _) => live.apply(&Event::Time(ns)),
        }
    }

    /// How many blocks are live, of those that are recorded.
    pub(super) fn live_allocations(&self) -> u64 {
        match self {
            Self::All(live) => live.live_allocations(),
            Self::Sampled(live, _) => live.live_allocations(),
        }
    }

    pub(super) fn totals(&self) -> Totals {
        match self {
            Self::All(live) => live.totals(),
            Self::Sampled(live, _) => live.totals(),
        }
    }

    pub(super) fn sampling(&self) -> Option<Sampling> {
        match self {
            Self::All(_) => None,
            Self::Sampled(live, _) => live.sampling(),
        }
    }

    /// Whether a block that is freed there by this thread is one that a `realloc` of its took, and that was exchanged for one which isn't
    /// recorded.
    pub(super) fn is_exchanged(&self, thread: u32, address: u64) -> bool {
        matches!(self, Self::Sampled(live, _) if live.holds(thread, address))
    }

    /// Takes in an event; `mean`: by which the thread's allocations are recorded.
    pub(super) fn apply(&mut self, event: &HeapEvent, mean: u64, watcher: &mut impl Watcher) {
        let (live, means) = match self {
            Self::All(live) => return live.apply_all_watched(&[*event], watcher),
            Self::Sampled(live, means) => (live, means),
        };
        let (thread, address) = (event.thread(), event.address());
        match event {
            HeapEvent::Free { .. } if live.holds(thread, address) => {
                return live.apply(&Event::Unsampled { thread, address });
            }
            HeapEvent::Alloc { .. } | HeapEvent::ReallocEnd { .. } => {
                if means.len() <= thread as usize {
                    means.resize(thread as usize + 1, 0);
                }
                if core::mem::replace(&mut means[thread as usize], mean) != mean {
                    live.apply(&Event::Sampled { thread, mean });
                }
            }
            _ => {}
        }
        live.apply_all_watched(&[*event], watcher);
    }

    /// A block goes with its heap.
    pub(super) fn goes(&mut self, address: u64, watcher: &mut impl Watcher) {
        let event = HeapEvent::Free { thread: 0, address };
        match self {
            Self::All(live) => live.apply_all_watched(&[event], watcher),
            Self::Sampled(live, _) => live.apply_all_watched(&[event], watcher),
        }
    }
}
