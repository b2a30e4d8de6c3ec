//! Gates in front of libc's `malloc` and `free` where only some allocations are recorded: what their [quick
//! beginnings](super::quick) do first, right beside the instructions that the hooks displace. Most calls then take one page and two
//! cache lines less.
//!
//! # Safety
//! They change registers only that a function may change and that hold no argument of theirs. What they reach is the thread's own
//! block, and a table that stays.

use crate::entry::Stub;
use crate::filter::{COARSE, COARSE_SHIFT};
use crate::native::quick::{grapnel_agent_fine_free, grapnel_agent_quick_free, grapnel_agent_quick_malloc};
use crate::sampled::{LEFT, grapnel_agent_sampled_malloc};
use alloc::vec::Vec;
use grapnel_hook::way_out;

/// The gate of libc's function at `target` that would be replaced by `stub`, and what is behind its way out.
pub(crate) fn of(target: *const (), stub: Stub) -> Option<(Vec<u8>, Stub)> {
    let mut gate = Gate { code: Vec::new(), way_out: way_out(target) };
    let stub = stub as *const ();
    if core::ptr::eq(stub, grapnel_agent_quick_malloc as *const ()) {
        let left = i32::try_from(super::tls::offset() + LEFT as isize).ok()?;
        // sub fs:[left], rdi; jb
        gate.put(&[0x64, 0x48, 0x29, 0x3c, 0x25]);
        gate.put(&left.to_le_bytes());
        gate.leave_if(CARRY)?;
        Some((gate.code, grapnel_agent_sampled_malloc))
    } else if core::ptr::eq(stub, grapnel_agent_quick_free as *const ()) {
        // mov eax, edi; shr eax, COARSE_SHIFT
        gate.put(&[0x89, 0xf8, 0xc1, 0xe8, COARSE_SHIFT as u8]);
        // mov rcx, COARSE
        gate.put(&[0x48, 0xb9]);
        gate.put(&COARSE.as_ptr().addr().to_le_bytes());
        // cmp byte ptr [rcx + rax], 0; jne
        gate.put(&[0x80, 0x3c, 0x01, 0x00]);
        gate.leave_if(NOT_ZERO)?;
        Some((gate.code, grapnel_agent_fine_free))
    } else {
        None
    }
}

/// Short jumps, by a flag.
const CARRY: u8 = 0x72;
const NOT_ZERO: u8 = 0x75;

/// A gate that is being put together.
struct Gate {
    code: Vec<u8>,
    way_out: usize,
}

impl Gate {
    fn put(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    /// A short jump to the way out. `None` where that is too far.
    fn leave_if(&mut self, jump: u8) -> Option<()> {
        let distance = i8::try_from(self.code.len() + 2 + self.way_out).ok()?;
        self.put(&[jump, distance.wrapping_neg() as u8]);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{filter, tls};
    use core::hint::black_box;
    use grapnel_hook::{Liveness, Options, Transaction};

    type Function = extern "C" fn(usize) -> usize;

    const REPLACED: usize = 12345;

    extern "C" fn replacement(_: usize) -> usize {
        REPLACED
    }

    /// The function, with the gate in front of it that one of libc's would have.
    fn gated(function: Function, stub: Stub) -> Function {
        let target = function as *const ();
        let (gate, _) = of(target, stub).expect("a gate");
        let mut transaction = Transaction::new();
        let options = Options::default();
        transaction.replace_gated(target, replacement as *const (), options, gate);
        // SAFETY: nobody else knows the function, and the replacement is one of its type.
        let hooks = unsafe { transaction.commit(Liveness::SingleThreaded) };
        assert!(hooks.iter().all(Result::is_ok), "{hooks:?}");
        black_box(function)
    }

    #[test]
    fn sizes_pass_until_nothing_is_left() {
        #[inline(never)]
        extern "C" fn double(size: usize) -> usize {
            black_box(size).wrapping_mul(2)
        }
        let function = gated(double, grapnel_agent_quick_malloc);
        let left = &tls::get().sampling.left;
        left.set(100);
        assert_eq!([40, 0, 60].map(|word| function(word)), [80, 0, 120]);
        assert_eq!(left.get(), 0);
        assert_eq!((function(1), left.get()), (REPLACED, -1));
        for huge in [usize::MAX, (1 << 63) + 1, 1 << 63] {
            left.set(5);
            assert_eq!(function(huge), REPLACED);
        }
        left.set(5);
        assert_eq!((function(6), left.get()), (REPLACED, -1));
        left.set(0);
    }

    #[test]
    fn blocks_pass_that_were_not_noted() {
        #[inline(never)]
        extern "C" fn triple(block: usize) -> usize {
            black_box(block).wrapping_mul(3)
        }
        let function = gated(triple, grapnel_agent_quick_free);
        let (noted, beside) = (0x7fed_c8d5_4320_usize, 0x7fed_c8d5_8010_usize);
        filter::note(noted);
        assert_eq!([noted, beside, 0].map(|word| function(word)), [REPLACED, beside.wrapping_mul(3), 0]);
        filter::forget(noted);
        assert_eq!(function(noted), noted.wrapping_mul(3));
    }
}
