//! Reads a trace file, in bounded memory, also while it is still being written.

use crate::block::{BLOCK_HEADER, BlockHeader, BlockKind, FILE_HEADER, FILE_MAGIC, VERSION};
use crate::decode::BlockDecoder;
use crate::error::Error;
use crate::event::{Event, Exit, ProcessInfo};
use crate::heap::HeapEvent;
use crate::leaks::LeakScan;
use crate::meter::Meter;
use crate::varint::get;
use crate::writer::checksum;
use std::io::{ErrorKind, Read};

/// How a trace ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// How the process ended, where that could be learned.
    pub exit: Option<Exit>,
    /// Nanoseconds from the start of the recording to its end.
    pub duration_ns: u64,
    /// Events that could not be recorded.
    pub lost: u64,
}

/// Reads a trace from its start.
pub struct Reader<R: Read> {
    input: R,
    info: ProcessInfo,
    decompressor: zstd::bulk::Decompressor<'static>,
    decoder: BlockDecoder,
    block: Vec<u8>,
    stored: Vec<u8>,
    /// Of the block being read.
    block_offset: u64,
    offset: u64,
    time: u64,
    end: Option<End>,
    meter: Option<Meter>,
    leaks: Option<LeakScan>,
    cut: bool,
    pending_time: Option<u64>,
}

impl<R: Read> core::fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Reader(at byte {})", self.offset)
    }
}

impl<R: Read> Reader<R> {
    /// Reads the header and the process's description.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::NotATrace`], [`Error::Version`], [`Error::NoInfo`], [`Error::Damaged`], and
    /// whatever reading gives.
    pub fn new(mut input: R) -> Result<Self, Error> {
        let mut header = [0; FILE_HEADER];
        let len = read_up_to(&mut input, &mut header)?;
        if len == 0 {
            return Err(Error::Empty);
        }
        let magic = len.min(8);
        if header[..magic] != FILE_MAGIC[..magic] {
            let found = header[..magic].escape_ascii().to_string();
            return Err(Error::NotATrace { found: format!("\"{found}\"") });
        }
        if len < FILE_HEADER {
            return Err(Error::NoInfo { len: len as u64 });
        }
        let version = u16::from_le_bytes([header[8], header[9]]);
        if version != VERSION {
            return Err(Error::Version { found: version, supported: VERSION });
        }
        let mut reader = Self {
            input,
            info: ProcessInfo::default(),
            decompressor: zstd::bulk::Decompressor::new()?,
            decoder: BlockDecoder::default(),
            block: Vec::new(),
            stored: Vec::new(),
            block_offset: 0,
            offset: FILE_HEADER as u64,
            time: 0,
            end: None,
            meter: None,
            leaks: None,
            cut: false,
            pending_time: None,
        };
        match reader.next_block()? {
            Some(header) if header.kind == BlockKind::Info as u8 => {}
            Some(_) => return Err(reader.damaged("the first block does not describe the process")),
            None => return Err(Error::NoInfo { len: reader.offset }),
        }
        let info = decode_info(&reader.block);
        reader.info = info.ok_or_else(|| reader.damaged("the process's description can't be read"))?;
        reader.block.clear();
        Ok(reader)
    }

    /// The process that was recorded.
    pub fn info(&self) -> &ProcessInfo {
        &self.info
    }

    /// How it ended: known once the last event was read, and only if the trace was ended in order.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// What the recording had cost, as far as that was written down by the last event that was read.
    pub fn meter(&self) -> Option<Meter> {
        self.meter
    }

    /// What the last scan for leaks found, of those that were written down by the last event that was read.
    pub fn leaks(&self) -> Option<&LeakScan> {
        self.leaks.as_ref()
    }

    /// Whether the file ended in the middle of a block: the recording was cut short, or still goes on.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// The time of the last event, in nanoseconds since the recording began.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Where the block begins that was read last: once all was read, the end's, or that of one that is cut, or the end of the
    /// file. Before it stand whole blocks only.
    pub fn block_offset(&self) -> u64 {
        self.block_offset
    }

    /// Bytes of the file read so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next event; `None` at the end of the file, or of its last whole block.
    ///
    /// # Errors
    /// [`Error::Damaged`] or [`Error::Record`] where the bytes are not what was written. Everything before
    /// that place was good.
    pub fn next_event(&mut self) -> Result<Option<Event>, Error> {
        loop {
            if let Some(time) = self.pending_time.take() {
                self.time = time;
                return Ok(Some(Event::Time(time)));
            }
            let event = match self.decoder.next(&self.block) {
                Ok(event) => event,
                Err(error) => {
                    self.block.clear();
                    return Err(error);
                }
            };
            if let Some(event) = event {
                if let Event::Time(time) = event {
                    self.time = time;
                }
                return Ok(Some(event));
            }
            self.block.clear();
            if self.end.is_some() {
                return Ok(None);
            }
            let Some(header) = self.next_block()? else { return Ok(None) };
            if header.kind == BlockKind::Events as u8 {
                if let Err(error) = self.decoder.begin(header.time_ns, &self.block) {
                    self.block.clear();
                    return Err(error);
                }
                self.pending_time = (header.time_ns != self.time).then_some(header.time_ns);
            } else {
                if header.kind == BlockKind::End as u8 {
                    let end = decode_end(&self.block);
                    self.end = Some(end.ok_or_else(|| self.damaged("the end can't be read"))?);
                } else if header.kind == BlockKind::Meter as u8 {
                    let meter = Meter::decode(&self.block);
                    self.meter = Some(meter.ok_or_else(|| self.damaged("its cost can't be read"))?);
                } else if header.kind == BlockKind::Leaks as u8 {
                    let leaks = LeakScan::decode(&self.block);
                    self.leaks = Some(leaks.ok_or_else(|| self.damaged("a scan for leaks can't be read"))?);
                }
                self.block.clear();
            }
        }
    }

    /// The next events by batches, the faster way to read many: appends to `batch` as long as they are of the heap and
    /// until it has `most`, then gives the one behind them. `None` with a full batch means to go on, else it is the
    /// end.
    ///
    /// # Errors
    /// As [`Reader::next_event`]; what is in `batch` by then comes before that place and is good.
    pub fn next_batch(&mut self, batch: &mut Vec<HeapEvent>, most: usize) -> Result<Option<Event>, Error> {
        if self.pending_time.is_none()
            && let Err(error) = self.decoder.next_of_heap(&self.block, batch, most)
        {
            self.block.clear();
            return Err(error);
        }
        if batch.len() >= most {
            return Ok(None);
        }
        loop {
            let event = self.next_event()?;
            // A block may begin with an event of the heap.
            let Some(heap) = event.as_ref().and_then(HeapEvent::of) else { return Ok(event) };
            batch.push(heap);
            if batch.len() >= most {
                return Ok(None);
            }
        }
    }

    fn damaged(&self, what: &'static str) -> Error {
        Error::Damaged { offset: self.block_offset, what }
    }

    /// Reads a block into `self.block`; `None` at the end of the file.
    fn next_block(&mut self) -> Result<Option<BlockHeader>, Error> {
        self.block_offset = self.offset;
        let mut header = [0; BLOCK_HEADER];
        let len = read_up_to(&mut self.input, &mut header)?;
        self.offset += len as u64;
        if len < BLOCK_HEADER {
            self.cut = len != 0;
            return Ok(None);
        }
        let header = BlockHeader::decode(&header).map_err(|what| self.damaged(what))?;
        self.stored.resize(header.stored_len as usize, 0);
        let len = read_up_to(&mut self.input, &mut self.stored)?;
        self.offset += len as u64;
        if len < self.stored.len() {
            self.cut = true;
            return Ok(None);
        }
        if checksum(&header, &self.stored) != header.checksum {
            return Err(self.damaged("the checksum is wrong"));
        }
        self.block = match header.codec {
            0 => core::mem::take(&mut self.stored),
            1 => self
                .decompressor
                .decompress(&self.stored, header.raw_len as usize)
                .map_err(|_| self.damaged("the block can't be decompressed"))?,
            _ => return Err(self.damaged("unknown compression")),
        };
        if self.block.len() != header.raw_len as usize {
            return Err(self.damaged("a block has another length than it claims"));
        }
        Ok(Some(header))
    }
}

fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> Result<usize, Error> {
    let mut len = 0;
    while len < buffer.len() {
        match input.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(len)
}

fn decode_info(bytes: &[u8]) -> Option<ProcessInfo> {
    let mut at = 0;
    let pid = u32::try_from(get(bytes, &mut at)?).ok()?;
    let ppid = u32::try_from(get(bytes, &mut at)?).ok()?;
    let started_unix_ns = get(bytes, &mut at)?;
    let args = usize::try_from(get(bytes, &mut at)?).ok()?;
    let mut text = || {
        let len = usize::try_from(get(bytes, &mut at)?).ok()?;
        let text = bytes.get(at..)?.get(..len)?.to_vec();
        at += len;
        Some(text)
    };
    let mut command = Vec::new();
    for _ in 0..args {
        command.push(text()?);
    }
    let (executable, machine, recorder) = (text()?, text()?, text()?);
    Some(ProcessInfo { pid, ppid, command, executable, started_unix_ns, machine, recorder })
}

fn decode_end(bytes: &[u8]) -> Option<End> {
    let mut at = 1;
    let value = u32::try_from(get(bytes, &mut at)?).ok()? as i32;
    let exit = match bytes.first()? {
        0 => None,
        1 => Some(Exit::Code(value)),
        2 => Some(Exit::Signal(value)),
        _ => return None,
    };
    Some(End { exit, duration_ns: get(bytes, &mut at)?, lost: get(bytes, &mut at)? })
}
