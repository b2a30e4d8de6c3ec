//! The block of a thread in a process into which the dynamic linker loaded the agent: initial-exec.
//!
//! `thread_local!` would call `__tls_get_addr`, which may allocate; a variable in `.tbss` reached through its
//! offset from the thread pointer never does.
//!
//! # Safety
//! As in [`crate::tls`].

use super::{Sampling, Tls};
use crate::native::tls::{block, block_of_task, find_kept_id, kept_id};
use crate::{guests, sys};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

/// This thread's block.
#[inline(always)]
pub(crate) fn get() -> &'static Tls {
    // SAFETY: the block is as many zeroed bytes of this task and more, aligned to 64, and lives as long as the task.
    unsafe { &*ptr::with_exposed_provenance::<Tls>(block_of_task()) }
}

/// That to which the thread pointer leads.
#[inline(always)]
fn own() -> &'static Tls {
    // SAFETY: the block is as many zeroed bytes of this thread and more, aligned to 64, and lives as long as the thread.
    unsafe { &*ptr::with_exposed_provenance::<Tls>(block()) }
}

/// What hooks have at hand that look nothing up.
#[inline(always)]
pub(crate) fn sampling() -> &'static Sampling {
    &own().sampling
}

/// Whether it is known where libc keeps a thread's id.
static IS_KNOWN: AtomicBool = AtomicBool::new(false);

/// Looks where libc keeps a thread's id. At the start.
pub(crate) fn prepare() {
    IS_KNOWN.store(find_kept_id(sys::thread_id_unasked()), Ordering::Relaxed);
}

/// The id of this thread that libc keeps; 0 where that isn't known.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: the place was found.
    if IS_KNOWN.load(Ordering::Relaxed) { unsafe { kept_id() } } else { 0 }
}

/// Whether a block is that of several.
#[inline(always)]
pub(crate) fn is_shared(tls: &Tls) -> bool {
    guests::is_spare(tls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libc_keeps_the_id_of_each_thread() {
        prepare();
        let ids = || (thread_id(), sys::thread_id_unasked());
        let (kept, own) = ids();
        assert_eq!(kept, own);
        let (kept, other) = std::thread::spawn(ids).join().expect("the thread ends");
        assert_eq!(kept, other);
        assert_ne!(own, other);
    }
}
