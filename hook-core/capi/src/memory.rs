//! How memory for code is made and code is written, and giving back what was removed.
//!
//! # Safety
//! The set is had by one thread at a time; what the caller promises is what [`engine::HookSet::reclaim`] asks for.

use std::ffi::{c_int, c_uint, c_void};

use engine::{CodeAddr, CodeWay, Doubt, PatchWay};

use crate::{
    attach::{grapnel_liveness, liveness},
    error::grapnel_error,
    shared, wait,
};

/// Ways of making memory for code and of writing code, joined by |. None ever makes memory that is writable and executable
/// at once.
#[expect(non_camel_case_types, reason = "the name in C")]
pub type grapnel_ways = c_uint;

/// Memory for code is one file in memory, mapped once to be executed and once to be written.
pub const GRAPNEL_TWO_VIEWS: grapnel_ways = 1;

/// It is written through /proc/self/mem, and its protection never changes.
pub const GRAPNEL_PROC_MEM: grapnel_ways = 2;

/// It is made writable and not executable, written, and made executable.
pub const GRAPNEL_PROTECT: grapnel_ways = 4;

/// A changed copy of its pages takes their place. Memory for code is never made so.
pub const GRAPNEL_EXCHANGE: grapnel_ways = 8;

/// It is written where it is, in pages that their owner may write. Memory for code is never made so.
pub const GRAPNEL_IN_PLACE: grapnel_ways = 16;

/// Its pages, of the same file, are mapped anew, changed through /proc/self/mem, and take the place of those that are run.
/// Memory for code is never made so.
pub const GRAPNEL_REMAP: grapnel_ways = 32;

/// What became of what was removed.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct grapnel_reclaimed {
    /// How many bytes were freed.
    pub freed: usize,
    /// How many were kept, because a thread is in them or may come to them.
    pub kept: usize,
    /// How many removed listeners still wait for calls to leave, or may just be told of one.
    pub awaited: usize,
    /// The thread that didn't answer, or that was not on its own stack. All was kept then; 0 if there is none.
    pub unknown: c_int,
}

/// The ways in which memory for code was made so far: by default the first of GRAPNEL_PROC_MEM, GRAPNEL_TWO_VIEWS and
/// GRAPNEL_PROTECT that the system allows. 0 if none was made, or while hooks are being changed.
///
/// # Errors
/// None.
///
/// # Safety
/// Any thread may call this, not a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn grapnel_code_ways() -> grapnel_ways {
    let Ok(mut shared) = shared::lock() else { return 0 };
    let ways = shared.set().regions().map(|(_, way)| match way {
        CodeWay::TwoViews => GRAPNEL_TWO_VIEWS,
        CodeWay::ProcMem => GRAPNEL_PROC_MEM,
        _ => GRAPNEL_PROTECT,
    });
    ways.fold(0, |all, way| all | way)
}

/// How the patch of a hooked function, or of a probed instruction, was written: GRAPNEL_PROC_MEM, GRAPNEL_IN_PLACE,
/// GRAPNEL_PROTECT, GRAPNEL_EXCHANGE or GRAPNEL_REMAP. 0 if there is none, or while hooks are being changed.
///
/// # Errors
/// None.
///
/// # Safety
/// `target` is only compared. Any thread may call this, not a signal handler.
#[unsafe(no_mangle)]
pub extern "C" fn grapnel_patch_way(target: *const c_void) -> grapnel_ways {
    let Ok(mut shared) = shared::lock() else { return 0 };
    match shared.set().patch(CodeAddr(target as usize as u64)).map(engine::Hook::way) {
        None => 0,
        Some(PatchWay::ProcMem) => GRAPNEL_PROC_MEM,
        Some(PatchWay::InPlace) => GRAPNEL_IN_PLACE,
        Some(PatchWay::Exchange) => GRAPNEL_EXCHANGE,
        Some(PatchWay::Remap) => GRAPNEL_REMAP,
        Some(_) => GRAPNEL_PROTECT,
    }
}

/// Frees what was removed and what no thread can reach any more. The rest is kept, and can be asked for again. If
/// `reclaimed` isn't NULL, what became of it is stored there.
///
/// With GRAPNEL_LIVE every other thread is interrupted once by a signal that the program has no handler for; a system call
/// that the kernel doesn't begin anew by itself may answer EINTR then. No thread waits for another.
///
/// # Errors
/// If hooks are being changed at this moment, by another thread or around this call. Nothing was freed then.
///
/// # Safety
/// `reclaimed` is NULL or may be written. No original of a removed replacement is called any more, and no thread is in a
/// replacement that will. No coroutine that isn't running was left in a listener or in a function's first instructions.
/// With GRAPNEL_SINGLE_THREADED no other thread is in a call that something removed had to do with. Any thread may call
/// this, not a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_reclaim(
    liveness: grapnel_liveness,
    reclaimed: *mut grapnel_reclaimed,
) -> *mut grapnel_error {
    let live = match self::liveness(liveness) {
        Ok(live) => live,
        Err(error) => return error,
    };
    let mut shared = match shared::lock() {
        Ok(shared) => shared,
        Err(error) => return wait::raise(&error),
    };
    // SAFETY: the caller's promise.
    let found = unsafe { shared.set().reclaim(live) };
    let unknown = match found.doubt {
        Some(Doubt::NoAnswer(thread) | Doubt::OtherStack(thread)) => thread,
        Some(doubt) => return grapnel_error::raise(&doubt.to_string(), doubt.remedy(), 0),
        None => 0,
    };
    if !reclaimed.is_null() {
        let (freed, kept, awaited) = (found.freed, found.kept, found.awaited);
        // SAFETY: it may be written (the caller's promise).
        unsafe { reclaimed.write(grapnel_reclaimed { freed, kept, awaited, unknown }) };
    }
    std::ptr::null_mut()
}
