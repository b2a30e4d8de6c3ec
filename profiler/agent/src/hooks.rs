//! What each hooked function records, and in which order.
//!
//! A block is recorded after libc gave it out and before libc takes it back, so that whoever gets the address
//! next is recorded later. `realloc` takes the block out of the record before, and puts a new one in after.
//! `reallocarray` is not in the list: libc's ends in `realloc`, and would be counted twice.
//!
//! libc's functions may use each other (`realloc` of nothing is `malloc`, of a large block `malloc` and a copy): a
//! call that comes from libc's own code, a few frames below ours, is part of the call that is being recorded.
//! A signal handler in the middle of it is further down: the kernel puts the registers in between. When a thread
//! ends, libc gives the blocks in its cache, which the program freed long before, to `free` again: such calls go
//! straight to `free`, where libc's calls on behalf of others go through its procedure linkage table, so that an
//! allocator of the program's own can take them.
//!
//! # Safety
//! The functions here are entered through their stubs, with the arguments of libc's function of that name, and
//! call libc's own code with them, once. [`ORIGINALS`] is filled in before a hook is live.

use crate::context::Context;
use crate::entry::{SavedRegisters, Stub, rescued, stub};
use crate::record::{self, enter};
use crate::span::Span;
use crate::{families, ledger, modules, native, shadow, slots, tls};
use core::ffi::{c_int, c_void};
use core::hint::cold_path;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use grapnel_trace::{Alignment, FreedAs, Release, Source};

type Block = *mut c_void;
type Saved<'a> = &'a SavedRegisters;

/// A hooked function's number.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(grapnel_attached, expect(dead_code, reason = "jumps and new programs are left alone there"))]
pub(crate) enum Function {
    Malloc,
    Calloc,
    Realloc,
    Free,
    PosixMemalign,
    Memalign,
    AlignedAlloc,
    Valloc,
    Pvalloc,
    Execve,
    Execveat,
    Fexecve,
    LoaderState,
    Mmap,
    Mmap64,
    Munmap,
    Mprotect,
    PkeyMprotect,
    Madvise,
    Mremap,
    Brk,
    Sbrk,
    Shmat,
    Shmdt,
    Longjmp,
    LongjmpChecked,
    UsableSize,
    Exit,
    #[cfg(grapnel_attached)]
    New,
    #[cfg(grapnel_attached)]
    NewArray,
    #[cfg(grapnel_attached)]
    NewOrNull,
    #[cfg(grapnel_attached)]
    NewArrayOrNull,
    #[cfg(grapnel_attached)]
    NewAligned,
    #[cfg(grapnel_attached)]
    NewArrayAligned,
    #[cfg(grapnel_attached)]
    NewAlignedOrNull,
    #[cfg(grapnel_attached)]
    NewArrayAlignedOrNull,
    #[cfg(grapnel_attached)]
    Delete,
    Prctl,
    Syscall,
    Fork,
    Clone,
    PthreadCreate,
}

const FUNCTIONS: usize = Function::PthreadCreate as usize + 1;

/// Where libc's own code of each function goes on, behind its hook.
pub(crate) static ORIGINALS: [AtomicUsize; FUNCTIONS] = [const { AtomicUsize::new(0) }; FUNCTIONS];

/// The functions that are hooked.
static TARGETS: [Span; FUNCTIONS] = [const { Span::empty() }; FUNCTIONS];

/// Notes where a function that is hooked lies.
pub(crate) fn remember_target(function: Function, code: &Range<usize>) {
    TARGETS[function as usize].set(code);
}

/// The address of a function that is hooked; 0 for none.
#[inline(always)]
pub(crate) fn target(function: Function) -> usize {
    TARGETS[function as usize].start()
}

/// What the first bytes of `malloc` and `free` were when the hooks had gone in.
static BEGINNINGS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The place of a function there.
#[inline(always)]
fn beginning_of(function: Function) -> &'static AtomicU64 {
    &BEGINNINGS[usize::from(matches!(function, Function::Free))]
}

/// The first bytes of a function whose code is hooked.
///
/// # Safety
/// `at` is its address, and [`has_first_bytes`].
#[inline(always)]
pub(crate) unsafe fn first_bytes(at: usize) -> u64 {
    let code: *const u64 = ptr::with_exposed_provenance(at);
    // SAFETY: code that can be read, as it was to be hooked. Whoever else patches it may do so in this moment: any value will do.
    unsafe { code.read_unaligned() }
}

/// Whether the first bytes of a function at an address can be read in one piece: they lie in one page.
pub(crate) fn has_first_bytes(at: usize) -> bool {
    const PAGE: usize = 4096;
    at != 0 && at % PAGE <= PAGE - size_of::<u64>()
}

/// Keeps what `malloc` and `free` begin with. The hooks have just gone in.
#[cfg(not(grapnel_attached))]
pub(crate) fn remember_beginnings() {
    for function in [Function::Malloc, Function::Free] {
        let at = target(function);
        // SAFETY: where the function lies.
        let bytes = if has_first_bytes(at) { unsafe { first_bytes(at) } } else { 0 };
        beginning_of(function).store(bytes, Ordering::Relaxed);
    }
}

/// What `malloc` or `free` began with then; 0 where that can't be looked at. Who finds it there and calls the original in the function's
/// place passes nobody over.
pub(crate) fn beginning(function: Function) -> u64 {
    beginning_of(function).load(Ordering::Relaxed)
}

/// Whether the function at an address is hooked.
pub(crate) fn is_target(address: usize) -> bool {
    TARGETS.iter().any(|target| target.start() == address)
}

/// The address of the original.
#[inline(always)]
pub(crate) fn original(function: Function) -> usize {
    ORIGINALS[function as usize].load(Ordering::Relaxed)
}

/// The original, callable.
///
/// # Safety
/// `F` is the type of a pointer to that function.
#[inline(always)]
pub(crate) unsafe fn original_as<F: Copy>(function: Function) -> F {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    let pointer: *const () = ptr::with_exposed_provenance(original(function));
    // SAFETY: the trampoline, set before the hook went live, is a function of this type.
    unsafe { core::mem::transmute_copy(&pointer) }
}

/// The most stack that libc's own code takes from where we call it to where it calls a hooked function. Less than
/// what a signal takes.
const INSIDE: usize = 800;

/// The most that the stub of a slot puts there besides, of its caller's.
const HANDED_ON: usize = 128;

/// The most stack that functions of others' take there. So far up may be what a signal has interrupted, too: it takes more than that to
/// say that a call is theirs.
pub(crate) const FAR: usize = 32 << 10;

/// Whether the call with these registers was made by libc's code, or by an operator of C++, for a function that we are
/// recording.
#[inline(always)]
pub(crate) fn is_inside(saved: Saved<'_>) -> bool {
    may_be_inside(saved) && is_inside_after_all(saved)
}

/// Whether that may be, and has to be looked at.
#[inline(always)]
pub(crate) fn may_be_inside(saved: Saved<'_>) -> bool {
    far_inside(saved) < FAR
}

/// Whether it lies so near that no other code can have come in between.
pub(crate) fn is_near(saved: Saved<'_>) -> bool {
    far_inside(saved) < INSIDE + HANDED_ON
}

/// Whether the thread is in no such call, as far as is known.
#[inline(always)]
pub(crate) fn is_outside_all() -> bool {
    tls::get().inside.get() == 0
}

/// How far up the stack the call was made that the thread is in.
#[inline(always)]
fn far_inside(saved: Saved<'_>) -> usize {
    tls::get().inside.get().wrapping_sub(ptr::from_ref(saved).addr())
}

#[cold]
#[inline(never)]
fn is_inside_after_all(saved: Saved<'_>) -> bool {
    let (from, caller) = (tls::get().inside.get(), saved.return_address());
    match (from & slots::MARKS, is_near(saved)) {
        (0, true) => true,
        (0, false) => is_in_function_of_others(caller) || is_of_others(saved, from),
        (_, true) => slots::is_own(from, caller),
        (_, false) => slots::is_own_from_afar(from, saved),
    }
}

/// Whether what others than libc do for the call at `from`, which takes much of the stack, led to that with these registers.
fn is_of_others(saved: Saved<'_>, from: usize) -> bool {
    !is_libcs(Function::Malloc) && modules::led_to(saved, from) == Some(true)
}

/// Whether code at an address is that of a function of the heap itself, which isn't libc's.
fn is_in_function_of_others(address: usize) -> bool {
    let heaps = Function::Malloc as usize..=Function::Pvalloc as usize;
    TARGETS[heaps].iter().any(|target| target.holds(address) && !LIBC.holds(target.start()))
}

/// libc's code.
static LIBC: Span = Span::empty();

/// The part of it in which it calls `free` for itself, and where that lies.
static OWN_BUSINESS: Span = Span::empty();
static FREE: AtomicUsize = AtomicUsize::new(0);

/// Keeps where libc's code lies, the part of it in which it calls `free` for itself, and `free`.
pub(crate) fn remember_libc(code: &Range<usize>, own: &Range<usize>, free: usize) {
    LIBC.set(code);
    OWN_BUSINESS.set(own);
    FREE.store(free, Ordering::Relaxed);
}

/// The code of the library whose `malloc` is the program's, where that isn't libc.
static ALLOCATOR: Span = Span::empty();

/// Keeps where that lies.
pub(crate) fn remember_allocator(code: &Range<usize>) {
    ALLOCATOR.set(code);
}

/// The code of glibc's library for threads, which was one of its own until 2.33 and maps their stacks.
static THREADS: Span = Span::empty();

/// Keeps where that lies.
pub(crate) fn remember_threads(code: &Range<usize>) {
    THREADS.set(code);
}

/// Whether a call that returns to an address is one of whoever gets memory for the program's heap: what it maps is in the heap. In a static
/// program that is the code of the allocator, and of what makes stacks for threads.
pub(crate) fn is_of_allocator(caller: usize) -> bool {
    is_libcs_own(&LIBC, caller)
        || is_libcs_own(&THREADS, caller)
        || ledger::is_of_others(caller)
        || ALLOCATOR.holds(caller)
}

/// Whether it is one that this code of libc's makes for itself. What libc calls by an address that it was given may end in a jump: a
/// thread's function, the handler of a signal, `main`.
fn is_libcs_own(code: &Span, caller: usize) -> bool {
    if !code.holds(caller) {
        return false;
    }
    // In a static program the functions lie elsewhere.
    let may_be = |target| code.holds(target) || is_target(target);
    // SAFETY: the bytes before lie in libc's code, which is mapped and can be read: it was, to be hooked.
    caller - code.start() < native::NAMED_CALL || unsafe { native::is_named_call(caller, may_be) }
}

/// Whether a function that is hooked is libc's own.
pub(crate) fn is_libcs(function: Function) -> bool {
    LIBC.holds(target(function))
}

/// Whether `free` was called by the allocator itself.
#[inline(always)]
pub(crate) fn is_own_business(saved: Saved<'_>) -> bool {
    may_be_own_business(saved) && is_direct_call(saved.return_address())
}

/// Whether that may be, and has to be looked at.
#[inline(always)]
fn may_be_own_business(saved: Saved<'_>) -> bool {
    OWN_BUSINESS.holds(saved.return_address())
}

/// Whether the call that returns to `caller`, in that part of libc's code, names `free` itself.
#[cold]
fn is_direct_call(caller: usize) -> bool {
    if caller.wrapping_sub(OWN_BUSINESS.start()) < native::CALL {
        return false;
    }
    // SAFETY: the bytes before lie in libc's code, which is mapped and can be read: it was, to be hooked.
    let target = unsafe { native::called_before(caller) };
    target == Some(FREE.load(Ordering::Relaxed))
}

/// Calls libc's own code, whose calls of hooked functions are not the program's.
#[inline(always)]
pub(crate) fn inside<T>(call: impl FnOnce() -> T) -> T {
    let tls = tls::get();
    let outer = tls.inside.replace(native::stack_pointer());
    let value = call();
    tls.inside.set(outer);
    value
}

/// Records a block that was given out, and returns it: so that the hooks end with a jump to here.
#[inline(never)]
pub(crate) fn given(saved: Saved<'_>, block: Block, size: usize, source: Source) -> Block {
    if !block.is_null() && (is_outside_all() || !is_given_inside(saved, block, size, source)) {
        rescued(saved, block, 0, || {
            enter(saved, |context| context.alloc(saved, block.addr() as u64, size as u64, source));
        });
    }
    block
}

/// Whether a block was given out amid a call that is being recorded, as part of that.
#[cold]
#[inline(never)]
fn is_given_inside(saved: Saved<'_>, block: Block, size: usize, source: Source) -> bool {
    families::has_asked(size);
    let is_inside = is_inside(saved);
    if is_inside && source == Source::Malloc {
        slots::Nested::Malloc(block.addr(), size).note();
    }
    is_inside
}

/// As [`given`], of a block that was asked to be aligned. `result`: what the function returns.
#[inline(always)]
pub(crate) fn given_aligned(saved: Saved<'_>, block: Block, size: usize, alignment: usize, result: Block) {
    families::has_asked(size);
    if !block.is_null() && !is_inside(saved) {
        let (address, size) = (block.addr() as u64, size as u64);
        let alignment = Alignment::of(alignment as u64);
        rescued(saved, result, 0, || {
            enter(saved, |context| context.alloc_aligned(saved, address, size, Source::Aligned, alignment));
        });
    }
}

/// As [`given`], of a block that `operator new` was asked for, with an alignment.
#[cfg(grapnel_attached)]
pub(crate) fn given_as(saved: Saved<'_>, block: Block, size: usize, source: Source, alignment: usize) {
    families::has_asked(size);
    if !block.is_null() && !is_inside(saved) {
        let (address, size) = (block.addr() as u64, size as u64);
        let alignment = Alignment::of(alignment as u64);
        rescued(saved, block, 0, || {
            enter(saved, |context| context.alloc_aligned(saved, address, size, source, alignment));
        });
    }
}

stub!(grapnel_agent_malloc, malloc, 1);
unsafe extern "C" fn malloc(size: usize, saved: Saved<'_>) -> Block {
    // SAFETY: the caller's call, passed on.
    let block = unsafe { original_as::<unsafe extern "C" fn(usize) -> Block>(Function::Malloc)(size) };
    given(saved, block, size, Source::Malloc)
}

stub!(grapnel_agent_beside_malloc, malloc_of_others, 1, only beside);
/// As [`malloc`], of others than libc, whose may call other functions that are hooked.
unsafe extern "C" fn malloc_of_others(size: usize, saved: Saved<'_>) -> Block {
    // SAFETY: the function's own type.
    let call = unsafe { original_as::<unsafe extern "C" fn(usize) -> Block>(Function::Malloc) };
    // SAFETY: the caller's call, passed on.
    let block = inside(|| unsafe { call(size) });
    given(saved, block, size, Source::Malloc)
}

stub!(grapnel_agent_calloc, calloc, 2, beside grapnel_agent_beside_calloc);
unsafe extern "C" fn calloc(count: usize, size: usize, saved: Saved<'_>) -> Block {
    // SAFETY: the caller's call, passed on.
    let call = unsafe { original_as::<unsafe extern "C" fn(usize, usize) -> Block>(Function::Calloc) };
    // SAFETY: as above.
    let block = inside(|| unsafe { call(count, size) });
    // A product that overflows gives no block.
    given(saved, block, count.wrapping_mul(size), Source::Calloc)
}

/// A block is about to be given back to libc, or to be exchanged by it. What `operator new` gave should not be.
#[inline(always)]
pub(crate) fn taken_back(context: &mut Context, saved: Saved<'_>, block: Block, release: Release, kind: u8) {
    let address = block.addr();
    if shadow::take(address) == 0 || shadow::is_incomplete() {
        context.plain(kind, address as u64);
    } else {
        let said = FreedAs { thread: 0, stack: 0, release, alignment: Alignment::NONE, size: None };
        context.freed_as(saved, said, kind, address as u64);
    }
}

stub!(grapnel_agent_beside_free, free_of_others, 1, nothing, only beside);
/// As [`free`], of others than libc, whose may call other functions that are hooked.
unsafe extern "C" fn free_of_others(block: Block, saved: Saved<'_>) {
    let is_simply_freed = if record::are_numbered() {
        is_simply_freed::<true>(block, saved)
    } else {
        is_simply_freed::<false>(block, saved)
    };
    if !is_simply_freed {
        cold_path();
        freed(block, saved);
    }
    // SAFETY: the caller's call, passed on.
    inside(|| unsafe { original_as::<unsafe extern "C" fn(Block)>(Function::Free)(block) });
}

stub!(grapnel_agent_free, free, 1);
unsafe extern "C" fn free(block: Block, saved: Saved<'_>) {
    // SAFETY: the caller's call, passed on.
    unsafe {
        if record::are_numbered() { free_as::<true>(block, saved) } else { free_as::<false>(block, saved) }
    }
}

/// `free`, where events are numbered or aren't.
///
/// # Safety
/// It is called so.
#[inline(never)]
unsafe fn free_as<const NUMBERED: bool>(block: Block, saved: Saved<'_>) {
    if !is_simply_freed::<NUMBERED>(block, saved) {
        cold_path();
        // SAFETY: the caller's call, passed on.
        return unsafe { free_of_any_kind(block, saved) };
    }
    // SAFETY: as above.
    unsafe { original_as::<unsafe extern "C" fn(Block)>(Function::Free)(block) }
}

/// Records that a block is about to be given back, where that is seen at once. Whether it was; otherwise nothing was done.
#[inline(always)]
fn is_simply_freed<const NUMBERED: bool>(block: Block, saved: Saved<'_>) -> bool {
    let (address, original) = (block.addr(), original(Function::Free));
    !block.is_null()
        && !may_be_inside(saved)
        && !may_be_own_business(saved)
        && shadow::surely_lacks(address)
        && record::plain_quickly::<NUMBERED>(saved, original, record::FREE, address as u64, None)
}

/// As [`free_as`], which does by itself what most calls need.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn free_of_any_kind(block: Block, saved: Saved<'_>) {
    freed(block, saved);
    // SAFETY: the caller's call, passed on.
    unsafe { original_as::<unsafe extern "C" fn(Block)>(Function::Free)(block) }
}

/// Records that a block is about to be given back, if that is no part of another call.
#[inline(always)]
fn freed(block: Block, saved: Saved<'_>) {
    if block.is_null() {
        // Nothing.
    } else if is_inside(saved) && !slots::is_in_new() {
        slots::Nested::Free(block.addr()).note();
    } else if !is_own_business(saved) {
        rescued(saved, ptr::null_mut(), original(Function::Free), || {
            enter(saved, |context| taken_back(context, saved, block, Release::Free, record::FREE));
        });
    }
}

stub!(grapnel_agent_realloc, realloc, 2, beside grapnel_agent_beside_realloc);
unsafe extern "C" fn realloc(old: Block, size: usize, saved: Saved<'_>) -> Block {
    // SAFETY: the function's own type.
    let call = unsafe { original_as::<unsafe extern "C" fn(Block, usize) -> Block>(Function::Realloc) };
    let gives_back = size == 0 && !old.is_null();
    if is_inside(saved) && !(gives_back && slots::is_in_new()) {
        // SAFETY: the caller's call, passed on: part of `reallocarray`, where that is another allocator's.
        return unsafe { call(old, size) };
    }
    let address = old.addr() as u64;
    if !old.is_null() {
        // glibc frees the block when the size is 0.
        let kind = if size == 0 { record::FREE } else { record::REALLOC_BEGIN };
        rescued(saved, ptr::null_mut(), original(Function::Realloc), || {
            enter(saved, |context| taken_back(context, saved, old, Release::Realloc, kind));
        });
    }
    // SAFETY: the caller's call, passed on.
    let block = inside(|| unsafe { call(old, size) });
    families::has_asked(size);
    if old.is_null() || size == 0 {
        return given(saved, block, size, Source::Realloc);
    }
    rescued(saved, block, 0, || {
        enter(saved, |context| {
            if block.is_null() {
                context.plain(record::REALLOC_FAILED, address);
            } else {
                context.realloc_end(saved, block.addr() as u64, size as u64, address);
            }
        });
    });
    block
}

stub!(grapnel_agent_posix_memalign, posix_memalign, 3, beside grapnel_agent_beside_posix_memalign);
unsafe extern "C" fn posix_memalign(
    out: *mut Block,
    alignment: usize,
    size: usize,
    saved: Saved<'_>,
) -> c_int {
    type Memalign = unsafe extern "C" fn(*mut Block, usize, usize) -> c_int;
    // SAFETY: the caller's call, passed on.
    let error = inside(|| unsafe { original_as::<Memalign>(Function::PosixMemalign)(out, alignment, size) });
    if error == 0 {
        // SAFETY: on success the block's address was stored there.
        let block = unsafe { *out };
        given_aligned(saved, block, size, alignment, ptr::null_mut());
    }
    error
}

macro_rules! aligned {
    ($stub:ident, $beside:ident, $hook:ident, $function:ident) => {
        stub!($stub, $hook, 2, beside $beside);
        unsafe extern "C" fn $hook(alignment: usize, size: usize, saved: Saved<'_>) -> Block {
            type Call = unsafe extern "C" fn(usize, usize) -> Block;
            // SAFETY: the caller's call, passed on.
            let block = inside(|| unsafe { original_as::<Call>(Function::$function)(alignment, size) });
            given_aligned(saved, block, size, alignment, block);
            block
        }
    };
}
aligned!(grapnel_agent_memalign, grapnel_agent_beside_memalign, memalign, Memalign);
aligned!(grapnel_agent_aligned_alloc, grapnel_agent_beside_aligned_alloc, aligned_alloc, AlignedAlloc);

macro_rules! paged {
    ($stub:ident, $beside:ident, $hook:ident, $function:ident) => {
        stub!($stub, $hook, 1, beside $beside);
        unsafe extern "C" fn $hook(size: usize, saved: Saved<'_>) -> Block {
            // SAFETY: the caller's call, passed on.
            let call = unsafe { original_as::<unsafe extern "C" fn(usize) -> Block>(Function::$function) };
            // SAFETY: as above.
            let block = inside(|| unsafe { call(size) });
            given(saved, block, size, Source::Aligned)
        }
    };
}
paged!(grapnel_agent_valloc, grapnel_agent_beside_valloc, valloc, Valloc);
paged!(grapnel_agent_pvalloc, grapnel_agent_beside_pvalloc, pvalloc, Pvalloc);

stub!(grapnel_agent_loader_state, loader_state, 0);
unsafe extern "C" fn loader_state(saved: Saved<'_>) {
    rescued(saved, ptr::null_mut(), 0, || modules::changed(saved));
    // SAFETY: the function takes and returns nothing.
    unsafe { original_as::<unsafe extern "C" fn()>(Function::LoaderState)() }
}

/// A function to hook: its name, the stub, its number.
pub(crate) type Hooked = (&'static [u8], Stub, Function);

/// The functions to hook, where they are libc's.
pub(crate) fn allocation_functions() -> [Hooked; 9] {
    [
        (b"malloc", grapnel_agent_malloc, Function::Malloc),
        (b"calloc", grapnel_agent_calloc, Function::Calloc),
        (b"realloc", grapnel_agent_realloc, Function::Realloc),
        (b"free", grapnel_agent_free, Function::Free),
        (b"posix_memalign", grapnel_agent_posix_memalign, Function::PosixMemalign),
        (b"memalign", grapnel_agent_memalign, Function::Memalign),
        (b"aligned_alloc", grapnel_agent_aligned_alloc, Function::AlignedAlloc),
        (b"valloc", grapnel_agent_valloc, Function::Valloc),
        (b"pvalloc", grapnel_agent_pvalloc, Function::Pvalloc),
    ]
}

/// The same, where they may lie beside their callers.
pub(crate) fn allocation_functions_beside() -> [Hooked; 9] {
    [
        (b"malloc", grapnel_agent_beside_malloc, Function::Malloc),
        (b"calloc", grapnel_agent_beside_calloc, Function::Calloc),
        (b"realloc", grapnel_agent_beside_realloc, Function::Realloc),
        (b"free", grapnel_agent_beside_free, Function::Free),
        (b"posix_memalign", grapnel_agent_beside_posix_memalign, Function::PosixMemalign),
        (b"memalign", grapnel_agent_beside_memalign, Function::Memalign),
        (b"aligned_alloc", grapnel_agent_beside_aligned_alloc, Function::AlignedAlloc),
        (b"valloc", grapnel_agent_beside_valloc, Function::Valloc),
        (b"pvalloc", grapnel_agent_beside_pvalloc, Function::Pvalloc),
    ]
}
