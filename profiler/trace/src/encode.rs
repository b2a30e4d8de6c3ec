//! Events to bytes: the content of an events block, in columns (`columns.rs`).
//!
//! A record is a tag and numbers, each in the column of its kind. `~x` is a zigzag delta from the last value of its
//! kind in this block. A *place* says an address: 0 and `~address` from the thread's last one, or, as most are
//! multiples of 16 apart, 1 + a sixteenth of that delta.
//!
//! | tag | record | numbers |
//! |---|---|---|
//! | 1 | Time | nanoseconds since the block's last time |
//! | 2 | Thread | index, tid, name length, name |
//! | 3 | Node | id, then as 5 |
//! | 4 | Switch | thread of the events that follow |
//! | 5 | Node | id - parent; the frame's number in this block, or the next number and then ~pc, module, flags |
//! | 8 + source | Alloc | ~stack, size, place |
//! | 16 | Free | place |
//! | 17 | ReallocBegin | place |
//! | 18 | ReallocEnd | place of the old block, then as Alloc |
//! | 19 | ReallocFailed | place |
//! | 24 | Module | length, bytes of [`crate::wire::encode_module`] |
//! | 25 | Unload | id |
//! | 26 | Lost | count |
//! | 27 | Aligned | thread, [`crate::Alignment::to_u8`] |
//! | 28 | FreedAs | thread, release and alignment and whether there is a size, stack, size |
//! | 128 + n | Switch | thread n |
//!
//! The first Node of a block states its id, the others leave it out. Tags of heap records and of nodes have two more bits:
//! - 32: the place is known otherwise. Of Free and ReallocBegin: there stands how many blocks were given out since this
//!   one. Of Alloc and ReallocEnd: it is the block that came back last in this thread among those of about the same
//!   size (`model.rs`). Of Node: the parent is the node before, and left out.
//! - 64: the stack is that of the thread's last Alloc or ReallocEnd, and left out.

use crate::columns::{Column, Columns};
use crate::event::Event;
use crate::heap::HeapEvent;
use crate::model::{Given, Model, NodeFrame};
use crate::varint::{put, zigzag};
use crate::wire;
use alloc::boxed::Box;
use alloc::vec::Vec;

pub(crate) mod tag {
    pub(crate) const TIME: u8 = 1;
    pub(crate) const THREAD: u8 = 2;
    pub(crate) const NODE_FIRST: u8 = 3;
    pub(crate) const SWITCH: u8 = 4;
    pub(crate) const NODE: u8 = 5;
    pub(crate) const ALLOC: u8 = 8;
    pub(crate) const FREE: u8 = 16;
    pub(crate) const REALLOC_BEGIN: u8 = 17;
    pub(crate) const REALLOC_END: u8 = 18;
    pub(crate) const REALLOC_FAILED: u8 = 19;
    pub(crate) const MODULE: u8 = 24;
    pub(crate) const UNLOAD: u8 = 25;
    pub(crate) const LOST: u8 = 26;
    pub(crate) const ALIGNED: u8 = 27;
    pub(crate) const FREED_AS: u8 = 28;
    /// The bits that say which record it is.
    pub(crate) const KIND: u8 = 0x1f;
    pub(crate) const KNOWN: u8 = 0x20;
    pub(crate) const SAME_STACK: u8 = 0x40;
    pub(crate) const SWITCH_TO: u8 = 0x80;
}

/// Finds items of a list by their hashes. What falls out is not found, which costs a few bytes.
#[derive(Debug)]
struct Index<const N: usize>(Box<[u32; N]>);

impl<const N: usize> Default for Index<N> {
    fn default() -> Self {
        Self(Box::new([0; N]))
    }
}

impl<const N: usize> Index<N> {
    #[inline]
    fn slot(&mut self, key: u64) -> &mut u32 {
        const { assert!(N.is_power_of_two()) };
        &mut self.0[(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (N - 1)]
    }
}

/// Gathers events until a block is full.
#[derive(Debug, Default)]
pub struct BlockEncoder {
    columns: Columns,
    model: Model,
    /// Where a block with this address is among those given out; as all in here, one more than its index.
    given: Index<{ 1 << 14 }>,
    frames: Index<{ 1 << 12 }>,
    start: u64,
    now: u64,
}

impl BlockEncoder {
    /// How long a block may get, by [`BlockEncoder::len`]: no record takes more bytes than 45 for each byte of that.
    pub const FULL: usize = 128 << 10;

    /// How long the block is: the bytes of its tags, and of all records that are rare.
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the content so far to `out`.
    pub fn write_content(&self, out: &mut Vec<u8>) {
        self.columns.write(out);
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
        self.given.0.fill(0);
        self.frames.0.fill(0);
    }

    /// Appends an event.
    pub fn push(&mut self, event: &Event) {
        if let Some(event) = HeapEvent::of(event) {
            return self.push_heap(&event);
        }
        if let Event::Node { id, parent, pc, module, flags } = *event {
            return self.push_node(id, parent, (pc, module, flags));
        }
        let (start, is_first) = (self.model.time, self.is_empty());
        let tags = self.columns.tags();
        match *event {
            Event::Time(now) => {
                self.now = now;
                if is_first {
                    self.start = now;
                } else {
                    tags.push(tag::TIME);
                    put(tags, now.saturating_sub(start));
                }
                self.model.time = now;
            }
            Event::Thread { index, tid, ref name } => {
                tags.push(tag::THREAD);
                put(tags, u64::from(index));
                put(tags, u64::from(tid));
                let name = &name[..name.len().min(64)];
                put(tags, name.len() as u64);
                tags.extend_from_slice(name);
            }
            Event::Module(ref module) => {
                let mut bytes = Vec::new();
                wire::encode_module(module, &mut bytes);
                tags.push(tag::MODULE);
                put(tags, bytes.len() as u64);
                tags.extend_from_slice(&bytes);
            }
            Event::Unload(id) => {
                tags.push(tag::UNLOAD);
                put(tags, u64::from(id));
            }
            Event::Lost(count) => {
                tags.push(tag::LOST);
                put(tags, count);
            }
            Event::Aligned { thread, alignment } => {
                tags.push(tag::ALIGNED);
                put(tags, u64::from(thread));
                put(tags, u64::from(alignment.to_u8()));
            }
            Event::FreedAs(said) => {
                tags.push(tag::FREED_AS);
                put(tags, u64::from(said.thread));
                put(tags, said.code());
                put(tags, u64::from(said.stack));
                put(tags, said.size.unwrap_or(0));
            }
            _ => {}
        }
    }

    /// Appends a stack node.
    fn push_node(&mut self, id: u32, parent: u32, frame: NodeFrame) {
        let Self { columns, model, frames, .. } = self;
        let known = if id == parent.wrapping_add(1) { tag::KNOWN } else { 0 };
        if model.node != 0 && id == model.node.wrapping_add(1) {
            columns.tags().push(tag::NODE | known);
        } else {
            columns.tags().push(tag::NODE_FIRST | known);
            put(columns.tags(), u64::from(id));
        }
        model.node = id;
        if known == 0 {
            columns.put(Column::Nodes, u64::from(id.wrapping_sub(parent)));
        }
        let (pc, module, flags) = frame;
        let slot = frames.slot(pc);
        if model.frames.get((*slot as usize).wrapping_sub(1)) == Some(&frame) {
            return columns.put(Column::Nodes, u64::from(*slot) - 1);
        }
        columns.put(Column::Nodes, model.frames.len() as u64);
        model.frames.push(frame);
        *slot = model.frames.len() as u32;
        columns.put(Column::Nodes, zigzag(pc.wrapping_sub(model.pc)));
        columns.put(Column::Nodes, u64::from(module));
        columns.put(Column::Nodes, u64::from(flags));
        model.pc = pc;
    }

    /// Appends an event of the heap.
    #[inline]
    pub fn push_heap(&mut self, event: &HeapEvent) {
        match *event {
            HeapEvent::Alloc { thread, stack, address, size, source } => {
                self.switch(thread);
                self.block(tag::ALLOC + source as u8, stack, size, address);
            }
            HeapEvent::ReallocEnd { thread, stack, address, size, old } => {
                self.switch(thread);
                self.place(old);
                self.block(tag::REALLOC_END, stack, size, address);
            }
            HeapEvent::Free { thread, address } => {
                self.switch(thread);
                if let Some(block) = self.recent(tag::FREE, address) {
                    self.model.take_back(block);
                }
            }
            HeapEvent::ReallocBegin { thread, address } => {
                self.switch(thread);
                let _ = self.recent(tag::REALLOC_BEGIN, address);
            }
            HeapEvent::ReallocFailed { thread, address } => {
                self.switch(thread);
                self.columns.tags().push(tag::REALLOC_FAILED);
                self.place(address);
            }
        }
    }

    #[inline]
    fn switch(&mut self, thread: u32) {
        if self.model.thread != thread {
            self.model.thread = thread;
            let tags = self.columns.tags();
            match u8::try_from(thread) {
                Ok(near) if near < tag::SWITCH_TO => tags.push(tag::SWITCH_TO + near),
                _ => {
                    tags.push(tag::SWITCH);
                    put(tags, u64::from(thread));
                }
            }
        }
    }

    #[inline]
    fn place(&mut self, address: u64) {
        let delta = address.wrapping_sub(core::mem::replace(&mut self.model.current().address, address));
        if delta.is_multiple_of(16) {
            self.columns.put(Column::Places, 1 + zigzag(((delta as i64) >> 4) as u64));
        } else {
            self.columns.put(Column::Places, 0);
            self.columns.put(Column::Places, zigzag(delta));
        }
    }

    /// A record of a block that was given out before, perhaps in this block of the trace: then it is returned.
    #[inline]
    fn recent(&mut self, tag: u8, address: u64) -> Option<Given> {
        let index = (*self.given.slot(address) as usize).wrapping_sub(1);
        let block = self.model.given.get(index).copied().filter(|given| given.address == address);
        if block.is_some() {
            self.columns.tags().push(tag | tag::KNOWN);
            self.columns.put(Column::Places, (self.model.given.len() - 1 - index) as u64);
            self.model.current().address = address;
        } else {
            self.columns.tags().push(tag);
            self.place(address);
        }
        block
    }

    #[inline]
    fn block(&mut self, tag: u8, stack: u32, size: u64, address: u64) {
        let known = self.model.expect(size) == address;
        let last = core::mem::replace(&mut self.model.current().stack, stack);
        let bits = if known { tag::KNOWN } else { 0 } | if last == stack { tag::SAME_STACK } else { 0 };
        self.columns.tags().push(tag | bits);
        if last != stack {
            self.columns.put(Column::Stacks, zigzag(u64::from(stack).wrapping_sub(u64::from(last))));
        }
        self.columns.put(Column::Sizes, size);
        if known {
            self.model.current().address = address;
        } else {
            self.place(address);
        }
        self.model.give(address, size);
        *self.given.slot(address) = self.model.given.len() as u32;
    }
}
