//! What the command and an agent that was put into a running process tell each other: the [`Ledger`].
//!
//! It lies in the agent's image, where the command reads and writes it from outside, through the kernel. All that the
//! agent maps and changes in the process stands in it, so that everything can be undone without a line of the agent's
//! code, whatever state that is in. It is atomics in `repr(C)`: whatever stands there is a number.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The name by which the command finds the ledger in the agent's image.
pub const LEDGER_SYMBOL: &str = "grapnel_agent_ledger";
/// The name of what the command calls in a thread of its making.
pub const ENTRY_SYMBOL: &str = "grapnel_agent_attach";

/// How many mappings an agent may have.
pub const MAPPINGS: usize = 1 << 13;
/// How many places of the program an agent may change.
pub const CHANGES: usize = 1 << 11;
/// Bytes of the longest change.
pub const CHANGE_BYTES: usize = 24;

/// Bytes of the longest path.
pub const PATH_BYTES: usize = 4096;
/// What an agent hooks, by name: looked for in its file for a program that has no tables in memory.
pub const FUNCTIONS: [&str; 18] = [
    "malloc",
    "calloc",
    "realloc",
    "free",
    "posix_memalign",
    "memalign",
    "aligned_alloc",
    "valloc",
    "pvalloc",
    "mmap",
    "munmap",
    "mremap",
    "brk",
    "sbrk",
    "shmat",
    "shmdt",
    "_Fork",
    "fork",
];

/// How many functions of libc's besides the allocator's map something, at most.
pub const OTHER_FUNCTIONS: usize = 12;

/// Where the agent's start is, in [`Ledger::state`].
pub mod state {
    /// It has not said anything yet.
    pub const NONE: u32 = 0;
    /// All is ready to go in.
    pub const PREPARED: u32 = 1;
    /// The changes are made, and recording goes on.
    pub const COMMITTED: u32 = 2;
    /// Nothing, or not all, was changed: see the segment's message.
    pub const FAILED: u32 = 3;
}

/// What the agent is to do, in [`Ledger::order`].
pub mod order {
    /// Wait.
    pub const WAIT: u32 = 0;
    /// Go on: the changes are made, and no other thread runs.
    pub const COMMIT: u32 = 1;
    /// End without them.
    pub const LEAVE: u32 = 2;
}

/// A range of the process's memory: among [`Ledger::mappings`] one that is the agent's.
#[repr(C)]
#[derive(Debug)]
pub struct Mapping {
    /// Its address; 0 in an entry that is free.
    pub start: AtomicU64,
    /// Its length in bytes.
    pub len: AtomicU64,
}

/// A place in the program that is changed: by the command at first, later by the agent, in what is loaded then.
#[repr(C)]
#[derive(Debug)]
pub struct Change {
    /// Its address.
    pub at: AtomicU64,
    /// How many bytes; 0 in an entry that isn't filled in. Stored last.
    pub len: AtomicU32,
    /// How many pairs of `ways` there are.
    pub way_count: AtomicU32,
    /// What was there before.
    pub old: [AtomicU8; CHANGE_BYTES],
    /// What is there then.
    pub new: [AtomicU8; CHANGE_BYTES],
    /// Of a patch: where its instructions went, as offsets from `at` in the lower and from `code` in the upper half.
    pub ways: [AtomicU32; CHANGE_BYTES],
    /// Where the code is that does what was there.
    pub code: AtomicU64,
}

/// Where in a static program is what the tables of a C library say elsewhere. What isn't known has a length of 0. A program that
/// a loader has loaded has `frames` at most.
#[repr(C)]
#[derive(Debug)]
pub struct Linked {
    /// Each of [`FUNCTIONS`].
    pub functions: [Mapping; FUNCTIONS.len()],
    /// The code of the allocator.
    pub allocator: Mapping,
    /// Functions that map and unmap stacks of threads, or move the break for others.
    pub others: [Mapping; OTHER_FUNCTIONS],
    /// The code that gives back what the allocator has kept for a thread, when that ends.
    pub thread_end: Mapping,
    /// The call frame information, if nothing that is mapped leads there.
    pub frames: Mapping,
}

/// All that an agent is and has done.
#[repr(C)]
#[derive(Debug)]
pub struct Ledger {
    /// See [`state`].
    pub state: AtomicU32,
    /// See [`order`].
    pub order: AtomicU32,
    /// Where the image lies.
    pub image: AtomicU64,
    /// The program headers of the program (`AT_PHDR`), and how many there are (`AT_PHNUM`).
    pub program_headers: AtomicU64,
    /// See [`Ledger::program_headers`].
    pub program_header_count: AtomicU64,
    /// The code that the hooks lead to: an address in it that a stack holds is that of a call under way.
    pub stubs: [AtomicU64; 2],
    /// How many entries of `mappings` were ever used.
    pub mapping_count: AtomicU32,
    /// How many entries of `changes` are taken.
    pub change_count: AtomicU32,
    /// What the agent mapped.
    pub mappings: [Mapping; MAPPINGS],
    /// What is changed, in the order in which it was noted.
    pub changes: [Change; CHANGES],
    /// The namespace of process ids of the process, for an agent that finds no `/proc`.
    pub namespace: AtomicU64,
    /// The same: what `/proc/self/maps` says, and how long that is.
    pub maps: Mapping,
    /// The path of the program's file, below its root directory; a zero byte ends it.
    pub executable: [AtomicU8; PATH_BYTES],
    /// Of a static program.
    pub linked: Linked,
}

impl Linked {
    const fn nothing() -> Self {
        Self {
            functions: [const { Mapping::free() }; FUNCTIONS.len()],
            allocator: Mapping::free(),
            others: [const { Mapping::free() }; OTHER_FUNCTIONS],
            thread_end: Mapping::free(),
            frames: Mapping::free(),
        }
    }
}

impl Mapping {
    const fn free() -> Self {
        Self { start: AtomicU64::new(0), len: AtomicU64::new(0) }
    }

    /// The addresses; empty if it is free.
    pub fn range(&self) -> Range<u64> {
        let start = self.start.load(Ordering::Relaxed);
        start..start.saturating_add(self.len.load(Ordering::Relaxed))
    }
}

impl Change {
    const fn free() -> Self {
        Self {
            at: AtomicU64::new(0),
            len: AtomicU32::new(0),
            way_count: AtomicU32::new(0),
            old: [const { AtomicU8::new(0) }; CHANGE_BYTES],
            new: [const { AtomicU8::new(0) }; CHANGE_BYTES],
            ways: [const { AtomicU32::new(0) }; CHANGE_BYTES],
            code: AtomicU64::new(0),
        }
    }
}

impl Ledger {
    /// One in which nothing stands.
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(state::NONE),
            order: AtomicU32::new(order::WAIT),
            image: AtomicU64::new(0),
            program_headers: AtomicU64::new(0),
            program_header_count: AtomicU64::new(0),
            stubs: [const { AtomicU64::new(0) }; 2],
            mapping_count: AtomicU32::new(0),
            change_count: AtomicU32::new(0),
            mappings: [const { Mapping::free() }; MAPPINGS],
            changes: [const { Change::free() }; CHANGES],
            namespace: AtomicU64::new(0),
            maps: Mapping::free(),
            executable: [const { AtomicU8::new(0) }; PATH_BYTES],
            linked: Linked::nothing(),
        }
    }

    /// Copies the path of the program's file to `buffer`: the part that it fills.
    pub fn executable<'b>(&self, buffer: &'b mut [u8; PATH_BYTES]) -> &'b [u8] {
        let mut len = 0;
        for (to, byte) in buffer.iter_mut().zip(&self.executable) {
            *to = byte.load(Ordering::Relaxed);
            if *to == 0 {
                break;
            }
            len += 1;
        }
        &buffer[..len]
    }

    /// Notes a mapping. False if there is no room.
    pub fn add(&self, start: u64, len: u64) -> bool {
        let used = (self.mapping_count.load(Ordering::Acquire) as usize).min(MAPPINGS);
        let taken = |entry: &&Mapping| {
            entry.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let free = || self.mappings[..used].iter().find(taken);
        let fresh = || {
            let next = |count: u32| (count < MAPPINGS as u32).then_some(count + 1);
            let index = self.mapping_count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).ok()?;
            let entry = self.mappings.get(index as usize)?;
            entry.start.store(start, Ordering::Release);
            Some(entry)
        };
        // Most of what is mapped stays, so that looking for a free entry is the last resort.
        match fresh().or_else(free) {
            Some(entry) => entry.len.store(len, Ordering::Release),
            None => return false,
        }
        true
    }

    /// Notes that a mapping, or its front or its end, is gone.
    pub fn remove(&self, start: u64, len: u64) {
        let used = (self.mapping_count.load(Ordering::Acquire) as usize).min(MAPPINGS);
        for entry in &self.mappings[..used] {
            let (first, size) = (entry.start.load(Ordering::Acquire), entry.len.load(Ordering::Acquire));
            if first == 0 || start < first || start - first >= size {
                continue;
            }
            if start != first {
                entry.len.store(start - first, Ordering::Release);
            } else if len < size {
                entry.len.store(size - len, Ordering::Release);
                entry.start.store(start + len, Ordering::Release);
            } else {
                entry.len.store(0, Ordering::Release);
                entry.start.store(0, Ordering::Release);
            }
            return;
        }
    }

    /// How many more changes there is room for.
    pub fn room(&self) -> usize {
        CHANGES.saturating_sub(self.change_count.load(Ordering::Acquire) as usize)
    }

    /// Notes a change: before it is made, or while nobody can come between. `ways`: pairs of offsets, of instructions at
    /// `at` and of what does the same at `code`.
    pub fn change(
        &self,
        at: u64,
        old: &[u8],
        new: &[u8],
        code: u64,
        ways: impl Iterator<Item = (usize, usize)>,
    ) -> bool {
        let index = self.change_count.fetch_add(1, Ordering::AcqRel) as usize;
        let Some(entry) = self.changes.get(index).filter(|_| old.len() <= CHANGE_BYTES) else { return false };
        entry.at.store(at, Ordering::Relaxed);
        for (to, byte) in entry.old.iter().zip(old).chain(entry.new.iter().zip(new)) {
            to.store(*byte, Ordering::Relaxed);
        }
        entry.code.store(code, Ordering::Relaxed);
        let mut count = 0;
        for (way, (from, to)) in entry.ways.iter().zip(ways) {
            way.store((to as u32) << 16 | from as u32 & 0xffff, Ordering::Relaxed);
            count += 1;
        }
        entry.way_count.store(count, Ordering::Relaxed);
        entry.len.store(old.len() as u32, Ordering::Release);
        true
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(ledger: &Ledger) -> Vec<(u64, u64)> {
        let read = |entry: &Mapping| (entry.start.load(Ordering::Relaxed), entry.len.load(Ordering::Relaxed));
        ledger.mappings.iter().map(read).filter(|&(start, _)| start != 0).collect()
    }

    #[test]
    fn mappings_come_and_go_whole_and_in_parts() {
        let ledger = Ledger::default();
        assert!(ledger.add(0x1000, 0x3000) && ledger.add(0x10000, 0x1000));
        ledger.remove(0x1000, 0x1000);
        assert_eq!(ranges(&ledger), [(0x2000, 0x2000), (0x10000, 0x1000)]);
        ledger.remove(0x3000, 0x1000);
        assert_eq!(ranges(&ledger), [(0x2000, 0x1000), (0x10000, 0x1000)]);
        ledger.remove(0x2000, 0x1000);
        assert_eq!(ranges(&ledger), [(0x10000, 0x1000)]);
        for index in 2..MAPPINGS as u64 {
            assert!(ledger.add(index << 20, 1));
        }
        // The entry of what went.
        assert!(ledger.add(0x5000, 1));
        assert!(!ledger.add(0x6000, 1));
    }

    #[test]
    fn changes_are_kept_in_order_until_there_is_no_room() {
        let ledger = Ledger::default();
        for index in 0..CHANGES {
            assert_eq!(ledger.room(), CHANGES - index);
            assert!(ledger.change(index as u64, &[1, 2], &[3, 4], 7, [(0, 4), (1, 9)].into_iter()));
        }
        assert!(!ledger.change(0, &[1], &[2], 0, core::iter::empty()));
        let change = &ledger.changes[5];
        assert_eq!((change.at.load(Ordering::Relaxed), change.len.load(Ordering::Relaxed)), (5, 2));
        assert_eq!(change.ways[1].load(Ordering::Relaxed), 9 << 16 | 1);
        assert_eq!(change.new[1].load(Ordering::Relaxed), 4);
    }
}
