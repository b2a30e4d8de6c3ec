//! Events to bytes: the content of an events block.
//!
//! A record is a tag byte and LEB128 numbers; `~x` is a zigzag delta from the last value of its kind in this
//! block (an address: from the thread's last address).
//!
//! | tag | record | numbers |
//! |---|---|---|
//! | 1 | Time | nanoseconds since the block's last time |
//! | 2 | Thread | index, tid, name length, name |
//! | 3 | Node | id, id - parent, ~pc, module, flags |
//! | 4 | Switch | thread of the events that follow |
//! | 8 + source | Alloc | ~stack, size, ~address |
//! | 16 | Free | ~address |
//! | 17 | ReallocBegin | ~address |
//! | 18 | ReallocEnd | ~stack, size, ~address, ~old |
//! | 19 | ReallocFailed | ~address |
//! | 24 | Module | length, bytes of [`crate::wire::encode_module`] |
//! | 25 | Unload | id |
//! | 26 | Lost | count |
//!
//! The first Node of a block states its id as a number, the others leave it out: their tag is 5.

use crate::event::Event;
use crate::heap::HeapEvent;
use crate::varint::{put, put_delta};
use crate::wire;
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
}

/// What deltas refer to; begins anew in each block.
#[derive(Debug, Default)]
pub(crate) struct Deltas {
    pub(crate) time: u64,
    pub(crate) pc: u64,
    pub(crate) node: u32,
    pub(crate) thread: u32,
    pub(crate) threads: Vec<ThreadDeltas>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThreadDeltas {
    pub(crate) stack: u32,
    pub(crate) address: u64,
}

impl Deltas {
    /// The most threads a trace may number; above it a reader refuses instead of growing without bound.
    pub(crate) const MAX_THREADS: u32 = 1 << 24;

    pub(crate) fn current(&mut self) -> &mut ThreadDeltas {
        let index = self.thread as usize;
        if self.threads.len() <= index {
            self.threads.resize(index + 1, ThreadDeltas::default());
        }
        &mut self.threads[index]
    }

    pub(crate) fn reset(&mut self, time: u64) {
        self.threads.clear();
        (self.time, self.pc, self.node, self.thread) = (time, 0, 0, 0);
    }
}

/// Gathers events until a block is full.
#[derive(Debug, Default)]
pub struct BlockEncoder {
    deltas: Deltas,
    bytes: Vec<u8>,
    start: u64,
    now: u64,
}

impl BlockEncoder {
    /// The most bytes that one record takes: a module with the longest path.
    pub const MAX_RECORD: usize = 8 * wire::MAX_WORDS;

    /// The content so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Time of the block's start, in nanoseconds since the recording began.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Empties the block; the next begins at the time of the last event.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.start = self.now;
        self.deltas.reset(self.now);
    }

    /// Appends an event.
    pub fn push(&mut self, event: &Event) {
        if let Some(event) = HeapEvent::of(event) {
            return self.push_heap(&event);
        }
        match *event {
            Event::Time(now) => {
                self.now = now;
                if self.bytes.is_empty() {
                    self.start = now;
                } else {
                    self.bytes.push(tag::TIME);
                    put(&mut self.bytes, now.saturating_sub(self.deltas.time));
                }
                self.deltas.time = now;
            }
            Event::Thread { index, tid, ref name } => {
                self.bytes.push(tag::THREAD);
                put(&mut self.bytes, u64::from(index));
                put(&mut self.bytes, u64::from(tid));
                let name = &name[..name.len().min(64)];
                put(&mut self.bytes, name.len() as u64);
                self.bytes.extend_from_slice(name);
            }
            Event::Node { id, parent, pc, module, flags } => {
                if self.deltas.node != 0 && id == self.deltas.node.wrapping_add(1) {
                    self.bytes.push(tag::NODE);
                } else {
                    self.bytes.push(tag::NODE_FIRST);
                    put(&mut self.bytes, u64::from(id));
                }
                self.deltas.node = id;
                put(&mut self.bytes, u64::from(id.wrapping_sub(parent)));
                put_delta(&mut self.bytes, pc, self.deltas.pc);
                self.deltas.pc = pc;
                put(&mut self.bytes, u64::from(module));
                self.bytes.push(flags);
            }
            Event::Module(ref module) => {
                let mut bytes = Vec::new();
                wire::encode_module(module, &mut bytes);
                self.bytes.push(tag::MODULE);
                put(&mut self.bytes, bytes.len() as u64);
                self.bytes.extend_from_slice(&bytes);
            }
            Event::Unload(id) => {
                self.bytes.push(tag::UNLOAD);
                put(&mut self.bytes, u64::from(id));
            }
            Event::Lost(count) => {
                self.bytes.push(tag::LOST);
                put(&mut self.bytes, count);
            }
            _ => {}
        }
    }

    /// Appends an event of the heap.
    #[inline]
    pub fn push_heap(&mut self, event: &HeapEvent) {
        match *event {
            HeapEvent::Alloc { thread, stack, address, size, source } => {
                self.block(thread, tag::ALLOC + source as u8, stack, size, address);
            }
            HeapEvent::ReallocEnd { thread, stack, address, size, old } => {
                self.block(thread, tag::REALLOC_END, stack, size, address);
                put_delta(&mut self.bytes, old, address);
            }
            HeapEvent::Free { thread, address } => self.plain(thread, tag::FREE, address),
            HeapEvent::ReallocBegin { thread, address } => self.plain(thread, tag::REALLOC_BEGIN, address),
            HeapEvent::ReallocFailed { thread, address } => self.plain(thread, tag::REALLOC_FAILED, address),
        }
    }

    fn switch(&mut self, thread: u32) {
        if self.deltas.thread != thread {
            self.deltas.thread = thread;
            self.bytes.push(tag::SWITCH);
            put(&mut self.bytes, u64::from(thread));
        }
    }

    fn plain(&mut self, thread: u32, tag: u8, address: u64) {
        self.switch(thread);
        self.bytes.push(tag);
        let deltas = self.deltas.current();
        let base = core::mem::replace(&mut deltas.address, address);
        put_delta(&mut self.bytes, address, base);
    }

    fn block(&mut self, thread: u32, tag: u8, stack: u32, size: u64, address: u64) {
        self.switch(thread);
        self.bytes.push(tag);
        let deltas = self.deltas.current();
        let last_stack = core::mem::replace(&mut deltas.stack, stack);
        let last_address = core::mem::replace(&mut deltas.address, address);
        put_delta(&mut self.bytes, u64::from(stack), u64::from(last_stack));
        put(&mut self.bytes, size);
        put_delta(&mut self.bytes, address, last_address);
    }
}
