//! The returns that listeners wait for.
//!
//! A function whose return is listened to finds the address of a return point in the place of its return address. There
//! is a fixed number of points, each for one return at a time, and here is what each is for. They are one pool for all
//! threads and all stacks: nothing assumes that returns come in the reverse order of the calls, so coroutines and
//! signal stacks need no care.
//!
//! A call may never return: an exception or `longjmp` passes it, or its thread ends. Its point is then taken back when none
//! is free and its return slot no longer holds the point's address, nor that of another listener's point which leads to
//! it. That is proof: as long as the call may return, nobody but listeners writes to its return slot.
//!
//! A point's state is 0 (free), [`CLAIMED`] (its fields are being written), the address of the return slot, that with
//! [`PASSING`] (a thread is about to lay the return there, or has just returned through it), or a mark of who looks at it.
//! Who finds it free takes it; who returns through it takes it by a store, in whatever state it is, since it can't be free.
//! Who looks for lost ones takes it only while it looks, and gives it back only if nobody else has it meanwhile.
//!
//! A thread may be taken out of its stub while a point is passing, by a handler that leaves by `siglongjmp` or by
//! cancellation. As long as it is there, the slot is its own and holds either address; once other calls have used that
//! place on the stack, it doesn't, and the point is taken back as well.
//!
//! # Safety
//! The return slot is written at the function's entry, where it belongs to the callee (System V ABI, 3.2.2). Other
//! slots are only looked at, through the kernel, because their stacks may be gone.

use super::{
    Link, miss,
    places::{KINDS, LOOKS, POINTS, SCARCE},
};
use crate::{
    atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*},
    native::{self, RETURN_POINTS, Saved},
    sys,
};

pub(super) const CLAIMED: usize = 1;
pub(super) const PASSING: usize = 4;
/// The low bits of a mark. The rest is a number that no other look has: meanwhile the point may be free, be taken by
/// another call, and be looked at by another thread.
const LOOKED_AT: usize = 2;
const LOW: usize = 7;

/// A place to return to, and for whom.
#[derive(Default)]
pub(super) struct Point {
    pub(super) state: AtomicUsize,
    pub(super) link: AtomicPtr<Link>,
    pub(super) word: AtomicU64,
}

/// What is known of the points of one kind.
#[derive(Default)]
pub(super) struct Kind {
    /// How many more calls go without a point before all are looked through again: the last time there was none. Returns
    /// shorten that.
    pub(super) patience: AtomicUsize,
    /// How long it was the last time; it doubles as long as none is found.
    pub(super) last: AtomicUsize,
    /// The point that a call has returned to last, while they are scarce.
    pub(super) returned: AtomicUsize,
}

const LEAST_PATIENCE: usize = 1000;
const MOST_PATIENCE: usize = 32 * LEAST_PATIENCE;

/// Has the call that is saved return to a point. If there is none, its return isn't told.
///
/// # Safety
/// `saved` is of a call that enters its function.
#[inline]
pub(super) unsafe fn watch(link: &'static Link, saved: &mut Saved) {
    let call = saved.call();
    let outer = native::point_at(saved.return_address).is_none();
    let number = native::return_point_to_try(call, 0, link.part(), outer);
    if call & LOW == 0 && takes(number) {
        await_return(link, saved, number);
    } else {
        let arguments =
            [core::ptr::from_ref(link) as usize, core::ptr::from_mut(saved) as usize, outer.into()];
        // SAFETY: the arguments are what it takes.
        unsafe { native::aside(watch_elsewhere, arguments) };
    }
}

/// The same when the first point is taken. Apart, so that whoever finds it free saves no registers for this.
///
/// # Safety
/// The arguments are addresses: of a link that stays, and of what is saved, which is the caller's.
#[cold]
#[inline(never)]
unsafe extern "C" fn watch_elsewhere(link: usize, saved: usize, outer: usize) -> usize {
    // SAFETY: the caller's promise.
    let (link, saved) = unsafe { (&*(link as *const Link), &mut *(saved as *mut Saved)) };
    let outer = outer != 0;
    // No ABI allows a stack pointer that isn't aligned to words. The low bits are spoken for.
    let aligned = saved.call() & LOW == 0;
    match aligned.then(|| claim(saved.call(), saved.return_address, link.part(), outer)).flatten() {
        Some(number) => await_return(link, saved, number),
        None => miss(),
    }
    0
}

/// Has the call return to a point that was claimed for it.
#[inline(always)]
fn await_return(link: &'static Link, saved: &mut Saved, number: usize) {
    let (call, point) = (saved.call(), &POINTS[number % RETURN_POINTS]);
    native::return_word(number).store(saved.return_address, Relaxed);
    // Whoever sees that sees the word.
    point.state.store(call | PASSING, Release);
    point.link.store(core::ptr::from_ref(link).cast_mut(), Relaxed);
    point.word.store(saved.word, Relaxed);
    // Whoever sees the point sees its word.
    saved.set_return_address(native::return_point(number));
    point.state.store(call, Release);
}

/// A call has returned to a point: says where it really returns to. The point is the caller's until it is released.
pub(super) fn take(number: usize, call: usize) -> u64 {
    // A store is enough. Whoever looks takes the point back only if the slot has changed, and the routine changes it after
    // this: who sees that change doesn't find its mark any more. Where slots aren't in memory, only calls on the same stack
    // look, and these come later.
    POINTS[number].state.store(call | PASSING, Release);
    native::return_word(number).load(Relaxed)
}

/// What listens, and its word. The return slot no longer holds the point's address, and the point is free for others.
#[inline]
pub(super) fn release(number: usize) -> (*const Link, u64) {
    let point = &POINTS[number % RETURN_POINTS];
    let taken = (point.link.load(Relaxed).cast_const(), point.word.load(Relaxed));
    point.state.store(0, Release);
    if SCARCE.load(Relaxed) {
        kind_of(number).gets_back(number);
    }
    taken
}

fn kind_of(number: usize) -> &'static Kind {
    &KINDS[native::part_of_point(number)][usize::from(native::is_outer_point(number))]
}

impl Kind {
    #[cold]
    fn gets_back(&self, number: usize) {
        self.returned.store(number, Relaxed);
        let left = self.patience.load(Relaxed);
        if left != 0 {
            self.patience.store(left / 2, Relaxed);
        }
    }

    /// Whether to go without a point rather than to look through all.
    fn is_patient(&self) -> bool {
        self.patience.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// None was found.
    fn be_patient(&self) {
        let long = (2 * self.last.load(Relaxed)).clamp(LEAST_PATIENCE, MOST_PATIENCE);
        self.last.store(long, Relaxed);
        self.patience.store(long, Relaxed);
    }
}

/// Where the calls that are under way will really return to, and some that never will.
///
/// A thread that looks finds the returns of its own calls among them: each point is taken before the address leaves the
/// stack, and is free only after its thread has read it.
pub(crate) fn each_return(mut told: impl FnMut(u64)) {
    for (number, point) in POINTS.iter().enumerate() {
        if point.state.load(Acquire) != 0 {
            told(native::return_word(number).load(Relaxed));
        }
    }
}

/// How many calls have yet to return to this listener, those among them that never will.
pub(super) fn awaited(link: &Link) -> usize {
    let is = |point: &&Point| {
        point.state.load(Acquire) != 0 && core::ptr::eq(point.link.load(Relaxed).cast_const(), link)
    };
    POINTS.iter().filter(is).count()
}

/// Frees the points of a listener whose calls will never return.
pub(super) fn settle(link: &Link) {
    for (number, point) in POINTS.iter().enumerate() {
        if core::ptr::eq(point.link.load(Relaxed).cast_const(), link) {
            // No call asks for its place here.
            take_back(number, 0, 0);
        }
    }
}

/// Takes a point, near where other calls of this thread at this depth took theirs.
fn claim(slot: usize, returns_to: u64, part: usize, outer: bool) -> Option<usize> {
    const FEW: usize = 32;
    (1..FEW)
        .map(|i| native::return_point_to_try(slot, i, part, outer))
        .find(|&number| takes(number))
        .or_else(|| claim_where_scarce(slot, returns_to, part, outer))
}

/// Takes a place, if it is a point and free.
#[inline(always)]
fn takes(number: usize) -> bool {
    let state = &POINTS[number % RETURN_POINTS].state;
    native::is_return_point(number)
        && state.load(Relaxed) == 0
        && state.compare_exchange(0, CLAIMED, Acquire, Relaxed).is_ok()
}

/// Takes a point where others are, and then wherever one is.
#[cold]
#[inline(never)]
fn claim_where_scarce(slot: usize, returns_to: u64, part: usize, outer: bool) -> Option<usize> {
    SCARCE.store(true, Relaxed);
    let kind = &KINDS[part][usize::from(outer)];
    let all = native::return_points(part);
    // A deep recursion meets this at each call, and so do others meanwhile.
    let returned = kind.returned.load(Relaxed);
    if all.contains(&returned) && native::is_outer_point(returned) == outer && takes(returned) {
        return Some(returned);
    }
    if kind.is_patient() {
        return None;
    }
    // Not all threads in one order.
    let start = native::return_point_to_try(slot, 0, part, outer) - all.start;
    let any = || {
        let numbers = (0..all.len()).map(|i| all.start + (start + i) % all.len());
        numbers.filter(|&number| native::is_outer_point(number) == outer).find(|&number| takes(number))
    };
    any().or_else(|| {
        all.clone().for_each(|number| take_back(number, slot, returns_to));
        let found = any();
        match found {
            None => kind.be_patient(),
            Some(_) => kind.last.store(0, Relaxed),
        }
        found
    })
}

/// Frees a point whose call will never return.
#[cold]
pub(super) fn take_back(number: usize, slot: usize, returns_to: u64) {
    let Some(look) = Look::begin(number) else { return };
    let waits = match sys::read_word(look.slot) {
        // The stack is there. No two calls that wait have the same stack pointer, but where one ends in a jump to the
        // other: then it leads to its point.
        Ok(_) if !native::RETURNS_BY_MEMORY => look.slot != slot || leads_to(returns_to, number),
        Ok(address) if look.passing => {
            address == native::return_point(number) || address == native::return_word(number).load(Acquire)
        }
        // A return from within, between the reads, changes the slot.
        Ok(address) => leads_to(address, number) || sys::read_word(look.slot) != Ok(address),
        // What can't be looked at may still wait.
        Err(errno) => errno != sys::EFAULT,
    };
    look.end(waits);
}

/// A look at whether a call still waits.
pub(super) struct Look {
    number: usize,
    state: usize,
    slot: usize,
    passing: bool,
    mark: usize,
}

impl Look {
    pub(super) fn begin(number: usize) -> Option<Self> {
        let place = &POINTS[number].state;
        let state = place.load(Relaxed);
        let passing = state & LOW == PASSING;
        if state == 0 || (state & LOW != 0 && !(passing && native::RETURNS_BY_MEMORY)) {
            return None;
        }
        let mark = (LOOKS.fetch_add(1, Relaxed) * (LOW + 1)) | LOOKED_AT;
        place.compare_exchange(state, mark, Acquire, Relaxed).ok()?;
        Some(Self { number, state, slot: state & !LOW, passing, mark })
    }

    /// Frees the point if its call doesn't wait. If the call has returned meanwhile, nothing is changed.
    pub(super) fn end(self, waits: bool) {
        let state = if waits { self.state } else { 0 };
        let _ = POINTS[self.number].state.compare_exchange(self.mark, state, Release, Relaxed);
    }
}

/// Whether a call that returns to an address comes to a point, through those of the listeners within.
fn leads_to(mut address: u64, number: usize) -> bool {
    for _ in 0..RETURN_POINTS {
        if address == native::return_point(number) {
            return true;
        }
        let Some(other) = native::point_at(address) else { return false };
        // It doesn't change while the slot holds the point's address.
        address = native::return_word(other).load(Acquire);
    }
    false
}
