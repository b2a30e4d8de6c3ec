//! Events to bytes: the content of an events block, in columns (`columns.rs`).
//!
//! A record is a tag and numbers, each in the column of its kind. `~x` is a zigzag delta from the last value of its
//! kind in this block. A *place* says an address: 0 and `~address` from the thread's last one, or, as most are
//! multiples of 16 apart, 1 + a sixteenth of that delta.
//!
//! | tag | record | numbers |
//! |---|---|---|
//! | 0 | Alloc of a block from before the recording | as Alloc |
//! | 1 | Time | nanoseconds since the block's last time |
//! | 2 | Thread | index, tid, name length, name |
//! | 3 | Node | id, then as 5 |
//! | 4 | Switch | thread of the events that follow |
//! | 5 | Node | id - parent; the frame's number in this block, or the next number and then ~pc, module, flags |
//! | 6 | InHeap | id |
//! | 7 | Heap | length, bytes of [`crate::Heap::encode`] |
//! | 8 + source | Alloc | ~stack, size, place |
//! | 14 | HeapEnd | id |
//! | 15 | Mark | length, bytes of [`crate::Mark::encode`] |
//! | 16 | Free | place |
//! | 17 | ReallocBegin | place |
//! | 18 | ReallocEnd | place of the old block, then as Alloc |
//! | 19 | ReallocFailed | place |
//! | 20 | Map | thread, stack, address, size, [`crate::Mapped`] |
//! | 21 | Unmap | thread, address, size |
//! | 22 | Remap | thread, stack, address, size, old address |
//! | 23 | Failed (of a mapping) | thread |
//! | 24 | Module | length, bytes of [`crate::wire::encode_module`] |
//! | 25 | Unload | id |
//! | 26 | Lost | count |
//! | 27 | Aligned | thread, [`crate::Alignment::to_u8`] |
//! | 28 | FreedAs | thread, release and alignment and whether there is a size, stack, size |
//! | 29 | Sampled | thread, mean |
//! | 30 | Unsampled | thread, address |
//! | 31 | Names | length, bytes of `names.rs` |
//! | 128 + n | Switch | thread n |
//!
//! The first Node of a block states its id, the others leave it out. Tags of heap records and of nodes have two more bits:
//! - 32: the place is known otherwise. Of Free and ReallocBegin: there stands how many blocks were given out since this
//!   one. Of Alloc and ReallocEnd: it is the block that came back last in this thread among those of about the same
//!   size (`model.rs`). Of Node: the parent is the node before, and left out.
//! - 64: the stack is that of the thread's last Alloc or ReallocEnd, and left out.

use crate::columns::{COLUMNS, Column, Columns};
use crate::event::{Event, Source};
use crate::heap::HeapEvent;
use crate::model::{Model, NodeFrame, class};
use crate::recent::Recent;
use crate::varint::zigzag;
use crate::wire;
use alloc::boxed::Box;
use alloc::vec::Vec;

pub(crate) mod tag {
    pub(crate) const BEFORE: u8 = 0;
    pub(crate) const TIME: u8 = 1;
    pub(crate) const THREAD: u8 = 2;
    pub(crate) const NODE_FIRST: u8 = 3;
    pub(crate) const SWITCH: u8 = 4;
    pub(crate) const NODE: u8 = 5;
    pub(crate) const IN_HEAP: u8 = 6;
    pub(crate) const HEAP: u8 = 7;
    pub(crate) const ALLOC: u8 = 8;
    pub(crate) const HEAP_END: u8 = 14;
    pub(crate) const MARK: u8 = 15;
    pub(crate) const FREE: u8 = 16;
    pub(crate) const REALLOC_BEGIN: u8 = 17;
    pub(crate) const REALLOC_END: u8 = 18;
    pub(crate) const REALLOC_FAILED: u8 = 19;
    pub(crate) const MAP: u8 = 20;
    pub(crate) const UNMAP: u8 = 21;
    pub(crate) const REMAP: u8 = 22;
    pub(crate) const MAP_FAILED: u8 = 23;
    pub(crate) const MODULE: u8 = 24;
    pub(crate) const UNLOAD: u8 = 25;
    pub(crate) const LOST: u8 = 26;
    pub(crate) const ALIGNED: u8 = 27;
    pub(crate) const FREED_AS: u8 = 28;
    pub(crate) const SAMPLED: u8 = 29;
    pub(crate) const UNSAMPLED: u8 = 30;
    pub(crate) const NAMES: u8 = 31;
    /// The bits that say which record it is.
    pub(crate) const KIND: u8 = 0x1f;
    pub(crate) const KNOWN: u8 = 0x20;
    pub(crate) const SAME_STACK: u8 = 0x40;
    pub(crate) const SWITCH_TO: u8 = 0x80;
}

/// The numbers of frames by their pc. What falls out is not found, which costs a few bytes.
#[derive(Debug)]
struct FrameNumbers(Box<[u32; Self::SLOTS]>);

impl Default for FrameNumbers {
    fn default() -> Self {
        Self(Box::new([0; Self::SLOTS]))
    }
}

impl FrameNumbers {
    const SLOTS: usize = 1 << 12;

    /// One more than the number of the frame that has this pc, perhaps.
    #[inline]
    fn slot(&mut self, pc: u64) -> &mut u32 {
        &mut self.0[(pc.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % Self::SLOTS]
    }
}

/// Gathers events until a block is full.
#[derive(Debug, Default)]
pub struct BlockEncoder {
    columns: Columns,
    model: Model,
    given: Recent,
    frames: FrameNumbers,
    start: u64,
    now: u64,
}

impl BlockEncoder {
    /// How long a block may get, by [`BlockEncoder::len`]: no record takes more bytes than 45 for each byte of that.
    pub const FULL: usize = 128 << 10;

    /// How long the block is: the bytes of its tags, and of all records that are rare.
    #[inline]
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// An empty block that begins at this time, in nanoseconds since the recording began.
    pub fn starting_at(time: u64) -> Self {
        let mut block = Self { now: time, ..Self::default() };
        block.clear();
        block
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the start of the content so far to `out`: the lengths of its columns, which follow.
    pub fn write_lengths(&self, out: &mut Vec<u8>) {
        self.columns.write_lengths(out);
    }

    #[cfg(test)]
    pub(crate) fn content(&self) -> Vec<u8> {
        let mut content = Vec::new();
        self.write_lengths(&mut content);
        self.columns().iter().for_each(|column| content.extend_from_slice(column));
        content
    }

    /// The columns of the content so far.
    pub fn columns(&self) -> [&[u8]; COLUMNS] {
        self.columns.contents()
    }

    /// Time of the block's start, in nanoseconds since the recording began.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Empties the block; the next begins at the time of the last event.
    pub fn clear(&mut self) {
        self.columns.clear();
        self.start = self.now;
        self.model.reset(self.now);
        self.given.clear();
        self.frames.0.fill(0);
    }

    /// Appends an event.
    pub fn push(&mut self, event: &Event) {
        if let Event::Node { id, parent, pc, module, flags } = *event {
            return self.push_node(id, parent, (pc, module, flags));
        }
        if let Some(event) = HeapEvent::of(event) {
            return self.push_heap(&event);
        }
        let is_first = self.is_empty();
        let columns = &mut self.columns;
        columns.record();
        match *event {
            Event::Time(now) => {
                self.now = now;
                if is_first {
                    self.start = now;
                } else {
                    columns.tag(tag::TIME);
                    columns.number(now.saturating_sub(self.model.time));
                }
                self.model.time = now;
            }
            Event::Thread { index, tid, ref name } => {
                let name = &name[..name.len().min(64)];
                columns.make_room(name.len());
                columns.tag(tag::THREAD);
                columns.number(u64::from(index));
                columns.number(u64::from(tid));
                columns.number(name.len() as u64);
                columns.bytes(name);
            }
            Event::Module(ref module) => {
                let mut bytes = Vec::new();
                wire::encode_module(module, &mut bytes);
                columns.make_room(bytes.len());
                columns.tag(tag::MODULE);
                columns.number(bytes.len() as u64);
                columns.bytes(&bytes);
            }
            Event::Names(ref names) => {
                let bytes = crate::names::encode(names);
                columns.make_room(bytes.len());
                columns.tag(tag::NAMES);
                columns.number(bytes.len() as u64);
                columns.bytes(&bytes);
            }
            Event::Unload(id) => {
                columns.tag(tag::UNLOAD);
                columns.number(u64::from(id));
            }
            Event::Lost(count) => {
                columns.tag(tag::LOST);
                columns.number(count);
            }
            Event::Aligned { thread, alignment } => {
                columns.tag(tag::ALIGNED);
                columns.number(u64::from(thread));
                columns.number(u64::from(alignment.to_u8()));
            }
            Event::Sampled { thread, mean } => {
                columns.tag(tag::SAMPLED);
                columns.number(u64::from(thread));
                columns.number(mean);
            }
            Event::Unsampled { thread, address } => {
                columns.tag(tag::UNSAMPLED);
                columns.number(u64::from(thread));
                columns.number(address);
            }
            Event::FreedAs(said) => {
                columns.tag(tag::FREED_AS);
                columns.number(u64::from(said.thread));
                columns.number(said.code());
                columns.number(u64::from(said.stack));
                columns.number(said.size.unwrap_or(0));
            }
            Event::Mapping(ref event) => event.write(columns),
            Event::InHeap(id) => {
                columns.tag(tag::IN_HEAP);
                columns.number(u64::from(id));
            }
            Event::HeapEnd(id) => {
                columns.tag(tag::HEAP_END);
                columns.number(u64::from(id));
            }
            Event::Heap(ref heap) => {
                let mut bytes = Vec::new();
                heap.encode(&mut bytes);
                columns.make_room(bytes.len());
                columns.tag(tag::HEAP);
                columns.number(bytes.len() as u64);
                columns.bytes(&bytes);
            }
            Event::Mark(ref mark) => {
                let bytes = mark.encode();
                columns.make_room(bytes.len());
                columns.tag(tag::MARK);
                columns.number(bytes.len() as u64);
                columns.bytes(&bytes);
            }
            _ => {}
        }
    }

    /// Appends nodes, each but the first below the one before it; `frames` are as [`wire::frame_of`] takes them.
    pub fn push_nodes(&mut self, first: u32, parent: u32, frames: &[u64]) {
        let mut parent = parent;
        for (id, frame) in (first..).zip(frames) {
            self.push_node(id, parent, wire::frame_of(*frame));
            parent = id;
        }
    }

    /// Appends a stack node.
    #[inline]
    fn push_node(&mut self, id: u32, parent: u32, frame: NodeFrame) {
        let Self { columns, model, frames, .. } = self;
        columns.record();
        let known = if id == parent.wrapping_add(1) { tag::KNOWN } else { 0 };
        if model.node != 0 && id == model.node.wrapping_add(1) {
            columns.tag(tag::NODE | known);
        } else {
            columns.tag(tag::NODE_FIRST | known);
            columns.number(u64::from(id));
        }
        model.node = id;
        if known == 0 {
            columns.put(Column::Parents, u64::from(id.wrapping_sub(parent)));
        }
        let (pc, module, flags) = frame;
        let slot = frames.slot(pc);
        if model.frames.get((*slot as usize).wrapping_sub(1)) == Some(&frame) {
            return columns.put(Column::Frames, u64::from(*slot) - 1);
        }
        columns.put(Column::Frames, model.frames.len() as u64);
        model.frames.push(frame);
        *slot = model.frames.len() as u32;
        columns.put(Column::Frames, zigzag(pc.wrapping_sub(model.pc)));
        columns.put(Column::Frames, u64::from(module));
        columns.put(Column::Frames, u64::from(flags));
        model.pc = pc;
    }

    /// Appends an event of the heap.
    #[inline(always)]
    pub fn push_heap(&mut self, event: &HeapEvent) {
        self.columns.record();
        match *event {
            HeapEvent::Alloc { thread, stack, address, size, source } => {
                self.switch(thread);
                let tag = if source == Source::Before { tag::BEFORE } else { tag::ALLOC + source as u8 };
                self.block(tag, stack, size, address);
            }
            HeapEvent::Free { thread, address } => {
                self.switch(thread);
                if let Some(class) = self.back(tag::FREE, address) {
                    self.model.freed().push(class, address);
                }
            }
            HeapEvent::ReallocEnd { thread, stack, address, size, old } => {
                self.switch(thread);
                self.place(old);
                self.block(tag::REALLOC_END, stack, size, address);
            }
            HeapEvent::ReallocBegin { thread, address } => {
                self.switch(thread);
                let _ = self.back(tag::REALLOC_BEGIN, address);
            }
            HeapEvent::ReallocFailed { thread, address } => {
                self.switch(thread);
                self.columns.tag(tag::REALLOC_FAILED);
                self.place(address);
            }
        }
    }

    #[inline(always)]
    fn switch(&mut self, thread: u32) {
        if self.model.thread() != thread {
            self.model.switch(thread);
            match u8::try_from(thread) {
                Ok(near) if near < tag::SWITCH_TO => self.columns.tag(tag::SWITCH_TO + near),
                _ => {
                    self.columns.tag(tag::SWITCH);
                    self.columns.number(u64::from(thread));
                }
            }
        }
    }

    #[inline(always)]
    fn place(&mut self, address: u64) {
        let delta = address.wrapping_sub(core::mem::replace(&mut self.model.current().address, address));
        if delta.is_multiple_of(16) {
            self.columns.put(Column::Places, 1 + zigzag(((delta as i64) >> 4) as u64));
        } else {
            self.columns.put(Column::Places, 0);
            self.columns.put(Column::Places, zigzag(delta));
        }
    }

    /// A record of a block that was given out before, perhaps in this block of the trace: then the class of its size is
    /// returned.
    #[inline(always)]
    fn back(&mut self, tag: u8, address: u64) -> Option<u8> {
        let Some((since, class)) = self.given.find(address) else {
            self.columns.tag(tag);
            self.place(address);
            return None;
        };
        self.columns.tag(tag | tag::KNOWN);
        self.columns.put(Column::Places, u64::from(since));
        self.model.current().address = address;
        Some(class)
    }

    #[inline(always)]
    fn block(&mut self, tag: u8, stack: u32, size: u64, address: u64) {
        let class = class(size);
        let known = self.model.freed().pop(class) == address;
        let last = core::mem::replace(&mut self.model.current().stack, stack);
        let same = last == stack;
        self.columns.tag(tag | (u8::from(known) * tag::KNOWN) | (u8::from(same) * tag::SAME_STACK));
        if !same {
            self.columns.put(Column::Stacks, zigzag(u64::from(stack).wrapping_sub(u64::from(last))));
        }
        self.columns.put(Column::Sizes, size);
        if known {
            self.model.current().address = address;
        } else {
            self.place(address);
        }
        self.given.push(address, class);
    }
}
