//! The symbol table of an object's file: functions that it doesn't export, as an allocator that is linked into a program.
//!
//! Read into memory, not mapped: a file that is cut short meanwhile would kill the program. A file that can't be made sense
//! of has no symbols. What lies at an object's path may be another file by now, or always was, below another root directory: so
//! it must begin as the object does in memory, with its headers and its build id. What its symbols say is only
//! used for code that lies in the object's own, and can be relocated.

use crate::families::Visit;
use crate::sys;
use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ops::Range;

const SHT_SYMTAB: u32 = 2;
const STT_FUNC: u8 = 2;
/// The length of a word, and how the file of an object begins whose words have it. The structures are those of `elf.h`.
const WORD: usize = size_of::<usize>();
const MAGIC: &[u8] = if WORD == 8 { b"\x7fELF\x02\x01" } else { b"\x7fELF\x01\x01" };
const FILE_HEADER: usize = 40 + 3 * WORD;
/// Where in the file's header it says where the section headers are, and how many.
const SECTIONS_AT: usize = 24 + 2 * WORD;
const COUNT_AT: usize = FILE_HEADER - 4;
const SECTION_HEADER: usize = 16 + 6 * WORD;
/// Where in a section header it says where the section is, and, behind how long it is, which other section belongs to it.
const OFFSET_AT: usize = 8 + 2 * WORD;
const LINK_AT: usize = OFFSET_AT + 2 * WORD;
const SYMBOL: usize = 8 + 2 * WORD;
/// Where in a symbol its value is, its size, its kind, and its section.
const VALUE_AT: usize = if WORD == 8 { 8 } else { 4 };
const SIZE_AT: usize = VALUE_AT + WORD;
const KIND_AT: usize = if WORD == 8 { 4 } else { 12 };
const SECTION_AT: usize = KIND_AT + 2;
/// Sections that are larger are not looked at: to read them would hold up the program's start.
const LARGEST: u64 = 256 << 20;

/// A symbol table with its names.
#[derive(Debug)]
pub(crate) struct FileSymbols {
    symbols: Vec<u8>,
    names: Vec<u8>,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn word_at(bytes: &[u8], at: usize) -> Option<usize> {
    number(bytes, at).map(usize::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    number(bytes, at).map(u32::from_le_bytes)
}

/// Bytes of a file, if all of them are there.
fn bytes(fd: i32, offset: u64, len: u64) -> Option<Vec<u8>> {
    let len = usize::try_from(len).ok().filter(|&len| len as u64 <= LARGEST)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).ok()?;
    bytes.resize(len, 0);
    let mut read = 0;
    while read < len {
        match sys::read_at(fd, &mut bytes[read..], offset.checked_add(read as u64)?) {
            0 => return None,
            more => read += more,
        }
    }
    Some(bytes)
}

/// How much of a file's beginning must be as it is in memory: linkers put the build id behind the headers.
const HEAD: usize = 1024;

/// Reads the symbol table of the file at a path, if it has one, and begins as `mapped` does.
pub(crate) fn read(path: &[u8], mapped: &[u8]) -> Option<FileSymbols> {
    let path = CString::new(path).ok().filter(|path| !path.is_empty())?;
    let fd = sys::open_regular(&path).ok()?;
    let head = &mapped[..mapped.len().min(HEAD)];
    let is_mapped = bytes(fd, 0, head.len() as u64).is_some_and(|found| found == head);
    let found = if is_mapped { read_file(fd) } else { None };
    sys::close(fd);
    found
}

fn read_file(fd: i32) -> Option<FileSymbols> {
    let header = bytes(fd, 0, FILE_HEADER as u64)?;
    if !header.starts_with(MAGIC) {
        return None;
    }
    let count = u16::from_le_bytes(number(&header, COUNT_AT)?);
    let sections =
        bytes(fd, word_at(&header, SECTIONS_AT)? as u64, u64::from(count) * SECTION_HEADER as u64)?;
    let table =
        sections.chunks_exact(SECTION_HEADER).find(|section| u32_at(section, 4) == Some(SHT_SYMTAB))?;
    let names = sections.chunks_exact(SECTION_HEADER).nth(u32_at(table, LINK_AT)? as usize)?;
    let content = |section: &[u8]| {
        bytes(fd, word_at(section, OFFSET_AT)? as u64, word_at(section, OFFSET_AT + WORD)? as u64)
    };
    Some(FileSymbols { symbols: content(table)?, names: content(names)? })
}

impl FileSymbols {
    /// The names of all symbols, each of which ends with a 0.
    pub(crate) fn names(&self) -> &[u8] {
        &self.names
    }

    /// Tells of each function that is defined.
    pub(crate) fn for_each(&self, bias: usize, each: &mut Visit<'_>) {
        for symbol in self.symbols.chunks_exact(SYMBOL) {
            if let Some((name, range)) = self.function(symbol, bias) {
                each(name, range);
            }
        }
    }

    fn function(&self, symbol: &[u8], bias: usize) -> Option<(&[u8], Range<usize>)> {
        let section = u16::from_le_bytes(number(symbol, SECTION_AT)?);
        let (value, size) = (word_at(symbol, VALUE_AT)?, word_at(symbol, SIZE_AT)?);
        if symbol[KIND_AT] & 15 != STT_FUNC || section == 0 || size == 0 {
            return None;
        }
        let name = self.names.get(u32_at(symbol, 0)? as usize..)?;
        let len = name.iter().position(|&byte| byte == 0)?;
        let start = bias.wrapping_add(value);
        Some((&name[..len], start..start.checked_add(size)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has a symbol whatever the optimiser makes of those that call it.
    #[inline(never)]
    fn a_function_of_this_very_test() -> usize {
        core::hint::black_box(7)
    }

    #[test]
    fn the_functions_of_this_very_test_are_found() {
        assert_eq!(core::hint::black_box(a_function_of_this_very_test as fn() -> usize)(), 7);
        let file = read(b"/proc/self/exe", b"\x7fELF").expect("tests aren't stripped");
        let mut found = 0;
        let own = b"a_function_of_this_very_test";
        file.for_each(0, &mut |name, range| {
            found += usize::from(name.windows(own.len()).any(|part| part == own) && !range.is_empty());
        });
        assert!(found > 0);
    }

    #[test]
    fn what_is_no_object_has_none() {
        for path in [&b"/etc/passwd"[..], b"/nonexistent", b"", b"/dev/zero", b"/proc/self"] {
            assert!(read(path, b"").is_none());
        }
        assert!(read(b"/proc/self/exe", &[MAGIC, b"\x01 another file"].concat()).is_none());
        let cut = FileSymbols { symbols: alloc::vec![2; 5 * SYMBOL + 7], names: alloc::vec![b'x'; 9] };
        cut.for_each(usize::MAX, &mut |name, _| panic!("{name:?}"));
    }
}
