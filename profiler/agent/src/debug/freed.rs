//! `free_track`: blocks that were freed are kept for a while, filled with one byte, and looked at before they go.

use super::blocks::{self, FREED, say_bytes};
use super::log::log;
use super::names::Names;
use super::options::Options;
use super::stacks::EMPTY;
use super::table::Block;
use super::{errors, walk};
use crate::entry::SavedRegisters;
use crate::lock::{Lock, Quiet};
use alloc::collections::VecDeque;
use core::cell::UnsafeCell;

/// A block that was freed.
#[derive(Clone, Copy, Debug)]
struct Freed {
    block: Block,
    /// Where.
    stack: u32,
    /// How many bytes were filled.
    filled: usize,
    /// Its place in the list, counted from the first block ever.
    number: u64,
}

/// The blocks, and the one of them that is looked at at the end: it is in no other list meanwhile.
#[derive(Debug, Default)]
struct All {
    kept: VecDeque<Freed>,
    seen: Option<Freed>,
    count: u64,
}

impl All {
    /// Puts a block at the end. Whether there was room.
    fn push(&mut self, freed: Freed) -> bool {
        if self.kept.try_reserve(1).is_err() {
            return false;
        }
        self.count += 1;
        self.kept.push_back(Freed { number: self.count, ..freed });
        true
    }

    fn find(&self, address: usize) -> Option<&Freed> {
        self.kept.iter().chain(&self.seen).find(|freed| freed.block.address == address)
    }
}

struct List(UnsafeCell<All>);
// SAFETY: used under LOCK only.
unsafe impl Sync for List {}
static LIST: List = List(UnsafeCell::new(All { kept: VecDeque::new(), seen: None, count: 0 }));
pub(super) static LOCK: Lock = Lock::whole_in_children();

fn with<T>(work: impl FnOnce(&mut All) -> T) -> T {
    let _guard = LOCK.lock();
    // SAFETY: LOCK is held.
    work(unsafe { &mut *LIST.0.get() })
}

/// Keeps a block that was freed and filled. What is to be given back to the allocator in its place: the oldest, if there
/// are as many as are to be kept, or the block itself without memory.
pub(crate) fn keep(
    options: &Options,
    saved: &SavedRegisters,
    quiet: &Quiet,
    block: Block,
    usable: usize,
) -> Option<Block> {
    let is_wanted = options.freed_frames != 0 && (options.sizes.0..=options.sizes.1).contains(&block.size);
    let stack = if is_wanted { walk::stack(saved, quiet) } else { EMPTY };
    let freed = Freed { block, stack, filled: usable.min(options.fill_on_free), number: 0 };
    let gone = with(|all| {
        if !all.push(freed) {
            return Some(Err(block));
        }
        let len = all.kept.len() + usize::from(all.seen.is_some());
        if len > options.freed { all.kept.pop_front().map(Ok) } else { None }
    });
    match gone? {
        Ok(oldest) => {
            verify(options, &oldest, quiet);
            Some(oldest.block)
        }
        Err(block) => Some(block),
    }
}

/// Looks whether anybody wrote into a block after it was freed, and says so.
fn verify(options: &Options, freed: &Freed, quiet: &Quiet) {
    let start = freed.block.address;
    let range = start..start + freed.filled;
    if blocks::are(range.clone(), FREED) {
        return;
    }
    errors::report(None, quiet, format_args!("+++ ALLOCATION {start:#x} USED AFTER FREE"), |names| {
        say_bytes(start, range, FREED);
        if freed.stack != EMPTY {
            log!("Backtrace at time of free:");
            errors::backtrace(names, freed.stack, options.freed_frames);
        }
    });
}

/// Looks at all that are kept. They stay. Other threads may run: nobody gives a block back while it is looked at, and those
/// that come meanwhile are not looked at.
pub(crate) fn verify_all(options: &Options, quiet: &Quiet) {
    let last = with(|all| all.count);
    while let Some(freed) = with(|all| {
        all.seen = all.kept.pop_front_if(|first| first.number <= last);
        all.seen
    }) {
        verify(options, &freed, quiet);
        with(|all| all.seen.take().map(|seen| all.push(seen)));
    }
}

/// Whether a block is kept.
pub(crate) fn has(address: usize) -> bool {
    with(|all| all.find(address).is_some())
}

/// Says where a block was freed, if it is kept and that is known.
pub(crate) fn say_where(names: &mut Names, options: &Options, address: usize) {
    let stack = with(|all| all.find(address).map(|freed| freed.stack));
    if let Some(stack) = stack.filter(|&stack| stack != EMPTY) {
        log!("Backtrace of original free:");
        errors::backtrace(names, stack, options.freed_frames);
    }
}
