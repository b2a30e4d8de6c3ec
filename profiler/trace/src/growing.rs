//! Whole blocks of a file that is still being written.
//!
//! A [`crate::reader::Reader`] that meets the end of its input in the middle of a block has lost that block's beginning.
//! Behind a [`Growing`] it meets the end between two blocks only, and can be asked again when there may be more.

use crate::block::{BLOCK_HEADER, BlockHeader, FILE_HEADER};
use std::io::{self, Read};

/// How much is asked for at a time.
const CHUNK: usize = 1 << 18;

/// Gives the whole blocks of what it reads, and an end where none is whole yet. What comes later is given later.
///
/// Bytes that can't be a block are given as they are: a reader says what is wrong with them. No more is kept than one block
/// and one chunk.
#[derive(Debug)]
pub struct Growing<R> {
    input: R,
    /// What was read and not given yet: `buffer[given..]`. Whole blocks up to `whole`.
    buffer: Vec<u8>,
    given: usize,
    whole: usize,
    begun: bool,
}

impl<R: Read> Growing<R> {
    /// Nothing is read yet.
    pub fn new(input: R) -> Self {
        Self { input, buffer: Vec::new(), given: 0, whole: 0, begun: false }
    }

    /// What it reads from.
    pub fn get_ref(&self) -> &R {
        &self.input
    }

    /// Where the first thing ends that isn't known to be whole, if that can be told from the bytes at hand.
    fn next_end(&self) -> Option<usize> {
        let rest = &self.buffer[self.whole..];
        if !self.begun {
            return (rest.len() >= FILE_HEADER).then_some(self.whole + FILE_HEADER);
        }
        let header = rest.first_chunk::<BLOCK_HEADER>()?;
        match BlockHeader::decode(header) {
            Ok(header) => Some(self.whole + BLOCK_HEADER + header.stored_len as usize),
            Err(_) => Some(self.buffer.len()),
        }
    }

    /// Passes over what is whole by now.
    fn pass_whole(&mut self) {
        while let Some(end) = self.next_end().filter(|&end| end <= self.buffer.len() && end > self.whole) {
            self.whole = end;
            self.begun = true;
        }
    }
}

impl<R: Read> Read for Growing<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.given == self.whole {
            self.buffer.drain(..self.given);
            (self.given, self.whole) = (0, 0);
            let before = self.buffer.len();
            self.buffer.resize(before + CHUNK, 0);
            let read = self.input.read(&mut self.buffer[before..]);
            self.buffer.truncate(before + *read.as_ref().unwrap_or(&0));
            if read? == 0 {
                return Ok(0);
            }
            self.pass_whole();
        }
        let len = out.len().min(self.whole - self.given);
        out[..len].copy_from_slice(&self.buffer[self.given..][..len]);
        self.given += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::Reader;
    use crate::writer::Writer;
    use crate::{Event, ProcessInfo, Source};
    use std::cell::Cell;
    use std::rc::Rc;

    /// A file of which so many bytes are written.
    struct Written<'b>(&'b [u8], usize, Rc<Cell<usize>>);

    impl Read for Written<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let len = out.len().min(self.2.get().saturating_sub(self.1));
            out[..len].copy_from_slice(&self.0[self.1..][..len]);
            self.1 += len;
            Ok(len)
        }
    }

    #[test]
    fn a_reader_gets_every_event_however_the_file_grows() {
        let mut writer = Writer::new(Vec::new(), &ProcessInfo::default(), 1).unwrap();
        let mut events = Vec::new();
        for address in 0..50 {
            let event = Event::Alloc { thread: 0, stack: 0, address, size: 9, source: Source::Malloc };
            writer.push(&event).unwrap();
            events.push(event);
            if address % 7 == 0 {
                writer.flush().unwrap();
            }
        }
        let bytes = writer.finish(None, 5, 0).unwrap();
        for step in [1, 13, 32, 33, 500] {
            let written = Rc::new(Cell::new(0));
            let start = (0..).find_map(|at| {
                written.set((at * step).min(bytes.len()));
                Reader::new(Growing::new(Written(&bytes, 0, Rc::clone(&written)))).ok()
            });
            let (mut reader, mut read) = (start.unwrap(), Vec::new());
            loop {
                while let Some(event) = reader.next_event().unwrap() {
                    read.push(event);
                }
                assert!(!reader.is_cut(), "an end in the middle of a block");
                if reader.end().is_some() {
                    break;
                }
                written.set((written.get() + step).min(bytes.len()));
            }
            assert_eq!(read, events, "{step}");
        }
    }

    #[test]
    fn what_is_no_block_is_left_to_the_reader() {
        let mut bytes = Writer::new(Vec::new(), &ProcessInfo::default(), 1).unwrap().suspend().unwrap();
        bytes.extend_from_slice(&[b'?'; 100]);
        let mut reader = Reader::new(Growing::new(&bytes[..])).unwrap();
        assert!(matches!(reader.next_event(), Err(crate::Error::Damaged { .. })));
    }
}
