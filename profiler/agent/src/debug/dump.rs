//! Dumps of the live blocks: Android's native heap dump, version 1.2, and a list of leaks at the end.
//!
//! ```text
//! z IN_CHILD  sz SIZE  num    BLOCKS  bt PC PC...
//!   bt_info {"FILE" RELATIVE_PC "FUNCTION" OFFSET}...
//! ```

use super::kernel::{File, reason};
use super::live::Live;
use super::log::log;
use super::names::Names;
use super::options::Options;
use super::stacks::EMPTY;
use super::{blocks, errors, walk};
use crate::lock::Quiet;
use crate::sys;
use alloc::collections::BTreeMap;
use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, Ordering};

/// A dump is asked for, and made by the next call of an allocation function.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Asks for a dump. For a handler of signals.
pub(crate) fn ask() {
    ASKED.store(true, Ordering::Relaxed);
}

/// In the child of a fork, of which nobody asked what was asked of its parent.
pub(crate) fn renew() {
    ASKED.store(false, Ordering::Relaxed);
}

/// Makes the dump that was asked for, if one was.
#[inline]
pub(crate) fn look(options: &Options) {
    if ASKED.load(Ordering::Relaxed) && ASKED.swap(false, Ordering::Relaxed) {
        write(options, "");
    }
}

/// Writes a dump. Its name ends with this process's number, what `which` says, and `.txt`.
#[cold]
pub(crate) fn write(options: &Options, which: &str) {
    let _quiet = Quiet::new();
    let mut path = options.dump_prefix.clone();
    path.extend_from_slice(format!(".{}{which}.txt", sys::process_id()).as_bytes());
    // There is no zero in a variable's value.
    let Ok(path) = CString::new(path) else { return };
    let shown = String::from_utf8_lossy(path.to_bytes());
    let file = match File::create(&path) {
        Ok(file) => file,
        Err(errno) => return log!("Cannot create file {shown}: {}", reason(errno)),
    };
    log!("Dumping to file: {shown}");
    let blocks = blocks::all();
    let live =
        blocks.and_then(|blocks| walk::with_stacks(|stacks| Live::of(&blocks, stacks, options.frames)));
    let Some(live) = live else { return log!("no memory for the dump; {shown} is empty") };
    if let Err(errno) = fill(file, options, &live) {
        log!("{shown} is not whole: {}", reason(errno));
    }
}

fn fill(mut file: File, options: &Options, live: &Live) -> Result<(), syscalls::Errno> {
    // Writing into the file keeps what goes wrong until the end.
    let _ = write!(
        file,
        "Android Native Heap Dump v1.2\n\nBuild fingerprint: 'unknown'\n\nTotal memory: {}\nAllocation records: {}\nBacktrace size: {}\n\n",
        live.total(),
        live.records.len(),
        options.frames
    );
    let mut names = options.full.then(Names::new);
    for record in &live.records {
        let mark = u8::from(record.in_child);
        let _ = write!(file, "z {mark}  sz {:8}  num    {}  bt", record.size, record.count);
        for pc in live.frames(record) {
            let _ = write!(file, " {pc:x}");
        }
        file.put(b"\n");
        if let Some(names) = names.as_mut().filter(|_| !live.frames(record).is_empty()) {
            file.put(b"  bt_info");
            for &pc in live.frames(record) {
                let place = names.place(pc, true);
                file.put(b" {\"");
                file.put(&place.path);
                let _ = write!(file, "\" {:x} \"", place.relative);
                let offset = place.function.as_ref().map_or(0, |(name, offset)| {
                    file.put(name);
                    *offset
                });
                let _ = write!(file, "\" {offset:x}}}");
            }
            file.put(b"\n");
        }
    }
    file.put(b"MAPS\n");
    match sys::open(c"/proc/self/maps", libc::O_RDONLY) {
        Ok(maps) => {
            let mut piece = [0; 4096];
            let mut at = 0;
            loop {
                let len = sys::read_at(maps, &mut piece, at);
                if len == 0 {
                    break;
                }
                file.put(&piece[..len]);
                at += len as u64;
            }
            sys::close(maps);
        }
        Err(_) => file.put(b"Could not open /proc/self/maps\n"),
    }
    file.put(b"END\n");
    file.finish()
}

/// Lists all live blocks for the user.
pub(crate) fn leaks(options: &Options) {
    let _quiet = Quiet::new();
    let Some(mut blocks) = blocks::all() else { return log!("no memory for a list of leaks") };
    let mut depths: BTreeMap<u32, usize> = BTreeMap::new();
    walk::with_stacks(|stacks| {
        for block in &blocks {
            depths
                .entry(block.stack)
                .or_insert_with(|| stacks.frames(block.stack).take(options.frames).count());
        }
    });
    blocks.sort_unstable_by_key(|block| {
        let depth = depths.get(&block.stack).copied().unwrap_or(0);
        (block.in_child, Reverse(block.size), Reverse(depth), block.address)
    });
    let program = program();
    let program = String::from_utf8_lossy(&program);
    let mut names = Names::new();
    let count = blocks.len();
    for (number, block) in (1..).zip(&blocks) {
        let (size, address) = (block.size, block.address);
        log!("+++ {program} leaked block of size {size} at {address:#x} (leak {number} of {count})");
        if block.stack != EMPTY {
            errors::allocated_at(&mut names, block.stack);
        }
    }
}

/// The name of the program's file.
fn program() -> Vec<u8> {
    let mut buffer = [0; 4096];
    let path = sys::read_link(c"/proc/self/exe", &mut buffer);
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path).to_vec()
}
