//! What a process's dynamic linker does: before the program has been relocated, its C library can't be used; and while it opens
//! and closes libraries, nobody else can read its list, or what it lists.

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
/// Behind these, from the second version of the structure on, that of the next namespace.
const NEXT: u64 = 40;
/// No program has more of either.
const MOST_ENTRIES: u64 = 1 << 12;
/// Nor of these.
const MOST_OBJECTS: usize = 1 << 16;

/// What is loaded, and whether nothing is being done to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Objects {
    pub(super) are_at_rest: bool,
    /// Where each object is listed, what it was moved by, and where its dynamic section lies.
    objects: Vec<[u64; 3]>,
    /// How many of them are in the program's own namespace: those come first.
    of_program: usize,
}

impl Objects {
    /// `None` for a program that none loads, or whose memory can't be read.
    pub(super) fn read(memory: &Memory, (headers, count): (u64, u64)) -> Option<Self> {
        let mut found = Self { are_at_rest: true, objects: Vec::new(), of_program: 0 };
        let mut is_first = true;
        let mut debug = debug(memory, headers, count)?;
        while debug != 0 && found.objects.len() < MOST_OBJECTS {
            found.are_at_rest &= state(memory, debug)? == 0;
            let mut object = memory.word(debug.checked_add(LIST)?).ok()?;
            while object != 0 && found.objects.len() < MOST_OBJECTS {
                let mut words = [[0; 8]; 4];
                // What can't be read is just being changed.
                if memory.read(object, words.as_flattened_mut()).is_err() {
                    found.are_at_rest = false;
                    break;
                }
                let [bias, _name, dynamic, next] = words.map(u64::from_ne_bytes);
                found.objects.push([object, bias, dynamic]);
                object = next;
            }
            if std::mem::take(&mut is_first) {
                found.of_program = found.objects.len();
            }
            let has_next = memory.word(debug).ok()? as u32 > 1;
            debug = if has_next { memory.word(debug.checked_add(NEXT)?).ok()? } else { 0 };
        }
        Some(found)
    }

    /// Whether code that begins at an address is that of an object in the program's own namespace: what others have may go, their libc too.
    pub(super) fn are_programs(&self, code: u64) -> bool {
        let moved = self.objects.iter().map(|&[_, bias, _]| bias).filter(|&bias| bias <= code).max();
        let own = self.objects.get(..self.of_program).unwrap_or(&[]);
        own.iter().any(|&[_, bias, dynamic]| Some(bias) == moved && code < dynamic)
    }
}

/// Waits until it is at rest, if it says so.
pub(super) fn wait_for_rest(memory: &Memory, program_headers: (u64, u64)) {
    let end = Instant::now() + PATIENCE;
    while is_at_rest(memory, program_headers) == Some(false) && Instant::now() < end {
        sleep(Duration::from_millis(1));
    }
}

/// `None` for a program that none loads, or whose memory can't be read.
fn is_at_rest(memory: &Memory, (headers, count): (u64, u64)) -> Option<bool> {
    let debug = debug(memory, headers, count)?;
    if debug == 0 {
        return Some(false);
    }
    let list = memory.word(debug.checked_add(LIST)?).ok()?;
    Some(list != 0 && state(memory, debug)? == 0)
}

/// What is being done to the list of this structure.
fn state(memory: &Memory, debug: u64) -> Option<u32> {
    Some(memory.word(debug.checked_add(STATE)?).ok()? as u32)
}

/// The linker's structure for debuggers: 0 where it hasn't said yet which.
fn debug(memory: &Memory, headers: u64, count: u64) -> Option<u64> {
    let dynamic = dynamic(memory, headers, count)?;
    let entry = |index: u64| {
        let at = dynamic.checked_add(index * 16)?;
        Some((memory.word(at).ok()?, memory.word(at.checked_add(8)?).ok()?))
    };
    let entries = (0..MOST_ENTRIES).map_while(entry);
    entries.take_while(|&(tag, _)| tag != DT_NULL).find_map(|(tag, value)| (tag == DT_DEBUG).then_some(value))
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
