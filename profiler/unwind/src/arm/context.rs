//! What the process's own unwinder is asked for a frame's pc: EHABI32, section 8.5.

use super::plain;
use core::ffi::{c_int, c_void};

/// The function that knows.
pub(crate) const INSTRUCTION_POINTER: &str = "_Unwind_VRS_Get";
pub(crate) type InstructionPointer =
    unsafe extern "C" fn(*mut c_void, c_int, u32, c_int, *mut c_void) -> c_int;

const CORE: c_int = 0;
const PC: u32 = 15;
const AS_UINT32: c_int = 0;

/// The pc. Unwinders don't know whether it is that of an instruction that a signal stopped.
///
/// # Safety
/// `function` is that of the name above, and `context` what its unwinder passed to a callback that has not returned.
pub(crate) unsafe fn instruction_pointer(function: InstructionPointer, context: *mut c_void) -> (u64, bool) {
    let mut pc = 0u32;
    // SAFETY: the caller's promise; four bytes are written.
    unsafe { function(context, CORE, PC, AS_UINT32, (&raw mut pc).cast()) };
    (plain(pc.into()), false)
}
