//! What is surely the stack that this thread began on: no other thread gives it back or protects it while this one runs.
//!
//! Of the first thread that is what lies below the end of the process's stack. Of others it is what lies below the thread pointer, where
//! libc has its description of a thread, at the stack's end: as far as half of the smallest stack that any thread was given. Whoever makes a thread
//! comes by here before it runs, for that.

use crate::sys;
#[cfg(not(grapnel_attached))]
use crate::{bound, native, tls};
#[cfg(not(grapnel_attached))]
use core::ffi::c_int;
use core::ops::Range;
#[cfg(not(grapnel_attached))]
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
#[cfg(not(grapnel_attached))]
use grapnel_hook::module::Module;

/// The end of the process's stack; 0 where that isn't known.
static END: AtomicUsize = AtomicUsize::new(0);

/// So much below it nothing else lies: the kernel leaves more than that free for it, and emulators give it twice that.
const OF_PROCESS: usize = 4 << 20;

/// What is known of the stack of this thread, which has this id: empty if nothing is.
pub(crate) fn known(thread: u32) -> Range<u64> {
    if thread == sys::process_id() {
        let end = END.load(Ordering::Relaxed);
        return end.saturating_sub(OF_PROCESS) as u64..end as u64;
    }
    of_other(thread)
}

/// Finds the end of the process's stack, as the mappings say it.
#[cfg(grapnel_attached)]
pub(crate) fn prepare() {
    use grapnel_hook::maps::{Kind, Maps};

    let end = Maps::read().ok().and_then(|maps| {
        maps.iter().find(|mapping| mapping.kind == Kind::Stack).map(|mapping| mapping.range.end)
    });
    END.store(end.unwrap_or(0), Ordering::Relaxed);
}

#[cfg(grapnel_attached)]
fn of_other(_thread: u32) -> Range<u64> {
    0..0
}

/// The size of the smallest stack that a thread was given; 0 where one isn't known.
#[cfg(not(grapnel_attached))]
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// libc's functions that say how large a thread's stack will be: `pthread_attr_init`, `pthread_attr_getstacksize`, `pthread_attr_destroy`. Older
/// glibc has them in a library of its own.
#[cfg(not(grapnel_attached))]
static ASKED: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

#[cfg(not(grapnel_attached))]
fn of_other(thread: u32) -> Range<u64> {
    let least = LEAST.load(Ordering::Relaxed);
    // Of threads that libc makes for itself nothing is known where its code has no hooks.
    if least == usize::MAX || bound::is_wanted() || thread == 0 || tls::thread_id() != thread {
        return 0..0;
    }
    let end = native::tls::thread_pointer();
    end.saturating_sub(least / 2) as u64..end as u64
}

/// Finds what is asked, and the end of the process's stack: what the kernel has put there lies in its last page or near it.
#[cfg(not(grapnel_attached))]
pub(crate) fn prepare(modules: &[Module]) {
    // SAFETY: it reads a table of the kernel's.
    let path = unsafe { libc::getauxval(libc::AT_EXECFN) } as usize;
    END.store(path, Ordering::Relaxed);
    let names: [&[u8]; 3] = [b"pthread_attr_init", b"pthread_attr_getstacksize", b"pthread_attr_destroy"];
    let find = |name| {
        let of = |module: &Module| {
            let is_libcs =
                module.file_name().starts_with(b"libc.") || module.file_name().starts_with(b"libpthread.");
            is_libcs.then(|| grapnel_hook::symbol::find(module, name)).flatten()
        };
        modules.iter().find_map(of)
    };
    for (at, name) in ASKED.iter().zip(names) {
        at.store(find(name).map_or(0, |symbol| symbol.addr), Ordering::Relaxed);
    }
}

/// A thread is about to be made with these attributes, or null, or what stands for it.
#[cfg(not(grapnel_attached))]
pub(crate) unsafe extern "C" fn is_made(attributes: *const libc::pthread_attr_t) {
    LEAST.fetch_min(size(attributes).unwrap_or(0), Ordering::Relaxed);
}

#[cfg(not(grapnel_attached))]
fn size(attributes: *const libc::pthread_attr_t) -> Option<usize> {
    type Change = unsafe extern "C" fn(*mut libc::pthread_attr_t) -> c_int;
    type Size = unsafe extern "C" fn(*const libc::pthread_attr_t, *mut usize) -> c_int;
    let [init, size, destroy] = ASKED.each_ref().map(|at| at.load(Ordering::Relaxed));
    if init == 0 || size == 0 || destroy == 0 {
        return None;
    }
    // SAFETY: libc's functions of these names and types.
    let (init, size, destroy) = unsafe {
        let function = ptr::with_exposed_provenance::<()>;
        (
            core::mem::transmute::<*const (), Change>(function(init)),
            core::mem::transmute::<*const (), Size>(function(size)),
            core::mem::transmute::<*const (), Change>(function(destroy)),
        )
    };
    let mut bytes = 0;
    // glibc's own `thrd_create` gives -1 for attributes as they usually are.
    if !attributes.is_null() && attributes.addr() != usize::MAX {
        // SAFETY: the attributes that the caller gives libc, which takes them as well.
        return (unsafe { size(attributes, &raw mut bytes) } == 0).then_some(bytes);
    }
    let mut usual = core::mem::MaybeUninit::uninit();
    // SAFETY: room for attributes, which are asked, and given back, once they are there.
    unsafe {
        if init(usual.as_mut_ptr()) != 0 {
            return None;
        }
        let asked = size(usual.as_ptr(), &raw mut bytes);
        destroy(usual.as_mut_ptr());
        (asked == 0).then_some(bytes)
    }
}
