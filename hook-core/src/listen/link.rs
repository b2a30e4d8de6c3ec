//! What a link stub knows: whom to tell, and how.
//!
//! # Safety
//! A listener's function takes what was saved by another name. A link in memory of its own is freed by who has proved that nobody
//! comes to it any more (`set::reclaim`).

use alloc::boxed::Box;
use core::{
    ffi::c_void,
    ops::{Deref, Range},
    ptr::NonNull,
};

use super::{Entry, Exit, Hit, Listener, Probe, guard::Guard, silence};
use crate::native::{self, LinkKind, Saved, StubKind, Vectors};

/// A listener's function, whatever it is told of.
pub(crate) type Tell = unsafe extern "C" fn(saved: &mut Saved, data: *mut c_void);

/// Whom a stub tells.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    /// For the entry of a function, or for a probe.
    first: Option<Tell>,
    /// For its return.
    leave: Option<Tell>,
    pub(crate) data: *mut c_void,
    is_probe: bool,
    guarded: bool,
    /// Was asked for.
    all_vectors: bool,
    /// What is saved.
    vectors: Vectors,
}

/// What a link does, in comparable form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkKey {
    functions: [Option<usize>; 2],
    data: usize,
    ways: [bool; 3],
    /// The same function may have other code by now.
    vectors: Vectors,
}

// SAFETY: the data is for the listener to share among threads, which is part of what attaching asks of its caller.
unsafe impl Send for Link {}
// SAFETY: as above.
unsafe impl Sync for Link {}

/// A link in memory of its own, whose address code has. It stays until it is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnLink(NonNull<Link>);

// SAFETY: it stands for a link, which may be shared.
unsafe impl Send for OwnLink {}
// SAFETY: as above.
unsafe impl Sync for OwnLink {}

impl OwnLink {
    pub(crate) fn new(link: Link) -> Self {
        Self(NonNull::from(Box::leak(Box::new(link))))
    }

    /// Its addresses, which code may go to it by.
    pub(crate) fn range(&self) -> Range<u64> {
        let start = self.0.as_ptr().expose_provenance() as u64;
        start..start + size_of::<Link>() as u64
    }

    /// # Safety
    /// Nobody has its address or a copy of this value that is used after this.
    pub(crate) unsafe fn free(self) {
        // SAFETY: the pointer is the one that the box was, and the caller's promise.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Deref for OwnLink {
    type Target = Link;

    fn deref(&self) -> &Link {
        // SAFETY: it stays until `free`, after which nobody has this value.
        unsafe { self.0.as_ref() }
    }
}

/// What is called next, by a routine or in [`super::tell`], with what was saved and the link's data.
#[repr(C)]
pub(crate) struct Telling {
    pub(crate) listener: Tell,
    pub(crate) link: &'static Link,
}

/// Nobody is told, and no return is watched.
static NOBODY: Link = Link {
    first: None,
    leave: None,
    data: core::ptr::null_mut(),
    is_probe: false,
    guarded: false,
    all_vectors: false,
    vectors: Vectors::None,
};

unsafe extern "C" fn nothing(_: &mut Saved, _: *mut c_void) {}

/// The same function, of one view of what was saved.
macro_rules! as_tell {
    ($function:expr, $view:ty) => {{
        let function: unsafe extern "C" fn(&mut $view, *mut c_void) = $function;
        // SAFETY: the views are `repr(transparent)`, so the two types of references are passed alike.
        unsafe { core::mem::transmute::<unsafe extern "C" fn(&mut $view, *mut c_void), Tell>(function) }
    }};
}

impl From<Listener> for Link {
    fn from(Listener { enter, leave, data, guarded, all_vectors }: Listener) -> Self {
        let first = enter.map(|enter| as_tell!(enter, Entry));
        let leave = leave.map(|leave| as_tell!(leave, Exit));
        let vectors = if all_vectors { Vectors::All } else { Vectors::Low };
        Self { first, leave, data, is_probe: false, guarded, all_vectors, vectors }
    }
}

impl From<Probe> for Link {
    fn from(Probe { hit, data, guarded, all_vectors }: Probe) -> Self {
        let vectors = if all_vectors { Vectors::All } else { Vectors::None };
        Self {
            first: Some(as_tell!(hit, Hit)),
            leave: None,
            data,
            is_probe: true,
            guarded,
            all_vectors,
            vectors,
        }
    }
}

impl Link {
    /// Equal for those that tell the same functions the same data in the same way.
    pub(crate) fn key(&self) -> LinkKey {
        let functions = [self.first, self.leave].map(|function| function.map(|f| f as usize));
        LinkKey {
            functions,
            data: self.data as usize,
            ways: [self.is_probe, self.guarded, self.all_vectors],
            vectors: self.vectors,
        }
    }

    /// What the stub that tells it has to do.
    pub(crate) fn kind(&self, stub: StubKind) -> LinkKind {
        LinkKind { stub, vectors: self.vectors, returns: self.hears_returns() }
    }

    /// Whether a return may be told to it.
    #[inline]
    pub(crate) fn hears_returns(&self) -> bool {
        self.leave.is_some()
    }

    /// Whether all vector state is saved for it.
    pub(crate) fn saves_all_vectors(&self) -> bool {
        self.vectors == Vectors::All
    }

    /// Which return points it has.
    #[inline]
    pub(super) fn part(&self) -> usize {
        native::part_of_points(self.vectors)
    }

    /// Saves nothing where nobody changes it: neither the routines (`ours`) nor the functions that are told, and saves all for
    /// a probe where the routines might.
    pub(crate) fn save_what_may_change(&mut self, ours: bool, is_left_alone: impl Fn(usize) -> bool) {
        // Who is told by way of the guard is told by more code.
        let none = ours && !self.guarded;
        let mut functions = [self.first, self.leave].into_iter().flatten();
        let mut all_leave_alone = || functions.all(|function| is_left_alone(function as usize));
        self.vectors = match (self.is_probe, self.vectors) {
            (true, Vectors::None) if !none => Vectors::All,
            (false, Vectors::Low) | (true, Vectors::All) if none && all_leave_alone() => Vectors::None,
            (_, vectors) => vectors,
        };
    }

    /// Whom to tell of an entry or of a probe.
    #[inline(always)]
    pub(super) fn first(&'static self, saved: &mut Saved) -> Telling {
        self.told(self.first, saved)
    }

    /// Whom to tell of a return.
    #[inline(always)]
    pub(super) fn leave(&'static self, saved: &mut Saved) -> Telling {
        self.told(self.leave, saved)
    }

    #[inline(always)]
    fn told(&'static self, listener: Option<Tell>, saved: &mut Saved) -> Telling {
        if silence::is_here() {
            return Telling { listener: nothing, link: &NOBODY };
        }
        if self.guarded {
            return self.tell_guarded(listener, saved);
        }
        Telling { listener: listener.unwrap_or(nothing), link: self }
    }

    /// Tells it here, unless this thread is in a guarded listener. Apart, so that others don't pay for the guard's place on the
    /// stack.
    #[cold]
    #[inline(never)]
    pub(crate) extern "C" fn tell_guarded(
        &'static self,
        listener: Option<Tell>,
        saved: &mut Saved,
    ) -> Telling {
        let mut word = 0;
        let Some(guard) = Guard::enter(&mut word) else {
            return Telling { listener: nothing, link: &NOBODY };
        };
        if let Some(listener) = listener {
            // SAFETY: who attached the listener answers for it.
            unsafe { listener(saved, self.data) };
        }
        drop(guard);
        Telling { listener: core::hint::black_box(nothing), link: self }
    }
}
