//! `free_track`: blocks that were freed are kept for a while, filled with one byte, and looked at before they go.

use super::blocks::{self, FREED, say_bytes};
use super::log::log;
use super::names::Names;
use super::options::Options;
use super::stacks::EMPTY;
use super::table::Block;
use super::{errors, walk};
use crate::entry::SavedRegisters;
use crate::lock::{Guard, Lock, Quiet};
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
}

struct List(UnsafeCell<VecDeque<Freed>>);
// SAFETY: used under LOCK only.
unsafe impl Sync for List {}
static LIST: List = List(UnsafeCell::new(VecDeque::new()));
static LOCK: Lock = Lock::new();

/// Locks the list.
pub(crate) fn hold() -> Guard<'static> {
    LOCK.lock()
}

/// In the child of a fork, in its only thread.
pub(crate) fn renew() {
    LOCK.renew();
}

fn with<T>(work: impl FnOnce(&mut VecDeque<Freed>) -> T) -> T {
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
    let freed = Freed { block, stack, filled: usable.min(options.fill_on_free) };
    let gone = with(|list| {
        if list.try_reserve(1).is_err() {
            return Some(Err(block));
        }
        let oldest = if list.len() >= options.freed { list.pop_front() } else { None };
        list.push_back(freed);
        oldest.map(Ok)
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

/// Looks at all that are kept. They stay. Other threads may run: each block is out of the list while it is looked at, so
/// nobody gives it back.
pub(crate) fn verify_all(options: &Options, quiet: &Quiet) {
    for _ in 0..with(|list| list.len()) {
        let Some(freed) = with(VecDeque::pop_front) else { break };
        verify(options, &freed, quiet);
        with(|list| {
            if list.try_reserve(1).is_ok() {
                list.push_back(freed);
            }
        });
    }
}

/// Whether a block is kept.
pub(crate) fn has(address: usize) -> bool {
    with(|list| list.iter().any(|freed| freed.block.address == address))
}

/// Says where a block was freed, if it is kept and that is known.
pub(crate) fn say_where(names: &mut Names, options: &Options, address: usize) {
    let stack =
        with(|list| list.iter().find(|freed| freed.block.address == address).map(|freed| freed.stack));
    if let Some(stack) = stack.filter(|&stack| stack != EMPTY) {
        log!("Backtrace of original free:");
        errors::backtrace(names, stack, options.freed_frames);
    }
}
