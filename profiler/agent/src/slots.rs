//! Hooks on functions of which there may be several in a process: `operator new` is in libstdc++, and may be in the
//! program and in other libraries too. So may be allocators.
//!
//! Each such function has a slot, which says what it is and where its own code goes on, and a thunk, which its hook
//! leads to. All thunks lead to one stub, which asks [`before`], makes the call with the caller's registers, and tells
//! [`after`]. The call is made by the stub, not by Rust: an exception may pass through it. But where an operator was seen to call
//! `malloc` and nothing else, `malloc` is called in its place from here.
//!
//! # Safety
//! A slot is filled in under [`life::PROCESS`](crate::life::PROCESS), before its hook is live, and emptied when the
//! object of its function is gone. The stub, which is in [`native`](crate::native::slots), keeps to the machine's ABI on both
//! sides, for functions of up to six whole arguments, of a word each, whose result is one, too.

pub(crate) mod around;
mod direct;
mod frames;
mod placing;

use crate::entry::SavedRegisters;
use crate::families::{self, Role};
use crate::native::slots::{DIRECT, grapnel_agent_beside_slot_returns, grapnel_agent_slot_returns};
use crate::operators::{self, Operator};
use crate::span::Span;
use crate::tls::Tls;
use crate::{heaps, hooks, modules, native, record, sampling, tls};
use core::cell::Cell;
use core::hint::cold_path;
use core::mem::offset_of;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use grapnel_unwind::page_is_readable;

use direct::Direct;
pub(crate) use direct::{Calls, Nested};
#[cfg(grapnel_attached)]
pub(crate) use placing::changed;
pub(crate) use placing::{Ready, Wanted, prepare_all, with_thunk};

/// How many functions can be hooked in this way.
pub(crate) const SLOTS: usize = 1024;

/// What is known of a hooked function. What most calls need comes first, in one cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Slot {
    /// Where its own code goes on.
    original: AtomicUsize,
    /// Of an allocator's function one more than the handle of its heap, which is 0 for the program's own; otherwise 0.
    heap: AtomicU32,
    /// Which operator it is: [`Operator::to_u8`]; of an allocator's function [`Role`].
    operator: AtomicU8,
    /// Of an operator of the C++ runtime.
    direct: Direct,
    /// A gate is before it that lowers the thread's gap.
    is_lowered: AtomicBool,
    /// Where it is set, the gate before it, if it has that one, lets all calls pass.
    is_let_by: AtomicBool,
    /// What the function itself begins with once its hook is in; 0 where that isn't known.
    beginning: AtomicU64,
    /// Where it lies; at 0 for a slot that is free.
    target: Span,
    /// The code whose calls of allocation functions are its own.
    code: Span,
}

const _: () = assert!(offset_of!(Slot, direct) + direct::MOST_NEED <= 64);

impl Slot {
    const fn free() -> Self {
        Self {
            original: AtomicUsize::new(0),
            heap: AtomicU32::new(0),
            operator: AtomicU8::new(0),
            direct: Direct::none(),
            is_lowered: AtomicBool::new(false),
            is_let_by: AtomicBool::new(false),
            beginning: AtomicU64::new(0),
            target: Span::empty(),
            code: Span::empty(),
        }
    }

    #[inline(always)]
    fn operator(&self) -> Operator {
        Operator::from_u8(self.operator.load(Ordering::Relaxed))
    }

    /// What an allocator's function does, and the handle of its heap.
    #[inline(always)]
    fn family(&self) -> Option<(Role, u32)> {
        let handle = self.heap.load(Ordering::Relaxed).checked_sub(1)?;
        Role::from_u8(self.operator.load(Ordering::Relaxed)).map(|role| (role, handle))
    }
}

/// What a slot's function is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Operator(Operator, Option<Calls>),
    /// An allocator's, whose heap has this handle.
    Family(Role, u32),
}

static TABLE: [Slot; SLOTS] = [const { Slot::free() }; SLOTS];

/// So many of them are, or were, in use. The others' memory is never touched.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Those that are, or were, in use.
fn taken() -> &'static [Slot] {
    TABLE.get(..TAKEN.load(Ordering::Relaxed)).unwrap_or(&TABLE)
}

/// What [`before`] tells the stub.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Going {
    /// The code to call.
    target: usize,
    /// What [`after`] is told: what `inside` was, and [`PART`] if the call is part of another one.
    cookie: usize,
}

const PART: usize = 2;
/// As cookie: the code to call takes the place of the stub, and [`after`] is not told. Above all addresses of programs.
pub(crate) const INSTEAD: usize = if DIRECT { 1 << (usize::BITS - 1) } else { 0 };
/// As cookie: there is nothing to call any more, and the target is the result.
pub(crate) const DONE: usize = if DIRECT { 3 << (usize::BITS - 2) } else { 0 };

/// Marks the stack pointer in [`tls::Tls::inside`] as that of an operator's stub.
pub(crate) const OPERATOR: usize = 1;
/// As that of an allocator's function.
pub(crate) const FAMILY: usize = 4;
/// Either.
pub(crate) const MARKS: usize = OPERATOR | FAMILY;

/// What the unwinder asks of the stub's frame when an exception passes: nothing is caught here. Its call is over then,
/// and what is called from now on is no part of it.
#[cfg_attr(target_arch = "arm", expect(dead_code, reason = "unwinders ask in another way there"))]
pub(crate) unsafe extern "C" fn personality(
    _version: i32,
    actions: i32,
    _class: u64,
    _object: usize,
    _context: usize,
) -> i32 {
    const CLEANUP_PHASE: i32 = 2;
    const CONTINUE_UNWIND: i32 = 8;
    if actions & CLEANUP_PHASE != 0 {
        // SAFETY: as said there.
        unsafe { ends() };
    }
    CONTINUE_UNWIND
}

/// An exception ends the call that the thread is in.
pub(crate) unsafe extern "C" fn ends() {
    around::left(tls::get());
}

/// What lies in the frame of a slot's stub, aligned to 8 bytes: where the stack pointer is when it makes the call, or above words of
/// arguments.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Frame {
    /// The slot's number, and above it what [`Frame::note`] has noted.
    number: Cell<usize>,
}

/// Of a sample: that the block which the call takes was recorded, and that the one which it gives is to be.
pub(crate) const TAKES_RECORDED: usize = SLOTS;
pub(crate) const GIVES_RECORDED: usize = 2 * SLOTS;
/// So many times one more than the slot of the call around this one, where it is known.
const AROUND: usize = 4 * SLOTS;

impl Frame {
    fn slot(&self) -> &'static Slot {
        &TABLE[self.number.get() % SLOTS]
    }

    /// Notes something for after the call.
    pub(crate) fn note(&self, what: usize) {
        self.number.set(self.number.get() | what);
    }

    /// Whether the way to the stub began with a gate that has lowered the thread's gap by the size.
    pub(crate) fn is_lowered(&self) -> bool {
        self.slot().is_lowered.load(Ordering::Relaxed)
    }
}

/// Whether a call that returns to `caller` is made by the operator itself that this thread is in, whose stub `inside`
/// names, and not by code that the operator calls: a `new_handler` frees blocks of the program's. Or by a function of the
/// allocator of the program's own heap.
#[inline(never)]
pub(crate) fn is_own(inside: usize, caller: usize) -> bool {
    is_of_slot(inside, caller, 0)
}

/// As [`is_own`], of a call made further down the stack. Code there may have been called by what a signal has interrupted. So it is told by the code itself
/// of an operator that isn't the runtime's, and else by the frames between; or by a call in whose place a function that has a slot ended in a
/// jump, as where operators hand on to each other.
pub(crate) fn is_own_from_afar(inside: usize, saved: &SavedRegisters) -> bool {
    let caller = saved.return_address();
    slot_of(inside).is_some_and(|slot| {
        let is_handed_on = slot.family().is_none_or(|(_, of)| of == 0) && is_return_of_slot(caller);
        let is_own = inside & OPERATOR != 0 && slot.operator().is_own() && !operators::is_of_runtime(caller);
        is_handed_on
            || (is_own
                && (slot.target.holds(caller) || modules::led_to(saved, inside & !MARKS) == Some(true)))
    })
}

/// Whether that is where a function that has a slot returns to: whoever else does was called by a jump, in its place.
fn is_return_of_slot(caller: usize) -> bool {
    let returns = [&raw const grapnel_agent_slot_returns, &raw const grapnel_agent_beside_slot_returns];
    returns.iter().any(|label| caller == label.addr())
}

/// Whether the call with these registers is made by the code of a function of the same allocator, that the thread is in. Its code calls
/// nobody else's. But it may wait while other coroutines run, and the stack of one may lie below.
pub(crate) fn is_part_of_family(saved: &SavedRegisters, handle: u32) -> bool {
    let inside = tls::get().inside.get();
    inside & FAMILY != 0
        && hooks::may_be_inside(saved)
        && is_of_slot(inside, saved.return_address(), handle)
        && (hooks::is_near(saved) || modules::led_to(saved, inside & !MARKS) != Some(false))
}

/// Whether the operator that this thread is in is a `new`: what is given back amid it is recorded. To be asked only where
/// [`hooks::is_inside`] says that its frame lies a little up this thread's stack.
///
/// The runtime's gives nothing back, and what seems to be its call is that of functions which end in jumps: a `new_handler`, or the end of an exception
/// that it catches. One of the program's may catch an exception whose block was got further down, and is known. It can't be
/// told from what is its own business, of which only the end is then seen, and passed over.
pub(crate) fn is_in_new() -> bool {
    let inside = tls::get().inside.get();
    inside & OPERATOR != 0 && slot_of(inside).is_some_and(|slot| !slot.operator().gives_back())
}

/// The slot of the stub that `inside` names, whose frame lies a little up this thread's stack.
fn slot_of(inside: usize) -> Option<&'static Slot> {
    TABLE.get(frames::slot(tls::get(), inside))
}

/// A call begins whose stub has this frame, and `inside` is to be this: with the mark of the frame itself, or as it was. What it was.
pub(crate) fn begins(tls: &Tls, inside: usize, frame: &Frame) -> usize {
    let outer = tls.inside.get();
    let slot = frames::slot(tls, outer);
    if outer != 0 && slot < SLOTS {
        frame.note(AROUND * (slot + 1));
    }
    if inside & !MARKS == ptr::from_ref(frame).addr() {
        frames::note(tls, inside, frame.number.get() % SLOTS);
    }
    around::enter(tls, inside)
}

/// It returns; `noted` and `outer`: what its frame has and what `inside` was.
fn returns(tls: &Tls, noted: usize, outer: usize) {
    around::leave(tls, outer);
    if let Some(slot) = (noted / AROUND).checked_sub(1) {
        frames::note(tls, outer, slot);
    }
}

fn is_of_slot(inside: usize, caller: usize, handle: u32) -> bool {
    slot_of(inside).is_some_and(|slot| {
        let is_same = slot.family().is_none_or(|(_, of)| of == handle);
        let returns = is_return_of_slot(caller);
        // It throws, for which the runtime gets memory.
        let is_runtimes =
            slot.family().is_none() && slot.operator().is_own() && operators::is_of_runtime(caller);
        is_same && !is_runtimes && (returns || slot.code.holds(caller))
    })
}

pub(crate) unsafe extern "C" fn before(saved: &SavedRegisters, frame: &Frame) -> Going {
    let slot = frame.slot();
    // Each apart, so that none saves more registers than it needs.
    match slot.direct.seen() {
        Nested::MALLOC if DIRECT => simple_new(saved, frame, slot),
        Nested::FREE if DIRECT && record::are_numbered() => simple_delete::<true>(saved, frame, slot),
        Nested::FREE if DIRECT => simple_delete::<false>(saved, frame, slot),
        _ => before_other(saved, frame, slot),
    }
}

/// All of the call, if there is memory: `malloc` is called from here, which throws nothing.
#[inline(never)]
fn simple_new(saved: &SavedRegisters, frame: &Frame, slot: &Slot) -> Going {
    let size = saved.argument(0) as usize;
    // Of nothing, it asks for a byte. Amid a family's call, that is told of it.
    if size == 0 || !slot.direct.still_holds() || !hooks::is_outside_all() {
        cold_path();
        return before_other(saved, frame, slot);
    }
    record::expect(saved);
    let block = slot.direct.malloc(size);
    if block == 0 {
        cold_path();
        // It asks its handler, and may throw.
        return before_other(saved, frame, slot);
    }
    simply_given(saved, slot, block)
}

/// Records what `malloc` gave in the place of a `new`. Apart, so that the caller has a small frame while `malloc` runs, and goes on here.
#[inline(never)]
fn simply_given(saved: &SavedRegisters, slot: &Slot, block: usize) -> Going {
    operators::after_simple_new(saved, slot.operator(), block);
    Going { target: block, cookie: DONE }
}

#[inline(never)]
fn simple_delete<const NUMBERED: bool>(saved: &SavedRegisters, frame: &Frame, slot: &Slot) -> Going {
    let target = slot.direct.libc_original();
    if hooks::may_be_inside(saved)
        || !slot.direct.still_holds()
        || !operators::is_simply_deleted::<NUMBERED>(saved, slot.operator(), target)
    {
        cold_path();
        return any_simple_delete(saved, frame, slot);
    }
    Going { target, cookie: INSTEAD }
}

/// As [`simple_delete`], which does by itself what most calls need.
#[inline(never)]
fn any_simple_delete(saved: &SavedRegisters, frame: &Frame, slot: &Slot) -> Going {
    if hooks::is_inside(saved) || !slot.direct.still_holds() {
        return before_other(saved, frame, slot);
    }
    let target = slot.direct.libc_original();
    operators::before(saved, slot.operator(), target, frame);
    Going { target, cookie: INSTEAD }
}

/// As [`before`], where the function itself is to be called.
#[inline(never)]
fn before_other(saved: &SavedRegisters, frame: &Frame, slot: &Slot) -> Going {
    let by_slot = &tls::get().by_slot;
    by_slot.set(true);
    let going = before_the_call(saved, frame, slot);
    by_slot.set(false);
    going
}

#[inline(always)]
fn before_the_call(saved: &SavedRegisters, frame: &Frame, slot: &Slot) -> Going {
    let target = slot.original.load(Ordering::Relaxed);
    if let Some((role, handle)) = slot.family() {
        let part = if families::before(saved, role, handle, target, frame) { PART } else { 0 };
        return Going { target, cookie: families::mark(saved, frame) | part };
    }
    let tls = tls::get();
    let operator = slot.operator();
    let part = if hooks::is_inside(saved) && !(operator.gives_back() && is_in_new()) {
        sampling::mend();
        PART
    } else {
        operators::before(saved, operator, target, frame);
        tls.nested.set(0);
        0
    };
    let here = ptr::from_ref(frame).expose_provenance();
    Going { target, cookie: begins(tls, here | OPERATOR, frame) | part }
}

/// How many bytes from an address on the stack can be read, of as many as its stub hands on: a multiple of 8, as such an address is; 0
/// where a stack ends at it.
#[cfg_attr(target_arch = "arm", expect(dead_code, reason = "its stub hands on none"))]
pub(crate) unsafe extern "C" fn readable(at: usize) -> usize {
    const MOST: usize = 128;
    const PAGE: usize = 4096;
    // None where a page begins at the address: that one may be missing itself.
    let in_page = (PAGE - at % PAGE) % PAGE;
    if in_page >= MOST || page_is_readable((at + in_page) as u64) { MOST } else { in_page }
}

pub(crate) unsafe extern "C" fn after(
    result: usize,
    saved: &SavedRegisters,
    number: usize,
    cookie: usize,
) -> usize {
    let tls = tls::get();
    returns(tls, number, cookie & !PART);
    if cookie & PART == 0 {
        tls.by_slot.set(true);
        let slot = &TABLE[number % SLOTS];
        match slot.family() {
            Some((role, handle)) => {
                families::after(saved, role, handle, result, number);
            }
            None => {
                slot.direct.learn(slot.operator(), saved.argument(0) as usize, result, beginning_at);
                operators::after(saved, slot.operator(), result, number);
            }
        }
        tls.by_slot.set(false);
    }
    result
}

/// Whether the function at an address is hooked.
pub(crate) fn is_hooked(target: usize) -> bool {
    taken().iter().any(|slot| slot.target.start() == target)
}

/// What the hooked function at an address begins with; 0 where that isn't known.
fn beginning_at(target: usize) -> u64 {
    let slot = taken().iter().find(|slot| slot.target.start() == target);
    slot.map_or(0, |slot| slot.beginning.load(Ordering::Relaxed))
}

/// The handle of the heap of the allocator's function at an address, if it is hooked as one.
pub(crate) fn handle_at(target: usize) -> Option<u32> {
    let slot = taken().iter().find(|slot| slot.target.start() == target)?;
    slot.family().map(|(_, handle)| handle)
}

/// From now on, calls of the functions of the heap with this handle go the shortest way past us.
pub(crate) fn let_by(handle: u32) {
    let slots = taken().iter().filter(|slot| slot.heap.load(Ordering::Relaxed) == handle + 1);
    slots.for_each(|slot| slot.is_let_by.store(true, Ordering::Relaxed));
}

/// Gives back the slots of functions at these addresses, where nothing is loaded any more.
pub(crate) fn forget(range: &Range<u64>) {
    native::slots::forget(range);
    for slot in taken() {
        if range.contains(&(slot.target.start() as u64)) {
            slot.target.set(&(0..0));
            let heap = slot.heap.load(Ordering::Relaxed);
            let is_left =
                |other: &Slot| other.target.start() != 0 && other.heap.load(Ordering::Relaxed) == heap;
            if let Some(handle) = heap.checked_sub(1)
                && !taken().iter().any(is_left)
            {
                heaps::forget(handle.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn what_a_stub_hands_on_ends_where_the_stack_does() {
        const PAGE: usize = 4096;
        let map = sys::map_anonymous(2 * PAGE).unwrap();
        let end = map.expose_provenance() + PAGE;
        // SAFETY: asks the kernel about addresses.
        let readable = |at| unsafe { readable(at) };
        assert_eq!([end - PAGE, end - 128, end - 16, end].map(readable), [128; 4]);
        sys::forbid(map.wrapping_add(PAGE), PAGE);
        assert_eq!([end - PAGE, end - 128, end - 112, end - 16, end].map(readable), [128, 128, 112, 16, 0]);
        sys::unmap(map, 2 * PAGE);
    }
}
