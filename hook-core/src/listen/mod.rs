//! Listeners: functions that are told of the calls of another, and see and change its registers.
//!
//! A listener has a link, which its stub knows. The routines of `native` call `entered` and `probed` from the stub, and
//! `take_return` and `returned` when the function has returned.
//!
//! **How the return is seen.** The function's return address is replaced by that of a return point
//! (`returns`). The alternative, to call the function from a frame of the stub's own, would leave the stack as
//! unwinders know it; but the arguments in memory would have to be copied, and nothing says how many there are: that is
//! known for no variadic function. So the caller's stack is left where the function expects it.
//!
//! # Safety
//! The functions here run in any thread, at the entry or in the middle of any function. They use no thread-local
//! storage, take no lock, and allocate nothing. A link is freed when no thread can be in its stub, none holds its address,
//! and no return is awaited for it.

mod call;
mod guard;
mod link;
mod places;
mod returns;
mod silence;
#[cfg(test)]
mod tests;

pub(crate) use returns::each_return;
pub(crate) use silence::Silence;

use core::{
    ffi::c_void,
    sync::atomic::{AtomicIsize, AtomicU64, Ordering::*},
};

pub use crate::native::Registers;
use crate::native::{self, Saved};
pub use call::{Entry, Exit, Hit};
pub(crate) use link::{Link, LinkKey, OwnLink, Telling};

/// What is told when a function is entered.
pub type OnEnter = unsafe extern "C" fn(call: &mut Entry, data: *mut c_void);
/// What is told when it has returned.
pub type OnLeave = unsafe extern "C" fn(call: &mut Exit, data: *mut c_void);
/// What is told when a probed instruction is about to run.
pub type OnHit = unsafe extern "C" fn(hit: &mut Hit, data: *mut c_void);

/// What wants to know of the calls of a function.
///
/// The listener may change the registers that it is shown. `errno` and every register that it doesn't change are kept,
/// with one exception: without [`Self::with_vectors`], vector state beyond the low 128 bits of `xmm0` to `xmm15` is as
/// the listener leaves it: the halves above, the registers from 16 on, the mask registers, the x87 stack, MXCSR. It matters
/// to functions that take or return `__m256`, `__m512` or `long double` by value, and to those whose callers the compiler
/// has seen together with them and left values there over the call (GCC's `-fipa-ra` does, for functions of one object that
/// aren't exported). On AArch64 that is what SVE has beyond 128 bits, FPCR and FPSR; on 32-bit Arm FPSCR.
///
/// A function that calls nothing and uses general registers only, which its code is looked at for on x86-64, is told without
/// vector state being saved, in less time. So nothing in a listener's code may be changed while it is attached, by a hook on it
/// for one.
///
/// A listener must not unwind.
#[derive(Debug, Clone, Copy)]
pub struct Listener {
    pub(crate) enter: Option<OnEnter>,
    pub(crate) leave: Option<OnLeave>,
    pub(crate) data: *mut c_void,
    pub(crate) guarded: bool,
    pub(crate) all_vectors: bool,
}

impl Listener {
    /// A listener that isn't told of anything yet. `data` is passed to its functions as it is.
    pub const fn new(data: *mut c_void) -> Self {
        Self { enter: None, leave: None, data, guarded: false, all_vectors: false }
    }

    /// Is told when the function is entered.
    #[must_use]
    pub const fn on_enter(self, enter: OnEnter) -> Self {
        Self { enter: Some(enter), ..self }
    }

    /// Is told when it has returned. A call that is left by an exception or `longjmp` has no return.
    #[must_use]
    pub const fn on_leave(self, leave: OnLeave) -> Self {
        Self { leave: Some(leave), ..self }
    }

    /// Isn't told of what a guarded listener itself calls, this one or another: while one runs in a thread, none is
    /// told of that thread's calls. Neither of those that a signal handler makes then.
    #[must_use]
    pub const fn guarded(self) -> Self {
        Self { guarded: true, ..self }
    }

    /// Sees and keeps all vector state, in about 3 KiB of stack. On x86-64 the x87 stack, MXCSR and the mask registers are
    /// kept as well; AMX tiles aren't.
    #[must_use]
    pub const fn with_vectors(self) -> Self {
        Self { all_vectors: true, ..self }
    }
}

/// What wants to know when an instruction is about to run.
///
/// It may change the registers that it is shown. `errno`, the flags and every register that it doesn't change are kept.
/// The listener must not unwind.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    pub(crate) hit: OnHit,
    pub(crate) data: *mut c_void,
    pub(crate) guarded: bool,
    pub(crate) all_vectors: bool,
}

impl Probe {
    /// A probe that keeps all vector state, as [`Listener::with_vectors`]. If `hit` calls nothing and uses general registers
    /// only, which its code is looked at for on x86-64, that takes no time. So nothing in its code may be changed while it is
    /// attached. `data` is passed as it is.
    pub const fn new(hit: OnHit, data: *mut c_void) -> Self {
        Self { hit, data, guarded: false, all_vectors: true }
    }

    /// As [`Listener::guarded`].
    #[must_use]
    pub const fn guarded(self) -> Self {
        Self { guarded: true, ..self }
    }

    /// Leaves the vector registers and the floating-point state alone, which is several times as fast where they would be
    /// saved. They are saved all the same on AArch64 and Arm, for guarded probes, and if this library was compiled such that its
    /// own code uses them, as it is without optimisation.
    ///
    /// # Safety
    /// The function and all that it calls change neither: it is compiled for general registers only
    /// (`-mgeneral-regs-only`), or is known to use no others.
    #[must_use]
    pub const unsafe fn general_only(self) -> Self {
        Self { all_vectors: false, ..self }
    }
}

// SAFETY: the data is for the listener to share among threads, which is part of what attaching asks of its caller.
unsafe impl Send for Listener {}
// SAFETY: as above.
unsafe impl Sync for Listener {}
// SAFETY: as above.
unsafe impl Send for Probe {}
// SAFETY: as above.
unsafe impl Sync for Probe {}

/// Calls that a listener was not told of.
static MISSED: AtomicU64 = AtomicU64::new(0);

/// How many calls and returns listeners were not told of, in the whole process, for want of a place. There is room for
/// 3072 returns at once, for a thousand more of further listeners of the same calls, and for as many each of listeners with
/// vectors; and for some hundred threads in guarded listeners.
pub fn missed() -> u64 {
    MISSED.load(Relaxed)
}

fn miss() {
    MISSED.fetch_add(1, Relaxed);
}

/// How many calls that a listener was told of have yet to return.
pub(crate) fn awaited(link: &Link) -> usize {
    returns::awaited(link)
}

/// Counts calls no more that will never return to it.
pub(crate) fn settle(link: &Link) {
    returns::settle(link);
}

/// # Safety
/// `saved` is what an entry routine saved for a stub.
unsafe fn link_of(saved: &Saved) -> &'static Link {
    // SAFETY: the stub's literal is the address of a link, which stays while a thread may be in the stub.
    unsafe { &*(native::link_of_stub(saved.stub) as usize as *const Link) }
}

/// A function is entered: says whom to tell.
///
/// # Safety
/// Called by an entry routine, with what it saved.
pub(crate) unsafe extern "C" fn entering(saved: &mut Saved) -> Telling {
    // SAFETY: the caller's promise.
    let (link, site) = unsafe { (link_of(saved), native::site_of_stub(saved.stub)) };
    saved.at_boundary(site);
    saved.word = 0;
    link.first(saved)
}

/// The listener was told of the entry: has the return watched if it wants to hear of that.
///
/// # Safety
/// Called by an entry routine, with what it saved, and what [`entering`] answered.
pub(crate) unsafe extern "C" fn watch(saved: &mut Saved, link: &'static Link) {
    if link.hears_returns() {
        // SAFETY: the return address is that of a call that is under way.
        unsafe { returns::watch(link, saved) };
    }
}

/// All that an entry routine has to do.
///
/// # Safety
/// As [`entering`].
pub(crate) unsafe extern "C" fn entered(saved: &mut Saved) {
    // SAFETY: the caller's promise.
    unsafe {
        let link = tell(saved, |saved| entering(saved));
        watch(saved, link);
    }
}

/// A function has returned to a return point: says where it really returns to.
///
/// # Safety
/// Called by a return routine, with what it saved.
pub(crate) unsafe extern "C" fn take_return(saved: &mut Saved) -> u64 {
    let (number, address) = take(saved);
    saved.stub = number as u64;
    address
}

/// The same, and says at which point.
#[inline(always)]
pub(crate) fn take(saved: &mut Saved) -> (usize, u64) {
    let number = native::number_of_return_point(saved.return_address);
    let address = returns::take(number, saved.call());
    saved.at_boundary(address);
    (number, address)
}

/// The listener of a return: says whom to tell. Who calls this keeps the link in a register or on the stack while that runs:
/// there, who asks what threads may reach finds it.
///
/// # Safety
/// The call was taken from this point, and the return slot holds its real return address.
#[inline(always)]
pub(crate) unsafe fn leaving(saved: &mut Saved, number: usize) -> Telling {
    let (link, word) = returns::release(number);
    saved.word = word;
    // SAFETY: the point was taken for a link.
    unsafe { &*link }.leave(saved)
}

/// All that is left for a return routine to do.
///
/// # Safety
/// Called by a return routine, after [`take_return`] and when the return slot holds what it answered.
#[inline]
pub(crate) unsafe extern "C" fn returned(saved: &mut Saved) {
    let number = saved.stub as usize;
    // SAFETY: the caller's promise.
    let link = unsafe { tell(saved, |saved| leaving(saved, number)) };
    // Until here it is in this frame.
    core::hint::black_box(core::ptr::from_ref(link));
}

/// A probed instruction is about to run: says whom to tell.
///
/// # Safety
/// Called by a probe routine, with what it saved.
pub(crate) unsafe extern "C" fn probing(saved: &mut Saved) -> Telling {
    // SAFETY: the caller's promise.
    let (link, site) = unsafe { (link_of(saved), native::site_of_stub(saved.stub)) };
    saved.at_probe(site);
    link.first(saved)
}

/// A probed instruction is about to run.
///
/// # Safety
/// Called by a probe routine, with what it saved.
pub(crate) unsafe extern "C" fn probed(saved: &mut Saved) {
    // SAFETY: the caller's promise.
    unsafe { tell(saved, |saved| probing(saved)) };
}

/// Tells, so that `errno` is as before.
///
/// # Safety
/// What was saved is as the link wants it.
#[inline(always)]
unsafe fn tell(saved: &mut Saved, whom: impl FnOnce(&mut Saved) -> Telling) -> &'static Link {
    let errno = Errno::keep();
    let Telling { listener, link } = whom(saved);
    // SAFETY: who attached the listener answers for it.
    unsafe { listener(saved, link.data) };
    errno.restore();
    link
}

/// Where `errno` lies from the thread pointer on; 0 while that isn't known.
pub(crate) static ERRNO: AtomicIsize = AtomicIsize::new(0);

unsafe extern "C" {
    /// libc's, which Android calls otherwise.
    #[cfg_attr(target_os = "android", link_name = "__errno")]
    fn __errno_location() -> *mut i32;
}

/// Finds out where `errno` lies: libc is there from the program's start, so the distance is the same in every thread.
pub(crate) fn prepare() {
    if ERRNO.load(Relaxed) == 0 {
        // SAFETY: the function has no preconditions.
        let place = unsafe { __errno_location() } as usize;
        ERRNO.store(place.wrapping_sub(native::thread_pointer()).cast_signed(), Release);
    }
}

/// Makes a call of libc that may change `errno`, and leaves that as it was.
pub(crate) fn with_errno_kept<T>(call: impl FnOnce() -> T) -> T {
    prepare();
    let errno = Errno::keep();
    let answer = call();
    errno.restore();
    answer
}

/// `errno` as it was.
struct Errno(i32);

impl Errno {
    /// Where it lies. Asked for twice, which takes less than keeping it over a call.
    #[inline(always)]
    fn place() -> *mut i32 {
        native::thread_pointer().wrapping_add_signed(ERRNO.load(Relaxed)) as *mut i32
    }

    #[inline(always)]
    fn keep() -> Self {
        // SAFETY: this thread's `errno` (`prepare` ran before the first listener was attached).
        Self(unsafe { Self::place().read() })
    }

    #[inline(always)]
    fn restore(self) {
        // SAFETY: as above. A call that is under way stays in its thread.
        unsafe { Self::place().write(self.0) };
    }
}
