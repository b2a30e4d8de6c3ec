//! Whether a process's dynamic linker is at rest: before the program has been relocated, its C library can't be used.

use super::memory::Memory;
use libc::Elf64_Phdr;
use std::mem::offset_of;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long it is waited for. It may also be one that keeps its word elsewhere.
const PATIENCE: Duration = Duration::from_secs(2);

const DT_NULL: u64 = 0;
const DT_DEBUG: u64 = 21;
/// What `r_debug` holds behind its version: the list, and behind another word what is being done to it; 0 is nothing.
const LIST: u64 = 8;
const STATE: u64 = 24;
/// No program has more of either.
const MOST_ENTRIES: u64 = 1 << 12;

/// Waits until it is at rest, if it says so.
pub(super) fn wait_for_rest(memory: &Memory, program_headers: (u64, u64)) {
    let end = Instant::now() + PATIENCE;
    while is_at_rest(memory, program_headers) == Some(false) && Instant::now() < end {
        sleep(Duration::from_millis(1));
    }
}

/// `None` for a program that none loads, or whose memory can't be read.
fn is_at_rest(memory: &Memory, (headers, count): (u64, u64)) -> Option<bool> {
    let dynamic = dynamic(memory, headers, count)?;
    let entry = |index: u64| {
        let at = dynamic.checked_add(index * 16)?;
        Some((memory.word(at).ok()?, memory.word(at.checked_add(8)?).ok()?))
    };
    let debug = (0..MOST_ENTRIES)
        .map_while(entry)
        .take_while(|&(tag, _)| tag != DT_NULL)
        .find_map(|(tag, value)| (tag == DT_DEBUG).then_some(value))?;
    if debug == 0 {
        return Some(false);
    }
    let list = memory.word(debug.checked_add(LIST)?).ok()?;
    let state = memory.word(debug.checked_add(STATE)?).ok()? as u32;
    Some(list != 0 && state == 0)
}

/// Where the program's dynamic section lies.
fn dynamic(memory: &Memory, headers: u64, count: u64) -> Option<u64> {
    let (mut bias, mut dynamic, mut is_interpreted) = (0, None, false);
    for index in 0..count.min(MOST_ENTRIES) {
        let at = headers.checked_add(index * size_of::<Elf64_Phdr>() as u64)?;
        let address = memory.word(at.checked_add(offset_of!(Elf64_Phdr, p_vaddr) as u64)?).ok()?;
        match memory.word(at).ok()? as u32 {
            libc::PT_PHDR => bias = headers.wrapping_sub(address),
            libc::PT_DYNAMIC => dynamic = Some(address),
            libc::PT_INTERP => is_interpreted = true,
            _ => {}
        }
    }
    dynamic.filter(|_| is_interpreted).map(|address| bias.wrapping_add(address))
}
