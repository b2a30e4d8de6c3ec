//! `check_unreachable_on_signal`: which live blocks nothing leads to any more, found by the process itself.
//!
//! All other threads are stopped by a signal, whose frame on their stacks holds their registers. A copy of the process is
//! then made, as a fork makes it, and the threads go on. The copy looks through its memory: all that can be written
//! counts as known, but for the agent's own memory, for the heap that grows by `brk`, of which only live blocks count, and for what lies below the stack pointers.
//! A word that holds an address in a live block leads to it. What is found comes back in shared memory.
//!
//! The table of live blocks holds addresses in a form that isn't taken for one.
//!
//! # Safety
//! The copy allocates nothing and takes no lock: threads that hold some are not in it. It reads what its mappings say can be
//! read; should a file have become shorter, a signal ends it, and nothing else.

use super::log::log;
use super::options::Options;
use super::table::{Block, MASK};
use super::{blocks, errors, own};
use crate::entry::SavedRegisters;
use crate::lock::Quiet;
use crate::sys;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ffi::c_void;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use syscalls::{Sysno, syscall};

static ASKED: AtomicBool = AtomicBool::new(false);
/// 1 while threads are to stand still.
static STOPPING: AtomicU32 = AtomicU32::new(0);
static ARRIVED: AtomicU32 = AtomicU32::new(0);
/// Signals that were sent to threads and haven't come.
static UNDERWAY: AtomicU32 = AtomicU32::new(0);
/// Where the stacks of the threads end.
static ENDS: [AtomicUsize; 1024] = [const { AtomicUsize::new(0) }; 1024];

const PATIENCE_NS: u64 = 500_000_000;
/// As many sites are shown.
const SHOWN: usize = 100;

/// The signal's handler: a request, or the order to stand still.
pub(crate) unsafe extern "C" fn handler(_signal: i32) {
    let one_less = |count: u32| count.checked_sub(1);
    if UNDERWAY.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less).is_err() {
        return ASKED.store(true, Ordering::Relaxed);
    }
    if STOPPING.load(Ordering::Acquire) == 0 {
        return;
    }
    let here = 0usize;
    let number = ARRIVED.fetch_add(1, Ordering::AcqRel) as usize;
    if let Some(end) = ENDS.get(number) {
        end.store((&raw const here).addr(), Ordering::Release);
    }
    while STOPPING.load(Ordering::Acquire) != 0 {
        sys::futex_wait(&STOPPING, 1, 20_000_000);
    }
}

/// Looks, if that was asked for.
#[inline]
pub(crate) fn look(options: &Options, saved: &SavedRegisters, signal: i32) {
    if ASKED.load(Ordering::Relaxed) && ASKED.swap(false, Ordering::Relaxed) {
        check(options, saved, signal);
    }
}

#[cold]
fn check(options: &Options, saved: &SavedRegisters, signal: i32) {
    let quiet = Quiet::new();
    log!("Starting to check for unreachable memory.");
    let own_end = ptr::from_ref(saved).addr();
    let missing = stop_others(signal);
    let found = blocks::all().and_then(|blocks| Search::new(blocks, own_end));
    let copy = found.as_ref().and_then(Search::begin);
    STOPPING.store(0, Ordering::Release);
    sys::futex_wake(&STOPPING);
    let done = copy.is_some_and(|copy| waited(copy) == Some(0));
    match found {
        Some(found) if done => found.report(options),
        _ => log!("Unreachable check failed: there is no memory, or the copy of the process was killed."),
    }
    if missing != 0 {
        log!(
            "{missing} threads did not stand still: blocks that only their registers lead to are among these."
        );
    }
    drop(quiet);
}

/// Has all other threads stand still, and says how many didn't come.
fn stop_others(signal: i32) -> u32 {
    ARRIVED.store(0, Ordering::Relaxed);
    ENDS.iter().for_each(|end| end.store(0, Ordering::Relaxed));
    STOPPING.store(1, Ordering::Release);
    let (process, own) = (sys::process_id(), sys::thread_id());
    let mut sent = 0;
    for_each_thread(&mut |thread| {
        if thread != own {
            UNDERWAY.fetch_add(1, Ordering::AcqRel);
            // SAFETY: a signal to a thread of this process, which handles it.
            match unsafe { syscall!(Sysno::tgkill, process, thread, signal) } {
                Ok(_) => sent += 1,
                Err(_) => {
                    UNDERWAY.fetch_sub(1, Ordering::AcqRel);
                }
            }
        }
    });
    let start = sys::monotonic_ns();
    while ARRIVED.load(Ordering::Acquire) < sent && sys::monotonic_ns() - start < PATIENCE_NS {
        sys::sleep_briefly();
    }
    sent - ARRIVED.load(Ordering::Acquire).min(sent)
}

/// Tells of each thread of this process.
fn for_each_thread(each: &mut dyn FnMut(u32)) {
    let Ok(folder) = sys::open(c"/proc/self/task", libc::O_RDONLY | libc::O_DIRECTORY) else { return };
    let mut entries = [0u8; 2048];
    loop {
        // SAFETY: the buffer is live and as long as said.
        let len = unsafe { syscall!(Sysno::getdents64, folder, entries.as_mut_ptr(), entries.len()) };
        let Some(mut left) = len.ok().filter(|&len| len != 0).and_then(|len| entries.get(..len)) else {
            break;
        };
        // Inode and offset, then the entry's length, a kind, and the name with its zero.
        while let Some(&[low, high, ..]) = left.get(16..) {
            let len = usize::from(u16::from_le_bytes([low, high]));
            let name = left.get(19..len).unwrap_or(&[]);
            let digits = name.iter().take_while(|byte| byte.is_ascii_digit());
            let thread = digits.fold(0u32, |n, digit| n.wrapping_mul(10).wrapping_add((digit - b'0').into()));
            if thread != 0 {
                each(thread);
            }
            left = left.get(len.max(1)..).unwrap_or(&[]);
        }
    }
    sys::close(folder);
}

/// What the copy makes of a block.
mod state {
    pub(super) const UNKNOWN: u8 = 0;
    pub(super) const REACHED: u8 = 1;
    /// Nothing leads to it.
    pub(super) const LOST: u8 = 2;
    /// Only what is lost leads to it.
    pub(super) const BELOW: u8 = 3;
}

/// What is looked through, and what comes of it.
struct Search {
    /// By their addresses, which are kept in the table's form.
    blocks: Vec<Block>,
    /// Of each block what it is, and for one below a lost one which that is, in memory that is shared with the copy.
    states: *mut u8,
    heads: *mut u32,
    shared: (*mut u8, usize),
    /// Room for the blocks whose words are yet to be looked at.
    queue: *mut u32,
    queue_bytes: usize,
    own_end: usize,
    heap: Range<usize>,
}

impl Drop for Search {
    fn drop(&mut self) {
        sys::unmap(self.shared.0, self.shared.1);
        sys::unmap(self.queue.cast(), self.queue_bytes);
    }
}

impl Search {
    fn new(mut blocks: Vec<Block>, own_end: usize) -> Option<Self> {
        blocks.sort_unstable_by_key(|block| block.address);
        blocks.iter_mut().for_each(|block| block.address ^= MASK);
        let count = blocks.len().max(1);
        let bytes = (5 * count + 8).next_multiple_of(sys::PAGE);
        let queue_bytes = (4 * count).next_multiple_of(sys::PAGE);
        let queue = sys::map_anonymous(queue_bytes)?;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let shared = unsafe { syscall!(Sysno::mmap, 0, bytes, rights, flags, -1isize, 0) };
        let Ok(shared) = shared.map(ptr::with_exposed_provenance_mut::<u8>) else {
            sys::unmap(queue, queue_bytes);
            return None;
        };
        let states = shared.wrapping_add(4 * count);
        Some(Self {
            blocks,
            states,
            heads: shared.cast(),
            shared: (shared, bytes),
            queue: queue.cast(),
            queue_bytes,
            own_end,
            heap: blocks::heap_since_hooks(),
        })
    }

    /// Makes the copy of the process, which does all. Its number.
    fn begin(&self) -> Option<usize> {
        // SAFETY: no memory is shared but what is mapped so, and no signal tells of the copy's end. It goes on here, on
        // its own copy of this stack, with all signals blocked.
        let copy = unsafe { syscall!(Sysno::clone, 0, 0, 0, 0, 0) }.ok()?;
        if copy == 0 {
            self.search();
            loop {
                // SAFETY: ends the copy.
                let _ = unsafe { syscall!(Sysno::exit_group, 0) };
            }
        }
        Some(copy)
    }

    fn address(&self, number: usize) -> usize {
        self.blocks[number].address ^ MASK
    }

    fn range(&self, number: usize) -> Range<usize> {
        let start = self.address(number);
        start..start + self.blocks[number].size
    }

    fn state(&self, number: usize) -> u8 {
        // SAFETY: there is a byte for each block.
        unsafe { self.states.add(number).read() }
    }

    /// Of a block below another, that one.
    fn head(&self, number: usize) -> usize {
        // SAFETY: there is a word for each block.
        (unsafe { self.heads.add(number).read() }) as usize
    }

    fn set(&self, number: usize, state: u8, head: usize) {
        // SAFETY: as above, and a word.
        unsafe {
            self.states.add(number).write(state);
            self.heads.add(number).write(head as u32);
        }
    }

    /// The block that a word leads to.
    fn target(&self, word: usize) -> Option<usize> {
        let after = self.blocks.partition_point(|block| block.address ^ MASK <= word);
        let number = after.checked_sub(1)?;
        self.range(number).contains(&word).then_some(number)
    }

    /// Whether a word is the address at which libc has the chunk behind a block. Its head overlaps the block's last bytes, and
    /// the allocator's own lists lead there.
    fn is_next_chunk(&self, number: usize, word: usize) -> bool {
        const HEAD: usize = 2 * size_of::<usize>();
        let Range { start, end } = self.range(number);
        let raw = start - self.blocks[number].offset as usize;
        word >= end.saturating_sub(HEAD) && word.wrapping_sub(raw).is_multiple_of(HEAD)
    }

    /// Looks at the words of a range, and tells of each block that one leads to.
    fn words(&self, range: Range<usize>, each: &mut dyn FnMut(usize, usize)) {
        const WORD: usize = size_of::<usize>();
        let mut at = range.start.next_multiple_of(WORD);
        while at + WORD <= range.end {
            // SAFETY: the range lies in a mapping that can be read, of a process whose only thread this is.
            let word = unsafe { ptr::with_exposed_provenance::<usize>(at).read_volatile() };
            if let Some(number) = self.target(word) {
                each(number, word);
            }
            at += WORD;
        }
    }

    /// Gives blocks that can be reached from those in the queue this state, as far as they are in one that `takes` says.
    fn follow(&self, mut waiting: usize, takes: impl Fn(u8) -> bool, to: u8, head: usize) {
        while waiting != 0 {
            waiting -= 1;
            // SAFETY: each block is in the queue once, and there is room for all.
            let number = unsafe { self.queue.add(waiting).read() } as usize;
            self.words(self.range(number), &mut |target, _| {
                if target != head && takes(self.state(target)) {
                    self.set(target, to, head);
                    // SAFETY: as above.
                    unsafe { self.queue.add(waiting).write(target as u32) };
                    waiting += 1;
                }
            });
        }
    }

    /// In the copy: finds what each block is.
    fn search(&self) {
        let mut waiting = 0;
        self.for_each_root(&mut |range, kind| {
            self.words(range, &mut |target, word| {
                let is_libcs = matches!(kind, Kind::Libc) && self.is_next_chunk(target, word);
                if self.state(target) == state::UNKNOWN && !is_libcs {
                    self.set(target, state::REACHED, 0);
                    // SAFETY: as in `follow`.
                    unsafe { self.queue.add(waiting).write(target as u32) };
                    waiting += 1;
                }
            });
        });
        self.follow(waiting, |found| found == state::UNKNOWN, state::REACHED, usize::MAX);
        // What another block leads to is below it, also if it was come upon before; in a circle the first one stands for
        // all.
        for number in 0..self.blocks.len() {
            if self.state(number) == state::UNKNOWN {
                self.set(number, state::LOST, number);
                // SAFETY: as above.
                unsafe { self.queue.write(number as u32) };
                let takes = |found| matches!(found, state::UNKNOWN | state::LOST);
                self.follow(1, takes, state::BELOW, number);
            }
        }
    }

    /// Tells of all memory that counts as known, without the blocks in it.
    fn for_each_root(&self, each: &mut dyn FnMut(Range<usize>, Kind)) {
        for_each_mapping(&mut |mapping, kind| {
            let each = &mut |range| each(range, kind);
            let shared = self.shared.0.addr()..self.shared.0.addr() + self.shared.1;
            if matches!(kind, Kind::Device) || shared.contains(&mapping.start) {
                return;
            }
            let mut at = mapping.start;
            let ends = ENDS.iter().map(|end| end.load(Ordering::Acquire)).chain([self.own_end]);
            for end in ends.filter(|end| mapping.contains(end)) {
                // What lies below is nobody's; what leaf functions keep there is.
                at = at.max(end.saturating_sub(128)).min(mapping.end);
            }
            let mut number = self.blocks.partition_point(|block| (block.address ^ MASK) < at);
            loop {
                let block = (number < self.blocks.len()).then(|| self.range(number));
                let end = block.as_ref().map_or(mapping.end, |block| block.start.min(mapping.end));
                own::without(at..end.max(at), &mut |part| self.without_heap(part, each));
                match block.filter(|block| block.start < mapping.end) {
                    Some(block) => at = block.end,
                    None => break,
                }
                number += 1;
            }
        });
    }

    fn without_heap(&self, range: Range<usize>, each: &mut dyn FnMut(Range<usize>)) {
        let heap = &self.heap;
        for part in [range.start..range.end.min(heap.start), range.start.max(heap.end)..range.end] {
            if part.start < part.end {
                each(part);
            }
        }
    }

    /// Says what was found.
    fn report(&self, options: &Options) {
        // Blocks of one size from one place are one.
        let mut sites: Vec<(usize, u32, usize, usize)> = Vec::new();
        let mut below: Vec<(usize, usize)> = Vec::new();
        let (mut count, mut bytes) = (0, 0);
        for number in 0..self.blocks.len() {
            let block = self.blocks[number];
            match self.state(number) {
                state::LOST => sites.push((block.size, block.stack, self.address(number), number)),
                state::BELOW => {
                    let mut head = self.head(number);
                    while self.state(head) == state::BELOW {
                        head = self.head(head);
                    }
                    below.push((head, block.size));
                }
                _ => continue,
            }
            count += 1;
            bytes += block.size;
        }
        if count == 0 {
            return log!("No unreachable memory.");
        }
        log!("Unreachable memory");
        log!("  {bytes} bytes in {count} unreachable allocation{}", if count == 1 { "" } else { "s" });
        log!("  ABI: '{}'", abi());
        sites.sort_unstable_by_key(|&(size, stack, address, _)| (Reverse(size), stack, address));
        let mut shown = 0;
        for alike in sites.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).take(SHOWN) {
            let (size, stack, address, _) = alike[0];
            let is_head = |head: usize| alike.iter().any(|site| site.3 == head);
            let mine = below.iter().filter(|&&(head, _)| is_head(head));
            let (others, more) = mine.fold((0, 0), |(count, bytes), &(_, size)| (count + 1, bytes + size));
            log!("");
            log!("  {size} bytes unreachable at {address:x}");
            if alike.len() > 1 {
                let (similar, count) = (size * (alike.len() - 1), alike.len() - 1);
                log!(
                    "   and {similar} similar unreachable bytes in {count} allocation{}",
                    if count == 1 { "" } else { "s" }
                );
            }
            if others != 0 {
                log!(
                    "   referencing {more} unreachable bytes in {others} allocation{}",
                    if others == 1 { "" } else { "s" }
                );
            }
            if stack != super::stacks::EMPTY {
                errors::backtrace(stack, options.frames);
            }
            shown += 1;
        }
        if shown == SHOWN {
            log!("  and others");
        }
    }
}

/// The name of the instruction set, as Android has it.
fn abi() -> &'static str {
    match size_of::<usize>() {
        8 if cfg!(target_feature = "sse2") => "x86_64",
        8 => "arm64",
        _ => "arm",
    }
}

/// The status with which the copy ended.
fn waited(copy: usize) -> Option<i32> {
    let mut status = 0i32;
    loop {
        // SAFETY: the status is live for the call.
        match unsafe { syscall!(Sysno::wait4, copy, &raw mut status, libc::__WALL, ptr::null::<c_void>()) } {
            Ok(_) => return Some(status),
            Err(syscalls::Errno::EINTR) => {}
            Err(_) => return None,
        }
    }
}

/// What a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Memory,
    /// Of libc's own data.
    Libc,
    Device,
}

/// Tells of each mapping that can be read and written, and what it is.
fn for_each_mapping(each: &mut dyn FnMut(Range<usize>, Kind)) {
    let Ok(maps) = sys::open(c"/proc/self/maps", libc::O_RDONLY) else { return };
    let mut text = [0u8; 8192];
    let (mut filled, mut at) = (0, 0);
    loop {
        let len = sys::read_at(maps, &mut text[filled..], at);
        at += len as u64;
        filled += len;
        let mut start = 0;
        while let Some(len) = text[start..filled].iter().position(|&byte| byte == b'\n') {
            if let Some((range, kind)) = mapping(&text[start..start + len]) {
                each(range, kind);
            }
            start += len + 1;
        }
        // A line that is longer than all of the buffer is left out.
        if start == 0 && filled == text.len() {
            start = filled;
        }
        text.copy_within(start..filled, 0);
        filled -= start;
        if len == 0 {
            break;
        }
    }
    sys::close(maps);
}

/// `START-END rw.. OFFSET DEVICE INODE PATH`
fn mapping(line: &[u8]) -> Option<(Range<usize>, Kind)> {
    let number = |text: &[u8]| {
        let digit = |n: usize, &byte: &u8| Some(n << 4 | char::from(byte).to_digit(16)? as usize);
        text.iter().try_fold(0, digit)
    };
    let dash = line.iter().position(|&byte| byte == b'-')?;
    let space = line.iter().position(|&byte| byte == b' ')?;
    let range = number(&line[..dash])?..number(line.get(dash + 1..space)?)?;
    if !line.get(space + 1..)?.starts_with(b"rw") {
        return None;
    }
    let path = line.iter().position(|&byte| byte == b'/').map_or(&[][..], |at| &line[at..]);
    let is_device =
        path.starts_with(b"/dev/") && !path.starts_with(b"/dev/zero") && !path.starts_with(b"/dev/shm");
    let is_libc = path.ends_with(b"/libc.so.6");
    Some((
        range,
        if is_device {
            Kind::Device
        } else if is_libc {
            Kind::Libc
        } else {
            Kind::Memory
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mappings_are_read() {
        let read = |line: &str| mapping(line.as_bytes());
        assert_eq!(
            read("7f00-8f10 rw-p 00000000 00:00 0                  [heap]"),
            Some((0x7f00..0x8f10, Kind::Memory))
        );
        assert_eq!(
            read("7f00-8f10 rw-s 00000000 00:05 7 /dev/dri/card0"),
            Some((0x7f00..0x8f10, Kind::Device))
        );
        assert_eq!(
            read("7f00-8f10 rw-s 00000000 00:05 7 /dev/zero (deleted)"),
            Some((0x7f00..0x8f10, Kind::Memory))
        );
        assert_eq!(read("7f00-8f10 r-xp 00000000 08:01 9 /usr/lib/libc.so.6"), None);
        assert_eq!(read("nothing"), None);
        let mut found = 0;
        for_each_mapping(&mut |range, _| found += usize::from(range.contains(&(&raw const range).addr())));
        assert_eq!(found, 1, "this stack");
    }

    #[test]
    fn this_thread_is_among_those_of_the_process() {
        let mut found = false;
        for_each_thread(&mut |thread| found |= thread == sys::thread_id());
        assert!(found);
    }
}
