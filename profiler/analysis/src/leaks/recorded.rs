//! What a trace says of a process's memory at its last event.

use super::blocks::{Block, Blocks};
use crate::ahead::{Ahead, Done, Stretch};
use crate::analyse::{Ending, Violation};
use crate::live::LiveBlocks;
use crate::mappings::Mappings;
use crate::merge::canonical_nodes;
use crate::modules::Modules;
use crate::stacks::Stacks;
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::reader::Reader;
use grapnel_trace::{Error, Event, Mapped, Mark, Module};
use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::ops::{ControlFlow, Range};

/// A process's memory as its trace has it.
#[derive(Debug)]
pub struct Recorded {
    /// The live blocks, by the first of equal stacks. What a `realloc` under way took is among them.
    pub blocks: Blocks,
    /// The stacks.
    pub stacks: Stacks,
    /// How many blocks a `realloc` under way took: where they are now isn't known.
    pub moving: usize,
    /// The modules that are loaded.
    pub modules: Vec<Module>,
    /// What the program mapped itself and no file is behind, by address.
    pub mappings: Vec<Range<u64>>,
    /// The names of threads, as the kernel numbers these.
    pub threads: HashMap<u32, Vec<u8>>,
    /// Blocks were given out while the recording was paused: nobody knows of them.
    pub paused: bool,
    /// Events that are missing.
    pub lost: u64,
    /// The time of the last event, in nanoseconds since the recording began.
    pub time_ns: u64,
}

/// Why a trace can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordedError {
    /// It is damaged.
    #[error(transparent)]
    Damaged(#[from] Error),
    /// A record can't be true.
    #[error(transparent)]
    Impossible(#[from] Violation),
    /// Blocks that aren't recorded can't be looked through.
    #[error("only a sample of the allocations is recorded: record without --sample and --budget")]
    Sample,
}

/// Reads the rest of a trace.
///
/// # Errors
/// When it can't be read, or doesn't have all blocks.
pub fn recorded<R: Read + Send>(reader: Reader<R>) -> Result<Recorded, RecordedError> {
    let mut state = State::default();
    let mut fault = None;
    let Done { reader, stacks, ending, .. } =
        Ahead::new(reader, u64::MAX).each(|stretch| match state.take(stretch) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                fault = Some(error);
                ControlFlow::Break(())
            }
        });
    match (fault, ending) {
        (Some(fault), _) => return Err(fault),
        (None, Some(Ending::Damaged(error))) => return Err(error.into()),
        (None, Some(Ending::Impossible(violation))) => return Err(violation.into()),
        _ => {}
    }
    let State { live, modules, mappings, unloaded, threads, paused, .. } = state;
    let canonical = canonical_nodes(&stacks, &modules);
    let block = |(address, block): (u64, crate::live::Block)| Block {
        address,
        size: block.size,
        stack: canonical.get(block.stack as usize).copied().unwrap_or(0),
    };
    let held: Vec<Block> = live.held().map(block).collect();
    let moving = held.len();
    let blocks = Blocks::new(live.blocks().map(block).chain(held).collect());
    let modules = modules.iter().filter(|module| !unloaded.contains(&module.id)).cloned().collect();
    let mappings =
        mappings.live().filter(|(_, mapped)| *mapped != Mapped::File).map(|(range, _)| range).collect();
    let lost = live.totals().lost_events;
    Ok(Recorded { blocks, stacks, moving, modules, mappings, threads, paused, lost, time_ns: reader.time() })
}

/// What is known after the events so far.
#[derive(Default)]
struct State {
    live: LiveBlocks,
    modules: Modules,
    mappings: Mappings,
    unloaded: HashSet<u32>,
    threads: HashMap<u32, Vec<u8>>,
    paused: bool,
    /// The next event of the heap is of another.
    of_other_heap: bool,
}

impl State {
    fn take(&mut self, stretch: &mut Stretch) -> Result<(), RecordedError> {
        let mut from = 0;
        for other in stretch.others.drain(..) {
            self.heap(&stretch.heap[from..other.at]);
            from = other.at;
            match other.event {
                Event::Module(module) => self.modules.push(module)?,
                Event::Unload(id) => drop(self.unloaded.insert(id)),
                Event::Mapping(event) => self.mappings.apply(&event)?,
                Event::Thread { tid, name, .. } => drop(self.threads.insert(tid, name)),
                // Blocks of pools lie in blocks and mappings, which are looked through as a whole.
                Event::InHeap(_) => self.of_other_heap = true,
                Event::Mark(Mark::Paused) => self.paused = true,
                Event::Sampled { .. } => return Err(RecordedError::Sample),
                event => self.live.apply(&event),
            }
        }
        self.heap(&stretch.heap[from..]);
        Ok(())
    }

    fn heap(&mut self, events: &[HeapEvent]) {
        let skipped = usize::from(self.of_other_heap && !events.is_empty());
        self.of_other_heap &= skipped == 0;
        self.live.apply_all(&events[skipped..]);
    }
}
