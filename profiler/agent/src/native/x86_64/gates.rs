//! Gates in front of libc's `malloc`, `calloc`, `realloc` and `free`, and of functions with slots that do the like, where only some allocations are recorded: what their [quick
//! beginnings](super::quick) do first, right beside the instructions that the hooks displace. Most calls then take one page and two
//! cache lines less.
//!
//! # Safety
//! They change registers only that a function may change and that hold no argument of theirs, and those of functions with slots, whose
//! callers may lie beside them, none. What they reach is the thread's own
//! block, and a table that stays.

use crate::entry::Stub;
use crate::filter::{COARSE, COARSE_SHIFT, COUNTERS, FILTER, FINE_SHIFT};
use crate::native::quick::{
    grapnel_agent_fine_free, grapnel_agent_fine_realloc, grapnel_agent_quick_calloc,
    grapnel_agent_quick_free, grapnel_agent_quick_malloc, grapnel_agent_quick_realloc,
};
use crate::sampled::{LEFT, grapnel_agent_sampled_calloc, grapnel_agent_sampled_malloc};
use alloc::vec::Vec;
use core::arch::x86_64::{__cpuid, __cpuid_count};
use core::ptr;
use grapnel_hook::way_out;

/// The gate of libc's function at `target` that would be replaced by `stub`, and what is behind its way out.
pub(crate) fn of(target: *const (), stub: Stub) -> Option<(Vec<u8>, Stub)> {
    on(has_bmi2, target, stub)
}

/// The gate of a function with a slot that gives a block, whose size it is told first, and calls no other that is hooked.
pub(crate) fn of_giver(target: *const ()) -> Option<Vec<u8>> {
    let mut gate = Gate { code: Vec::new(), way_out: way_out(target), has_bmi2 };
    gate.lower(RDI)?;
    gate.leave_if(CARRY)?;
    Some(gate.code)
}

/// Where a function ends at once, in a jump to another.
///
/// # Safety
/// Its code can be read, as far as an instruction goes.
pub(crate) unsafe fn is_only_jump_to(target: usize) -> Option<usize> {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const JMP_REL32: u8 = 0xe9;
    const JMP: usize = 5;
    let code: *const [u8; 4] = ptr::with_exposed_provenance(target);
    // SAFETY: the caller's promise.
    let start = if unsafe { *code } == ENDBR64 { target + ENDBR64.len() } else { target };
    let jump: *const [u8; JMP] = ptr::with_exposed_provenance(start);
    // SAFETY: as above.
    let [opcode, displacement @ ..] = unsafe { *jump };
    let distance = i32::from_le_bytes(displacement) as isize;
    (opcode == JMP_REL32).then(|| (start + JMP).wrapping_add_signed(distance))
}

/// The gate of one that takes back a block, which it is told first.
pub(crate) fn of_taker(target: *const ()) -> Option<Vec<u8>> {
    taker_on(has_bmi2, target)
}

fn taker_on(has_bmi2: fn() -> bool, target: *const ()) -> Option<Vec<u8>> {
    let mut gate = Gate { code: Vec::new(), way_out: way_out(target), has_bmi2 };
    // mov [rsp - 8], rax; mov [rsp - 16], rcx. Nothing else lies there as yet.
    gate.put(&[0x48, 0x89, 0x44, 0x24, 0xf8, 0x48, 0x89, 0x4c, 0x24, 0xf0]);
    gate.look_up_coarse();
    // jz to the end
    gate.put(&[ZERO, 0]);
    let from = gate.code.len();
    gate.look_up_fine();
    let distance = i8::try_from(gate.code.len() - from).ok()?;
    *gate.code.get_mut(from - 1)? = distance.cast_unsigned();
    // mov rax, [rsp - 8]; mov rcx, [rsp - 16]. They leave the flags alone.
    gate.put(&[0x48, 0x8b, 0x44, 0x24, 0xf8, 0x48, 0x8b, 0x4c, 0x24, 0xf0]);
    gate.leave_if(NOT_ZERO)?;
    Some(gate.code)
}

/// The same on a processor that has certain shifts.
fn on(has_bmi2: fn() -> bool, target: *const (), stub: Stub) -> Option<(Vec<u8>, Stub)> {
    let mut gate = Gate { code: Vec::new(), way_out: way_out(target), has_bmi2 };
    let is = |quick: Stub| ptr::eq(stub as *const (), quick as *const ());
    if is(grapnel_agent_quick_malloc) {
        gate.lower(RDI)?;
        gate.leave_if(CARRY)?;
        Some((gate.code, grapnel_agent_sampled_malloc))
    } else if is(grapnel_agent_quick_free) {
        gate.look_up_coarse();
        gate.leave_if(NOT_ZERO)?;
        Some((gate.code, grapnel_agent_fine_free))
    } else if is(grapnel_agent_quick_calloc) {
        // mov rax, rdi; mul rsi. A product that overflows gives no block, which is seen behind the way out.
        gate.put(&[0x48, 0x89, 0xf8, 0x48, 0xf7, 0xe6]);
        gate.leave_if(CARRY)?;
        gate.lower_if_positive(RAX)?;
        Some((gate.code, grapnel_agent_sampled_calloc))
    } else if is(grapnel_agent_quick_realloc) {
        // test rdi, rdi; jz to the end: libc's own then calls malloc.
        gate.put(&[0x48, 0x85, 0xff, ZERO, 0]);
        let from = gate.code.len();
        gate.look_up_coarse();
        gate.leave_if(NOT_ZERO)?;
        gate.lower_if_positive(RSI)?;
        let distance = i8::try_from(gate.code.len() - from).ok()?;
        *gate.code.get_mut(from - 1)? = distance.cast_unsigned();
        Some((gate.code, grapnel_agent_fine_realloc))
    } else {
        None
    }
}

/// Short jumps, by a flag.
const CARRY: u8 = 0x72;
const ZERO: u8 = 0x74;
const NOT_ZERO: u8 = 0x75;
const LESS: u8 = 0x7c;

/// Registers, by their numbers.
const RAX: u8 = 0;
const RSI: u8 = 6;
const RDI: u8 = 7;

/// So many bytes before [`COARSE`] is what a gate has in RCX: a shift by that, of which the low five bits count, is one by
/// [`COARSE_SHIFT`].
pub(crate) const BEFORE_COARSE: u8 = 32 - COARSE_SHIFT as u8;

/// Whether the processor has the shifts that take any register for their count.
fn has_bmi2() -> bool {
    const LEAF: u32 = 7;
    const BMI2: u32 = 1 << 8;
    __cpuid(0).eax >= LEAF && __cpuid_count(LEAF, 0).ebx & BMI2 != 0
}

/// A gate that is being put together.
struct Gate {
    code: Vec<u8>,
    way_out: usize,
    has_bmi2: fn() -> bool,
}

impl Gate {
    fn put(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    /// Lowers what is left of the thread's gap by a register, and leaves the flags of that. `None` where the thread's block is too far.
    fn lower(&mut self, register: u8) -> Option<()> {
        let left = i32::try_from(super::tls::offset() + LEFT as isize).ok()?;
        // sub fs:[left], register
        self.put(&[0x64, 0x48, 0x29, 0x04 | register << 3, 0x25]);
        self.put(&left.to_le_bytes());
        Some(())
    }

    /// The same where what is left may be below 0 before, and what no block is as large as leaves before it would raise that.
    fn lower_if_positive(&mut self, register: u8) -> Option<()> {
        // test register, register
        self.put(&[0x48, 0x85, 0xc0 | register << 3 | register]);
        self.leave_if(LESS)?;
        self.lower(register)?;
        self.leave_if(LESS)
    }

    /// Looks up the byte of the 16 KiB that the block in RDI is in, and leaves the flags of a comparison with 0. It lies at
    /// RCX + RAX + BEFORE_COARSE, where who is behind `free`'s way out finds it.
    fn look_up_coarse(&mut self) {
        // mov rcx, COARSE - BEFORE_COARSE
        self.put(&[0x48, 0xb9]);
        self.put(&(COARSE.addr() - usize::from(BEFORE_COARSE)).to_le_bytes());
        if (self.has_bmi2)() {
            // shrx eax, edi, ecx
            self.put(&[0xc4, 0xe2, 0x73, 0xf7, 0xc7]);
        } else {
            // mov eax, edi; shr eax, COARSE_SHIFT
            self.put(&[0x89, 0xf8, 0xc1, 0xe8, COARSE_SHIFT as u8]);
        }
        // cmp byte ptr [rcx + rax + BEFORE_COARSE], 0
        self.put(&[0x80, 0x7c, 0x01, BEFORE_COARSE, 0x00]);
    }

    /// Looks up the counter of the 32 bytes that the block in RDI is in, and leaves the flags of a comparison with 0.
    fn look_up_fine(&mut self) {
        // mov eax, edi; shr eax, FINE_SHIFT; and eax, COUNTERS
        self.put(&[0x89, 0xf8, 0xc1, 0xe8, FINE_SHIFT as u8, 0x25]);
        self.put(&(COUNTERS as u32).to_le_bytes());
        // mov rcx, FILTER; cmp byte ptr [rcx + rax], 0
        self.put(&[0x48, 0xb9]);
        self.put(&FILTER.as_ptr().addr().to_le_bytes());
        self.put(&[0x80, 0x3c, 0x01, 0x00]);
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

    const REPLACED: usize = 12345;

    extern "C" fn replacement() -> usize {
        REPLACED
    }

    /// The function, with the gate in front of it that one of libc's would have.
    fn gated<F: Copy>(function: F, target: *const (), stub: Stub) -> F {
        gated_on(has_bmi2, function, target, stub)
    }

    fn gated_on<F: Copy>(has_bmi2: fn() -> bool, function: F, target: *const (), stub: Stub) -> F {
        let (gate, _) = on(has_bmi2, target, stub).expect("a gate");
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
        let function = gated(double, double as *const (), grapnel_agent_quick_malloc);
        let left = &tls::sampling().left;
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
        #[inline(never)]
        extern "C" fn fivefold(block: usize) -> usize {
            black_box(block).wrapping_mul(5)
        }
        let (noted, beside) = (0x7fed_c8d5_4320_usize, 0x7fed_c8d5_8010_usize);
        type Function = extern "C" fn(usize) -> usize;
        type HasBmi2 = fn() -> bool;
        for (function, has_bmi2, times) in
            [(triple as Function, has_bmi2 as HasBmi2, 3), (fivefold, || false, 5)]
        {
            let function = gated_on(has_bmi2, function, function as *const (), grapnel_agent_quick_free);
            filter::note(noted);
            assert_eq!(
                [noted, beside, 0].map(|word| function(word)),
                [REPLACED, beside.wrapping_mul(times), 0]
            );
            filter::forget(noted);
            assert_eq!(function(noted), noted.wrapping_mul(times));
        }
    }

    /// The registers that a taker's gate works with, behind a call of a function that is hooked.
    #[test]
    fn a_taker_changes_no_register() {
        #[inline(never)]
        extern "C" fn sevenfold(block: usize) -> usize {
            black_box(block).wrapping_mul(7)
        }
        #[inline(never)]
        extern "C" fn ninefold(block: usize) -> usize {
            black_box(block).wrapping_mul(9)
        }
        /// As the replacement of both: what is in RAX and RCX.
        #[unsafe(naked)]
        extern "C" fn registers() -> usize {
            core::arch::naked_asm!("sub rax, rcx", "ret")
        }
        type Function = extern "C" fn(usize) -> usize;
        type HasBmi2 = fn() -> bool;
        let (noted, near, beside) = (0x7fed_ca15_4320_usize, 0x7fed_ca15_4360_usize, 0x7fed_ca16_8010_usize);
        for (function, has_bmi2, times) in
            [(sevenfold as Function, has_bmi2 as HasBmi2, 7), (ninefold, || false, 9)]
        {
            let target = function as *const ();
            let gate = taker_on(has_bmi2, target).expect("a gate");
            let mut transaction = Transaction::new();
            transaction.replace_gated(target, registers as *const (), Options::default(), gate);
            // SAFETY: nobody else knows the function, and the replacement is one of its type.
            let hooks = unsafe { transaction.commit(Liveness::SingleThreaded) };
            assert!(hooks.iter().all(Result::is_ok), "{hooks:?}");
            let call = |block: usize| {
                let result: usize;
                // SAFETY: calls a function of one argument.
                unsafe {
                    core::arch::asm!("call {function}", function = in(reg) black_box(target),
                        inout("rax") 1_000_000_usize => result, inout("rcx") 1_usize => _, in("rdi") block,
                        clobber_abi("C"));
                }
                result
            };
            filter::note(noted);
            let passes = [near, beside, 0].map(|block| block.wrapping_mul(times));
            assert_eq!([near, beside, 0].map(call), passes);
            assert_eq!(call(noted), 999_999);
            filter::forget(noted);
            assert_eq!(call(noted), noted.wrapping_mul(times));
        }
    }

    #[test]
    fn products_pass_until_nothing_is_left() {
        #[inline(never)]
        extern "C" fn product(count: usize, size: usize) -> usize {
            black_box(count).wrapping_mul(size).wrapping_add(1)
        }
        let function = gated(product, product as *const (), grapnel_agent_quick_calloc);
        let left = &tls::sampling().left;
        left.set(100);
        assert_eq!([(4, 10), (0, 7), (60, 1)].map(|(count, size)| function(count, size)), [41, 1, 61]);
        assert_eq!(left.get(), 0);
        assert_eq!((function(1, 1), left.get()), (REPLACED, -1));
        // One that comes where nothing is left takes the way out, whatever it asks for.
        assert_eq!((function(0, 1), left.get()), (REPLACED, -1));
        left.set(-3);
        assert_eq!(function(1, isize::MAX as usize), REPLACED);
        for (count, size) in [(1 << 62, 2), (1 << 62, 4), (usize::MAX, usize::MAX)] {
            left.set(5);
            assert_eq!((function(count, size), left.get()), (REPLACED, 5));
        }
        left.set(0);
    }

    #[test]
    fn blocks_pass_that_grow_by_what_is_left() {
        #[inline(never)]
        extern "C" fn sum(block: usize, size: usize) -> usize {
            black_box(block).wrapping_add(size)
        }
        let function = gated(sum, sum as *const (), grapnel_agent_quick_realloc);
        let left = &tls::sampling().left;
        let (noted, beside) = (0x7fed_c8e5_4320_usize, 0x7fed_c8e5_8010_usize);
        filter::note(noted);
        left.set(100);
        // Of none, as much as anybody likes.
        assert_eq!((function(0, 1000), left.get()), (1000, 100));
        assert_eq!((function(beside, 90), left.get()), (beside + 90, 10));
        assert_eq!((function(noted, 5), left.get()), (REPLACED, 10));
        assert_eq!((function(beside, usize::MAX), left.get()), (REPLACED, 10));
        assert_eq!((function(beside, 11), left.get()), (REPLACED, -1));
        assert_eq!((function(beside, 0), left.get()), (REPLACED, -1));
        filter::forget(noted);
        left.set(5);
        assert_eq!((function(noted, 5), left.get()), (noted + 5, 0));
    }
}
