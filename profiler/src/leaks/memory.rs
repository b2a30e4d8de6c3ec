//! The memory of a process that stands still, by `/proc/PID/mem`.

use super::registers::WIDTH;
use grapnel_analysis::leaks::{Memory, Width};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

const PAGE: u64 = 4096;
/// Pages that are asked about together.
const ASKED: usize = 4096;
/// Bits of an entry of pagemap: the page is in memory, or was swapped out.
const THERE: u64 = 0b11 << 62;

/// A process's memory.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    memory: File,
    /// Says which pages were ever touched. Reading others would make the kernel map pages for them.
    pages: Option<File>,
    width: Width,
    bytes: Vec<u8>,
}

impl ProcessMemory {
    /// Opens it.
    ///
    /// # Errors
    /// When this process may not.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let pages = File::open(format!("/proc/{pid}/pagemap")).ok();
        Ok(Self { memory, pages, width: WIDTH, bytes: Vec::new() })
    }

    /// Reads bytes from an address on, and says how many there are before the first that can't be read.
    pub(crate) fn read_bytes(&self, address: u64, bytes: &mut [u8]) -> usize {
        let mut len = 0;
        while len < bytes.len() {
            match self.memory.read_at(&mut bytes[len..], address + len as u64) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        len
    }
}

/// The parts of a range of a process's memory that were ever touched.
pub(crate) fn present_pages(pid: u32, range: Range<u64>) -> Vec<Range<u64>> {
    ProcessMemory::open(pid).map_or_else(|_| vec![range.clone()], |mut memory| memory.present(range.clone()))
}

impl Memory for ProcessMemory {
    fn width(&self) -> Width {
        self.width
    }

    fn present(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let Some(pages) = &self.pages else { return vec![range] };
        let mut parts: Vec<Range<u64>> = Vec::new();
        let mut entries = vec![0; 8 * ASKED];
        let (mut page, end) = (range.start / PAGE, range.end.div_ceil(PAGE));
        while page < end {
            let count = (end - page).min(ASKED as u64) as usize;
            if pages.read_exact_at(&mut entries[..8 * count], 8 * page).is_err() {
                // A kernel that doesn't tell: all the rest.
                parts.push((page * PAGE).max(range.start)..range.end);
                return parts;
            }
            for (at, entry) in (page..).zip(entries[..8 * count].as_chunks::<8>().0) {
                if u64::from_le_bytes(*entry) & THERE == 0 {
                    continue;
                }
                let part = (at * PAGE).max(range.start)..((at + 1) * PAGE).min(range.end);
                match parts.last_mut() {
                    Some(last) if last.end == part.start => last.end = part.end,
                    _ => parts.push(part),
                }
            }
            page += count as u64;
        }
        parts
    }

    fn read(&mut self, address: u64, words: &mut [u64]) -> usize {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.resize(self.width.bytes() as usize * words.len(), 0);
        let len = self.read_bytes(address, &mut bytes);
        let count = self.width.words(&bytes[..len], words);
        self.bytes = bytes;
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_read_as_it_is() {
        let words = [1u64, 2, 3];
        let mut memory = ProcessMemory::open(std::process::id()).expect("/proc");
        let address = words.as_ptr().addr() as u64;
        let mut found = [0; 3];
        for (width, expected) in [(Width::Bits64, [1, 2, 3]), (Width::Bits32, [1, 0, 2])] {
            memory.width = width;
            assert_eq!((memory.read(address, &mut found), found), (3, expected));
            assert_eq!(memory.read(8, &mut found), 0);
        }
        let parts = memory.present(address..address + 24);
        assert!(
            parts.is_empty() || parts.iter().map(|part| part.end - part.start).sum::<u64>() == 24,
            "{parts:x?}"
        );
    }
}
