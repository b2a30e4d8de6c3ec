//! What depends on the instruction set, in a folder for each, with the same files.
//!
//! - `entry`: the stubs that the hooks lead to, what they save, and the way out of a fault
//! - `floats`: the state of floating-point arithmetic
//! - `kept`: stubs that change no register
//! - `slots`: the stub of functions with slots, and their thunks
//! - `sandbox`: the ways past the hooks on what installs filters for system calls
//! - `quick`: what comes before a stub where only some allocations are recorded
//! - `gates`: the first of these where the hooks' own code is; only on x86-64
//! - `let_by`: a gate by which a hook is passed once that is wanted; not on 32-bit Arm
//! - `jumps`, `loading`: the stubs of `longjmp` and of `dlopen`
//! - `tls`: where a thread's block is
//! - `restorer`: what a handler of a signal returns to
//! - `kernel`: what system calls are called, and how they take offsets; one file for machines of 64 bits
//! - `library`: functions that the compiler counts on

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "arm")]
mod arm;
#[cfg(target_arch = "x86_64")]
mod x86_64;

// The one place where an instruction set is chosen.
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(target_arch = "arm")]
pub(crate) use arm::*;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

/// Elsewhere the quick beginnings are all that there is.
#[cfg(any(not(target_arch = "x86_64"), grapnel_attached))]
pub(crate) mod gates {
    use crate::entry::Stub;
    use alloc::vec::Vec;

    /// No function has one.
    pub(crate) fn of(_target: *const (), _stub: Stub) -> Option<(Vec<u8>, Stub)> {
        None
    }

    /// As above.
    pub(crate) fn of_giver(_target: *const ()) -> Option<Vec<u8>> {
        None
    }

    /// Nothing is asked of functions without gates.
    ///
    /// # Safety
    /// None is needed.
    pub(crate) unsafe fn is_only_jump_to(_target: usize) -> Option<usize> {
        None
    }

    /// As above.
    pub(crate) fn of_taker(_target: *const ()) -> Option<Vec<u8>> {
        None
    }
}

/// Nor is a hook passed there.
#[cfg(target_arch = "arm")]
pub(crate) mod let_by {
    use alloc::vec::Vec;
    use core::sync::atomic::AtomicBool;

    /// No function has one.
    pub(crate) fn gate(_target: *const (), _let_by: &'static AtomicBool) -> Option<Vec<u8>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_void;

    #[cfg(not(target_arch = "arm"))]
    #[test]
    fn a_hook_is_passed_once_that_is_wanted() {
        use core::hint::black_box;
        use core::sync::atomic::{AtomicBool, Ordering};
        use grapnel_hook::{Liveness, Options, Transaction};

        #[inline(never)]
        extern "C" fn thirteenfold(word: usize) -> usize {
            black_box(word).wrapping_mul(13)
        }
        extern "C" fn replacement(word: usize) -> usize {
            word + 1
        }
        static LET_BY: AtomicBool = AtomicBool::new(false);
        let target = thirteenfold as *const ();
        let gate = let_by::gate(target, &LET_BY).expect("a gate");
        let mut transaction = Transaction::new();
        transaction.replace_gated(target, replacement as *const (), Options::default(), gate);
        // SAFETY: nobody else knows the function, and the replacement is one of its type.
        let hooks = unsafe { transaction.commit(Liveness::SingleThreaded) };
        assert!(hooks.iter().all(Result::is_ok), "{hooks:?}");
        for passes in [false, true, false] {
            LET_BY.store(passes, Ordering::Relaxed);
            assert_eq!(black_box(thirteenfold)(5), if passes { 65 } else { 6 });
        }
    }

    unsafe extern "C" fn note(at: *mut c_void) {
        // SAFETY: the test's own word.
        unsafe { at.cast::<usize>().write(stack_pointer()) };
    }

    #[test]
    fn a_function_runs_on_another_stack() {
        let mut stack = vec![0u128; 4096];
        let range = stack.as_mut_ptr_range();
        let range = range.start.expose_provenance()..range.end.expose_provenance();
        let mut seen = 0usize;
        // SAFETY: the stack is aligned, has room, and is nobody else's.
        unsafe { call_on(range.end, note, (&raw mut seen).cast()) };
        // A leaf of its own is at the very end.
        assert!((range.start..=range.end).contains(&seen), "{seen:x} {range:x?}");
        assert!(!range.contains(&stack_pointer()));
    }
}
