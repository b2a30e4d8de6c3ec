//! The hooks of a recording in which only some allocations are recorded.
//!
//! They begin with a few instructions that let all others pass: without a stack, without registers saved. An allocation
//! lowers what is left of the thread's gap ([`crate::sampling`]); a block that is given back is looked up in two small
//! tables ([`crate::filter`]). Only where these say so, the way through a stub and the record is taken.
//!
//! A recorded block is noted in a table that is exact ([`crate::few`], or the shadow where many are recorded, [`crate::shadow`]), and by where it lies
//! in those tables. Both happen before the program is told the address, so whoever frees it finds it, in whatever thread.
//!
//! Operators of C++ itself aren't hooked then: what they call is what is recorded. Others are ([`crate::operators`]), as an allocator's
//! own call nothing that is hooked. They and families ([`crate::families`]) have no quick beginning, and pools none of their own.
//!
//! What a record runs lies side by side in a section that the linker puts together, `.text.hot.grapnel`: code has to come from memory as well, and
//! where the processor finds each page of it has to be looked up.
//!
//! # Safety
//! As in [`crate::hooks`]. The quick beginnings, which are in [`native`](crate::native::quick), change registers only that a function may change and that hold no
//! argument of theirs.

use crate::context::Context;
use crate::entry::{SavedRegisters, rescued, stub};
use crate::hooks::{Function, Hooked, inside, is_inside, original, original_as};
use crate::native::quick::{
    grapnel_agent_quick_beside_free, grapnel_agent_quick_beside_malloc, grapnel_agent_quick_calloc,
    grapnel_agent_quick_free, grapnel_agent_quick_malloc, grapnel_agent_quick_realloc,
};
use crate::record::{self, enter};
use crate::sampling::{self, Costs};
use crate::shadow::{self, Asked};
use crate::tls::{self, Sampling, Tls};
use crate::{few, filter};
use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use core::ptr;
use grapnel_trace::{Alignment, Source};

type Block = *mut c_void;
type Saved<'a> = &'a SavedRegisters;

#[unsafe(link_section = ".text.hot.grapnel")]
fn note(block: Block) {
    let address = block.addr();
    if sampling::is_sparse() && few::note(address) {
        // It may be there where it was given back by a way that isn't seen.
        let _ = shadow::take(address);
    } else {
        shadow::note_plainly(address, sampling::is_sparse());
    }
    filter::note(address);
}

/// Has the processor fetch what [`note`] changes.
#[inline(always)]
fn expect(block: Block) {
    filter::expect(block.addr());
    if sampling::is_sparse() {
        few::expect(block.addr());
    } else {
        let _ = shadow::expect(block.addr());
    }
}

/// Whether the block was recorded; it is no more.
#[unsafe(link_section = ".text.hot.grapnel")]
fn forget(block: Block) -> bool {
    let is_noted = few::take(block.addr()) || shadow::take(block.addr()) != 0;
    if is_noted {
        filter::forget(block.addr());
    }
    is_noted
}

/// The mean by which an allocation is to be recorded that came by a quick beginning, if it is.
#[inline(always)]
fn chosen(size: usize) -> Option<u64> {
    if cfg!(grapnel_attached) { sampling::passes(size) } else { sampling::passed(size) }
}

/// The same of one that came by a beginning which lowers the gap, or by one which leaves that alone.
fn chosen_either_way(size: usize) -> Option<u64> {
    let is_lowered = tls::sampling().left.get() < 0;
    if is_lowered { sampling::passed(size) } else { sampling::passes(size) }
}

/// Where in a thread's block that is.
pub(crate) const LEFT: usize = offset_of!(Tls, sampling) + offset_of!(Sampling, left);

/// A block was given out; `mean` if it is to be recorded. `result`: what the function returns.
#[inline(always)]
fn given(
    saved: Saved<'_>,
    block: Block,
    size: usize,
    source: Source,
    alignment: Alignment,
    mean: Option<u64>,
    result: Block,
) {
    // libc's aligned functions and realloc may call malloc: what was drawn for that is of no use to anybody, and does no harm.
    let Some(mean) = mean.filter(|_| !block.is_null() && !is_inside(saved)) else { return };
    let _costs = Costs::begin();
    rescued(saved, result, 0, || {
        enter(saved, |context| {
            // What that takes comes from memory while the stack is walked.
            expect(block);
            context.tell_mean(mean);
            context.alloc_aligned(saved, block.addr() as u64, size as u64, source, alignment);
            note(block);
        });
    });
}

/// An operator that isn't C++'s own gave a block; `mean` if it is to be recorded.
pub(crate) fn given_by_operator(
    saved: Saved<'_>,
    block: usize,
    asked: &Asked,
    source: Source,
    mean: Option<u64>,
) {
    let block: Block = ptr::with_exposed_provenance_mut(block);
    given(saved, block, asked.size, source, asked.alignment(), mean, block);
}

/// It is about to take one, and then to go on in its `original`.
pub(crate) fn given_back(saved: Saved<'_>, block: u64, original: usize) {
    if !filter::may_have(block as usize) {
        return;
    }
    let _costs = Costs::begin();
    if block != 0 && forget(ptr::with_exposed_provenance_mut(block as usize)) {
        told(saved, original, ptr::null_mut(), |context| context.plain(record::FREE, block));
    }
}

/// Records something of a block before libc takes it back, with a way out to libc's own `function`.
#[inline(always)]
fn told(saved: Saved<'_>, function: usize, result: Block, tell: impl FnOnce(&mut Context)) {
    rescued(saved, result, function, || enter(saved, tell));
}

stub!(grapnel_agent_sampled_malloc, malloc, 1, beside grapnel_agent_sampled_beside_malloc);
#[unsafe(link_section = ".text.hot.grapnel")]
unsafe extern "C" fn malloc(size: usize, saved: Saved<'_>) -> Block {
    let mean = chosen(size);
    // SAFETY: the caller's call, passed on.
    let block = unsafe { original_as::<unsafe extern "C" fn(usize) -> Block>(Function::Malloc)(size) };
    given(saved, block, size, Source::Malloc, Alignment::NONE, mean, block);
    block
}

stub!(grapnel_agent_sampled_malloc_of_others, malloc_of_others, 1, only beside);
/// As [`malloc`], of one that may call others that are hooked: what these give is part of it. It has no quick beginning, by which it would leave no mark.
unsafe extern "C" fn malloc_of_others(size: usize, saved: Saved<'_>) -> Block {
    let mean = if is_inside(saved) { None } else { sampling::passes(size) };
    // SAFETY: the function's own type.
    let call = unsafe { original_as::<unsafe extern "C" fn(usize) -> Block>(Function::Malloc) };
    // SAFETY: the caller's call, passed on.
    let block = inside(|| unsafe { call(size) });
    given(saved, block, size, Source::Malloc, Alignment::NONE, mean, block);
    block
}

stub!(grapnel_agent_sampled_calloc, calloc, 2, beside grapnel_agent_sampled_beside_calloc);
unsafe extern "C" fn calloc(count: usize, size: usize, saved: Saved<'_>) -> Block {
    let mean = chosen_either_way(count.wrapping_mul(size));
    // SAFETY: the function's own type.
    let call = unsafe { original_as::<unsafe extern "C" fn(usize, usize) -> Block>(Function::Calloc) };
    // SAFETY: the caller's call, passed on.
    let block = inside(|| unsafe { call(count, size) });
    given(saved, block, count.wrapping_mul(size), Source::Calloc, Alignment::NONE, mean, block);
    block
}

stub!(grapnel_agent_sampled_free, free, 1, nothing, beside grapnel_agent_sampled_beside_free);
#[unsafe(link_section = ".text.hot.grapnel")]
unsafe extern "C" fn free(block: Block, saved: Saved<'_>) {
    let costs = Costs::begin();
    if forget(block) {
        sampling::mend();
        told(saved, original(Function::Free), ptr::null_mut(), |context| {
            context.plain(record::FREE, block.addr() as u64);
        });
    }
    drop(costs);
    // SAFETY: the caller's call, passed on.
    unsafe { original_as::<unsafe extern "C" fn(Block)>(Function::Free)(block) }
}

stub!(grapnel_agent_sampled_realloc, realloc, 2, beside grapnel_agent_sampled_beside_realloc);
unsafe extern "C" fn realloc(old: Block, size: usize, saved: Saved<'_>) -> Block {
    if old.is_null() {
        let mean = sampling::passes(size);
        // SAFETY: the function's own type.
        let call = unsafe { original_as::<unsafe extern "C" fn(Block, usize) -> Block>(Function::Realloc) };
        // SAFETY: the caller's call, passed on.
        let block = inside(|| unsafe { call(old, size) });
        given(saved, block, size, Source::Realloc, Alignment::NONE, mean, block);
        return block;
    }
    let mean = chosen_either_way(size);
    let address = old.addr() as u64;
    // Most blocks aren't, and what it takes to see that is no record's cost: two looks at the clock are more.
    let costs = filter::may_have(address as usize).then(Costs::begin);
    let was_recorded = costs.is_some() && forget(old);
    if was_recorded {
        // glibc frees the block when the size is 0.
        let kind = if size == 0 { record::FREE } else { record::REALLOC_BEGIN };
        told(saved, original(Function::Realloc), ptr::null_mut(), |context| context.plain(kind, address));
    }
    drop(costs);
    // SAFETY: the function's own type.
    let call = unsafe { original_as::<unsafe extern "C" fn(Block, usize) -> Block>(Function::Realloc) };
    // SAFETY: the caller's call, passed on.
    let block = inside(|| unsafe { call(old, size) });
    if size == 0 || (mean.is_none() && !was_recorded) {
        return block;
    }
    let _costs = Costs::begin();
    match mean {
        _ if block.is_null() && was_recorded => told(saved, 0, block, |context| {
            context.plain(record::REALLOC_FAILED, address);
            note(old);
        }),
        _ if block.is_null() => {}
        Some(mean) => told(saved, 0, block, |context| {
            context.tell_mean(mean);
            context.realloc_end(saved, block.addr() as u64, size as u64, address);
            note(block);
        }),
        None if was_recorded => told(saved, 0, block, |context| context.gone(address)),
        None => {}
    }
    block
}

stub!(grapnel_agent_sampled_posix_memalign, posix_memalign, 3, beside grapnel_agent_sampled_beside_posix_memalign);
unsafe extern "C" fn posix_memalign(
    out: *mut Block,
    alignment: usize,
    size: usize,
    saved: Saved<'_>,
) -> c_int {
    type Call = unsafe extern "C" fn(*mut Block, usize, usize) -> c_int;
    let mean = sampling::passes(size);
    // SAFETY: the caller's call, passed on.
    let error = inside(|| unsafe { original_as::<Call>(Function::PosixMemalign)(out, alignment, size) });
    if error == 0 {
        // SAFETY: on success the block's address was stored there.
        let block = unsafe { *out };
        given(saved, block, size, Source::Aligned, Alignment::of(alignment as u64), mean, ptr::null_mut());
    }
    error
}

macro_rules! aligned {
    ($stub:ident, $beside:ident, $hook:ident, $function:ident) => {
        stub!($stub, $hook, 2, beside $beside);
        unsafe extern "C" fn $hook(alignment: usize, size: usize, saved: Saved<'_>) -> Block {
            type Call = unsafe extern "C" fn(usize, usize) -> Block;
            let mean = sampling::passes(size);
            // SAFETY: the caller's call, passed on.
            let block = inside(|| unsafe { original_as::<Call>(Function::$function)(alignment, size) });
            given(saved, block, size, Source::Aligned, Alignment::of(alignment as u64), mean, block);
            block
        }
    };
}
aligned!(grapnel_agent_sampled_memalign, grapnel_agent_sampled_beside_memalign, memalign, Memalign);
aligned!(
    grapnel_agent_sampled_aligned_alloc,
    grapnel_agent_sampled_beside_aligned_alloc,
    aligned_alloc,
    AlignedAlloc
);

macro_rules! paged {
    ($stub:ident, $beside:ident, $hook:ident, $function:ident) => {
        stub!($stub, $hook, 1, beside $beside);
        unsafe extern "C" fn $hook(size: usize, saved: Saved<'_>) -> Block {
            let mean = sampling::passes(size);
            // SAFETY: the function's own type.
            let call = unsafe { original_as::<unsafe extern "C" fn(usize) -> Block>(Function::$function) };
            // SAFETY: the caller's call, passed on.
            let block = inside(|| unsafe { call(size) });
            given(saved, block, size, Source::Aligned, Alignment::NONE, mean, block);
            block
        }
    };
}
paged!(grapnel_agent_sampled_valloc, grapnel_agent_sampled_beside_valloc, valloc, Valloc);
paged!(grapnel_agent_sampled_pvalloc, grapnel_agent_sampled_beside_pvalloc, pvalloc, Pvalloc);

/// As [`crate::hooks::allocation_functions`].
pub(crate) fn allocation_functions() -> [Hooked; 9] {
    [
        (b"malloc", grapnel_agent_quick_malloc, Function::Malloc),
        (b"calloc", grapnel_agent_quick_calloc, Function::Calloc),
        (b"realloc", grapnel_agent_quick_realloc, Function::Realloc),
        (b"free", grapnel_agent_quick_free, Function::Free),
        (b"posix_memalign", grapnel_agent_sampled_posix_memalign, Function::PosixMemalign),
        (b"memalign", grapnel_agent_sampled_memalign, Function::Memalign),
        (b"aligned_alloc", grapnel_agent_sampled_aligned_alloc, Function::AlignedAlloc),
        (b"valloc", grapnel_agent_sampled_valloc, Function::Valloc),
        (b"pvalloc", grapnel_agent_sampled_pvalloc, Function::Pvalloc),
    ]
}

/// The `malloc` of others than libc, where it is known to call no other function that is hooked.
pub(crate) const LEAF_MALLOC: Hooked = (b"malloc", grapnel_agent_quick_beside_malloc, Function::Malloc);

/// As [`crate::hooks::allocation_functions_beside`].
pub(crate) fn allocation_functions_beside() -> [Hooked; 9] {
    [
        (b"malloc", grapnel_agent_sampled_malloc_of_others, Function::Malloc),
        // These may call `malloc` by its name, which is part of their call and is to know it.
        (b"calloc", grapnel_agent_sampled_beside_calloc, Function::Calloc),
        (b"realloc", grapnel_agent_sampled_beside_realloc, Function::Realloc),
        (b"free", grapnel_agent_quick_beside_free, Function::Free),
        (b"posix_memalign", grapnel_agent_sampled_beside_posix_memalign, Function::PosixMemalign),
        (b"memalign", grapnel_agent_sampled_beside_memalign, Function::Memalign),
        (b"aligned_alloc", grapnel_agent_sampled_beside_aligned_alloc, Function::AlignedAlloc),
        (b"valloc", grapnel_agent_sampled_beside_valloc, Function::Valloc),
        (b"pvalloc", grapnel_agent_sampled_beside_pvalloc, Function::Pvalloc),
    ]
}
