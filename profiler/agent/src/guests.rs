//! Processes that share a thread's block: made by `clone` with the program's memory and without a thread pointer of their own, they run
//! beside the thread that made them, with its thread pointer.
//!
//! Such a one, a guest, says so when it begins, and gets a block in a table here, by its id. The thread itself is told by the id that libc keeps of it. To ask for
//! an id takes a system call, so nobody asks while there are no guests. Who is neither is the child of a `vfork`, which may use the block: its parent stands still
//! meanwhile. What a gap of a sample is counted in stays the thread's block: hooks lower it that look nothing up.
//!
//! For whom there is no place, and whose id isn't the only one of its kind (`CLONE_NEWPID`), nothing is recorded; what is left out counts as lost. Not seen are guests that are made
//! without libc's function. Where filters for system calls may be against asking, guests use the thread's block.
//!
//! # Safety
//! A place belongs to the task whose id stands in it. It is emptied before that id is stored, and given to another one when the kernel
//! says that the first doesn't share the memory any more.

use crate::hooks::{Function, Hooked};
use crate::hot::HOT;
use crate::native::guests::grapnel_agent_clone;
use crate::tls::{self, Tls};
use crate::{sandbox, sys};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// What a call of `clone` is looked at for, and what of that makes a guest.
pub(crate) const FLAGS: usize = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_SETTLS) as usize;
pub(crate) const GUEST: usize = libc::CLONE_VM as usize;

/// How many guests there may be at a time.
const PLACES: usize = 64;
/// In the place of an id: the place is being emptied.
const TAKEN: u32 = u32::MAX;
/// So often the thread asks for its own block before it is looked whether there are guests still.
const LOOK_EVERY: u32 = 256;

struct Block(UnsafeCell<MaybeUninit<Tls>>);

// SAFETY: see the module's header.
unsafe impl Sync for Block {}

impl Block {
    const fn empty() -> Self {
        Self(UnsafeCell::new(MaybeUninit::zeroed()))
    }

    fn get(&'static self) -> &'static Tls {
        // SAFETY: a block is all zeroes at first.
        unsafe { (*self.0.get()).assume_init_ref() }
    }
}

/// The ids of those that have, or had, places, and their blocks.
static TASKS: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];
static BLOCKS: [Block; PLACES] = [const { Block::empty() }; PLACES];
/// Whether the place is for good, and nobody's: there may be several with that id.
static ARE_SEVERAL: [AtomicBool; PLACES] = [const { AtomicBool::new(false) }; PLACES];
/// Of those that have none of their own.
static SPARE: Block = Block::empty();
/// There are such, that aren't in the table.
static IS_FULL: AtomicBool = AtomicBool::new(false);
/// Guests that have been asked for and haven't begun.
pub(crate) static PENDING: AtomicU32 = AtomicU32::new(0);
static LOOKS: AtomicU32 = AtomicU32::new(0);

/// Whether there may be guests.
#[inline(always)]
#[cfg_attr(
    all(target_arch = "x86_64", not(grapnel_attached)),
    expect(dead_code, reason = "assembly looks there")
)]
pub(crate) fn may_be() -> bool {
    HOT.has_guests.load(Ordering::Relaxed)
}

/// A guest begins, made with these flags.
pub(crate) unsafe extern "C" fn begins(flags: usize) {
    if !sandbox::is_any() {
        let is_only = flags & libc::CLONE_NEWPID as usize == 0;
        match sys::thread_id_unasked() {
            0 => {}
            task if !is_only && number_of(task).is_some() => {}
            task => {
                if !take(task, !is_only) {
                    IS_FULL.store(true, Ordering::Relaxed);
                }
            }
        }
    }
    PENDING.fetch_sub(1, Ordering::AcqRel);
}

/// The place with this id.
fn number_of(task: u32) -> Option<usize> {
    TASKS.iter().position(|of| of.load(Ordering::Acquire) == task)
}

/// Gives a place to a task that begins. False without one.
fn take(task: u32, are_several: bool) -> bool {
    for (number, of) in TASKS.iter().enumerate() {
        let before = of.load(Ordering::Relaxed);
        // One with this id has ended.
        let is_over = before == task || !is_guest(number, before);
        if before == TAKEN || (before != 0 && !is_over) {
            continue;
        }
        if of.compare_exchange(before, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            if let Some(block) = BLOCKS.get(number) {
                // SAFETY: it belongs to nobody.
                unsafe { (*block.0.get()).as_mut_ptr().write_bytes(0, 1) };
            }
            if let Some(several) = ARE_SEVERAL.get(number) {
                several.store(are_several, Ordering::Relaxed);
            }
            of.store(task, Ordering::Release);
            return true;
        }
    }
    false
}

/// Whether the task with this id, in this place, shares the memory still.
fn is_guest(number: usize, task: u32) -> bool {
    let are_several = ARE_SEVERAL.get(number).is_some_and(|several| several.load(Ordering::Relaxed));
    task != 0 && (are_several || sys::shares_memory(task))
}

/// The block of this task, whose thread pointer leads to `own`.
#[cold]
#[inline(never)]
pub(crate) fn block(own: &'static Tls) -> &'static Tls {
    let kept = tls::thread_id();
    if kept == 0 || sandbox::is_any() {
        return own;
    }
    let task = sys::thread_id_unasked();
    if task == kept || task == 0 {
        if LOOKS.fetch_add(1, Ordering::Relaxed) % LOOK_EVERY == LOOK_EVERY - 1 {
            look();
        }
        return own;
    }
    let several =
        |number: &usize| !ARE_SEVERAL.get(*number).is_some_and(|several| several.load(Ordering::Relaxed));
    match number_of(task) {
        Some(number) => BLOCKS.get(number).filter(|_| several(&number)).unwrap_or(&SPARE).get(),
        None if IS_FULL.load(Ordering::Relaxed) => SPARE.get(),
        None => own,
    }
}

/// Looks whether there are guests still.
fn look() {
    let is_one = |(number, of): (usize, &AtomicU32)| is_guest(number, of.load(Ordering::Relaxed));
    if PENDING.load(Ordering::Acquire) != 0
        || IS_FULL.load(Ordering::Relaxed)
        || TASKS.iter().enumerate().any(is_one)
    {
        return;
    }
    HOT.has_guests.store(false, Ordering::SeqCst);
    // Another thread may be making one.
    if PENDING.load(Ordering::SeqCst) != 0 {
        HOT.has_guests.store(true, Ordering::SeqCst);
    }
}

/// Whether it is a guest's own block.
pub(crate) fn is_of_one(block: &Tls) -> bool {
    BLOCKS.as_ptr_range().contains(&ptr::from_ref(block).cast())
}

/// Whether it is that of all for whom there is no place.
#[inline(always)]
pub(crate) fn is_spare(block: &Tls) -> bool {
    ptr::eq(block, SPARE.0.get().cast())
}

/// The function to hook. Its stub goes on to libc's own code, and has a guest begin with [`begins`].
pub(crate) fn functions() -> [Hooked; 1] {
    [(b"clone", grapnel_agent_clone, Function::Clone)]
}
