//! What each allocation function does in this mode.
//!
//! # Safety
//! As in [`crate::hooks`]: entered through stubs with the arguments of the function of that name, whose own code is called
//! with others: more bytes for guards, and the address that the allocator knows.

use super::allocator as own;
use super::options::Options;
use super::record::{self as calls, Call};
use super::recorded::{record_end, record_exchange, recorded, recorded_aligned};
use super::{blocks, fork, options, signals, work};
use crate::entry::{SavedRegisters, rescued, stub};
use crate::hooks::{self, Function, Hooked, inside, original_as};
use crate::record;
use crate::slots;
use crate::tls;
use core::ffi::{c_int, c_void};
use core::ptr;
use grapnel_trace::{Release, Source};

type Block = *mut c_void;
type Saved<'a> = &'a SavedRegisters;

const NULL: Block = ptr::null_mut();

/// Whether a call is the allocator's own, for another call of the program's that is under way.
fn is_part(saved: Saved<'_>) -> bool {
    tls::get().inside.get() & slots::MARKS == 0 && hooks::is_inside(saved)
}

/// What is to be done in a call, or nothing if it is the allocator's own.
fn wanted(saved: Saved<'_>) -> Option<&'static Options> {
    let options = options()?;
    if is_part(saved) {
        return None;
    }
    fork::look();
    rescued(saved, NULL, 0, || signals::look(options, saved));
    Some(options)
}

stub!(grapnel_agent_debug_malloc, malloc, 1, beside grapnel_agent_debug_beside_malloc);
unsafe extern "C" fn malloc(size: usize, saved: Saved<'_>) -> Block {
    let Some(options) = wanted(saved) else {
        // SAFETY: the caller's call, passed on.
        return unsafe { own::malloc(size) };
    };
    rescued(saved, NULL, 0, || {
        let block = calls::given(options, Call::Malloc { size }, || work::allocate(options, saved, size));
        recorded(saved, block, size, Source::Malloc)
    })
}

stub!(grapnel_agent_debug_calloc, calloc, 2, beside grapnel_agent_debug_beside_calloc);
unsafe extern "C" fn calloc(count: usize, size: usize, saved: Saved<'_>) -> Block {
    let Some(options) = wanted(saved) else {
        // SAFETY: the caller's call, passed on.
        return unsafe { own::calloc(count, size) };
    };
    rescued(saved, NULL, 0, || {
        let each = size;
        let asked = count.checked_mul(size);
        let size = asked.map(|size| size.max(1));
        let whole = size.and_then(|size| size.checked_add(options.extra()));
        let (Some(size), Some(whole)) = (size, whole) else { return work::out_of_memory() };
        let block = calls::given(options, Call::Calloc { count, size: each }, || {
            // SAFETY: any size may be asked for.
            let raw = unsafe { own::calloc(1, whole) };
            work::given(options, saved, raw, options.front_guard, size, false)
        });
        recorded(saved, block, asked.unwrap_or(0), Source::Calloc)
    })
}

stub!(grapnel_agent_debug_free, free, 1, nothing, beside grapnel_agent_debug_beside_free);
unsafe extern "C" fn free(block: Block, saved: Saved<'_>) {
    match wanted(saved).filter(|_| !block.is_null() && !hooks::is_own_business(saved)) {
        Some(options) => rescued(saved, NULL, 0, || {
            record_end(saved, block, Release::Free, record::FREE);
            calls::freed(options, block.addr(), Call::Free, || work::end(options, saved, block, "free"));
        }),
        // SAFETY: the caller's call, passed on.
        None => unsafe { own::free(block) },
    }
}

stub!(grapnel_agent_debug_realloc, realloc, 2, beside grapnel_agent_debug_beside_realloc);
unsafe extern "C" fn realloc(block: Block, size: usize, saved: Saved<'_>) -> Block {
    let Some(options) = wanted(saved) else {
        // SAFETY: the caller's call, passed on.
        return unsafe { own::realloc(block, size) };
    };
    rescued(saved, NULL, 0, || {
        let call = Call::Realloc { old: block.addr(), size };
        if block.is_null() {
            let block = calls::given(options, call, || work::allocate(options, saved, size));
            return recorded(saved, block, size, Source::Realloc);
        }
        if size == 0 {
            record_end(saved, block, Release::Realloc, record::FREE);
            calls::freed(options, 0, call, || work::end(options, saved, block, "realloc"));
            return NULL;
        }
        record_end(saved, block, Release::Realloc, record::REALLOC_BEGIN);
        let new = work::exchange(options, saved, block, size);
        record_exchange(saved, block, new, size);
        new
    })
}

stub!(grapnel_agent_debug_posix_memalign, posix_memalign, 3, beside grapnel_agent_debug_beside_posix_memalign);
unsafe extern "C" fn posix_memalign(
    out: *mut Block,
    alignment: usize,
    size: usize,
    saved: Saved<'_>,
) -> c_int {
    let Some(options) = wanted(saved) else {
        // SAFETY: the caller's call, passed on.
        return unsafe { own::posix_memalign(out, alignment, size) };
    };
    let failed = ptr::without_provenance_mut(libc::ENOMEM as usize);
    rescued(saved, failed, 0, || {
        if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
            return libc::EINVAL;
        }
        // SAFETY: this thread's errno.
        let errno = unsafe { crate::sys::errno_location() };
        // SAFETY: as above.
        let before = unsafe { *errno };
        let block = calls::given(options, Call::Memalign { alignment, size }, || {
            if options.guards() {
                return work::aligned(options, saved, alignment, size);
            }
            let mut raw = NULL;
            let whole = size.max(1).saturating_add(options.expand);
            // SAFETY: the caller's call, for some bytes more.
            let error = unsafe { own::posix_memalign(&raw mut raw, alignment, whole) };
            if error == 0 { work::given(options, saved, raw, 0, size.max(1), true) } else { NULL }
        });
        // SAFETY: as above; where the caller says, if there is a block.
        unsafe {
            *errno = before;
            if block.is_null() {
                return libc::ENOMEM;
            }
            *out = block;
        }
        recorded_aligned(saved, block, size, alignment);
        0
    })
}

macro_rules! aligned {
    ($stub:ident, $beside:ident, $hook:ident, $function:ident) => {
        stub!($stub, $hook, 2, beside $beside);
        unsafe extern "C" fn $hook(alignment: usize, size: usize, saved: Saved<'_>) -> Block {
            match wanted(saved) {
                Some(options) => rescued(saved, NULL, 0, || {
                    let block = work::allocate_aligned(options, saved, Function::$function, alignment, size);
                    recorded_aligned(saved, block, size, alignment)
                }),
                // SAFETY: the caller's call, passed on.
                None => unsafe { own::aligned(Function::$function, alignment, size) },
            }
        }
    };
}
aligned!(grapnel_agent_debug_memalign, grapnel_agent_debug_beside_memalign, memalign, Memalign);
aligned!(
    grapnel_agent_debug_aligned_alloc,
    grapnel_agent_debug_beside_aligned_alloc,
    aligned_alloc,
    AlignedAlloc
);

macro_rules! paged {
    ($stub:ident, $beside:ident, $hook:ident, $function:ident, $size:expr) => {
        stub!($stub, $hook, 1, beside $beside);
        unsafe extern "C" fn $hook(size: usize, saved: Saved<'_>) -> Block {
            let Some(options) = wanted(saved) else {
                type Call = unsafe extern "C" fn(usize) -> Block;
                // SAFETY: the caller's call, passed on.
                return inside(|| unsafe { original_as::<Call>(Function::$function)(size) });
            };
            let whole: fn(usize) -> Option<usize> = $size;
            rescued(saved, NULL, 0, || match whole(size) {
                Some(whole) => {
                    let block = work::allocate_aligned(options, saved, Function::Memalign, crate::sys::PAGE, whole);
                    recorded(saved, block, size, Source::Aligned)
                }
                None => work::out_of_memory(),
            })
        }
    };
}
paged!(grapnel_agent_debug_valloc, grapnel_agent_debug_beside_valloc, valloc, Valloc, Some);
paged!(grapnel_agent_debug_pvalloc, grapnel_agent_debug_beside_pvalloc, pvalloc, Pvalloc, |size| {
    size.checked_next_multiple_of(crate::sys::PAGE)
});

stub!(grapnel_agent_debug_usable_size, usable_size, 1, beside grapnel_agent_debug_beside_usable_size);
unsafe extern "C" fn usable_size(block: Block, saved: Saved<'_>) -> usize {
    let own = || {
        // SAFETY: the caller's call, passed on.
        unsafe { own::usable_size(block) }
    };
    let Some(options) = wanted(saved).filter(|_| !block.is_null()) else { return own() };
    rescued(saved, NULL, 0, || match blocks::get(block.addr()) {
        Some(entry) => work::usable(options, &entry),
        None if work::is_unknown(options, saved, block, "malloc_usable_size") => 0,
        None => own(),
    })
}

/// The functions to hook, where they are libc's.
pub(crate) fn allocation_functions() -> [Hooked; 10] {
    [
        (b"malloc", grapnel_agent_debug_malloc, Function::Malloc),
        (b"calloc", grapnel_agent_debug_calloc, Function::Calloc),
        (b"realloc", grapnel_agent_debug_realloc, Function::Realloc),
        (b"free", grapnel_agent_debug_free, Function::Free),
        (b"posix_memalign", grapnel_agent_debug_posix_memalign, Function::PosixMemalign),
        (b"memalign", grapnel_agent_debug_memalign, Function::Memalign),
        (b"aligned_alloc", grapnel_agent_debug_aligned_alloc, Function::AlignedAlloc),
        (b"valloc", grapnel_agent_debug_valloc, Function::Valloc),
        (b"pvalloc", grapnel_agent_debug_pvalloc, Function::Pvalloc),
        (b"malloc_usable_size", grapnel_agent_debug_usable_size, Function::UsableSize),
    ]
}

/// The same, where they may lie beside their callers.
pub(crate) fn allocation_functions_beside() -> [Hooked; 10] {
    [
        (b"malloc", grapnel_agent_debug_beside_malloc, Function::Malloc),
        (b"calloc", grapnel_agent_debug_beside_calloc, Function::Calloc),
        (b"realloc", grapnel_agent_debug_beside_realloc, Function::Realloc),
        (b"free", grapnel_agent_debug_beside_free, Function::Free),
        (b"posix_memalign", grapnel_agent_debug_beside_posix_memalign, Function::PosixMemalign),
        (b"memalign", grapnel_agent_debug_beside_memalign, Function::Memalign),
        (b"aligned_alloc", grapnel_agent_debug_beside_aligned_alloc, Function::AlignedAlloc),
        (b"valloc", grapnel_agent_debug_beside_valloc, Function::Valloc),
        (b"pvalloc", grapnel_agent_debug_beside_pvalloc, Function::Pvalloc),
        (b"malloc_usable_size", grapnel_agent_debug_beside_usable_size, Function::UsableSize),
    ]
}
