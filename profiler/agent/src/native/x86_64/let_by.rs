//! The gate of a function that may have to be let alone: all calls pass it once a byte is set, as if there were no hook.
//!
//! # Safety
//! It changes no register.

use alloc::vec::Vec;
use core::ptr;
use core::sync::atomic::AtomicBool;
use grapnel_hook::way_out;

/// The gate of the function at `target`.
pub(crate) fn gate(target: *const (), let_by: &'static AtomicBool) -> Option<Vec<u8>> {
    let mut code = Vec::new();
    // mov [rsp - 8], rax; mov rax, LET_BY. Nothing else lies there as yet.
    code.extend_from_slice(&[0x48, 0x89, 0x44, 0x24, 0xf8, 0x48, 0xb8]);
    code.extend_from_slice(&ptr::from_ref(let_by).expose_provenance().to_le_bytes());
    // cmp byte ptr [rax], 0; mov rax, [rsp - 8]
    code.extend_from_slice(&[0x80, 0x38, 0x00, 0x48, 0x8b, 0x44, 0x24, 0xf8]);
    // jz to the way out
    let distance = i8::try_from(code.len() + 2 + way_out(target)).ok()?;
    code.extend_from_slice(&[0x74, distance.wrapping_neg() as u8]);
    Some(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::hint::black_box;
    use core::sync::atomic::Ordering;
    use grapnel_hook::{Liveness, Options, Transaction};

    /// As the replacement: what is in RAX and RCX.
    #[unsafe(naked)]
    extern "C" fn registers() -> usize {
        core::arch::naked_asm!("sub rax, rcx", "ret")
    }

    #[test]
    fn it_is_passed_once_that_is_wanted() {
        #[inline(never)]
        extern "C" fn elevenfold(word: usize) -> usize {
            black_box(word).wrapping_mul(11)
        }
        static LET_BY: AtomicBool = AtomicBool::new(false);
        let target = elevenfold as *const ();
        let gate = gate(target, &LET_BY).expect("a gate");
        let mut transaction = Transaction::new();
        transaction.replace_gated(target, registers as *const (), Options::default(), gate);
        // SAFETY: nobody else knows the function, and the replacement is one of its type.
        let hooks = unsafe { transaction.commit(Liveness::SingleThreaded) };
        assert!(hooks.iter().all(Result::is_ok), "{hooks:?}");
        let call = || {
            let result: usize;
            // SAFETY: calls a function of one argument.
            unsafe {
                core::arch::asm!("call {function}", function = in(reg) black_box(target),
                    inout("rax") 1_000_000_usize => result, inout("rcx") 1_usize => _, in("rdi") 5_usize,
                    clobber_abi("C"));
            }
            result
        };
        assert_eq!(call(), 999_999);
        LET_BY.store(true, Ordering::Relaxed);
        assert_eq!(call(), 55);
        LET_BY.store(false, Ordering::Relaxed);
        assert_eq!(call(), 999_999);
    }
}
