//! What a block goes through: its entry in the table of live blocks, guards around it, bytes that it is filled with.
//!
//! ```text
//! the allocator's block:  ... | front guard | the program's block | rear guard | expansion
//!                         <---- offset ---->
//! ```
//!
//! An entry is made after the allocator gave the block and taken out before it gets it back, so whoever has the same
//! address next finds none.
//!
//! # Safety
//! The table's parts are used under their locks. Bytes are written where the allocator's block has them: it was asked for
//! so many.

use super::options::Options;
use super::table::{Block, NoMemory, Table, hash};
use super::{TRACING, errors, fork, old, walk};
use crate::entry::SavedRegisters;
use crate::lock::{Lock, Quiet};
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::Ordering;

const PARTS: usize = 16;

struct Part {
    lock: Lock,
    table: UnsafeCell<Table>,
}

// SAFETY: the table is used under the lock only.
unsafe impl Sync for Part {}

static TABLE: [Part; PARTS] =
    [const { Part { lock: Lock::whole_in_children(), table: UnsafeCell::new(Table::new()) } }; PARTS];

/// Those of all parts.
pub(crate) fn locks() -> impl Iterator<Item = &'static Lock> {
    TABLE.iter().map(|part| &part.lock)
}

fn with<T>(address: usize, work: impl FnOnce(&mut Table) -> T) -> T {
    let part = &TABLE[hash(address).rotate_right(20) % PARTS];
    let _guard = part.lock.lock();
    // SAFETY: the part's lock is held.
    work(unsafe { &mut *part.table.get() })
}

/// The block at an address.
pub(crate) fn get(address: usize) -> Option<Block> {
    with(address, |table| table.get(address))
}

/// Takes the entry of the block at an address.
pub(crate) fn take(address: usize) -> Option<Block> {
    with(address, |table| table.take(address))
}

/// Makes a block's entry.
pub(crate) fn put(block: Block) -> Result<(), NoMemory> {
    old::remember_given(block.address);
    with(block.address, |table| table.insert(block))
}

/// All live blocks at one moment; `None` without memory.
pub(crate) fn all() -> Option<Vec<Block>> {
    let held = TABLE.each_ref().map(|part| part.lock.lock());
    // SAFETY: all locks are held, by `held`.
    let tables = || TABLE.iter().map(|part| unsafe { &*part.table.get() });
    let mut blocks = Vec::new();
    blocks.try_reserve_exact(tables().map(Table::len).sum()).ok()?;
    tables().for_each(|table| blocks.extend(table.iter()));
    drop(held);
    Some(blocks)
}

/// The entry of a block that the allocator just gave, with the caller's stack if one is wanted.
pub(crate) fn entry(
    options: &Options,
    address: usize,
    size: usize,
    offset: usize,
    saved: &SavedRegisters,
    quiet: &Quiet,
) -> Block {
    let traced = options.backtrace && TRACING.load(Ordering::Relaxed);
    let is_wanted = traced && (options.sizes.0..=options.sizes.1).contains(&size);
    let stack = if is_wanted { walk::stack(saved, quiet) } else { super::stacks::EMPTY };
    Block { address, size, stack, offset: offset as u32, traced, in_child: fork::is_in_child() }
}

/// The byte of each guard, and what blocks are filled with.
const FRONT: u8 = 0xaa;
const REAR: u8 = 0xbb;
const ALLOCATED: u8 = 0xeb;
pub(crate) const FREED: u8 = 0xef;

fn at(address: usize) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address)
}

/// Sets bytes.
///
/// # Safety
/// They lie in a block of the allocator's that is the caller's.
unsafe fn fill(range: Range<usize>, byte: u8) {
    // SAFETY: the caller's promise.
    unsafe { at(range.start).write_bytes(byte, range.len()) };
}

impl Block {
    fn front(&self, options: &Options) -> Range<usize> {
        self.address - options.front_guard..self.address
    }

    fn rear(&self, options: &Options) -> Range<usize> {
        let end = self.address + self.size;
        end..end + options.rear_guard
    }

    /// What the allocator knows it by.
    pub(crate) fn raw(&self) -> *mut c_void {
        at(self.address - self.offset as usize).cast()
    }

    /// Writes both guards.
    pub(crate) fn guard(&self, options: &Options) {
        // SAFETY: the block was asked for with room for both.
        unsafe {
            fill(self.front(options), FRONT);
            fill(self.rear(options), REAR);
        }
    }

    /// Looks whether anybody wrote beyond the block, and says so.
    pub(crate) fn check(&self, options: &Options, saved: &SavedRegisters, quiet: &Quiet) {
        for (name, range, byte) in [("FRONT", self.front(options), FRONT), ("REAR", self.rear(options), REAR)]
        {
            if are(range.clone(), byte) {
                continue;
            }
            let what = format_args!(
                "+++ ALLOCATION {:#x} SIZE {} HAS A CORRUPTED {name} GUARD",
                self.address, self.size
            );
            errors::report(Some(saved), quiet, what, |names| {
                say_bytes(self.address, range, byte);
                errors::allocated_at(names, self.stack);
            });
        }
    }

    /// How many bytes the program may use, as it is told. `allocators` is how many the allocator says that its block has.
    pub(crate) fn usable(&self, options: &Options, allocators: usize) -> usize {
        match allocators {
            // It can't be asked.
            0 => self.size,
            _ if options.rear_guard != 0 => self.size,
            bytes => bytes.saturating_sub(self.offset as usize),
        }
    }
}

/// Whether all bytes of a range are this one. They lie in a block that is the caller's.
pub(crate) fn are(range: Range<usize>, byte: u8) -> bool {
    // SAFETY: the bytes are those of a block, which stay until it is freed. Another thread may write there against all
    // rules: each is read once.
    range.into_iter().all(|address| unsafe { at(address).read_volatile() } == byte)
}

/// Shows which bytes of a range differ from what they were set to.
pub(crate) fn say_bytes(address: usize, range: Range<usize>, byte: u8) {
    for place in range {
        // SAFETY: callers pass bytes of a block that is theirs.
        let found = unsafe { at(place).read_volatile() };
        if found != byte {
            let offset = place.wrapping_sub(address) as isize;
            super::log::log!("  allocation[{offset}] = {found:#04x} (expected {byte:#04x})");
        }
    }
}

/// Fills what was allocated, from `from` on.
pub(crate) fn fill_allocated(options: &Options, address: usize, from: usize, usable: usize) {
    let end = usable.min(options.fill_on_alloc);
    if from < end {
        // SAFETY: the allocator says that the block has these bytes.
        unsafe { fill(address + from..address + end, ALLOCATED) };
    }
}

/// Fills what is about to be freed.
pub(crate) fn fill_freed(options: &Options, address: usize, usable: usize) {
    let end = usable.min(options.fill_on_free);
    // SAFETY: as above; the block is the caller's, who is done with it.
    unsafe { fill(address..address + end, FREED) };
}
