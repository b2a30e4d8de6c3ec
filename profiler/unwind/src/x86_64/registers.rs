//! The registers that a walk starts from, and their DWARF numbers.

use gimli::Register;

/// DWARF numbers (System V ABI for AMD64, figure 3.36).
pub(super) const RBX: Register = Register(3);
pub(super) const RBP: Register = Register(6);
pub(super) const RSP: Register = Register(7);
pub(super) const R12: Register = Register(12);
pub(super) const R13: Register = Register(13);
pub(super) const R14: Register = Register(14);
pub(super) const R15: Register = Register(15);
pub(super) const RA: Register = Register(16);

/// The state right after the return to the caller of the hooked function: `pc` is the return address and `sp` lies
/// just above the slot that held it. The first frame of a walk is therefore that caller.
///
/// The other registers are those that a callee preserves; they are what the caller had at the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "registers by their own names")]
pub struct Registers {
    pub pc: u64,
    pub sp: u64,
    pub bp: u64,
    pub rbx: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
}

/// A frame as the fast rules see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) fp: u64,
}

/// Where a walk starts: what of [`Registers`] the fast rules need, and the rest when it is asked for.
pub trait Start {
    #[expect(missing_docs, reason = "registers by their own names")]
    fn pc(&self) -> u64;
    #[expect(missing_docs, reason = "registers by their own names")]
    fn sp(&self) -> u64;
    #[expect(missing_docs, reason = "registers by their own names")]
    fn bp(&self) -> u64;
    /// All of them. Off the hot path.
    fn registers(&self) -> Registers;
}

impl Start for Registers {
    #[inline(always)]
    fn pc(&self) -> u64 {
        self.pc
    }

    #[inline(always)]
    fn sp(&self) -> u64 {
        self.sp
    }

    #[inline(always)]
    fn bp(&self) -> u64 {
        self.bp
    }

    fn registers(&self) -> Registers {
        *self
    }
}
