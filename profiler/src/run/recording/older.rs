//! Blocks that are older than the recording: they stand at its start, before all events.

use super::Recording;
use super::within::Within;
use grapnel_trace::event::node_flags;
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::{Event, Mark, Source};

/// A block: its address, and how many of its bytes may be used.
pub(crate) type Block = (u64, u64);

/// All that there were.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    pub(crate) plain: Vec<Block>,
    /// Those whose owners may have an address in their middle, and less that they may use.
    pub(crate) within: Vec<Block>,
}

impl Blocks {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.plain.iter().chain(&self.within)
    }
}

/// All that there were, or why they aren't known.
pub(crate) type Before = Result<Blocks, String>;

impl Recording {
    /// Writes down what there was before, or why that isn't known. To be called before anything else is written.
    pub(crate) fn begins_with(&mut self, blocks: &Before) {
        let blocks = match blocks {
            Ok(blocks) => blocks,
            Err(unknown) => return self.push(&Event::Mark(Mark::BeforeUnknown(unknown.as_bytes().to_vec()))),
        };
        let flags = node_flags::BEFORE | node_flags::EXACT;
        let stack = self.merge.number_of_mark(flags);
        self.push(&Event::Node { id: stack, parent: 0, pc: 0, module: 0, flags });
        self.within = Within::of(&blocks.within);
        for &(address, size) in blocks.iter() {
            let event = HeapEvent::Alloc { thread: 0, stack, address, size, source: Source::Before };
            if let Some(Err(error)) = self.writer.as_mut().map(|writer| writer.push_heap(&event)) {
                return self.fail(error);
            }
            if let Some(totals) = &mut self.totals {
                totals.apply_all(&[event]);
            }
        }
    }

    /// Writes down that only some allocations are recorded, with this mean of the bytes between two; 0 for all of them. Threads say so too, but
    /// there may be none that records anything.
    pub(crate) fn is_of_some(&mut self, mean: u64) {
        if mean != 0 {
            self.push(&Event::Sampled { thread: 0, mean });
        }
    }

    fn push(&mut self, event: &Event) {
        if let Some(totals) = &mut self.totals {
            totals.apply(event);
        }
        if let Some(Err(error)) = self.writer.as_mut().map(|writer| writer.push(event)) {
            self.fail(error);
        }
    }
}
