//! The registers that a walk starts from, and their DWARF numbers.

use crate::start::Cursor;
use gimli::Register;

/// DWARF numbers (System V ABI for AMD64, figure 3.36).
pub(super) const RAX: Register = Register(0);
pub(super) const RDX: Register = Register(1);
pub(super) const RCX: Register = Register(2);
pub(super) const RBX: Register = Register(3);
pub(super) const RSI: Register = Register(4);
pub(super) const RDI: Register = Register(5);
pub(super) const RBP: Register = Register(6);
pub(super) const RSP: Register = Register(7);
pub(super) const R8: Register = Register(8);
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

impl Registers {
    #[inline(always)]
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor { pc: self.pc, sp: self.sp, fp: self.bp }
    }
}
