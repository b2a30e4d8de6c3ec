//! Bytes to events: the inverse of [`crate::encode`].

use crate::columns::{Column, Cursors, HeapColumns};
use crate::encode::tag;
use crate::error::Error;
use crate::event::{Event, Source};
use crate::heap::HeapEvent;
use crate::heaps::Heap;
use crate::mapping::MappingEvent;
use crate::mark::Mark;
use crate::model::{FreedBlocks, Model, ThreadDeltas, class};
use crate::release::{Alignment, FreedAs};
use crate::varint::{self, unzigzag};
use crate::wire;
use alloc::vec::Vec;

/// Decodes an events block.
#[derive(Debug, Default)]
pub struct BlockDecoder {
    model: Model,
    /// The blocks that were given out in this block of the trace, in order.
    given: Vec<Given>,
    cursors: Cursors,
    /// Room for an event that is asked for alone.
    one: Vec<HeapEvent>,
}

/// A block of the heap that was given out.
#[derive(Clone, Copy, Debug)]
struct Given {
    address: u64,
    class: u8,
}

impl BlockDecoder {
    /// Begins a block with this content, whose header has this time.
    pub fn begin(&mut self, time: u64, content: &[u8]) -> Result<(), Error> {
        self.model.reset(time);
        self.given.clear();
        self.cursors = Cursors::default();
        let what = "the columns are longer than the block";
        self.cursors = Cursors::begin(content).ok_or(Error::Record { at: 0, what })?;
        Ok(())
    }

    /// The next event of the block, the same `content` on each call; `None` at its end.
    pub fn next(&mut self, content: &[u8]) -> Result<Option<Event>, Error> {
        if self.cursors.tag(content).is_some_and(|tag| is_switch(tag) || is_heap(tag)) {
            let mut one = core::mem::take(&mut self.one);
            let taken = self.next_of_heap(content, &mut one, 1);
            let event = one.pop();
            self.one = one;
            taken?;
            if let Some(event) = event {
                return Ok(Some(event.into()));
            }
        }
        let start = self.cursors.tag_at();
        let Some(tag) = self.cursors.tag(content) else { return Ok(None) };
        self.cursors.pass_tag();
        match self.record(tag, content) {
            Some(event) => Ok(Some(event)),
            None => Err(bad_record(start, BAD_RECORD)),
        }
    }

    /// Appends the next events to `batch` as long as they are of the heap, until it has `most`.
    pub fn next_of_heap(
        &mut self,
        content: &[u8],
        batch: &mut Vec<HeapEvent>,
        most: usize,
    ) -> Result<(), Error> {
        let mut columns = self.cursors.heap(content);
        batch.reserve(most.saturating_sub(batch.len()).min(columns.tags.len()));
        let taken = self.take_heap(&mut columns, batch, most);
        self.cursors.leave_heap(&columns);
        taken.map_err(|what| bad_record(self.cursors.tag_at(), what))
    }

    /// Where it goes wrong, the tag of the bad record stays.
    fn take_heap(
        &mut self,
        columns: &mut HeapColumns<'_>,
        batch: &mut Vec<HeapEvent>,
        most: usize,
    ) -> Result<(), &'static str> {
        while batch.len() < most {
            let thread = self.model.thread();
            let (last, freed) = self.model.current_and_freed();
            let mut of_thread = OfThread { thread, last: *last, freed, given: &mut self.given };
            let mut other = None;
            let mut is_good = true;
            while batch.len() < most {
                let Some((&tag, rest)) = columns.tags.split_first() else { break };
                if !is_heap(tag) {
                    other = Some((tag, rest));
                    break;
                }
                let Some(event) = of_thread.event(tag, columns) else {
                    is_good = false;
                    break;
                };
                columns.tags = rest;
                batch.push(event);
            }
            *last = of_thread.last;
            if !is_good {
                return Err(BAD_RECORD);
            }
            let Some((tag, mut rest)) = other.filter(|&(tag, _)| is_switch(tag)) else { break };
            let thread = match tag {
                tag::SWITCH => varint::take(&mut rest).and_then(Model::thread_of),
                _ => Some(u32::from(tag - tag::SWITCH_TO)),
            };
            self.model.switch(thread.ok_or("no such thread")?);
            columns.tags = rest;
        }
        Ok(())
    }

    fn node(&mut self, tag: u8, content: &[u8]) -> Option<Event> {
        let id = if tag & tag::KIND == tag::NODE {
            self.model.node.checked_add(1)?
        } else {
            u32::try_from(self.cursors.number(content)?).ok()?
        };
        let back = if tag & tag::KNOWN == 0 { self.cursors.get(content, Column::Parents)? } else { 1 };
        let parent = id.checked_sub(u32::try_from(back).ok()?)?;
        if id == 0 || back == 0 {
            return None;
        }
        self.model.node = id;
        let number = usize::try_from(self.cursors.get(content, Column::Frames)?).ok()?;
        if number == self.model.frames.len() {
            let delta = unzigzag(self.cursors.get(content, Column::Frames)?);
            let module = u32::try_from(self.cursors.get(content, Column::Frames)?).ok()?;
            let flags = u8::try_from(self.cursors.get(content, Column::Frames)?).ok()?;
            self.model.pc = self.model.pc.wrapping_add(delta);
            self.model.frames.push((self.model.pc, module, flags));
        }
        let &(pc, module, flags) = self.model.frames.get(number)?;
        Some(Event::Node { id, parent, pc, module, flags })
    }

    /// A record that is not of the heap.
    fn record(&mut self, tag: u8, content: &[u8]) -> Option<Event> {
        if matches!(tag & !tag::KNOWN, tag::NODE | tag::NODE_FIRST) {
            return self.node(tag, content);
        }
        let cursors = &mut self.cursors;
        Some(match tag {
            tag::TIME => {
                self.model.time = self.model.time.checked_add(cursors.number(content)?)?;
                Event::Time(self.model.time)
            }
            tag::THREAD => {
                let index = u32::try_from(cursors.number(content)?).ok()?;
                let tid = u32::try_from(cursors.number(content)?).ok()?;
                if index >= Model::MAX_THREADS {
                    return None;
                }
                let len = usize::try_from(cursors.number(content)?).ok()?;
                Event::Thread { index, tid, name: cursors.bytes(content, len)?.to_vec() }
            }
            tag::MODULE => {
                let len = usize::try_from(cursors.number(content)?).ok()?;
                Event::Module(wire::decode_module(cursors.bytes(content, len)?)?)
            }
            tag::NAMES => {
                let len = usize::try_from(cursors.number(content)?).ok()?;
                Event::Names(crate::names::decode(cursors.bytes(content, len)?)?)
            }
            tag::UNLOAD => Event::Unload(u32::try_from(cursors.number(content)?).ok()?),
            tag::LOST => Event::Lost(cursors.number(content)?),
            tag::IN_HEAP => Event::InHeap(u32::try_from(cursors.number(content)?).ok()?),
            tag::HEAP_END => Event::HeapEnd(u32::try_from(cursors.number(content)?).ok()?),
            tag::HEAP => {
                let len = usize::try_from(cursors.number(content)?).ok()?;
                Event::Heap(Heap::decode(cursors.bytes(content, len)?)?)
            }
            tag::MARK => {
                let len = usize::try_from(cursors.number(content)?).ok()?;
                Event::Mark(Mark::decode(cursors.bytes(content, len)?)?)
            }
            tag::ALIGNED => {
                let thread = Model::thread_of(cursors.number(content)?)?;
                let alignment = u8::try_from(cursors.number(content)?).ok()?;
                Event::Aligned { thread, alignment: Alignment::from_u8(alignment)? }
            }
            tag::SAMPLED => {
                let thread = Model::thread_of(cursors.number(content)?)?;
                let mean = cursors.number(content)?;
                (mean != 0).then_some(Event::Sampled { thread, mean })?
            }
            tag::UNSAMPLED => {
                let thread = Model::thread_of(cursors.number(content)?)?;
                Event::Unsampled { thread, address: cursors.number(content)? }
            }
            tag::FREED_AS => {
                let thread = Model::thread_of(cursors.number(content)?)?;
                let code = cursors.number(content)?;
                let stack = u32::try_from(cursors.number(content)?).ok()?;
                Event::FreedAs(FreedAs::from_code(thread, stack, code, cursors.number(content)?)?)
            }
            _ => Event::Mapping(MappingEvent::read(tag, cursors, content)?),
        })
    }
}

/// Events of the heap of one thread, in a row.
struct OfThread<'d> {
    thread: u32,
    last: ThreadDeltas,
    freed: &'d mut FreedBlocks,
    given: &'d mut Vec<Given>,
}

impl OfThread<'_> {
    #[inline(always)]
    fn event(&mut self, tag: u8, columns: &mut HeapColumns<'_>) -> Option<HeapEvent> {
        let thread = self.thread;
        Some(match tag & tag::KIND {
            tag::FREE => {
                let address = if tag & tag::KNOWN == 0 {
                    self.place(columns)?
                } else {
                    let block = self.recent(columns)?;
                    self.freed.push(block.class, block.address);
                    block.address
                };
                HeapEvent::Free { thread, address }
            }
            tag::REALLOC_BEGIN => {
                let address = match tag & tag::KNOWN {
                    0 => self.place(columns)?,
                    _ => self.recent(columns)?.address,
                };
                HeapEvent::ReallocBegin { thread, address }
            }
            tag::REALLOC_FAILED => HeapEvent::ReallocFailed { thread, address: self.place(columns)? },
            tag::REALLOC_END => {
                let old = self.place(columns)?;
                let (stack, address, size) = self.block(tag, columns)?;
                HeapEvent::ReallocEnd { thread, stack, address, size, old }
            }
            kind => {
                let source = match kind {
                    tag::BEFORE => Source::Before,
                    _ => Source::from_u8(kind.wrapping_sub(tag::ALLOC))?,
                };
                let (stack, address, size) = self.block(tag, columns)?;
                HeapEvent::Alloc { thread, stack, address, size, source }
            }
        })
    }

    #[inline(always)]
    fn place(&mut self, columns: &mut HeapColumns<'_>) -> Option<u64> {
        let delta = match columns.places.get()? {
            0 => unzigzag(columns.places.get()?),
            sixteenth => unzigzag(sixteenth - 1) << 4,
        };
        self.last.address = self.last.address.wrapping_add(delta);
        Some(self.last.address)
    }

    /// A block that was given out in this block of the trace.
    #[inline(always)]
    fn recent(&mut self, columns: &mut HeapColumns<'_>) -> Option<Given> {
        let since = usize::try_from(columns.places.get()?).ok()?;
        let index = self.given.len().checked_sub(1)?.checked_sub(since)?;
        let block = *self.given.get(index)?;
        self.last.address = block.address;
        Some(block)
    }

    /// Stack, address and size of a block that was given out.
    #[inline(always)]
    fn block(&mut self, tag: u8, columns: &mut HeapColumns<'_>) -> Option<(u32, u64, u64)> {
        if tag & tag::SAME_STACK == 0 {
            let delta = unzigzag(columns.stacks.get()?);
            self.last.stack = u32::try_from(u64::from(self.last.stack).wrapping_add(delta)).ok()?;
        }
        let size = columns.sizes.get()?;
        let class = class(size);
        let expected = self.freed.pop(class);
        let address = if tag & tag::KNOWN == 0 {
            self.place(columns)?
        } else {
            self.last.address = expected;
            expected
        };
        self.given.push(Given { address, class });
        Some((self.last.stack, address, size))
    }
}

fn is_switch(tag: u8) -> bool {
    tag == tag::SWITCH || tag >= tag::SWITCH_TO
}

const LAST_ALLOC: u8 = tag::ALLOC + Source::LAST as u8;
const _: () = assert!(LAST_ALLOC < tag::HEAP_END);

fn is_heap(tag: u8) -> bool {
    tag < tag::SWITCH_TO
        && matches!(tag & tag::KIND, tag::BEFORE | tag::ALLOC..=LAST_ALLOC | tag::FREE..=tag::REALLOC_FAILED)
}

const BAD_RECORD: &str = "unknown tag, or a number is out of range";

#[cold]
fn bad_record(at: usize, what: &'static str) -> Error {
    Error::Record { at, what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::BlockEncoder;
    use crate::event::Module;
    use crate::heaps::HeapKind;
    use crate::mapping::Mapped;
    use crate::names::{NamedFrame, Names};
    use crate::release::Release;
    use alloc::vec;

    fn all_kinds() -> Vec<Event> {
        vec![
            Event::Thread { index: 0, tid: 100, name: b"main".to_vec() },
            Event::Module(Module { id: 1, path: b"/bin/x".to_vec(), ..Module::default() }),
            Event::Node { id: 1, parent: 0, pc: 0x7000, module: 1, flags: 0 },
            Event::Node { id: 2, parent: 1, pc: 0x10, module: 0, flags: 5 },
            Event::Alloc { thread: 0, stack: 2, address: 0x4000, size: 24, source: Source::Before },
            Event::Alloc { thread: 0, stack: 2, address: 0x4020, size: 40, source: Source::Before },
            Event::Alloc { thread: 0, stack: 2, address: 0x5000, size: 100, source: Source::Malloc },
            Event::Time(5_000_000),
            Event::Thread { index: 1, tid: 101, name: vec![] },
            Event::Alloc { thread: 1, stack: 1, address: u64::MAX >> 8, size: 0, source: Source::Aligned },
            Event::ReallocBegin { thread: 0, address: 0x5000 },
            Event::Free { thread: 1, address: u64::MAX >> 8 },
            Event::ReallocEnd { thread: 0, stack: 1, address: 0x6000, size: 1 << 50, old: 0x5000 },
            Event::ReallocBegin { thread: 0, address: 0x6000 },
            Event::ReallocFailed { thread: 0, address: 0x6000 },
            Event::Node { id: 3, parent: 2, pc: 0x20, module: 0, flags: 0 },
            Event::Node { id: 4, parent: 1, pc: 0x10, module: 0, flags: 5 },
            Event::Unload(1),
            Event::Names(Names {
                module: 1,
                address: 0x10,
                frames: vec![NamedFrame { function: b"f".to_vec(), file: vec![], line: u32::MAX }],
            }),
            Event::Lost(17),
            Event::Mark(Mark::Named(b"loaded".to_vec())),
            Event::Mark(Mark::Paused),
            Event::Aligned { thread: 200, alignment: Alignment::of(64) },
            Event::Alloc { thread: 200, stack: 1, address: 0x7040, size: 64, source: Source::NewArray },
            Event::FreedAs(FreedAs {
                thread: 200,
                stack: 3,
                release: Release::Delete,
                alignment: Alignment::of(128),
                size: Some(u64::MAX),
            }),
            Event::Free { thread: 200, address: 0x7040 },
            Event::Sampled { thread: 3, mean: u64::MAX },
            Event::Unsampled { thread: 3, address: u64::MAX },
            Event::Mapping(MappingEvent::Map {
                thread: 1,
                stack: u32::MAX,
                address: u64::MAX,
                size: 1 << 50,
                mapped: Mapped::Segment,
            }),
            Event::Mapping(MappingEvent::Unmap { thread: 200, address: 0x7000_0000_0000, size: 0 }),
            Event::Mapping(MappingEvent::Failed { thread: 200 }),
            Event::Mapping(MappingEvent::Remap {
                thread: 0,
                stack: 2,
                address: 0x1000,
                size: u64::MAX,
                old: u64::MAX,
            }),
            Event::Heap(Heap { id: u32::MAX, kind: HeapKind::Allocator, name: vec![b'x'; 64] }),
            Event::InHeap(u32::MAX),
            Event::Alloc { thread: 0, stack: 1, address: 0x5000, size: 3, source: Source::Malloc },
            Event::HeapEnd(u32::MAX),
            Event::Heap(Heap { id: 1, kind: HeapKind::Pool, name: vec![] }),
            // Known by how many were given out since, and got again.
            Event::Free { thread: 0, address: 0x5000 },
            Event::Free { thread: 0, address: 0x6000 },
            Event::Alloc { thread: 0, stack: 1, address: 0x5000, size: 100, source: Source::Calloc },
            Event::Alloc { thread: 0, stack: 1, address: 0x5001, size: 90, source: Source::Realloc },
            Event::Free { thread: 200, address: 0x5001 },
            Event::Alloc { thread: 200, stack: u32::MAX, address: 0x5001, size: 90, source: Source::Malloc },
            Event::ReallocBegin { thread: 127, address: u64::MAX },
            Event::ReallocEnd { thread: 127, stack: 1, address: 1, size: u64::MAX, old: u64::MAX },
        ]
    }

    #[test]
    fn every_kind_of_event_comes_back() {
        let mut encoder = BlockEncoder::default();
        let mut decoder = BlockDecoder::default();
        for _ in 0..2 {
            all_kinds().iter().for_each(|event| encoder.push(event));
            let content = encoder.content();
            decoder.begin(encoder.start(), &content).unwrap();
            let mut back = Vec::new();
            while let Some(event) = decoder.next(&content).unwrap() {
                back.push(event);
            }
            assert_eq!(back, all_kinds());
            // The same by batches.
            for most in 1..5 {
                decoder.begin(encoder.start(), &content).unwrap();
                let mut back: Vec<Event> = Vec::new();
                loop {
                    let mut batch = Vec::new();
                    decoder.next_of_heap(&content, &mut batch, most).unwrap();
                    assert!(batch.len() <= most);
                    let other = if batch.len() < most { decoder.next(&content).unwrap() } else { None };
                    if batch.is_empty() && other.is_none() {
                        break;
                    }
                    assert_eq!(other.as_ref().and_then(HeapEvent::of), None);
                    back.extend(batch.into_iter().map(Event::from).chain(other));
                }
                assert_eq!(back, all_kinds());
            }
            encoder.clear();
        }
    }

    #[test]
    fn hostile_bytes_end_in_an_error_or_an_end() {
        let mut encoder = BlockEncoder::default();
        all_kinds().iter().for_each(|event| encoder.push(event));
        let good = encoder.content();
        let mut decoder = BlockDecoder::default();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                if decoder.begin(0, &bad).is_err() {
                    continue;
                }
                for _ in 0..=bad.len() {
                    if !matches!(decoder.next(&bad), Ok(Some(_))) {
                        break;
                    }
                }
                decoder.begin(0, &bad).unwrap();
                let _ = decoder.next_of_heap(&bad, &mut Vec::new(), bad.len());
            }
            assert!(decoder.begin(0, &good[..at]).is_err());
            assert_eq!(decoder.next(&good[..at]).unwrap(), None);
        }
    }
}
