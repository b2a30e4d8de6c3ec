//! Processes that share a thread's block: made by `clone` with the program's memory and without a thread pointer of their own (or with that of
//! their maker for theirs), they run beside the thread that made them, with its thread pointer.
//!
//! Such a one, a guest, says so when it begins, and gets a block in a table here, by its id. The thread itself is told by the id that libc keeps of it. To ask for
//! an id takes a system call, so nobody asks while there are no guests. Who is neither is the child of a `vfork`, which may use the block of its parent, that of a guest or the
//! thread's: the parent stands still meanwhile; where it may be something else, it is taken for one without a place. What a gap of a sample is counted in stays the thread's block: hooks lower it that look nothing up.
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
/// Of such a one the thread pointer is looked at, too: it may be that of its maker.
pub(crate) const WITH_POINTER: usize = (libc::CLONE_VM | libc::CLONE_SETTLS) as usize;

/// How many guests there may be at a time.
const PLACES: usize = 64;
/// In the place of an id: the place is being emptied.
const TAKEN: u32 = u32::MAX;
/// So often the thread asks for its own block before it is looked whether there are guests still.
const LOOK_EVERY: u32 = 256;

/// A place in the table.
struct Place {
    /// The id of the task that has, or had, it; 0 for none yet.
    task: AtomicU32,
    /// There may be several with that id: the place is for good, and nobody's.
    is_of_several: AtomicBool,
    block: UnsafeCell<MaybeUninit<Tls>>,
}

// SAFETY: see the module's header.
unsafe impl Sync for Place {}

impl Place {
    const fn free() -> Self {
        Self {
            task: AtomicU32::new(0),
            is_of_several: AtomicBool::new(false),
            block: UnsafeCell::new(MaybeUninit::zeroed()),
        }
    }

    fn block(&'static self) -> &'static Tls {
        // SAFETY: a block is all zeroes at first.
        unsafe { (*self.block.get()).assume_init_ref() }
    }

    fn is_of_several(&self) -> bool {
        self.is_of_several.load(Ordering::Relaxed)
    }

    /// Whether the task with this id, which the place is of, shares the memory still.
    fn is_in_use(&self, task: u32) -> bool {
        task != 0 && (self.is_of_several() || sys::shares_memory(task))
    }

    /// Gives it to a task that begins, if it is nobody's any more.
    fn is_taken_by(&self, task: u32, is_of_several: bool) -> bool {
        let before = self.task.load(Ordering::Relaxed);
        // Who had the same id has ended.
        if before == TAKEN || (before != task && self.is_in_use(before)) {
            return false;
        }
        if self.task.compare_exchange(before, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        // SAFETY: it belongs to nobody.
        unsafe { (*self.block.get()).as_mut_ptr().write_bytes(0, 1) };
        self.is_of_several.store(is_of_several, Ordering::Relaxed);
        self.task.store(task, Ordering::Release);
        true
    }
}

static TABLE: [Place; PLACES] = [const { Place::free() }; PLACES];
/// The block of those that have no place.
static SPARE: Place = Place::free();
/// There are such.
static IS_FULL: AtomicBool = AtomicBool::new(false);
/// Guests have begun that are threads of the process. Their children say the same of themselves as the thread's.
static ARE_THREADS: AtomicBool = AtomicBool::new(false);
/// Guests that have been asked for and haven't begun. One that couldn't be made stays, and so do the questions then.
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
    let task = if sandbox::is_any() { 0 } else { sys::thread_id_unasked() };
    if task != 0 {
        if flags & libc::CLONE_THREAD as usize != 0 {
            ARE_THREADS.store(true, Ordering::Relaxed);
        }
        let is_of_several = flags & libc::CLONE_NEWPID as usize != 0;
        let has_place = is_of_several && place_of(task).is_some();
        if !has_place && !TABLE.iter().any(|place| place.is_taken_by(task, is_of_several)) {
            IS_FULL.store(true, Ordering::Relaxed);
        }
    }
    PENDING.fetch_sub(1, Ordering::AcqRel);
}

/// The place with this id.
fn place_of(task: u32) -> Option<&'static Place> {
    TABLE.iter().find(|place| place.task.load(Ordering::Acquire) == task)
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
    let of_place = |place: &'static Place| if place.is_of_several() { SPARE.block() } else { place.block() };
    if let Some(place) = place_of(task) {
        return of_place(place);
    }
    // A guest that hasn't begun, in a signal's handler; one without a place; or a guest's child that says the same of itself as the thread's.
    let any_of = IS_FULL.load(Ordering::Relaxed)
        || PENDING.load(Ordering::Acquire) != 0
        || ARE_THREADS.load(Ordering::Relaxed);
    if any_of {
        return SPARE.block();
    }
    let parent = sys::parent_id_unasked();
    match Some(parent).filter(|&parent| parent != 0).and_then(place_of) {
        Some(place) => of_place(place),
        None if sys::thread_exists_unasked(parent, kept) => own,
        None => SPARE.block(),
    }
}

/// Looks whether there are guests still.
fn look() {
    let is_pending = || PENDING.load(Ordering::SeqCst) != 0;
    let is_in_use = |place: &Place| place.is_in_use(place.task.load(Ordering::Relaxed));
    if is_pending() || IS_FULL.load(Ordering::Relaxed) || TABLE.iter().any(is_in_use) {
        return;
    }
    HOT.has_guests.store(false, Ordering::SeqCst);
    // Another thread may be making one.
    if is_pending() {
        HOT.has_guests.store(true, Ordering::SeqCst);
    }
}

/// Whether the block at an address is that of a guest which has ended: killed, if it holds anything.
#[cfg(grapnel_cdylib)]
pub(crate) fn has_gone(block: usize) -> bool {
    let place = TABLE.iter().find(|place| place.block.get().addr() == block);
    place.is_some_and(|place| match place.task.load(Ordering::Relaxed) {
        0 | TAKEN => false,
        task => !place.is_in_use(task),
    })
}

/// Whether it is a guest's own block.
pub(crate) fn is_of_one(block: &Tls) -> bool {
    TABLE.as_ptr_range().contains(&ptr::from_ref(block).cast())
}

/// Whether it is that of all for whom there is no place.
#[inline(always)]
pub(crate) fn is_spare(block: &Tls) -> bool {
    ptr::eq(block, SPARE.block.get().cast())
}

/// The function to hook. Its stub goes on to libc's own code, and has a guest begin with [`begins`].
pub(crate) fn functions() -> [Hooked; 1] {
    [(b"clone", grapnel_agent_clone, Function::Clone)]
}
