//! Older blocks whose owners may have an address in their middle, since an alignment was asked for: what is done with such an
//! address is done with the block.

use super::older::Block;
use grapnel_trace::heap::HeapEvent;
use std::collections::{BTreeMap, HashMap};

/// Those that are still there.
#[derive(Debug, Default)]
pub(in super::super) struct Within {
    /// From where each begins to where it ends.
    blocks: BTreeMap<u64, u64>,
    /// By thread: the address by which one is being exchanged for another block, and the block.
    exchanged: HashMap<u32, (u64, Block)>,
}

impl Within {
    pub(super) fn of(blocks: &[Block]) -> Self {
        let blocks = blocks.iter().map(|&(start, size)| (start, start.saturating_add(size)));
        Self { blocks: blocks.collect(), exchanged: HashMap::new() }
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.exchanged.is_empty()
    }

    /// The block that an address lies in, which is one no more.
    fn take(&mut self, address: u64) -> Option<Block> {
        let (&start, &end) = self.blocks.range(..=address).next_back()?;
        if address >= end {
            return None;
        }
        self.blocks.remove(&start);
        Some((start, end))
    }

    /// The event with the block's own address.
    #[cold]
    #[inline(never)]
    pub(in super::super) fn whole(&mut self, event: HeapEvent) -> HeapEvent {
        match event {
            HeapEvent::Free { thread, address } => {
                let address = self.take(address).map_or(address, |(start, _)| start);
                HeapEvent::Free { thread, address }
            }
            HeapEvent::ReallocBegin { thread, address } => {
                let Some(block) = self.take(address) else { return event };
                self.exchanged.insert(thread, (address, block));
                HeapEvent::ReallocBegin { thread, address: block.0 }
            }
            HeapEvent::ReallocEnd { thread, stack, address, size, old } => {
                let old = self.exchanged_by(thread, old).map_or(old, |(start, _)| start);
                self.take(address);
                HeapEvent::ReallocEnd { thread, stack, address, size, old }
            }
            HeapEvent::ReallocFailed { thread, address } => {
                let Some((start, end)) = self.exchanged_by(thread, address) else { return event };
                self.blocks.insert(start, end);
                HeapEvent::ReallocFailed { thread, address: start }
            }
            // What lies there is another block by now.
            HeapEvent::Alloc { address, .. } => {
                self.take(address);
                event
            }
        }
    }

    fn exchanged_by(&mut self, thread: u32, address: u64) -> Option<Block> {
        let (by, block) = self.exchanged.remove(&thread)?;
        (by == address).then_some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grapnel_trace::Source;

    #[test]
    fn an_address_in_a_block_is_the_block_until_that_is_gone() {
        let mut within = Within::of(&[(0x1000, 0x100), (0x1100, 0x100), (0x1200, 0x100)]);
        let free = |address| HeapEvent::Free { thread: 1, address };
        assert_eq!(within.whole(free(0x1040)), free(0x1000));
        assert_eq!(within.whole(free(0x1040)), free(0x1040));
        assert_eq!(within.whole(free(0xfff)), free(0xfff));
        let begin = |address| HeapEvent::ReallocBegin { thread: 1, address };
        let failed = |address| HeapEvent::ReallocFailed { thread: 1, address };
        assert_eq!(within.whole(begin(0x11c0)), begin(0x1100));
        assert_eq!(within.whole(failed(0x11c0)), failed(0x1100));
        assert_eq!(within.whole(begin(0x11c0)), begin(0x1100));
        let end = |old| HeapEvent::ReallocEnd { thread: 1, stack: 0, address: 0x2000, size: 1, old };
        assert_eq!(within.whole(end(0x11c0)), end(0x1100));
        let other =
            HeapEvent::Alloc { thread: 1, stack: 0, address: 0x1280, size: 1, source: Source::Malloc };
        assert_eq!(within.whole(other), other);
        assert!(within.is_empty());
    }
}
