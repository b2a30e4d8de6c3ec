//! Who is told of the code that hooks are made of.
//!
//! # Safety
//! The list of loaded objects is read, so none may be loaded or unloaded meanwhile.

use std::{ffi::c_uint, ptr};

use engine::seen::Audience;

use crate::{error::grapnel_error, shared, wait};

/// Who is told: GRAPNEL_TO_UNWINDERS, GRAPNEL_TO_DEBUGGERS and GRAPNEL_TO_PERF, joined by |, or 0 for nobody.
#[expect(non_camel_case_types, reason = "the name in C")]
pub type grapnel_audience = c_uint;

/// Unwind entries, for the unwinders that are loaded: exceptions pass every call that was relocated (grapnel_attach says which
/// they pass in any case), and a backtrace from a signal handler passes every instruction of a stub or a trampoline. libgcc's
/// unwinder takes a lock in each step from then on (until GCC 13), so don't use it where a handler may interrupt its own
/// thread's unwinding and ask for a backtrace. On 32-bit Arm unwinders take none, and this is answered with an error.
pub const GRAPNEL_TO_UNWINDERS: grapnel_audience = 1;

/// Names and unwind entries for debuggers, by the interface for code that is made at run time.
pub const GRAPNEL_TO_DEBUGGERS: grapnel_audience = 2;

/// Names for perf, in /tmp/perf-PID.map, which is left there.
pub const GRAPNEL_TO_PERF: grapnel_audience = 4;

/// Tells others of the code that hooks are made of, from the next commit on. Nobody is told if it isn't called.
///
/// The code that others were told of is kept for good.
///
/// # Errors
/// If a bit of `audience` is unknown, or somebody can't be told, for instance because no unwinder is loaded, or hooks are being changed at this moment. Nobody
/// is told then.
///
/// # Safety
/// Any thread may call this, not a signal handler, while no object is loaded or unloaded. Objects with unwinders stay
/// loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_announce(audience: grapnel_audience) -> *mut grapnel_error {
    let unknown = audience & !(GRAPNEL_TO_UNWINDERS | GRAPNEL_TO_DEBUGGERS | GRAPNEL_TO_PERF);
    if unknown != 0 {
        return grapnel_error::unknown("audience", unknown).give();
    }
    let mut shared = match shared::lock() {
        Ok(shared) => shared,
        Err(error) => return wait::raise(&error),
    };
    let audience = Audience {
        unwinders: audience & GRAPNEL_TO_UNWINDERS != 0,
        debuggers: audience & GRAPNEL_TO_DEBUGGERS != 0,
        perf: audience & GRAPNEL_TO_PERF != 0,
    };
    // SAFETY: the caller's promise.
    match unsafe { shared.set().announce_to(audience) } {
        Ok(()) => ptr::null_mut(),
        Err(error) => grapnel_error::raise(&error.to_string(), error.remedy(), 0),
    }
}
