//! What each event reads of the process, side by side: a program that needs the processor's caches for itself has pushed them out by the
//! next event, and each is waited for.

use crate::life::{NONE, Page};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64};

/// See [`HOT`].
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Hot {
    /// [`crate::life`]'s page.
    pub(crate) life: AtomicPtr<Page>,
    /// [`crate::modules::version`].
    pub(crate) modules: AtomicU64,
    /// Whether this process has, or had, more than one ring: see [`crate::record`].
    pub(crate) is_numbered: AtomicBool,
    /// See [`crate::guests`].
    pub(crate) has_guests: AtomicBool,
    /// Of [`crate::shadow`]: where blocks are noted, whether any was, and whether what gives a block back can't tell how.
    pub(crate) shadow: AtomicU8,
    pub(crate) shadow_is_used: AtomicBool,
    pub(crate) shadow_is_shared: AtomicBool,
}

/// Written seldom.
pub(crate) static HOT: Hot = Hot {
    life: AtomicPtr::new((&raw const NONE).cast_mut()),
    modules: AtomicU64::new(0),
    is_numbered: AtomicBool::new(false),
    has_guests: AtomicBool::new(false),
    shadow: AtomicU8::new(0),
    shadow_is_used: AtomicBool::new(false),
    shadow_is_shared: AtomicBool::new(false),
};
