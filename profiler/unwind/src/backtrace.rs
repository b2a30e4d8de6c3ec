//! Walks by the unwinder that the process has: libgcc's, or LLVM's.
//!
//! For where one doubts our own walks. It takes the unwinder's locks, may allocate the first time, and makes no use of
//! what was walked before, so it is a choice and no fallback by itself.
//!
//! # Safety
//! [`Backtrace::new`] is told the addresses of the functions, and calls them as their ABI has it.

use crate::native::{INSTRUCTION_POINTER, InstructionPointer, instruction_pointer};
use crate::walker::End;
use core::ffi::{c_int, c_void};
use core::mem::transmute;

const NORMAL_STOP: c_int = 4;
const NO_REASON: c_int = 0;

type OnFrame = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

/// The unwinder's functions.
#[derive(Clone, Copy, Debug)]
pub struct Backtrace {
    walk: unsafe extern "C" fn(OnFrame, *mut c_void) -> c_int,
    pc: InstructionPointer,
}

/// What the unwinder is asked to call.
struct Visit<'a> {
    pc: InstructionPointer,
    visit: &'a mut dyn FnMut(u64, bool) -> bool,
}

impl Backtrace {
    /// The names that the functions have, for those who look them up.
    pub const NAMES: [&'static str; 2] = ["_Unwind_Backtrace", INSTRUCTION_POINTER];

    /// With the functions at these addresses.
    ///
    /// # Safety
    /// They are the functions of [`NAMES`](Self::NAMES), in this order, of one unwinder, which stays loaded.
    pub unsafe fn new(functions: [*const (); 2]) -> Self {
        let [walk, pc] = functions;
        // SAFETY: the caller's promise.
        unsafe {
            Backtrace {
                walk: transmute::<*const (), unsafe extern "C" fn(OnFrame, *mut c_void) -> c_int>(walk),
                pc: transmute::<*const (), InstructionPointer>(pc),
            }
        }
    }

    /// Shows each frame from the one at `first` on, leaf first: its pc, and whether that is the one of an instruction
    /// that a signal stopped. `visit` says whether to go on.
    ///
    /// To be called with the frame of `first` on the stack.
    pub fn frames(&self, first: u64, mut visit: impl FnMut(u64, bool) -> bool) -> End {
        let (mut found, mut stopped) = (false, false);
        let mut each = |pc: u64, exact: bool| {
            found |= pc == first;
            // Unwinders end with a frame at 0.
            if !found || pc == 0 {
                return true;
            }
            stopped = !visit(pc, exact);
            !stopped
        };
        let mut shown = Visit { pc: self.pc, visit: &mut each };
        // SAFETY: the unwinder calls back with its own context and this argument, which outlives the call.
        unsafe { (self.walk)(on_frame, (&raw mut shown).cast()) };
        match (found, stopped) {
            (_, true) => End::Depth,
            (true, false) => End::Root,
            (false, false) => End::Open,
        }
    }
}

unsafe extern "C" fn on_frame(context: *mut c_void, argument: *mut c_void) -> c_int {
    // SAFETY: the argument of `frames`.
    let shown = unsafe { &mut *argument.cast::<Visit<'_>>() };
    // SAFETY: the unwinder's context, for its own function.
    let (pc, exact) = unsafe { instruction_pointer(shown.pc, context) };
    if (shown.visit)(pc, exact) { NO_REASON } else { NORMAL_STOP }
}
