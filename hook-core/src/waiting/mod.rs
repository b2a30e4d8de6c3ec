//! Hooks on functions of objects that are not loaded yet.
//!
//! A [`Waiting`] holds a [`HookSet`](crate::HookSet) and hooks that wait: each names an object and a function. When the object is loaded,
//! the hook is put in before any of the object's code has run, its constructors included; at once if it is loaded already.
//! When the object is unloaded, the hook goes with it, nothing is written to memory that is gone, and the hook waits again.
//! What else is attached to functions of that object through the same set is forgotten, too.
//!
//! ```
//! use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
//! use grapnel_hook::{Liveness, waiting::{Status, Waiting}};
//!
//! static ORIGINAL: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
//! extern "C" fn always_7() -> i32 {
//!     7
//! }
//!
//! let waiting = Waiting::new();
//! let mut hooks = waiting.lock()?;
//! // SAFETY: the types agree, and one thread runs.
//! let id = unsafe {
//!     hooks.replace(b"libplugin.so", b"number", always_7 as *const (), Some(&ORIGINAL), Liveness::SingleThreaded)
//! }?;
//! assert_eq!(hooks.status(id)?, Status::Waiting);
//! drop(hooks);
//! // From here on a dlopen of it finds it hooked.
//! # unsafe { waiting.lock()?.remove(id, Liveness::SingleThreaded) }?;
//! # Ok::<(), grapnel_hook::waiting::WaitError>(())
//! ```
//!
//! **How it is seen.** The dynamic linker calls a function for debuggers before and after it changes its list of objects.
//! With the first hook that waits, a listener is attached to it, and to one by which glibc calls constructors. Neither
//! `dlopen` nor `dlclose` is hooked: libc itself loads objects by other ways.
//!
//! **Rebindings.** A [`Rebinding`](crate::rebind::Rebinding) that was given to [`Hooks::rebind`] is carried on to each object that is loaded, after it
//! was relocated and before its constructors run. That moment is known with glibc from 2.31 on and with musl
//! ([`Hooks::sees_relocation`]); with others, such an object is rebound when the list changes the next time. The same goes
//! for hooks on functions that are chosen at relocation (IFUNC).
//!
//! # Safety
//! Everything is in one structure, which is never freed, because a thread may be on its way to it, and is only touched by the
//! holder of its lock. Whoever holds the lock sees a list of objects that doesn't change: a thread that is about to change
//! it says so first, and then waits for the lock.

mod error;
mod hooks;
mod kept;
mod notice;
mod wait;

use alloc::boxed::Box;
use core::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*},
};

use crate::{
    Attachment, Errno,
    lock::{self, Held, Lock},
    module::RDebug,
    sys,
};
pub use error::{NotCarriedOn, WaitError};
pub use hooks::Hooks;
use kept::Kept;

/// How many milliseconds are waited for a thread that loads an object.
const PATIENCE: usize = 5000;

/// A set of hooks, with hooks that wait. Cheap to copy; the copies stand for the same.
///
/// What it is told is kept for good, and dropping it leaves everything in.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    state: &'static State,
}

/// A hook that waits, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitId(u64);

impl WaitId {
    /// The number.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// A rebinding that is carried on, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RebindingId(u64);

/// Where a hook that waits stands.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Status {
    /// No object of that name is loaded.
    Waiting,
    /// The hook is in.
    In {
        /// The function.
        function: *const (),
        /// What is attached to it in the set.
        attachment: Attachment,
    },
    /// The hook was in, and went when its object was unloaded. It waits for the next.
    Unloaded {
        /// Where the function was.
        function: *const (),
    },
    /// An object of the name is loaded, and the hook can't be put in. It waits for the object to be unloaded.
    Failed(WaitError),
}

#[derive(Debug)]
pub(crate) struct State {
    lock: Lock,
    /// The thread that is changing the list of objects; 0 if none is.
    changing: AtomicU64,
    /// There are objects in the list that may not be relocated yet, and something that waits for that.
    unrelocated: AtomicBool,
    missed: AtomicUsize,
    generation: AtomicU32,
    debug: AtomicPtr<RDebug>,
    kept: UnsafeCell<Kept>,
}

// SAFETY: the cell is touched by the holder of the lock alone. Listeners and replacements may be used by all threads (the
// promise of who attaches them).
unsafe impl Sync for State {}
// SAFETY: as above.
unsafe impl Send for State {}

impl Default for Waiting {
    fn default() -> Self {
        Self::new()
    }
}

impl Waiting {
    /// Nothing waits yet, and nothing is hooked.
    pub fn new() -> Self {
        let state = State {
            lock: Lock::new(),
            changing: AtomicU64::new(0),
            unrelocated: AtomicBool::new(false),
            missed: AtomicUsize::new(0),
            generation: AtomicU32::new(0),
            debug: AtomicPtr::new(core::ptr::null_mut()),
            kept: UnsafeCell::default(),
        };
        Self { state: Box::leak(Box::new(state)) }
    }

    /// The hooks, for this thread alone. While they are held, no object is loaded or unloaded: other threads wait in
    /// `dlopen`, for five seconds at most.
    ///
    /// # Errors
    /// [`WaitError::Busy`] if another thread holds them or loads objects for seconds, or this one does around this call.
    pub fn lock(&self) -> Result<Hooks<'static>, WaitError> {
        let state = self.state;
        for _ in 0..PATIENCE {
            let held = state.hold().map_err(|errno| WaitError::Busy { errno })?;
            match state.changing.load(SeqCst) {
                changing if changing == lock::this_thread() => {
                    return Err(WaitError::Busy { errno: Errno(libc::EDEADLK) });
                }
                changing if changing == 0 || !lock::is_of_this_process(changing) => {
                    return Ok(Hooks { _held: held, state });
                }
                _ => drop(held),
            }
            sys::sleep_a_millisecond();
        }
        Err(WaitError::Busy { errno: Errno(libc::EBUSY) })
    }

    /// How many times the list of objects changed and nothing was done about it, because another thread held the hooks
    /// for seconds, or this one did.
    pub fn missed(&self) -> usize {
        self.state.missed.load(Relaxed)
    }
}

impl State {
    /// Takes the lock. In a child made by fork while a thread of the parent's held it, what that thread left is neither
    /// read nor freed, and begins anew.
    fn hold(&self) -> Result<Held<'_>, Errno> {
        let held = self.lock.hold()?;
        if held.torn {
            self.generation.fetch_add(1, Relaxed);
            self.changing.store(0, Relaxed);
            // SAFETY: this thread is the holder, and the one before isn't in this process. What was there is not dropped.
            unsafe { core::ptr::write(self.kept.get(), Kept::default()) };
        }
        Ok(held)
    }

    /// Does something in a notice of the dynamic linker's.
    fn in_notice(&self, work: impl FnOnce(&mut Kept)) {
        let Ok(held) = self.hold() else {
            self.missed.fetch_add(1, Relaxed);
            return;
        };
        // SAFETY: this thread holds the lock.
        let kept = unsafe { &mut *self.kept.get() };
        work(kept);
        self.unrelocated.store(kept.unrelocated, Release);
        drop(held);
    }
}
