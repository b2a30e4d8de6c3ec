//! Bytes to events: the inverse of [`crate::encode`].

use crate::encode::{Deltas, tag};
use crate::error::Error;
use crate::event::{Event, Source};
use crate::heap::HeapEvent;
use crate::varint::{get, get_delta};
use crate::wire;
use alloc::vec::Vec;

/// Decodes an events block.
#[derive(Debug, Default)]
pub struct BlockDecoder {
    deltas: Deltas,
    at: usize,
}

impl BlockDecoder {
    /// Begins a block whose header has this time.
    pub fn begin(&mut self, time: u64) {
        self.deltas.reset(time);
        self.at = 0;
    }

    /// The next event of the block `bytes`, the same on each call; `None` at its end.
    pub fn next(&mut self, bytes: &[u8]) -> Result<Option<Event>, Error> {
        loop {
            let start = self.at;
            let Some(&tag) = bytes.get(self.at) else { return Ok(None) };
            self.at += 1;
            if tag == tag::SWITCH {
                self.switch(start, bytes)?;
                continue;
            }
            return match self.record(tag, bytes) {
                Some(event) => Ok(Some(event)),
                None => Err(bad_record(start)),
            };
        }
    }

    /// Appends the next events to `batch` as long as they are of the heap, until it has `most`.
    pub fn next_of_heap(
        &mut self,
        bytes: &[u8],
        batch: &mut Vec<HeapEvent>,
        most: usize,
    ) -> Result<(), Error> {
        while batch.len() < most {
            let start = self.at;
            let Some(&tag) = bytes.get(start) else { break };
            if tag == tag::SWITCH {
                self.at += 1;
                self.switch(start, bytes)?;
                continue;
            }
            if !is_heap(tag) {
                break;
            }
            self.at += 1;
            batch.push(self.heap(tag, bytes).ok_or_else(|| bad_record(start))?);
        }
        Ok(())
    }

    fn switch(&mut self, start: usize, bytes: &[u8]) -> Result<(), Error> {
        match get(bytes, &mut self.at).and_then(|n| u32::try_from(n).ok()) {
            Some(thread) if thread < Deltas::MAX_THREADS => {
                self.deltas.thread = thread;
                Ok(())
            }
            _ => Err(Error::Record { at: start, what: "no such thread" }),
        }
    }

    #[inline]
    fn heap(&mut self, tag: u8, bytes: &[u8]) -> Option<HeapEvent> {
        let at = &mut self.at;
        let thread = self.deltas.thread;
        let deltas = self.deltas.current();
        if matches!(tag, tag::FREE | tag::REALLOC_BEGIN | tag::REALLOC_FAILED) {
            let address = get_delta(bytes, at, deltas.address)?;
            deltas.address = address;
            return Some(match tag {
                tag::FREE => HeapEvent::Free { thread, address },
                tag::REALLOC_BEGIN => HeapEvent::ReallocBegin { thread, address },
                _ => HeapEvent::ReallocFailed { thread, address },
            });
        }
        let stack = u32::try_from(get_delta(bytes, at, u64::from(deltas.stack))?).ok()?;
        let size = get(bytes, at)?;
        let address = get_delta(bytes, at, deltas.address)?;
        (deltas.stack, deltas.address) = (stack, address);
        if tag == tag::REALLOC_END {
            let old = get_delta(bytes, at, address)?;
            return Some(HeapEvent::ReallocEnd { thread, stack, address, size, old });
        }
        let source = Source::from_u8(tag.wrapping_sub(tag::ALLOC))?;
        Some(HeapEvent::Alloc { thread, stack, address, size, source })
    }

    fn record(&mut self, tag: u8, bytes: &[u8]) -> Option<Event> {
        if is_heap(tag) {
            return self.heap(tag, bytes).map(Event::from);
        }
        let at = &mut self.at;
        let mut number = || get(bytes, at);
        Some(match tag {
            tag::TIME => {
                self.deltas.time = self.deltas.time.checked_add(number()?)?;
                Event::Time(self.deltas.time)
            }
            tag::THREAD => {
                let index = u32::try_from(number()?).ok()?;
                let tid = u32::try_from(number()?).ok()?;
                if index >= Deltas::MAX_THREADS {
                    return None;
                }
                let len = usize::try_from(number()?).ok()?;
                let name = bytes.get(*at..)?.get(..len)?.to_vec();
                *at += len;
                Event::Thread { index, tid, name }
            }
            tag::NODE | tag::NODE_FIRST => {
                let id = if tag == tag::NODE {
                    self.deltas.node.checked_add(1)?
                } else {
                    u32::try_from(number()?).ok()?
                };
                let back = u32::try_from(number()?).ok()?;
                let pc = get_delta(bytes, at, self.deltas.pc)?;
                let module = u32::try_from(get(bytes, at)?).ok()?;
                let flags = *bytes.get(*at)?;
                *at += 1;
                let parent = id.checked_sub(back)?;
                if id == 0 || back == 0 {
                    return None;
                }
                (self.deltas.node, self.deltas.pc) = (id, pc);
                Event::Node { id, parent, pc, module, flags }
            }
            tag::MODULE => {
                let len = usize::try_from(number()?).ok()?;
                let encoded = bytes.get(*at..)?.get(..len)?;
                *at += len;
                Event::Module(wire::decode_module(encoded)?)
            }
            tag::UNLOAD => Event::Unload(u32::try_from(number()?).ok()?),
            tag::LOST => Event::Lost(number()?),
            _ => return None,
        })
    }
}

fn is_heap(tag: u8) -> bool {
    matches!(tag, tag::ALLOC..=11 | tag::FREE..=tag::REALLOC_FAILED)
}

#[cold]
fn bad_record(at: usize) -> Error {
    Error::Record { at, what: "unknown tag, or a number is out of range" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::BlockEncoder;
    use crate::event::Module;
    use alloc::vec;

    fn all_kinds() -> Vec<Event> {
        vec![
            Event::Thread { index: 0, tid: 100, name: b"main".to_vec() },
            Event::Module(Module { id: 1, path: b"/bin/x".to_vec(), ..Module::default() }),
            Event::Node { id: 1, parent: 0, pc: 0x7000, module: 1, flags: 0 },
            Event::Node { id: 2, parent: 1, pc: 0x10, module: 0, flags: 5 },
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
            Event::Unload(1),
            Event::Lost(17),
        ]
    }

    #[test]
    fn every_kind_of_event_comes_back() {
        let mut encoder = BlockEncoder::default();
        let mut decoder = BlockDecoder::default();
        for _ in 0..2 {
            all_kinds().iter().for_each(|event| encoder.push(event));
            decoder.begin(encoder.start());
            let mut back = Vec::new();
            while let Some(event) = decoder.next(encoder.bytes()).unwrap() {
                back.push(event);
            }
            assert_eq!(back, all_kinds());
            // The same by batches.
            for most in 1..5 {
                decoder.begin(encoder.start());
                let mut back: Vec<Event> = Vec::new();
                loop {
                    let mut batch = Vec::new();
                    decoder.next_of_heap(encoder.bytes(), &mut batch, most).unwrap();
                    assert!(batch.len() <= most);
                    let other =
                        if batch.len() < most { decoder.next(encoder.bytes()).unwrap() } else { None };
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
        let good = encoder.bytes().to_vec();
        let mut decoder = BlockDecoder::default();
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                decoder.begin(0);
                for _ in 0..=bad.len() {
                    if !matches!(decoder.next(&bad), Ok(Some(_))) {
                        break;
                    }
                }
                decoder.begin(0);
                let _ = decoder.next_of_heap(&bad, &mut Vec::new(), bad.len());
            }
            decoder.begin(0);
            while let Ok(Some(_)) = decoder.next(&good[..at]) {}
        }
    }
}
