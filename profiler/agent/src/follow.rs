//! Into which programs the agent can go along: judged from the file that is to be executed, before it is.
//!
//! Others are left alone, and see an environment without us: a static program would only show it, the loader of one
//! with other words, or for another machine, would complain of the agent, that of another libc would refuse to start the program, and a
//! sanitizer's runtime insists on being the first library.
//!
//! The structures are those of `elf.h`, with words of this machine.

use crate::{native, sys};
use core::ffi::c_int;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
/// The length of a word, and the class of files that have such.
const WORD: u64 = size_of::<usize>() as u64;
const CLASS: u8 = if WORD == 8 { 2 } else { 1 };
/// Where in the file's header the words are that say where the table of program headers begins, how long they are, and how many.
const TABLE_AT: u64 = 24 + WORD;
const SIZE_AT: u64 = TABLE_AT + 2 * WORD + 6;
/// Where in a program header its offset is, its address, and its length in the file.
const OFFSET_AT: u64 = if WORD == 8 { 8 } else { 4 };
const ADDRESS_AT: u64 = OFFSET_AT + WORD;
const LENGTH_AT: u64 = OFFSET_AT + 3 * WORD;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
/// More than any program has.
const MAX_HEADERS: u64 = 64;
const MAX_ENTRIES: u64 = 256;
/// The longest beginning of a name that is looked at.
const NAME: usize = 64;

/// How the names begin of the dynamic linkers that know the agent's libc.
const LOADERS: &[&[u8]] =
    if cfg!(target_os = "android") { &[b"linker"] } else { &[b"ld-linux", b"ld.so", b"ld64"] };

const SANITIZERS: [&[u8]; 3] = [b"libasan.", b"libtsan.", b"libhwasan."];

/// Reads a file in small pieces: the stack may be small.
struct File(c_int);

impl File {
    fn bytes<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (sys::read_at(self.0, &mut bytes, offset) == N).then_some(bytes)
    }

    fn u16(&self, offset: u64) -> Option<u64> {
        self.bytes(offset).map(|bytes| u64::from(u16::from_le_bytes(bytes)))
    }

    fn u32(&self, offset: u64) -> Option<u32> {
        self.bytes(offset).map(u32::from_le_bytes)
    }

    fn word(&self, offset: u64) -> Option<u64> {
        self.bytes(offset).map(|bytes| usize::from_le_bytes(bytes) as u64)
    }

    /// The beginning of the string there.
    fn starts_with(&self, offset: u64, prefix: &[u8]) -> bool {
        let mut bytes = [0; NAME];
        let len = sys::read_at(self.0, &mut bytes, offset);
        bytes[..len].starts_with(prefix)
    }
}

/// Whether the program in this file will take the agent. What is no ELF file is for its interpreter to answer.
pub(crate) fn can_follow(fd: c_int) -> bool {
    let file = File(fd);
    match file.bytes::<5>(0) {
        Some([0x7f, b'E', b'L', b'F', class]) => {
            let is_native = class == CLASS && file.u16(18) == Some(native::MACHINE.into());
            is_native && elf_takes_agent(&file).unwrap_or(false)
        }
        _ => true,
    }
}

/// `None` for a file that can't be made sense of.
fn elf_takes_agent(file: &File) -> Option<bool> {
    let (table, size, count) = (file.word(TABLE_AT)?, file.u16(SIZE_AT)?, file.u16(SIZE_AT + 2)?);
    let header = |index: u64| table.checked_add(index.checked_mul(size)?);
    let headers = || (0..count.min(MAX_HEADERS)).filter_map(header);
    let find = |r#type: u32| headers().find(|&at| file.u32(at) == Some(r#type));
    let Some(interpreter) = find(PT_INTERP) else { return Some(false) };
    let mut path = [0; NAME];
    let len = sys::read_at(file.0, &mut path, file.word(interpreter + OFFSET_AT)?);
    let path = path[..len].split(|&byte| byte == 0).next()?;
    let name = path.rsplit(|&byte| byte == b'/').next()?;
    if !LOADERS.iter().any(|prefix| name.starts_with(prefix)) {
        return Some(false);
    }
    let Some(dynamic) = find(PT_DYNAMIC) else { return Some(true) };
    let entries = file.word(dynamic + OFFSET_AT)?;
    let entry = |index: u64| {
        let at = entries.checked_add(2 * WORD * index)?;
        let tag = file.word(at).filter(|&tag| tag != DT_NULL)?;
        Some((tag, file.word(at + WORD)?))
    };
    let entries = || (0..MAX_ENTRIES).map_while(entry);
    let strings = entries().find(|&(tag, _)| tag == DT_STRTAB)?.1;
    // The address is that in memory; the segment that holds it says where in the file that is.
    let strings = headers().filter(|&at| file.u32(at) == Some(PT_LOAD)).find_map(|at| {
        let (offset, address, len) =
            (file.word(at + OFFSET_AT)?, file.word(at + ADDRESS_AT)?, file.word(at + LENGTH_AT)?);
        let inside = strings.checked_sub(address).filter(|&inside| inside < len)?;
        offset.checked_add(inside)
    })?;
    let mut needed = entries().filter(|&(tag, _)| tag == DT_NEEDED);
    let is_sanitizer = |(_, name): (u64, u64)| {
        let name = strings.checked_add(name);
        name.is_some_and(|name| SANITIZERS.iter().any(|prefix| file.starts_with(name, prefix)))
    };
    Some(!needed.any(is_sanitizer))
}
