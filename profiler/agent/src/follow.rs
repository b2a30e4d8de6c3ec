//! Into which programs the agent can go along: judged from the file that is to be executed, before it is.
//!
//! Others are left alone, and see an environment without us: a static program would only show it, the loader of one
//! with other words, or for another machine, would complain of the agent, that of another libc would refuse to start the program, and a
//! sanitizer's runtime insists on being the first library. Where the program gets other rights than its caller has, its loader
//! takes no library of the caller's choice. Of a script that is asked of its interpreter (`follow/script.rs`).
//!
//! A descriptor of ours is one that the program's other threads see. So nothing is opened that won't be executed, as far as that can be
//! known, and each file only as long as it is read.
//!
//! The structures are those of `elf.h`, with words of this machine.

mod script;

use crate::{native, sys};
use core::ffi::{CStr, c_int};
use script::Line;

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

const SANITIZERS: [&[u8]; 4] = [b"libasan.", b"libtsan.", b"libhwasan.", b"liblsan."];

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

/// What is to come of a program that is about to be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The agent goes along, or there is no telling.
    Followed,
    /// It runs without the agent.
    Alone,
    /// The kernel will refuse it.
    Refused,
}

/// Judges what a path leads to, from a directory.
#[inline(never)]
pub(crate) fn judge(directory: c_int, path: &CStr) -> Next {
    let mut line = Line::new();
    let found = match open(directory, path) {
        Ok(fd) => look_and_close(fd, &mut line),
        Err(next) => Some(next),
    };
    found.unwrap_or_else(|| judge_interpreter(&mut line))
}

/// Judges an open file.
#[inline(never)]
pub(crate) fn judge_open(fd: c_int) -> Next {
    let mut line = Line::new();
    // A descriptor may be there for nothing but to be executed (`O_PATH`).
    let found = if sys::read_at(fd, &mut [0], 0) == 1 {
        look(fd, &mut line)
    } else {
        match sys::open_again(fd) {
            Ok(fd) => look_and_close(fd, &mut line),
            Err(_) => Some(Next::Alone),
        }
    };
    found.unwrap_or_else(|| judge_interpreter(&mut line))
}

/// Judges a script by its first line: by its interpreter, or that one's, as far as the kernel goes.
fn judge_interpreter(line: &mut Line) -> Next {
    for _ in 0..script::MAX_INTERPRETERS {
        // A line that names none is no line to the kernel.
        let Some(path) = line.interpreter() else { return Next::Followed };
        // Where it is no whole path, it begins at the working directory.
        let found = match open(libc::AT_FDCWD, path) {
            Ok(fd) => look_and_close(fd, line),
            Err(next) => Some(next),
        };
        if let Some(next) = found {
            return next;
        }
    }
    Next::Refused
}

/// Opens a file that can be executed.
///
/// # Errors
/// What is to come of one that can't be opened: it may be one that can be executed and not be read, of which nothing is known.
fn open(directory: c_int, path: &CStr) -> Result<c_int, Next> {
    if !sys::is_executable(directory, path) {
        return Err(Next::Refused);
    }
    sys::open_executable(directory, path).map_err(|_| Next::Alone)
}

fn look_and_close(fd: c_int, line: &mut Line) -> Option<Next> {
    let found = look(fd, line);
    sys::close(fd);
    found
}

/// Looks at a file: `None` for a script, with its first line. What is neither that nor an ELF file is for the kernel to refuse, and
/// for whoever executes it to run by a shell then.
fn look(fd: c_int, line: &mut Line) -> Option<Next> {
    let file = File(fd);
    match file.bytes::<5>(0) {
        Some([0x7f, b'E', b'L', b'F', class]) => {
            let is_native = class == CLASS && file.u16(18) == Some(native::MACHINE.into());
            let takes = is_native && elf_takes_agent(&file).unwrap_or(false) && !changes_rights(fd);
            Some(if takes { Next::Followed } else { Next::Alone })
        }
        Some([b'#', b'!', ..]) => {
            line.read(fd);
            None
        }
        _ => Some(Next::Followed),
    }
}

/// Whether the program in a file will have other rights than its caller really has, so that its loader listens to nobody: by its
/// owner, or by capabilities, which root has anyway. No matter whether the place where it lies allows that.
fn changes_rights(fd: c_int) -> bool {
    // Of the kernel's `uapi/linux/stat.h`.
    const S_ISUID: u32 = 0o4000;
    const S_ISGID: u32 = 0o2000;
    const S_IXGRP: u32 = 0o0010;
    let Some((mode, owner, owning_group)) = sys::owner(fd) else { return false };
    let ([real_user, user], [real_group, group]) = (sys::users(), sys::groups());
    let next_user = if mode & S_ISUID != 0 { owner } else { user };
    let is_set_gid = mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP;
    let next_group = if is_set_gid { owning_group } else { group };
    next_user != real_user || next_group != real_group || (real_user != 0 && sys::has_capabilities(fd))
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
