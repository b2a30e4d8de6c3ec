//! A copy of what a process's memory holds, taken while it stands still for a moment.
//!
//! What takes time is done before: room is made for all that is there, and touched, so that the process waits for the bytes to
//! be copied and for nothing else. Only what blocks can be held by or lie in is copied: memory that can be written to, what was
//! until it was relocated, and the first page of each other file's mapping, where modules have their headers.

use super::maps::{self, Map};
use super::memory::ProcessMemory;
use super::registers::WIDTH;
use super::roots::was_writable;
use super::stop;
use grapnel_analysis::leaks::{Memory, Width};
use grapnel_analysis::report::words::human_bytes;
use std::io;
use std::ops::Range;

const PAGE: u64 = 4096;
/// Room for what the process gets between the first look and the stop: a quarter more, and so much.
const SPARE: u64 = 4 << 20;

/// Why there can be no copy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CopyError {
    /// The process can't be read.
    #[error("the process's memory can't be read: {0}")]
    Read(#[from] io::Error),
    /// It is too large.
    #[error(
        "the process has {} of memory, and {} are left on this machine to copy it to; `grapnel run --leaks` looks when the process ends, without a copy",
        human_bytes(*needed), human_bytes(*available)
    )]
    NoRoom {
        /// What a copy takes.
        needed: u64,
        /// What there is.
        available: u64,
    },
    /// The recorder may not have as much.
    #[error(
        "{} to copy the process's memory to are refused to the recorder (a limit as of `ulimit -v`, or the system's on what is promised); `grapnel run --leaks` looks when the process ends, without a copy",
        human_bytes(*needed)
    )]
    Refused {
        /// What a copy takes.
        needed: u64,
    },
    /// It is larger than it was when room was made.
    #[error("the process has got more memory than there was room made for before it was stopped; ask again")]
    Grown,
}

/// Memory for a copy, touched.
#[derive(Debug)]
pub(crate) struct Room(Vec<u8>);

impl Room {
    /// Makes room for what a process has now.
    ///
    /// # Errors
    /// When there is too little memory, or the process can't be looked at.
    pub(crate) fn of(pid: u32) -> Result<Self, CopyError> {
        let mut memory = ProcessMemory::open(pid)?;
        let ranges = wanted(&maps::read(pid)?);
        let parts = ranges.into_iter().flat_map(|range| memory.present(range));
        let there: u64 = parts.map(|part| part.end - part.start).sum();
        let needed = there + there / 4 + SPARE;
        let available = crate::control::available_memory();
        if let Some(available) = available.filter(|&available| needed > available - available / 4) {
            return Err(CopyError::NoRoom { needed, available });
        }
        let mut room = Vec::new();
        let len = usize::try_from(needed).map_err(|_| CopyError::Refused { needed })?;
        room.try_reserve_exact(len).map_err(|_| CopyError::Refused { needed })?;
        // Not zeroes: pages of these would come only when they are written to.
        room.resize(len, 1);
        Ok(Self(room))
    }
}

/// What was in a process's memory.
#[derive(Debug)]
pub(crate) struct MemoryCopy {
    /// What was mapped.
    pub(crate) maps: Vec<Map>,
    /// Ranges that were copied, by address. What isn't in `parts` of them was never touched.
    ranges: Vec<Range<u64>>,
    /// Parts with something in them, by address, and where their bytes begin.
    parts: Vec<(Range<u64>, usize)>,
    bytes: Vec<u8>,
    width: Width,
}

impl MemoryCopy {
    /// Copies the memory of a process that stands still.
    ///
    /// # Errors
    /// When it can't be read, as when it has gone, or there is more than room was made for: to make more would take time.
    pub(crate) fn take(pid: u32, room: Room) -> Result<Self, CopyError> {
        let mut memory = ProcessMemory::open(pid)?;
        let maps = maps::read(pid)?;
        let mut copy = Self { ranges: wanted(&maps), maps, parts: Vec::new(), bytes: room.0, width: WIDTH };
        let mut len = 0;
        for range in copy.ranges.clone() {
            for part in memory.present(range) {
                let end = len + (part.end - part.start) as usize;
                if end > copy.bytes.len() {
                    return Err(CopyError::Grown);
                }
                let bytes = &mut copy.bytes[len..end];
                let read = stop::copy(pid, part.start, bytes);
                let read = read + memory.read_bytes(part.start + read as u64, &mut bytes[read..]);
                // What can't be read is left out: reading it says so.
                if read > 0 {
                    copy.parts.push((part.start..part.start + read as u64, len));
                }
                if read < end - len {
                    let missing = part.start + read as u64..part.end;
                    copy.ranges = copy.ranges.iter().flat_map(|range| without(range, &missing)).collect();
                }
                len += read;
            }
        }
        copy.bytes.truncate(len);
        Ok(copy)
    }

    /// The range of those that are sorted by address in which an address lies.
    fn range_of(&self, address: u64) -> Option<&Range<u64>> {
        let behind = self.ranges.partition_point(|range| range.start <= address);
        self.ranges[..behind].last().filter(|range| address < range.end)
    }

    /// The first part that ends behind an address.
    fn part_behind(&self, address: u64) -> usize {
        self.parts.partition_point(|(part, _)| part.end <= address)
    }

    /// Words that lie in one range.
    fn read_within(&self, address: u64, words: &mut [u64]) {
        let width = self.width.bytes();
        let end = address + width * words.len() as u64;
        let first = self.part_behind(address);
        let mut at = address;
        let place = |at: u64| ((at - address) / width) as usize;
        for (part, start) in self.parts[first..].iter().take_while(|(part, _)| part.start < end) {
            // Parts begin and end with pages, so words are whole.
            let from = part.start.max(at).next_multiple_of(width);
            words[place(at)..place(from.min(end))].fill(0);
            let to = part.end.min(end);
            let Some(len) = to.checked_sub(from) else { continue };
            let bytes = &self.bytes[start + (from - part.start) as usize..][..len as usize];
            let count = self.width.words(bytes, &mut words[place(from)..]);
            at = from + width * count as u64;
        }
        words[place(at)..].fill(0);
    }
}

/// What of a range lies outside another.
fn without(range: &Range<u64>, other: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let parts =
        [range.start..range.end.min(other.start.max(range.start)), range.start.max(other.end)..range.end];
    parts.into_iter().filter(|part| part.start < part.end)
}

/// What blocks can be held by or lie in.
fn wanted(maps: &[Map]) -> Vec<Range<u64>> {
    let range = |(at, map): (usize, &Map)| {
        if !map.readable || map.is_grapnels() {
            return None;
        }
        let is_whole = match map.writable {
            true => map.private || map.is_shared_memory(),
            false => was_writable(maps, at),
        };
        let first = map.range.start..map.range.end.min(map.range.start + PAGE);
        match is_whole {
            true => Some(map.range.clone()),
            false => map.path.starts_with('/').then_some(first),
        }
    };
    maps.iter().enumerate().filter_map(range).collect()
}

impl Memory for MemoryCopy {
    fn width(&self) -> Width {
        self.width
    }

    fn present(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let parts = self.parts[self.part_behind(range.start)..].iter().map(|(part, _)| part);
        parts
            .take_while(|part| part.start < range.end)
            .map(|part| part.start.max(range.start)..part.end.min(range.end))
            .collect()
    }

    fn read(&mut self, address: u64, words: &mut [u64]) -> usize {
        let mut done = 0;
        let width = self.width.bytes();
        while done < words.len() {
            let at = address + width * done as u64;
            let Some(range) = self.range_of(at) else { break };
            let count = ((range.end - at) / width).min((words.len() - done) as u64) as usize;
            if count == 0 {
                break;
            }
            self.read_within(at, &mut words[done..done + count]);
            done += count;
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_says_what_the_memory_said() {
        let mut words = vec![0u64; 1 << 16];
        words[7] = 0x1234_5678;
        words[40_000] = 9;
        let pid = std::process::id();
        assert!(Room::of(pid).expect("/proc").0.len() > 8 * words.len());
        // Not that one: all of it is touched, so it would have to hold itself.
        let room = Room(vec![0; 1 << 30]);
        let mut copy = MemoryCopy::take(pid, room).expect("/proc");
        let address = words.as_ptr().addr() as u64;
        copy.width = Width::Bits64;
        let mut found = vec![1; words.len()];
        assert_eq!(copy.read(address, &mut found), words.len());
        assert_eq!(found, words);
        // Between two pages that were touched there may be others. Of the first one the start is malloc's.
        let whole: u64 = copy.present(address..address + 8 * words.len() as u64).iter().map(len).sum();
        assert!((2 * PAGE - address % PAGE..=8 * words.len() as u64).contains(&whole), "{whole}");
        assert_eq!(copy.read(8, &mut found), 0);
        assert!(copy.bytes.len() > 1 << 16);
        let small = Room(vec![1; 4096]);
        assert!(matches!(MemoryCopy::take(pid, small), Err(CopyError::Grown)));
    }

    fn len(range: &Range<u64>) -> u64 {
        range.end - range.start
    }

    #[test]
    fn what_was_never_touched_is_zero_and_what_cannot_be_read_is_not_there() {
        let bytes: Vec<u8> = (0..2 * PAGE).map(|at| (at / PAGE + 1) as u8).collect();
        let mut copy = MemoryCopy {
            ranges: vec![0x1000..0x5000, 0x5000..0x6000, 0x8000..0x9000],
            parts: vec![(0x2000..0x3000, 0), (0x5000..0x6000, PAGE as usize)],
            bytes,
            maps: Vec::new(),
            width: Width::Bits64,
        };
        let mut words = [7; 3];
        let (one, two) = (0x0101_0101_0101_0101, 0x0202_0202_0202_0202);
        for (address, expected, count) in [
            (0x1000, [0, 0, 0], 3),
            (0x1ff8, [0, one, one], 3),
            (0x2ff0, [one, one, 0], 3),
            (0x4ff8, [0, two, two], 3),
            (0x5ff8, [two, 7, 7], 1),
            (0x7ff8, [7, 7, 7], 0),
            (0x8ff0, [0, 0, 7], 2),
        ] {
            words.fill(7);
            assert_eq!((copy.read(address, &mut words), words), (count, expected), "{address:#x}");
        }
        copy.width = Width::Bits32;
        for (address, expected, count) in [
            (0x1ffc, [0, 0x0101_0101, 0x0101_0101], 3),
            (0x2ff8, [0x0101_0101, 0x0101_0101, 0], 3),
            (0x5ffc, [0x0202_0202, 7, 7], 1),
            (0x8ff8, [0, 0, 7], 2),
        ] {
            words.fill(7);
            assert_eq!((copy.read(address, &mut words), words), (count, expected), "{address:#x}");
        }
        assert_eq!(copy.present(0x2800..0x5800), [0x2800..0x3000, 0x5000..0x5800]);
        let parts: Vec<_> = without(&(0x1000..0x5000), &(0x2000..0x3000)).collect();
        assert_eq!(parts, [0x1000..0x2000, 0x3000..0x5000]);
        assert_eq!(without(&(0x1000..0x5000), &(0x6000..0x7000)).collect::<Vec<_>>().len(), 1);
    }
}
