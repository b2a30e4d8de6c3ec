//! What the process's own unwinder is asked for a frame's pc, where its interface is that of the Itanium ABI.

use core::ffi::{c_int, c_void};

/// The function that knows.
pub(crate) const INSTRUCTION_POINTER: &str = "_Unwind_GetIPInfo";
pub(crate) type InstructionPointer = unsafe extern "C" fn(*mut c_void, *mut c_int) -> usize;

/// The pc, and whether it is that of an instruction that a signal stopped.
///
/// # Safety
/// `function` is that of the name above, and `context` what its unwinder passed to a callback that has not returned.
pub(crate) unsafe fn instruction_pointer(function: InstructionPointer, context: *mut c_void) -> (u64, bool) {
    let mut before = 0;
    // SAFETY: the caller's promise.
    let pc = unsafe { function(context, &raw mut before) };
    (pc as u64, before != 0)
}
