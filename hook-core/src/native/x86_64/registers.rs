//! What a stub saves, and how listeners see it.
//!
//! # Safety
//! [`Saved`] is filled by the routines of [`super::entry`] alone, which also load what it holds back into the registers.
//! Its pointers are good for as long as the listener runs.

use core::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Release},
};

use super::{machine::mark_vectors, returns::CALL_LEN, vectors::VectorArea};

/// The general registers of a call or of a probed place.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "the registers have the names that the manual gives them")]
pub struct Registers {
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rbx: u64,
    /// Changes of it are ignored.
    pub rsp: u64,
    pub rbp: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    /// In probes only. At a function's entry and return the ABI gives the flags no meaning, and they read as 0.
    pub rflags: u64,
    /// The probed instruction, the function's entry, or where it returns to. Changes of it are ignored.
    pub rip: u64,
}

/// What lies on the stack while a listener runs.
#[repr(C)]
pub(crate) struct Saved {
    /// The vector registers that pass arguments, and of those the first two at the return. Not used if `vectors` is.
    xmm: [[u64; 2]; 8],
    pub(crate) general: Registers,
    /// All vector state, null if only `xmm` is saved, or [`NOT_SAVED`].
    vectors: *mut VectorArea,
    /// So that all lies at a multiple of 16 where the stack pointer does as the ABI wants it: moves that cross lines cost
    /// more than the listener's call.
    _aligned: u64,
    /// Where a stub goes that has the return watched. It and the next two lie near enough below the return address to be
    /// read when the stack pointer has passed them.
    way_in: u64,
    /// The listener's own word of this call.
    pub(crate) word: u64,
    /// Where the stub's call returns to.
    pub(crate) stub: u64,
    /// The return address of the hooked function's call. Not there in probes.
    pub(crate) return_address: u64,
}

const _: () = assert!(core::mem::offset_of!(Saved, return_address) == 312);

/// Where no vector register is saved.
pub(super) const NOT_SAVED: usize = 1;

/// The registers of the first six integer arguments, in order.
const ARGUMENTS: usize = 6;

impl fmt::Debug for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("Saved");
        all.field("general", &self.general).field("return_address", &self.return_address);
        (0..16)
            .filter_map(|index| self.vector(index))
            .fold(&mut all, |all, vector| all.field("vector", &vector));
        all.finish()
    }
}

impl Saved {
    /// The offset of what a stub goes by when the stack pointer is above the return address.
    pub(super) const WAY_IN: usize = core::mem::offset_of!(Saved, way_in);

    /// What tells this call from all others that are under way: where its return slot is.
    pub(crate) fn call(&self) -> usize {
        &raw const self.return_address as usize
    }

    /// Says at which point the function returns, to the function and to whoever looks at its return slot meanwhile.
    pub(crate) fn set_return_address(&mut self, address: u64) {
        self.way_in = address - CALL_LEN;
        self.return_to(address);
    }

    /// Changes the return slot, after all that was stored before.
    pub(super) fn return_to(&mut self, address: u64) {
        // SAFETY: the slot is this call's, and others only look at it.
        unsafe { AtomicU64::from_ptr(&raw mut self.return_address) }.store(address, Release);
    }

    /// The listener is shown a place between instructions, where the ABI gives the flags no meaning.
    pub(crate) fn at_boundary(&mut self, address: u64) {
        self.general.rip = address;
        self.general.rflags = 0;
    }

    /// The listener is shown the place of a probe.
    pub(crate) fn at_probe(&mut self, address: u64) {
        self.general.rip = address;
    }

    /// Where the probe is.
    pub(crate) fn place(&self) -> u64 {
        self.general.rip
    }

    /// An integer argument at a function's entry.
    pub(crate) fn argument(&self, index: usize) -> u64 {
        let r = &self.general;
        match [r.rdi, r.rsi, r.rdx, r.rcx, r.r8, r.r9].get(index) {
            Some(value) => *value,
            // SAFETY: the caller of the hooked function passed that many (the promise of the listener's question).
            None => unsafe { self.stack_argument(index).read() },
        }
    }

    pub(crate) fn set_argument(&mut self, index: usize, value: u64) {
        let stack = self.stack_argument(index);
        let r = &mut self.general;
        match [&mut r.rdi, &mut r.rsi, &mut r.rdx, &mut r.rcx, &mut r.r8, &mut r.r9].get_mut(index) {
            Some(register) => **register = value,
            // SAFETY: the caller of the hooked function passed that many, and the place belongs to the callee (System
            // V ABI, 3.2.3).
            None => unsafe { stack.write(value) },
        }
    }

    /// The arguments in memory lie above the return address.
    fn stack_argument(&self, index: usize) -> *mut u64 {
        let place = self.general.rsp as usize as *mut u64;
        place.wrapping_add(1 + index.saturating_sub(ARGUMENTS))
    }

    pub(crate) fn result(&self) -> u64 {
        self.general.rax
    }

    pub(crate) fn set_result(&mut self, value: u64) {
        self.general.rax = value;
    }

    /// The low half of a vector register, if it was saved.
    pub(crate) fn vector(&self, index: usize) -> Option<[u64; 2]> {
        mark_vectors();
        match self.vectors.addr() {
            0 => self.xmm.get(index).copied(),
            NOT_SAVED => None,
            // SAFETY: the area is this stub's for as long as the listener runs.
            _ => unsafe { &*self.vectors }.low(index),
        }
    }

    /// Changes the low half of a vector register. `false` if it wasn't saved.
    pub(crate) fn set_vector(&mut self, index: usize, value: [u64; 2]) -> bool {
        mark_vectors();
        match self.vectors.addr() {
            0 => self.xmm.get_mut(index).map(|slot| *slot = value).is_some(),
            NOT_SAVED => false,
            // SAFETY: as in `vector`.
            _ => unsafe { &mut *self.vectors }.set_low(index, value),
        }
    }
}
