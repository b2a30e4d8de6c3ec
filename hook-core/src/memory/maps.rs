//! The mappings of this process, read from `/proc/self/maps`, or from `/proc/thread-self/maps` once the first thread has
//! ended. Where neither can be, what somebody else has read may be [given](give).
//!
//! The file is read through a small buffer on the stack; the list that results is one allocation.
//! The kernel gives a consistent picture of one read at a time only, so a mapping that comes or goes meanwhile may be
//! missing or stale. Whoever acts on the list must use calls that fail rather than overwrite (`MAP_FIXED_NOREPLACE`).

use alloc::vec::Vec;
use core::{
    cell::Cell,
    ffi::CStr,
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::sys::{self, Fd};

/// The lowest address that is tried: the kernel's usual `vm.mmap_min_addr`.
pub(crate) const LOWEST: usize = 0x1_0000;
pub(crate) use crate::native::HIGHEST;
/// The heap is left this much room to grow, and the main thread's stack as well, if there is another place.
const ROOM: usize = if usize::BITS == 64 { 1 << 30 } else { 8 << 20 };

/// The mappings as the first thread has them, which has none any more once it has ended by itself, and as this thread does.
const OWN: [&CStr; 2] = [c"/proc/self/maps", c"/proc/thread-self/maps"];

/// What a mapping is, as far as placement cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The area that `brk` grows upwards.
    Heap,
    /// The main thread's stack, which grows downwards.
    Stack,
    /// Anything else.
    Other,
}

/// One line of `/proc/self/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses, whole pages.
    pub range: Range<usize>,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub execute: bool,
    /// Shared with other mappings of the same file.
    pub shared: bool,
    /// Offset into the mapped file, in bytes.
    pub offset: usize,
    /// Number of the mapped file's inode, 0 for anonymous memory.
    pub inode: u64,
    /// What it is.
    pub kind: Kind,
}

impl Mapping {
    /// Its rights as the kernel takes them.
    pub(crate) fn rights(&self) -> i32 {
        let rights =
            [(self.read, libc::PROT_READ), (self.write, libc::PROT_WRITE), (self.execute, libc::PROT_EXEC)];
        rights.iter().fold(0, |all, (has, right)| if *has { all | right } else { all })
    }
}

/// What of a file lies at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Home {
    inode: u64,
    offset: usize,
}

/// The mappings in ascending order of their addresses.
#[derive(Debug, Clone, Default)]
pub struct Maps {
    list: Vec<Mapping>,
}

impl Maps {
    /// Reads the mappings as they are now.
    pub fn read() -> Result<Self, sys::Errno> {
        let mut list = Vec::with_capacity(64);
        visit(|mapping| list.push(mapping))?;
        Ok(Self { list })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    /// The mapping that holds an address.
    pub fn find(&self, address: usize) -> Option<&Mapping> {
        let after = self.list.partition_point(|m| m.range.start <= address);
        self.list.get(after.checked_sub(1)?).filter(|m| m.range.contains(&address))
    }

    /// Notes memory that was mapped since, so that its place isn't taken for free.
    pub(crate) fn note(&mut self, range: Range<usize>) {
        let at = self.list.partition_point(|m| m.range.start <= range.start);
        let (read, write, execute, shared, offset) = (false, false, false, false, 0);
        let mapping = Mapping { range, read, write, execute, shared, offset, inode: 0, kind: Kind::Other };
        self.list.insert(at, mapping);
    }

    /// What of a file lies at an address; `None` for memory of no file.
    pub(crate) fn home(&self, address: usize) -> Option<Home> {
        let mapping = self.find(address).filter(|mapping| mapping.inode != 0)?;
        Some(Home { inode: mapping.inode, offset: mapping.offset + (address - mapping.range.start) })
    }

    /// All mappings, ascending.
    pub fn iter(&self) -> core::slice::Iter<'_, Mapping> {
        self.list.iter()
    }

    /// How many bytes from `address` on are mapped with read access, without a gap, at most `limit`.
    pub fn readable(&self, address: usize, limit: usize) -> usize {
        let mut end = address;
        while end - address < limit {
            match self.find(end) {
                Some(m) if m.read => end = m.range.end,
                _ => break,
            }
        }
        (end - address).min(limit)
    }

    /// Calls `each` with every range in which nothing is mapped, ascending. With `leave_room`, without what the heap and
    /// the main thread's stack may want to grow into. What `each` returns doesn't matter.
    pub(crate) fn for_each_gap(&self, leave_room: bool, mut each: impl FnMut(Range<usize>) -> Option<()>) {
        let heap = if leave_room { sys::brk()..sys::brk().saturating_add(ROOM) } else { 0..0 };
        let mut offer = |gap: Range<usize>| {
            // What is left of the gap below and above the heap's room.
            let below = gap.start..gap.end.min(heap.start);
            let above = gap.start.max(heap.end)..gap.end;
            let parts = if heap.is_empty() || gap.end <= heap.start || heap.end <= gap.start {
                [gap, 0..0]
            } else {
                [below, above]
            };
            for part in parts {
                if !part.is_empty() {
                    each(part);
                }
            }
        };
        let mut start = LOWEST;
        for m in &self.list {
            let room = if leave_room && m.kind == Kind::Stack { ROOM } else { 0 };
            offer(start..m.range.start.saturating_sub(room).min(HIGHEST));
            start = start.max(m.range.end);
        }
        offer(start..HIGHEST);
    }

    /// The start of the file that the mapping at `address` belongs to: the mapping of the same file at offset 0 that
    /// lies nearest below.
    pub(crate) fn file_start(&self, address: usize) -> Option<usize> {
        let here = self.find(address)?;
        let below = self.list.partition_point(|m| m.range.start <= address);
        let first = self.list.get(..below)?.iter().rev().find(|m| m.inode == here.inode && m.offset == 0)?;
        Some(first.range.start)
    }

    /// The same for pages of no file that lie among those of one, with no gap: they may have taken the place of its own
    /// ([`PatchWay::Exchange`](crate::PatchWay::Exchange)).
    pub(crate) fn file_start_below(&self, address: usize) -> Option<usize> {
        let mut start = self.find(address).filter(|m| m.inode == 0)?.range.start;
        loop {
            let below = self.find(start.checked_sub(1)?)?;
            start = below.range.start;
            if below.inode != 0 {
                return self.file_start(start);
            }
        }
    }
}

/// Calls `each` with every mapping as it is now, ascending. Allocates nothing.
pub(super) fn visit(mut each: impl FnMut(Mapping)) -> Result<(), sys::Errno> {
    let found = Cell::new(false);
    let mut read = |path| {
        Lines::<192>::of(path, |line| {
            if let Some(mapping) = parse(line) {
                found.set(true);
                each(mapping);
            }
        })
    };
    let [first, this] = OWN;
    let first = read(first);
    if found.get() {
        return first;
    }
    let read = read(this).or(first);
    match given() {
        Some(text) if !found.get() => {
            Lines::<192>::default().feed(text, |line| {
                if let Some(mapping) = parse(line) {
                    each(mapping);
                }
            });
            Ok(())
        }
        _ => read,
    }
}

static GIVEN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Gives the mappings as somebody else has read them, as text: for a process below whose root directory there is no
/// `/proc`. They are only looked at where the kernel's own can't be read, and become stale: an empty text takes them back.
pub fn give(text: &'static [u8]) {
    let start = if text.is_empty() { 0 } else { text.as_ptr().expose_provenance() };
    GIVEN[0].store(0, Ordering::Release);
    GIVEN[1].store(text.len(), Ordering::Relaxed);
    GIVEN[0].store(start, Ordering::Release);
}

fn given() -> Option<&'static [u8]> {
    let start = GIVEN[0].load(Ordering::Acquire);
    // SAFETY: both words are those of a text that stays (`give`), which is given by one thread, before others come here.
    let text = || unsafe {
        core::slice::from_raw_parts(
            core::ptr::with_exposed_provenance(start),
            GIVEN[1].load(Ordering::Relaxed),
        )
    };
    (start != 0).then(text)
}

/// The path of the file that is mapped at an address, as the kernel writes it.
pub(crate) fn path_at(address: usize) -> Option<Vec<u8>> {
    let mut found = None;
    for path in OWN {
        let _ = Lines::<{ 192 + libc::PATH_MAX as usize }>::of(path, |line| {
            if parse(line).is_some_and(|mapping| mapping.range.contains(&address)) {
                let path = line.iter().position(|&byte| byte == b'/').and_then(|at| line.get(at..));
                found = path.map(Vec::from);
            }
        });
        if found.is_some() {
            break;
        }
    }
    found
}

/// Cuts a stream of bytes into lines; what exceeds the buffer (long paths) is dropped.
struct Lines<const LEN: usize> {
    line: [u8; LEN],
    len: usize,
}

impl<const LEN: usize> Default for Lines<LEN> {
    fn default() -> Self {
        Self { line: [0; LEN], len: 0 }
    }
}

impl<const LEN: usize> Lines<LEN> {
    /// Reads a file.
    fn of(path: &CStr, mut each: impl FnMut(&[u8])) -> Result<(), sys::Errno> {
        let file = Fd::open(path, libc::O_RDONLY)?;
        let mut lines = Self::default();
        let mut buf = [0u8; 2048];
        loop {
            match file.read(&mut buf)? {
                0 => return Ok(()),
                n => lines.feed(buf.get(..n).unwrap_or(&[]), &mut each),
            }
        }
    }

    fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) {
        for &byte in bytes {
            if byte == b'\n' {
                each(self.line.get(..self.len).unwrap_or(&[]));
                self.len = 0;
            } else if let Some(slot) = self.line.get_mut(self.len) {
                *slot = byte;
                self.len += 1;
            }
        }
    }
}

/// `55d0c000-55d0d000 r-xp 00001000 fe:00 1234   /usr/bin/x`
fn parse(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.split(|&b| b == b' ').filter(|f| !f.is_empty());
    let mut ends = fields.next()?.split(|&b| b == b'-');
    let range = number(ends.next()?, 16)? as usize..number(ends.next()?, 16)? as usize;
    let &[r, w, x, s, ..] = fields.next()? else { return None };
    let offset = number(fields.next()?, 16)? as usize;
    let _device = fields.next()?;
    let inode = number(fields.next()?, 10)?;
    let kind = match fields.next() {
        Some(b"[heap]") => Kind::Heap,
        Some(b"[stack]") => Kind::Stack,
        _ => Kind::Other,
    };
    Some(Mapping {
        range,
        read: r == b'r',
        write: w == b'w',
        execute: x == b'x',
        shared: s == b's',
        offset,
        inode,
        kind,
    })
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(core::str::from_utf8(digits).ok()?, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::Module;

    #[test]
    fn lines_are_parsed_across_reads_and_long_paths_are_cut() {
        let mut text = Vec::from(&b"00400000-00401000 r-xp 00001000 fe:00 1234   /bin/"[..]);
        text.resize(text.len() + 4000, b'x');
        text.extend_from_slice(
            b"\n01000000-01021000 rw-p 00000000 00:00 0     [heap]\nffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0   [vsyscall]\n",
        );
        let mut lines = Lines::<192>::default();
        let mut found = Vec::new();
        for chunk in text.chunks(7) {
            lines.feed(chunk, |line| found.extend(parse(line)));
        }
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].range, 0x400000..0x401000);
        assert!(found[0].execute && found[0].read && !found[0].write && !found[0].shared);
        assert_eq!((found[0].offset, found[0].inode), (0x1000, 1234));
        assert_eq!(found[1].kind, Kind::Heap);
        assert!(!found[2].read && found[2].execute);
    }

    #[test]
    fn the_file_around_exchanged_pages_is_found() {
        let text = b"1000-2000 r--p 00000000 fe:00 7 /lib\n2000-3000 r-xp 00001000 fe:00 7 /lib\n\
            3000-4000 r-xp 00000000 00:00 0\n4000-5000 r-xp 00000000 00:00 0\n5000-6000 r-xp 00004000 fe:00 7 /lib\n\
            7000-8000 r-xp 00000000 00:00 0\n";
        let mut maps = Maps::default();
        Lines::<192>::default().feed(text, |line| maps.list.extend(parse(line)));
        assert_eq!([0x2800, 0x5800].map(|at| maps.file_start(at)), [Some(0x1000); 2]);
        assert_eq!([0x3800, 0x4800].map(|at| maps.file_start_below(at)), [Some(0x1000); 2]);
        assert_eq!([0x2800, 0x6800, 0x7800].map(|at| maps.file_start_below(at)), [None; 3]);
    }

    /// As QEMU says it.
    #[test]
    #[cfg_attr(miri, ignore = "reads its own headers")]
    fn code_that_was_taken_together_with_its_headers_is_found() {
        let here = Maps::read as *const () as usize;
        let maps = Maps::read().unwrap();
        let (start, code) = (maps.file_start(here).unwrap(), maps.find(here).unwrap().range.clone());
        // SAFETY: this program stays.
        let is_code = |maps: &Maps, at| unsafe { Module::is_code(maps, at) };
        assert!(is_code(&maps, here) && !is_code(&maps, start));
        // SAFETY: as above.
        let seems = |maps: &Maps, at| unsafe { Module::is_code_together(maps, maps.find(at).unwrap(), at) };
        let mut apart = maps.clone();
        apart.list.iter_mut().for_each(|mapping| mapping.execute = false);
        assert!(!seems(&apart, here));
        let mut together = apart;
        together.list.retain(|mapping| !(start + 1..code.end).contains(&mapping.range.start));
        let first = together.list.iter_mut().find(|mapping| mapping.range.start == start).unwrap();
        first.range.end = code.end;
        assert!(seems(&together, here) && !seems(&together, start));
        // It may be that its owner has taken the right to run it from it.
        assert_eq!(is_code(&together, here), crate::native::is_emulated());
    }

    #[test]
    fn what_was_given_counts_only_where_nothing_can_be_read() {
        give(b"1000-2000 r-xp 00000000 fe:00 7 /lib\n");
        assert!(Maps::read().unwrap().find(give as *const () as usize).is_some());
        assert_eq!(given().map(<[u8]>::len), Some(37));
        give(b"");
        assert_eq!(given(), None);
    }

    #[test]
    fn garbage_is_skipped() {
        for line in [&b""[..], b"-", b"zz-10 r-xp 0 0 0", b"10-20 r", b"10-20 r-xp", b"10-20 r-xp 0 fe:00"] {
            assert_eq!(parse(line), None);
        }
    }

    #[test]
    fn this_process_has_its_code_mapped() {
        let maps = Maps::read().unwrap();
        let code = maps.find(Maps::read as *const () as usize).unwrap();
        assert!(code.execute && !code.write);
        assert!(maps.readable(code.range.start, 16) == 16);
        assert_eq!(maps.readable(0, 16), 0);
        let path = std::env::current_exe().unwrap();
        let found = path_at(code.range.start).unwrap();
        assert_eq!(found, path.as_os_str().as_encoded_bytes());
        let local = 0;
        assert_eq!(path_at(&raw const local as usize), None);
    }
}
