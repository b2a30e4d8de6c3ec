//! What each allocation function does in this mode.
//!
//! # Safety
//! As in [`crate::hooks`]: entered through stubs with the arguments of the function of that name, whose own code is called
//! with others: more bytes for guards, and the address that the allocator knows.

use super::allocator as own;
use super::options::{ALIGNMENT, Options};
use super::record::{self as calls, Call};
use super::recorded::{record_end, record_exchange, recorded, recorded_aligned};
use super::table::Block as Entry;
use super::{blocks, errors, fork, freed, options, signals};
use crate::entry::{SavedRegisters, rescued, stub};
use crate::hooks::{self, Function, Hooked, inside, original_as};
use crate::lock::Quiet;
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

fn out_of_memory() -> Block {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = libc::ENOMEM };
    NULL
}

/// What the program may use of a block, as it is told.
fn usable(options: &Options, entry: &Entry) -> usize {
    // SAFETY: the allocator's own block, which is live.
    entry.usable(options, unsafe { own::usable_size(entry.raw()) })
}

/// What becomes of a block that the allocator gave: `raw` is where it begins, `offset` behind that what the program gets.
fn given(options: &Options, saved: Saved<'_>, raw: Block, offset: usize, size: usize, fill: bool) -> Block {
    if raw.is_null() {
        return NULL;
    }
    let address = raw.expose_provenance() + offset;
    if options.tracks() {
        let quiet = Quiet::new();
        let entry = blocks::entry(options, address, size, offset, saved, &quiet);
        if options.guards() {
            entry.guard(options);
        }
        if blocks::put(entry).is_err() {
            drop(quiet);
            // SAFETY: the block that was just given.
            unsafe { own::free(raw) };
            return out_of_memory();
        }
        drop(quiet);
        if fill && options.fill_on_alloc != 0 {
            blocks::fill_allocated(options, address, 0, usable(options, &entry));
        }
    } else if fill && options.fill_on_alloc != 0 {
        // SAFETY: the block that was just given.
        blocks::fill_allocated(options, address, 0, unsafe { own::usable_size(raw) });
    }
    ptr::with_exposed_provenance_mut(address)
}

fn allocate(options: &Options, saved: Saved<'_>, size: usize) -> Block {
    let size = size.max(1);
    let Some(whole) = size.checked_add(options.extra()) else { return out_of_memory() };
    // SAFETY: any size may be asked for.
    let raw = unsafe { own::malloc(whole) };
    given(options, saved, raw, options.front_guard, size, true)
}

stub!(grapnel_agent_debug_malloc, malloc, "rsi", beside grapnel_agent_debug_beside_malloc);
unsafe extern "C" fn malloc(size: usize, saved: Saved<'_>) -> Block {
    let Some(options) = wanted(saved) else {
        // SAFETY: the caller's call, passed on.
        return unsafe { own::malloc(size) };
    };
    rescued(saved, NULL, 0, || {
        let block = calls::given(options, Call::Malloc { size }, || allocate(options, saved, size));
        recorded(saved, block, size, Source::Malloc)
    })
}

stub!(grapnel_agent_debug_calloc, calloc, "rdx", beside grapnel_agent_debug_beside_calloc);
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
        let (Some(size), Some(whole)) = (size, whole) else { return out_of_memory() };
        let block = calls::given(options, Call::Calloc { count, size: each }, || {
            // SAFETY: any size may be asked for.
            let raw = unsafe { own::calloc(1, whole) };
            given(options, saved, raw, options.front_guard, size, false)
        });
        recorded(saved, block, asked.unwrap_or(0), Source::Calloc)
    })
}

/// Of a pointer that is in no table: says what is wrong with it, unless it is older than the hooks. Whether it is wrong.
fn is_unknown(options: &Options, saved: Saved<'_>, block: Block, name: &str) -> bool {
    let address = block.addr();
    if !options.tracks() || blocks::is_old(address) {
        return false;
    }
    let quiet = Quiet::new();
    let what = if freed::has(address) { "USED AFTER FREE" } else { "UNKNOWN POINTER" };
    let what = format_args!("+++ ALLOCATION {address:#x} {what} ({name})");
    errors::report(Some(saved), &quiet, what, || freed::say_where(options, address));
    true
}

/// The end of a block that was taken out of the table.
fn release(options: &Options, saved: Saved<'_>, entry: &Entry) {
    if options.guards() {
        entry.check(options, saved, &Quiet::new());
    }
    if options.fill_on_free != 0 {
        blocks::fill_freed(options, entry.address, usable(options, entry));
    }
    let gone = match options.freed {
        0 => Some(*entry),
        _ => freed::keep(options, saved, &Quiet::new(), *entry, usable(options, entry)),
    };
    if let Some(gone) = gone {
        // SAFETY: the allocator's own block, which the program has given back.
        unsafe { own::free(gone.raw()) };
    }
}

/// What `free` does.
fn end(options: &Options, saved: Saved<'_>, block: Block, name: &str) {
    if let Some(entry) = blocks::take(block.addr()) {
        return release(options, saved, &entry);
    }
    if is_unknown(options, saved, block, name) {
        return;
    }
    if options.fill_on_free != 0 && !options.tracks() {
        // SAFETY: the caller's block, which it gives back.
        blocks::fill_freed(options, block.expose_provenance(), unsafe { own::usable_size(block) });
    }
    // SAFETY: the caller's call, passed on.
    unsafe { own::free(block) };
}

stub!(grapnel_agent_debug_free, free, "rsi", nothing, beside grapnel_agent_debug_beside_free);
unsafe extern "C" fn free(block: Block, saved: Saved<'_>) {
    match wanted(saved).filter(|_| !block.is_null() && !hooks::is_own_business(saved)) {
        Some(options) => rescued(saved, NULL, 0, || {
            record_end(saved, block, Release::Free, record::FREE);
            calls::freed(options, block.addr(), || end(options, saved, block, "free"));
        }),
        // SAFETY: the caller's call, passed on.
        None => unsafe { own::free(block) },
    }
}

/// Exchanges a block that has guards for one of another size.
fn exchange(options: &Options, saved: Saved<'_>, old: Entry, size: usize) -> Block {
    let usable = usable(options, &old);
    if size == old.size || size < usable {
        // It stays where it is, and gets the stack of this call.
        let quiet = Quiet::new();
        old.check(options, saved, &quiet);
        let entry = blocks::entry(options, old.address, size, old.offset as usize, saved, &quiet);
        entry.guard(options);
        // There is room, since an entry was just taken out.
        let _ = blocks::put(entry);
        return ptr::with_exposed_provenance_mut(old.address);
    }
    let new = allocate(options, saved, size);
    if new.is_null() {
        let _ = blocks::put(old);
        return NULL;
    }
    let from: *const u8 = ptr::with_exposed_provenance(old.address);
    // SAFETY: both blocks have so many bytes, and are different ones.
    unsafe { ptr::copy_nonoverlapping(from, new.cast(), usable.min(size)) };
    release(options, saved, &old);
    new
}

/// Exchanges a block by the allocator's own function.
fn exchange_plainly(
    options: &Options,
    saved: Saved<'_>,
    block: Block,
    old: Option<Entry>,
    size: usize,
) -> Block {
    let put_back = || old.map(blocks::put);
    let Some(whole) = size.checked_add(options.expand) else {
        put_back();
        return out_of_memory();
    };
    // SAFETY: the caller's block.
    let before = if options.fill_on_alloc != 0 { unsafe { own::usable_size(block) } } else { 0 };
    // SAFETY: the caller's call, for some bytes more.
    let new = unsafe { own::realloc(block, whole) };
    if new.is_null() {
        put_back();
        return NULL;
    }
    let new = given(options, saved, new, 0, size, false);
    if !new.is_null() && options.fill_on_alloc != 0 {
        // SAFETY: the block that was just given.
        let usable = unsafe { own::usable_size(new) };
        blocks::fill_allocated(options, new.addr(), before, usable);
    }
    new
}

stub!(grapnel_agent_debug_realloc, realloc, "rdx", beside grapnel_agent_debug_beside_realloc);
unsafe extern "C" fn realloc(block: Block, size: usize, saved: Saved<'_>) -> Block {
    let Some(options) = wanted(saved) else {
        // SAFETY: the caller's call, passed on.
        return unsafe { own::realloc(block, size) };
    };
    rescued(saved, NULL, 0, || {
        if block.is_null() {
            let block = calls::exchanged(options, 0, size, || allocate(options, saved, size));
            return recorded(saved, block, size, Source::Realloc);
        }
        if size == 0 {
            record_end(saved, block, Release::Realloc, record::FREE);
            return calls::exchanged(options, block.addr(), 0, || {
                end(options, saved, block, "realloc");
                NULL
            });
        }
        record_end(saved, block, Release::Realloc, record::REALLOC_BEGIN);
        let new = calls::exchanged(options, block.addr(), size, || match blocks::take(block.addr()) {
            Some(old) if options.guards() => exchange(options, saved, old, size),
            None if is_unknown(options, saved, block, "realloc") => NULL,
            old => exchange_plainly(options, saved, block, old, size),
        });
        record_exchange(saved, block, new, size);
        new
    })
}

/// A block at a multiple of `alignment`, with guards around it.
fn aligned(options: &Options, saved: Saved<'_>, alignment: usize, size: usize) -> Block {
    let size = size.max(1);
    let alignment = alignment.max(ALIGNMENT).checked_next_power_of_two();
    let whole = alignment.and_then(|alignment| size.checked_add(options.extra())?.checked_add(alignment));
    let (Some(alignment), Some(whole)) = (alignment, whole) else { return out_of_memory() };
    // SAFETY: any size may be asked for.
    let raw = unsafe { own::malloc(whole) };
    let start = raw.addr();
    let offset = (start + options.front_guard).next_multiple_of(alignment) - start;
    given(options, saved, raw, offset, size, true)
}

/// What the functions that take an alignment do.
fn allocate_aligned(
    options: &Options,
    saved: Saved<'_>,
    function: Function,
    alignment: usize,
    size: usize,
) -> Block {
    calls::given(options, Call::Memalign { alignment, size }, || {
        if options.guards() {
            return aligned(options, saved, alignment, size);
        }
        let size = size.max(1);
        let Some(whole) = size.checked_add(options.expand) else { return out_of_memory() };
        // SAFETY: any alignment and size may be asked for.
        let raw = unsafe { own::aligned(function, alignment, whole) };
        given(options, saved, raw, 0, size, true)
    })
}

stub!(grapnel_agent_debug_posix_memalign, posix_memalign, "rcx", beside grapnel_agent_debug_beside_posix_memalign);
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
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let before = unsafe { *errno };
        let block = calls::given(options, Call::Memalign { alignment, size }, || {
            if options.guards() {
                return aligned(options, saved, alignment, size);
            }
            let mut raw = NULL;
            let whole = size.max(1).saturating_add(options.expand);
            // SAFETY: the caller's call, for some bytes more.
            let error = unsafe { own::posix_memalign(&raw mut raw, alignment, whole) };
            if error == 0 { given(options, saved, raw, 0, size.max(1), true) } else { NULL }
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
        stub!($stub, $hook, "rdx", beside $beside);
        unsafe extern "C" fn $hook(alignment: usize, size: usize, saved: Saved<'_>) -> Block {
            match wanted(saved) {
                Some(options) => rescued(saved, NULL, 0, || {
                    let block = allocate_aligned(options, saved, Function::$function, alignment, size);
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
        stub!($stub, $hook, "rsi", beside $beside);
        unsafe extern "C" fn $hook(size: usize, saved: Saved<'_>) -> Block {
            let Some(options) = wanted(saved) else {
                type Call = unsafe extern "C" fn(usize) -> Block;
                // SAFETY: the caller's call, passed on.
                return inside(|| unsafe { original_as::<Call>(Function::$function)(size) });
            };
            let whole: fn(usize) -> Option<usize> = $size;
            rescued(saved, NULL, 0, || match whole(size) {
                Some(whole) => {
                    let block = allocate_aligned(options, saved, Function::Memalign, crate::sys::PAGE, whole);
                    recorded(saved, block, size, Source::Aligned)
                }
                None => out_of_memory(),
            })
        }
    };
}
paged!(grapnel_agent_debug_valloc, grapnel_agent_debug_beside_valloc, valloc, Valloc, Some);
paged!(grapnel_agent_debug_pvalloc, grapnel_agent_debug_beside_pvalloc, pvalloc, Pvalloc, |size| {
    size.checked_next_multiple_of(crate::sys::PAGE)
});

stub!(grapnel_agent_debug_usable_size, usable_size, "rsi", beside grapnel_agent_debug_beside_usable_size);
unsafe extern "C" fn usable_size(block: Block, saved: Saved<'_>) -> usize {
    let own = || {
        // SAFETY: the caller's call, passed on.
        unsafe { own::usable_size(block) }
    };
    let Some(options) = wanted(saved).filter(|_| !block.is_null()) else { return own() };
    rescued(saved, NULL, 0, || match blocks::get(block.addr()) {
        Some(entry) => usable(options, &entry),
        None if is_unknown(options, saved, block, "malloc_usable_size") => 0,
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
