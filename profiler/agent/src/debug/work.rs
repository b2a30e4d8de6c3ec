//! What is done for a call: a block is given, ended or exchanged, with what the options add to it.
//!
//! # Safety
//! Blocks are the caller's, as the function takes them whose call it is; the allocator is asked for more bytes, and given the
//! address that it knows.

use super::allocator as own;
use super::options::{ALIGNMENT, Options};
use super::record::{self as calls, Call};
use super::table::Block as Entry;
use super::{blocks, errors, freed, old};
use crate::entry::SavedRegisters;
use crate::hooks::Function;
use crate::lock::Quiet;
use core::ffi::c_void;
use core::ptr;

type Block = *mut c_void;
type Saved<'a> = &'a SavedRegisters;

const NULL: Block = ptr::null_mut();

pub(crate) fn out_of_memory() -> Block {
    // SAFETY: this thread's errno.
    unsafe { *crate::sys::errno_location() = libc::ENOMEM };
    NULL
}

/// What the program may use of a block, as it is told.
pub(crate) fn usable(options: &Options, entry: &Entry) -> usize {
    // SAFETY: the allocator's own block, which is live.
    entry.usable(options, unsafe { own::usable_size(entry.raw()) })
}

/// What becomes of a block that the allocator gave: `raw` is where it begins, `offset` behind that what the program gets.
pub(crate) fn given(
    options: &Options,
    saved: Saved<'_>,
    raw: Block,
    offset: usize,
    size: usize,
    fill: bool,
) -> Block {
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

pub(crate) fn allocate(options: &Options, saved: Saved<'_>, size: usize) -> Block {
    let size = size.max(1);
    let Some(whole) = size.checked_add(options.extra()) else { return out_of_memory() };
    // SAFETY: any size may be asked for.
    let raw = unsafe { own::malloc(whole) };
    given(options, saved, raw, options.front_guard, size, true)
}

/// Of a pointer that is in no table: says what is wrong with it, unless it is older than the hooks. Whether it is wrong.
pub(crate) fn is_unknown(options: &Options, saved: Saved<'_>, block: Block, name: &str) -> bool {
    let address = block.addr();
    if !options.tracks() || old::is_old(address) {
        return false;
    }
    let quiet = Quiet::new();
    let what = if freed::has(address) { "USED AFTER FREE" } else { "UNKNOWN POINTER" };
    let what = format_args!("+++ ALLOCATION {address:#x} {what} ({name})");
    errors::report(Some(saved), &quiet, what, |names| freed::say_where(names, options, address));
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
pub(crate) fn end(options: &Options, saved: Saved<'_>, block: Block, name: &str) {
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

/// Exchanges a block that has guards for one of another size. What becomes of the old one is the caller's if another is
/// given.
fn exchange_guarded(options: &Options, saved: Saved<'_>, old: &Entry, size: usize) -> Block {
    let usable = usable(options, old);
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
        let _ = blocks::put(*old);
        return NULL;
    }
    let from: *const u8 = ptr::with_exposed_provenance(old.address);
    // SAFETY: both blocks have so many bytes, and are different ones.
    unsafe { ptr::copy_nonoverlapping(from, new.cast(), usable.min(size)) };
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

/// What `realloc` does with a block, and notes of it.
pub(crate) fn exchange(options: &Options, saved: Saved<'_>, block: Block, size: usize) -> Block {
    match blocks::take(block.addr()) {
        Some(old) if options.guards() => {
            let call = Call::Realloc { old: block.addr(), size };
            let new = calls::given(options, call, || exchange_guarded(options, saved, &old, size));
            if !new.is_null() && new != block {
                release(options, saved, &old);
            }
            new
        }
        None if is_unknown(options, saved, block, "realloc") => NULL,
        old => calls::exchanged(options, block.addr(), size, || {
            exchange_plainly(options, saved, block, old, size)
        }),
    }
}

/// A block at a multiple of `alignment`, with guards around it.
pub(crate) fn aligned(options: &Options, saved: Saved<'_>, alignment: usize, size: usize) -> Block {
    let size = size.max(1);
    let alignment = alignment.max(ALIGNMENT).checked_next_power_of_two();
    let whole = alignment.and_then(|alignment| size.checked_add(options.extra())?.checked_add(alignment));
    let (Some(alignment), Some(whole)) = (alignment, whole) else { return out_of_memory() };
    // SAFETY: any size may be asked for.
    let raw = unsafe { own::malloc(whole) };
    let start = raw.addr();
    let offset = (start + options.front_guard).next_multiple_of(alignment) - start;
    if u32::try_from(offset).is_err() {
        // There is no room for it in an entry.
        // SAFETY: the block that was just given.
        unsafe { own::free(raw) };
        return out_of_memory();
    }
    given(options, saved, raw, offset, size, true)
}

/// What the functions that take an alignment do.
pub(crate) fn allocate_aligned(
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
