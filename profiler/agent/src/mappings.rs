//! What the program maps by itself: `mmap`, `munmap`, `mremap`, `brk`, `sbrk`, `shmat`, `shmdt`. Of `mprotect`, `pkey_mprotect` and `madvise` nothing is
//! recorded: they may make a stack unreadable that walks know.
//!
//! A kind of its own, apart from the heap. libc's own calls, which lead through the same code, are left out: memory for
//! `malloc`, whose blocks are recorded, and stacks of threads; as are those of a library whose `malloc` is the program's. The dynamic linker has its own copy of these functions.
//!
//! As for blocks, what goes is recorded before the call and what comes after it. A call that fails puts back what was
//! said to go.
//!
//! # Safety
//! As in [`crate::hooks`].

use crate::context::Context;
use crate::entry::{SavedRegisters, rescued, stub};
use crate::hooks::{self, Function, original, original_as};
use crate::record::enter;
use crate::{modules, sys};
use core::ffi::{c_int, c_void};
use core::ptr;
use grapnel_trace::Mapped;
use grapnel_trace::wire::{self, kind};

type Address = *mut c_void;
type Saved<'a> = &'a SavedRegisters;

/// What `mmap` and its kin return when they fail.
const FAILED: Address = ptr::without_provenance_mut(usize::MAX);

/// The address that all of these events are ordered by; see [`wire`].
const ORDER: u64 = 0;

impl Context {
    fn mapped(&mut self, saved: Saved<'_>, start: usize, len: usize, mapped: Mapped) {
        let Ok(node) = self.stack(saved) else { return };
        self.write::<2, 3>(ORDER, len as u64, wire::map(start as u64, node, len as u64, mapped));
    }

    fn unmapped(&mut self, start: usize, len: usize) {
        self.write::<2, 3>(ORDER, len as u64, wire::unmap(start as u64, len as u64));
    }

    fn remapped(&mut self, saved: Saved<'_>, start: usize, len: usize, old: usize) {
        let Ok(node) = self.stack(saved) else { return };
        self.write::<3, 4>(ORDER, len as u64, wire::remap(start as u64, node, len as u64, old as u64));
    }

    fn stays_mapped(&mut self) {
        self.write::<1, 2>(ORDER, 0, wire::plain(kind::MAP_FAILED, 0));
    }
}

/// Whether the call is the program's.
fn is_programs(saved: Saved<'_>) -> bool {
    !hooks::is_of_allocator(saved.return_address())
}

/// A length as the kernel takes it; `None` for one that no mapping has, with which the call will fail.
fn whole_pages(start: Address, len: usize) -> Option<usize> {
    let len = len.checked_next_multiple_of(sys::PAGE).filter(|&len| len != 0)?;
    let end = start.addr().checked_add(len)?;
    (end as u64 >> 56 == 0).then_some(len)
}

/// The bytes that a mapping with these flags comes in multiples of.
fn unit(flags: c_int) -> usize {
    // Of the kernel's `uapi/asm-generic/hugetlb_encode.h`: not all libraries have them.
    const MAP_HUGE_SHIFT: u32 = 26;
    const MAP_HUGE_MASK: u32 = 63;
    /// The kernel's own choice, on nearly all machines.
    const HUGE: u32 = 21;
    match flags as u32 >> MAP_HUGE_SHIFT & MAP_HUGE_MASK {
        _ if flags & libc::MAP_HUGETLB == 0 => sys::PAGE,
        0 => 1 << HUGE,
        log2 => 1usize.checked_shl(log2).unwrap_or(sys::PAGE),
    }
}

/// Records what is about to go. Whether anything was.
fn goes(saved: Saved<'_>, start: Address, len: Option<usize>, rescue: (Address, usize)) -> bool {
    if let Some(len) = len {
        rescued(saved, rescue.0, rescue.1, || enter(saved, |context| context.unmapped(start.addr(), len)));
    }
    len.is_some()
}

/// Records that what was said to go stays. `result`: what the function returns.
fn stays(saved: Saved<'_>, result: Address) {
    rescued(saved, result, 0, || enter(saved, Context::stays_mapped));
}

/// Records what came. `result`: what the function returns.
fn comes(saved: Saved<'_>, start: usize, len: usize, mapped: Mapped, result: Address) {
    rescued(saved, result, 0, || enter(saved, |context| context.mapped(saved, start, len, mapped)));
}

macro_rules! mmap {
    ($stub:ident, $hook:ident, $function:ident, $offset:ty, $($words:tt)+) => {
        stub!($stub, $hook, $($words)+);
        unsafe extern "C" fn $hook(
            hint: Address,
            len: usize,
            protection: c_int,
            flags: c_int,
            fd: c_int,
            offset: $offset,
            saved: Saved<'_>,
        ) -> Address {
            type Call = unsafe extern "C" fn(Address, usize, c_int, c_int, c_int, $offset) -> Address;
            // SAFETY: the function's own type.
            let call = unsafe { original_as::<Call>(Function::$function) };
            // SAFETY: the caller's call, passed on.
            let start = unsafe { call(hint, len, protection, flags, fd, offset) };
            mapped(saved, start, len, flags)
        }
    };
}
mmap!(grapnel_agent_mmap, mmap, Mmap, libc::off_t, 6);
mmap!(grapnel_agent_mmap64, mmap64, Mmap64, libc::off64_t, 6, wide last);

/// What came of a call of `mmap`.
fn mapped(saved: Saved<'_>, start: Address, len: usize, flags: c_int) -> Address {
    if start != FAILED && flags & libc::MAP_FIXED != 0 {
        modules::goes(start.addr(), len);
    }
    if start != FAILED
        && is_programs(saved)
        && let Some(len) = whole_pages(start, len).and_then(|len| len.checked_next_multiple_of(unit(flags)))
    {
        let mapped = if flags & libc::MAP_ANONYMOUS != 0 { Mapped::Anonymous } else { Mapped::File };
        comes(saved, start.addr(), len, mapped, start);
    }
    start
}

stub!(grapnel_agent_munmap, munmap, 2);
unsafe extern "C" fn munmap(start: Address, len: usize, saved: Saved<'_>) -> c_int {
    type Call = unsafe extern "C" fn(Address, usize) -> c_int;
    let rescue = (ptr::null_mut(), original(Function::Munmap));
    let went = is_programs(saved) && goes(saved, start, whole_pages(start, len), rescue);
    // Also before: a walk that begins meanwhile is to ask.
    modules::goes(start.addr(), len);
    // SAFETY: the caller's call, passed on.
    let result = unsafe { original_as::<Call>(Function::Munmap)(start, len) };
    modules::goes(start.addr(), len);
    if went && result != 0 {
        stays(saved, FAILED);
    }
    result
}

/// What makes memory unreadable, and maps nothing. Stacks of coroutines may be put away so.
fn forbidding<T>(start: Address, len: usize, forbids: bool, call: impl FnOnce() -> T) -> T {
    let goes = || {
        if forbids {
            modules::goes(start.addr(), len);
        }
    };
    goes();
    let result = call();
    goes();
    result
}

stub!(grapnel_agent_mprotect, mprotect, 3);
unsafe extern "C" fn mprotect(start: Address, len: usize, protection: c_int, _saved: Saved<'_>) -> c_int {
    type Call = unsafe extern "C" fn(Address, usize, c_int) -> c_int;
    forbidding(start, len, protection & libc::PROT_READ == 0, || {
        // SAFETY: the caller's call, passed on.
        unsafe { original_as::<Call>(Function::Mprotect)(start, len, protection) }
    })
}

stub!(grapnel_agent_pkey_mprotect, pkey_mprotect, 4);
unsafe extern "C" fn pkey_mprotect(
    start: Address,
    len: usize,
    protection: c_int,
    key: c_int,
    _saved: Saved<'_>,
) -> c_int {
    type Call = unsafe extern "C" fn(Address, usize, c_int, c_int) -> c_int;
    // What the key lets through is changed without a call.
    forbidding(start, len, protection & libc::PROT_READ == 0 || key > 0, || {
        // SAFETY: the caller's call, passed on.
        unsafe { original_as::<Call>(Function::PkeyMprotect)(start, len, protection, key) }
    })
}

stub!(grapnel_agent_madvise, madvise, 3);
unsafe extern "C" fn madvise(start: Address, len: usize, advice: c_int, _saved: Saved<'_>) -> c_int {
    type Call = unsafe extern "C" fn(Address, usize, c_int) -> c_int;
    /// Of the kernel's `uapi/asm-generic/mman-common.h`, from Linux 6.13 on.
    const MADV_GUARD_INSTALL: c_int = 102;
    forbidding(start, len, advice == MADV_GUARD_INSTALL, || {
        // SAFETY: the caller's call, passed on.
        unsafe { original_as::<Call>(Function::Madvise)(start, len, advice) }
    })
}

stub!(grapnel_agent_mremap, mremap, 5);
unsafe extern "C" fn mremap(
    old: Address,
    old_len: usize,
    len: usize,
    flags: c_int,
    place: Address,
    saved: Saved<'_>,
) -> Address {
    // libc's takes the last argument only with MREMAP_FIXED or MREMAP_DONTUNMAP; what else stands there does no harm.
    type Call = unsafe extern "C" fn(Address, usize, usize, c_int, ...) -> Address;
    let counts = is_programs(saved);
    let change = Remapping::of(old, old_len, len, flags);
    let leaves = change.leaves(old, old_len, len).filter(|_| counts);
    let went = leaves.is_some_and(|(start, len)| goes(saved, start, Some(len), (FAILED, 0)));
    if change != Remapping::Copies {
        modules::goes(old.addr(), old_len);
    }
    // SAFETY: the caller's call, passed on.
    let start = unsafe { original_as::<Call>(Function::Mremap)(old, old_len, len, flags, place) };
    modules::goes(old.addr(), old_len);
    let is_placed = flags & sys::MREMAP_FIXED != 0;
    if start != FAILED {
        // And what was there, if it was to come to a certain place.
        modules::goes(start.addr(), len);
    } else if is_placed {
        modules::goes(place.addr(), len);
    }
    if start == FAILED {
        if went {
            stays(saved, FAILED);
        }
        if counts && is_placed {
            made_room(saved, place, whole_pages(place, len));
            if let Some((end, len)) = excess(old, old_len, len) {
                made_room(saved, end, Some(len));
            }
        }
    } else if counts
        && change != Remapping::InPlace
        && let Some(len) = whole_pages(start, len)
    {
        rescued(saved, start, 0, || {
            enter(saved, |context| context.remapped(saved, start.addr(), len, old.addr()));
        });
    }
    start
}

/// What a call of `mremap` does with the range that it is given.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Remapping {
    /// Nothing, or it takes away its end, as `munmap` does, whatever lies there and before.
    InPlace,
    /// It leaves it, or shares it once more.
    Copies,
    /// It ends, and another one begins.
    Moves,
}

impl Remapping {
    fn of(old: Address, old_len: usize, len: usize, flags: c_int) -> Self {
        if old_len == 0 || flags & sys::MREMAP_DONTUNMAP != 0 {
            return Self::Copies;
        }
        let is_to_be_less = whole_pages(old, len).is_some_and(|len| Some(len) <= whole_pages(old, old_len));
        if is_to_be_less && flags & sys::MREMAP_FIXED == 0 { Self::InPlace } else { Self::Moves }
    }

    /// The range that goes.
    fn leaves(self, old: Address, old_len: usize, len: usize) -> Option<(Address, usize)> {
        match self {
            Self::InPlace => excess(old, old_len, len),
            Self::Copies => None,
            Self::Moves => whole_pages(old, old_len).map(|len| (old, len)),
        }
    }
}

/// What of a range lies beyond its new length.
fn excess(old: Address, old_len: usize, len: usize) -> Option<(Address, usize)> {
    let stays = whole_pages(old, len)?;
    let goes = whole_pages(old, old_len)?.checked_sub(stays).filter(|&len| len != 0)?;
    Some((old.wrapping_byte_add(stays), goes))
}

/// Records what of a range is not mapped: a call of `mremap` may fail when it has made room already. Of a range beyond 256 MiB
/// only its first page is asked for.
fn made_room(saved: Saved<'_>, start: Address, len: Option<usize>) {
    const MOST: usize = 256 << 20;
    let Some(len) = len.filter(|_| start.addr().is_multiple_of(sys::PAGE)) else { return };
    let step = if len > MOST { len } else { sys::PAGE };
    let goes = |from: usize, to: usize| {
        if from != to {
            goes(saved, start.with_addr(from), Some(to - from), (FAILED, 0));
        }
    };
    let end = start.addr() + len;
    let mut empty_from = start.addr();
    for page in (start.addr()..end).step_by(step) {
        if sys::is_mapped(page) {
            goes(empty_from, page);
            empty_from = page + step;
        }
    }
    goes(empty_from, end);
}

stub!(grapnel_agent_brk, brk, 1);
unsafe extern "C" fn brk(end: Address, saved: Saved<'_>) -> c_int {
    // SAFETY: the function's own type.
    let call = unsafe { original_as::<unsafe extern "C" fn(Address) -> c_int>(Function::Brk) };
    if !is_programs(saved) {
        // SAFETY: the caller's call, passed on.
        return unsafe { call(end) };
    }
    // Not known, it counts as staying where it is.
    let before = sys::program_break().unwrap_or(end.addr());
    let rescue = (ptr::null_mut(), original(Function::Brk));
    let went = goes(saved, end, before.checked_sub(end.addr()).filter(|&len| len != 0), rescue);
    // SAFETY: as above.
    let result = unsafe { call(end) };
    if result != 0 {
        if went {
            stays(saved, FAILED);
        }
    } else if end.addr() < before {
        modules::goes(end.addr(), before - end.addr());
    } else if end.addr() > before {
        comes(saved, before, end.addr() - before, Mapped::Break, ptr::null_mut());
    }
    result
}

stub!(grapnel_agent_sbrk, sbrk, 1);
unsafe extern "C" fn sbrk(increment: isize, saved: Saved<'_>) -> Address {
    let counts = increment != 0 && is_programs(saved);
    let (grows, len) = (increment > 0, increment.unsigned_abs());
    let mut went = false;
    if counts && !grows {
        let end = sys::program_break().and_then(|end| end.checked_sub(len));
        let rescue = (ptr::null_mut(), original(Function::Sbrk));
        went = goes(saved, ptr::without_provenance_mut(end.unwrap_or(0)), end.map(|_| len), rescue);
    }
    // SAFETY: the caller's call, passed on.
    let before = unsafe { original_as::<unsafe extern "C" fn(isize) -> Address>(Function::Sbrk)(increment) };
    if before == FAILED {
        if went {
            stays(saved, FAILED);
        }
    } else if counts && !grows {
        modules::goes(before.addr().wrapping_sub(len), len);
    } else if counts {
        comes(saved, before.addr(), len, Mapped::Break, before);
    }
    before
}

stub!(grapnel_agent_shmat, shmat, 3);
unsafe extern "C" fn shmat(id: c_int, hint: Address, flags: c_int, saved: Saved<'_>) -> Address {
    type Call = unsafe extern "C" fn(c_int, Address, c_int) -> Address;
    // SAFETY: the caller's call, passed on.
    let start = unsafe { original_as::<Call>(Function::Shmat)(id, hint, flags) };
    if start != FAILED
        && is_programs(saved)
        && let Some(len) = sys::segment_size(id).and_then(|len| whole_pages(start, len))
    {
        comes(saved, start.addr(), len, Mapped::Segment, start);
    }
    start
}

stub!(grapnel_agent_shmdt, shmdt, 1);
unsafe extern "C" fn shmdt(start: Address, saved: Saved<'_>) -> c_int {
    let rescue = (ptr::null_mut(), original(Function::Shmdt));
    // Its size is known to whoever heard of it when it came.
    let went = is_programs(saved) && goes(saved, start, (!start.is_null()).then_some(0), rescue);
    // SAFETY: the caller's call, passed on.
    let result = unsafe { original_as::<unsafe extern "C" fn(Address) -> c_int>(Function::Shmdt)(start) };
    modules::goes(start.addr(), usize::MAX);
    if went && result != 0 {
        stays(saved, FAILED);
    }
    result
}

/// The functions to hook, as [`hooks::allocation_functions`] lists its. Where offsets are words, `mmap64` is the same code as
/// `mmap`, and gets no hook of its own.
pub(crate) fn mapping_functions() -> [(&'static [u8], unsafe extern "C" fn(), Function); 11] {
    [
        (b"mmap", grapnel_agent_mmap, Function::Mmap),
        (b"mmap64", grapnel_agent_mmap64, Function::Mmap64),
        (b"munmap", grapnel_agent_munmap, Function::Munmap),
        (b"mprotect", grapnel_agent_mprotect, Function::Mprotect),
        (b"pkey_mprotect", grapnel_agent_pkey_mprotect, Function::PkeyMprotect),
        (b"madvise", grapnel_agent_madvise, Function::Madvise),
        (b"mremap", grapnel_agent_mremap, Function::Mremap),
        (b"brk", grapnel_agent_brk, Function::Brk),
        (b"sbrk", grapnel_agent_sbrk, Function::Sbrk),
        (b"shmat", grapnel_agent_shmat, Function::Shmat),
        (b"shmdt", grapnel_agent_shmdt, Function::Shmdt),
    ]
}

/// Whether a function is one of these: what the heap's recording can do without.
pub(crate) fn is_one(function: Function) -> bool {
    (Function::Mmap as usize..=Function::Shmdt as usize).contains(&(function as usize))
}
