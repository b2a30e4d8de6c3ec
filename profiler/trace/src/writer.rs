//! Writes a trace file.

use crate::block::{BLOCK_HEADER, BlockHeader, BlockKind, FILE_MAGIC, VERSION};
use crate::compress::Compressor;
use crate::encode::BlockEncoder;
use crate::error::Error;
use crate::event::{Event, Exit, ProcessInfo};
use crate::heap::HeapEvent;
use crate::leaks::LeakScan;
use crate::meter::Meter;
use crate::varint::put;
use std::io::Write;
use xxhash_rust::xxh64::Xxh64;

/// Writes events to a trace, a block at a time.
pub struct Writer<W: Write> {
    out: W,
    encoder: BlockEncoder,
    compressor: Compressor,
    /// Kept from block to block: the lengths of the columns, and what goes into the file.
    lengths: Vec<u8>,
    stored: Vec<u8>,
    written: u64,
}

impl<W: Write> core::fmt::Debug for Writer<W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Writer({} bytes written)", self.written)
    }
}

impl<W: Write> Writer<W> {
    /// Begins a trace. `level` is zstd's compression level.
    pub fn new(out: W, info: &ProcessInfo, level: i32) -> Result<Self, Error> {
        let mut writer = Self::resume(out, 0, level)?;
        let mut header = FILE_MAGIC.to_vec();
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&[0; 6]);
        writer.out.write_all(&header)?;
        writer.written = header.len() as u64;
        writer.block(BlockKind::Info, 0, &encode_info(info))?;
        Ok(writer)
    }

    /// Goes on with a trace behind its whole blocks that aren't its end: `time` is that of their last event.
    ///
    /// # Errors
    /// When zstd can't be set up.
    pub fn resume(out: W, time: u64, level: i32) -> Result<Self, Error> {
        let (compressor, encoder) = (Compressor::new(level)?, BlockEncoder::starting_at(time));
        Ok(Self { out, encoder, compressor, lengths: Vec::new(), stored: Vec::new(), written: 0 })
    }

    /// Writes out what was gathered, and leaves the trace without an end.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn suspend(mut self) -> Result<W, Error> {
        self.flush()?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// From now on, whether somebody waits for what is written: then blocks take less time and more bytes.
    pub fn hurry(&mut self, haste: bool) {
        self.compressor.hurry(haste);
    }

    /// Appends an event; a full block goes out.
    ///
    /// # Errors
    /// When the file can't be written. The block is then lost, those before it are whole in the file.
    pub fn push(&mut self, event: &Event) -> Result<(), Error> {
        self.encoder.push(event);
        if self.encoder.len() >= BlockEncoder::FULL { self.flush() } else { Ok(()) }
    }

    /// As [`Writer::push`], for an event of the heap.
    ///
    /// # Errors
    /// As [`Writer::push`].
    #[inline(always)]
    pub fn push_heap(&mut self, event: &HeapEvent) -> Result<(), Error> {
        self.encoder.push_heap(event);
        if self.encoder.len() >= BlockEncoder::FULL { self.flush() } else { Ok(()) }
    }

    /// As [`Writer::push`], for nodes of which each but the first is below the one before it: they are numbered from
    /// `first`, and `frames` are as [`crate::wire::frame_of`] takes them.
    ///
    /// # Errors
    /// As [`Writer::push`].
    #[inline]
    pub fn push_nodes(&mut self, first: u32, parent: u32, frames: &[u64]) -> Result<(), Error> {
        self.encoder.push_nodes(first, parent, frames);
        if self.encoder.len() >= BlockEncoder::FULL { self.flush() } else { Ok(()) }
    }

    /// Writes out what was gathered, so that a reader sees it.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.encoder.is_empty() {
            return Ok(());
        }
        let result = self.write_events();
        self.encoder.clear();
        result
    }

    fn write_events(&mut self) -> Result<(), Error> {
        let Self { encoder, compressor, lengths, stored, .. } = self;
        lengths.clear();
        encoder.write_lengths(lengths);
        let columns = encoder.columns();
        let raw_len = lengths.len() + columns.map(<[u8]>::len).iter().sum::<usize>();
        let end = compressor.columns(lengths, columns, stored, BLOCK_HEADER)?;
        if end - BLOCK_HEADER >= raw_len {
            put_raw(stored, [&**lengths].into_iter().chain(columns));
        }
        self.block_of(BlockKind::Events, self.encoder.start(), raw_len, end - BLOCK_HEADER)
    }

    /// Says what the recording has cost until `time_ns`.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn meter(&mut self, meter: &Meter, time_ns: u64) -> Result<(), Error> {
        self.block(BlockKind::Meter, time_ns, &meter.encode())
    }

    /// Says what a scan for leaks found.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn leaks(&mut self, scan: &LeakScan) -> Result<(), Error> {
        self.flush()?;
        self.block(BlockKind::Leaks, scan.time_ns, &scan.encode())
    }

    /// Ends the trace in order. `duration` in nanoseconds.
    pub fn finish(mut self, exit: Option<Exit>, duration: u64, lost: u64) -> Result<W, Error> {
        self.flush()?;
        let mut bytes = Vec::new();
        let (kind, value) = match exit {
            None => (0, 0),
            Some(Exit::Code(code)) => (1, code),
            Some(Exit::Signal(signal)) => (2, signal),
        };
        bytes.push(kind);
        put(&mut bytes, u64::from(value as u32));
        put(&mut bytes, duration);
        put(&mut bytes, lost);
        self.block(BlockKind::End, duration, &bytes)?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// What it writes to.
    pub fn get_ref(&self) -> &W {
        &self.out
    }

    /// Bytes written to the file so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    fn block(&mut self, kind: BlockKind, time_ns: u64, raw: &[u8]) -> Result<(), Error> {
        let end = self.compressor.whole(raw, &mut self.stored, BLOCK_HEADER)?;
        if end - BLOCK_HEADER >= raw.len() {
            put_raw(&mut self.stored, [raw]);
        }
        self.block_of(kind, time_ns, raw.len(), end - BLOCK_HEADER)
    }

    /// Writes a block whose content is in `stored`, behind the place of its header: compressed, unless that made it no shorter.
    fn block_of(
        &mut self,
        kind: BlockKind,
        time_ns: u64,
        raw_len: usize,
        compressed: usize,
    ) -> Result<(), Error> {
        let stored_len = compressed.min(raw_len);
        let mut header = BlockHeader {
            kind: kind as u8,
            codec: u8::from(compressed < raw_len),
            raw_len: raw_len as u32,
            stored_len: stored_len as u32,
            time_ns,
            checksum: 0,
        };
        let block = &mut self.stored[..BLOCK_HEADER + stored_len];
        header.checksum = checksum(&header, &block[BLOCK_HEADER..]);
        block[..BLOCK_HEADER].copy_from_slice(&header.encode());
        self.out.write_all(block)?;
        self.written += block.len() as u64;
        Ok(())
    }
}

/// Puts content into a block as it is.
fn put_raw<'c>(stored: &mut Vec<u8>, parts: impl IntoIterator<Item = &'c [u8]>) {
    stored.resize(BLOCK_HEADER, 0);
    parts.into_iter().for_each(|part| stored.extend_from_slice(part));
}

pub(crate) fn checksum(header: &BlockHeader, stored: &[u8]) -> u64 {
    let mut hash = Xxh64::new(0);
    hash.update(&header.encode()[..24]);
    hash.update(stored);
    hash.digest()
}

fn encode_info(info: &ProcessInfo) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, u64::from(info.pid));
    put(&mut out, u64::from(info.ppid));
    put(&mut out, info.started_unix_ns);
    put(&mut out, info.command.len() as u64);
    let texts = info.command.iter().chain([&info.executable, &info.machine, &info.recorder]);
    for text in texts {
        put(&mut out, text.len() as u64);
        out.extend_from_slice(text);
    }
    out
}
