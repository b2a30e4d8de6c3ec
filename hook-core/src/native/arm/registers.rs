//! What a stub saves, and how listeners see it.
//!
//! # Safety
//! [`Saved`] is filled by the routines of [`super::entry`] and [`super::returns`] alone, which also load what it holds back
//! into the registers.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::sys;

/// The general registers of a call or of a probed place.
///
/// At a function's entry `r12` is what the way to the listener left in it (AAPCS32, 6.1.1), and `r14` is the return address;
/// changes of the two are ignored there and where it has returned.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers {
    /// R0 to R12, SP, LR and PC. Changes of SP and PC are ignored. PC is the probed instruction, the function's entry, or
    /// where it returns to.
    pub r: [u32; 16],
    /// The flags, in probes only. At a function's entry and return the ABI gives them no meaning, and they read as 0.
    pub cpsr: u32,
}

/// What lies on the stack while a listener runs. In the middle of a function that may be aligned to 4 bytes only.
#[repr(C, packed(4))]
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) general: Registers,
    /// How many of the vector registers the listener is shown.
    shown: u32,
    /// Q0 to Q15. Those that the listener isn't shown may not have been saved.
    vectors: [[u32; 4]; 16],
    /// The listener's own word of this call.
    pub(crate) word: u64,
    /// Where the stub's literals are; in returns, the point's number.
    pub(crate) stub: u64,
    /// The return address of the hooked function's call; in returns, first the point's. Not there in probes.
    pub(crate) return_address: u64,
    fpscr: u64,
}

const _: () = assert!(core::mem::offset_of!(Saved, vectors) == 72);
const _: () = assert!(core::mem::offset_of!(Saved, word) == 328);
const _: () = assert!(size_of::<Saved>() == 360);

const SP: usize = 13;
const PC: usize = 15;
/// The registers of the first four words of arguments are R0 to R3.
const ARGUMENTS: usize = 4;

impl Saved {
    /// What tells this call from all others that are under way: its stack pointer.
    pub(crate) fn call(&self) -> usize {
        self.general.r[SP] as usize
    }

    /// Says where the function returns to.
    pub(crate) fn set_return_address(&mut self, address: u64) {
        self.return_address = address;
    }

    /// The listener is shown a place between instructions, where the ABI gives the flags no meaning.
    pub(crate) fn at_boundary(&mut self, address: u64) {
        self.general.r[PC] = address as u32 & !1;
        self.general.cpsr = 0;
    }

    /// The listener is shown the place of a probe.
    pub(crate) fn at_probe(&mut self, address: u64) {
        self.general.r[PC] = address as u32 & !1;
    }

    /// Where the probe is.
    pub(crate) fn place(&self) -> u64 {
        u64::from(self.general.r[PC])
    }

    /// A word of the arguments at a function's entry. Those of 64 bits take two, the first of which has an even number.
    pub(crate) fn argument(&self, index: usize) -> u64 {
        match self.general.r.get(index).filter(|_| index < ARGUMENTS) {
            Some(value) => u64::from(*value),
            // SAFETY: the caller of the hooked function passed that many (the promise of the listener's question).
            None => u64::from(unsafe { self.stack_argument(index).read() }),
        }
    }

    pub(crate) fn set_argument(&mut self, index: usize, value: u64) {
        let stack = self.stack_argument(index);
        match self.general.r.get_mut(index).filter(|_| index < ARGUMENTS) {
            Some(register) => *register = value as u32,
            // SAFETY: the caller of the hooked function passed that many, and the place belongs to the callee
            // (AAPCS32, 6.5).
            None => unsafe { stack.write(value as u32) },
        }
    }

    /// The arguments in memory lie from the stack pointer on.
    fn stack_argument(&self, index: usize) -> *mut u32 {
        let place = self.general.r[SP] as usize as *mut u32;
        place.wrapping_add(index.saturating_sub(ARGUMENTS))
    }

    /// R0. A result of 64 bits is in R0 and R1.
    pub(crate) fn result(&self) -> u64 {
        u64::from(self.general.r[0])
    }

    pub(crate) fn set_result(&mut self, value: u64) {
        self.general.r[0] = value as u32;
    }

    /// A vector register, if it is shown.
    pub(crate) fn vector(&self, index: usize) -> Option<[u64; 2]> {
        let words = *self.vectors.get(index).filter(|_| index < self.shown as usize)?;
        let [a, b, c, d] = words.map(u64::from);
        Some([a | b << 32, c | d << 32])
    }

    /// Changes a vector register. `false` if it isn't shown.
    pub(crate) fn set_vector(&mut self, index: usize, value: [u64; 2]) -> bool {
        let [low, high] = value;
        let words = [low, low >> 32, high, high >> 32].map(|word| word as u32);
        let shown = index < self.shown as usize;
        let slot = self.vectors.get_mut(index).filter(|_| shown);
        slot.map(|slot| *slot = words).is_some()
    }
}

// What the routines look at (`vectors_there` in `super::save`). It is 0 while there is no stub.
core::arch::global_asm!(
    ".pushsection .bss.grapnel_hook_vectors, \"aw\", %nobits",
    ".p2align 2",
    ".globl grapnel_hook_vectors",
    ".hidden grapnel_hook_vectors",
    ".type grapnel_hook_vectors, %object",
    "grapnel_hook_vectors: .zero 4",
    ".size grapnel_hook_vectors, 4",
    ".popsection",
);

unsafe extern "C" {
    safe static grapnel_hook_vectors: AtomicU32;
}

/// How many vector registers of 64 bits a processor has, of which the kernel says this (`AT_HWCAP`). Kernels of 64 bits don't
/// tell 32-bit processes that there are 32, but that there is NEON, which has so many (DDI 0406, A2.6.2).
fn vectors_of(capabilities: usize) -> u32 {
    const VFP: usize = 1 << 6;
    const NEON: usize = 1 << 12;
    const VFPD32: usize = 1 << 19;
    match capabilities {
        _ if capabilities & VFP == 0 => 0,
        _ if capabilities & (NEON | VFPD32) == 0 => 16,
        _ => 32,
    }
}

/// Tells the routines which vector registers there are, before the first of them runs.
pub(super) fn tell_routines() {
    if grapnel_hook_vectors.load(Relaxed) == 0 {
        let capabilities = sys::auxiliary(libc::AT_HWCAP as usize).unwrap_or(0);
        grapnel_hook_vectors.store(vectors_of(capabilities), Relaxed);
    }
}

/// Those that the processor has.
pub(crate) fn vectors_can_be_saved() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_tell_the_vector_registers() {
        // swp, half, thumb, fast multiplication and TLS; with VFP, VFPv3 and 16 registers; as a kernel of 64 bits says it.
        let cases = [(0x8017, 0), (0xe057, 16), (0x8_2057, 32), (0x3f_b0d6 & !(1 << 19), 32)];
        for (capabilities, registers) in cases {
            assert_eq!(vectors_of(capabilities), registers, "{capabilities:#x}");
        }
    }
}
