//! `check_unreachable_on_signal`: which live blocks nothing leads to any more, found by the process itself.
//!
//! All other threads are stopped by a signal, whose frame on their stacks holds their registers. A copy of the process is
//! then made, as a fork makes it, and the threads go on. The copy looks through its memory: all that can be written
//! counts as known, but for the agent's own memory, for the heap that grows by `brk`, of which only live blocks count, and for what lies
//! below the stack pointers in memory that is one thread's stack and nothing else. A block that is a thread's alternate stack is
//! known to the kernel.
//! A word that holds an address in a live block leads to it. What is found comes back in shared memory.
//!
//! The table of live blocks holds addresses in a form that isn't taken for one.
//!
//! # Safety
//! The copy allocates nothing and takes no lock: threads that hold some are not in it. It reads what its mappings say can be
//! read; should a file have become shorter, a signal ends it, and nothing else.

mod regions;
mod search;
mod threads;

pub(crate) use threads::handler;

use super::log::log;
use super::names::Names;
use super::options::Options;
use super::stacks::EMPTY;
use super::{blocks, errors};
use crate::entry::SavedRegisters;
use crate::lock::{Lock, Quiet};
use crate::sandbox;
use crate::sys::syscall;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::ffi::c_void;
use core::ptr;
use search::{Search, state};
use syscalls::Sysno;

/// As many sites are shown.
const SHOWN: usize = 100;

/// Looks, if that was asked for.
#[inline]
pub(crate) fn look(options: &Options, saved: &SavedRegisters, signal: i32) {
    if threads::was_asked() {
        check(options, saved, signal);
    }
}

/// Held while threads stand still.
pub(super) static LOCK: Lock = Lock::whole_in_children();

/// In the child of a fork, in its only thread.
pub(crate) fn forked() {
    // It was the parent that was asked.
    threads::was_asked();
}

#[cold]
fn check(options: &Options, saved: &SavedRegisters, signal: i32) {
    let quiet = Quiet::new();
    log!("Starting to check for unreachable memory.");
    if !sandbox::leaves_all() {
        return log!("Unreachable check failed: the program filters its system calls.");
    }
    let guard = LOCK.lock();
    let own_stacks = threads::stacks(ptr::from_ref(saved).addr());
    let missing = threads::stop_others(signal);
    let found = blocks::all().and_then(|blocks| Search::new(blocks, own_stacks));
    let copy = found.as_ref().and_then(Search::begin);
    threads::go_on();
    drop(guard);
    let done = copy.is_some_and(|copy| waited(copy) == Some(0));
    match found {
        Some(found) if done => report(&found, options),
        _ => log!("Unreachable check failed: there is no memory, or the copy of the process was killed."),
    }
    if missing != 0 {
        log!(
            "{missing} threads did not stand still: blocks that only their registers lead to are among these."
        );
    }
    drop(quiet);
}

/// The lost block above one that is below another. Each that is passed on the way is hung under the one above its own: a
/// list may be one chain of all its blocks, and each asks for its end.
fn lost_above(found: &Search, number: usize) -> usize {
    let mut at = number;
    while found.state(at) == state::BELOW {
        let above = found.head(at);
        if found.state(above) == state::BELOW {
            found.set(at, state::BELOW, found.head(above));
        }
        at = above;
    }
    at
}

/// Says what was found.
fn report(found: &Search, options: &Options) {
    // Blocks of one size from one place are one.
    let mut sites: Vec<(usize, u32, usize, usize)> = Vec::new();
    let mut below: Vec<(usize, usize)> = Vec::new();
    let (mut count, mut bytes) = (0, 0);
    for number in 0..found.blocks.len() {
        let block = found.blocks[number];
        match found.state(number) {
            state::LOST => sites.push((block.size, block.stack, found.address(number), number)),
            state::BELOW => {
                below.push((lost_above(found, number), block.size));
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
    below.sort_unstable();
    let mut names = Names::new();
    let mut shown = 0;
    for alike in sites.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).take(SHOWN) {
        let (size, stack, address, _) = alike[0];
        let mine = alike.iter().flat_map(|&(.., number)| {
            let from = below.partition_point(|&(head, _)| head < number);
            below[from..].iter().take_while(move |&&(head, _)| head == number)
        });
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
        if stack != EMPTY {
            errors::backtrace(&mut names, stack, options.frames);
        }
        shown += 1;
    }
    if shown == SHOWN {
        log!("  and others");
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
