//! The registers that a walk starts from, and their DWARF numbers.

use crate::start::Cursor;
use gimli::Register;

/// DWARF numbers (DWARF for the Arm 64-bit Architecture, section 4.1).
pub(super) const X19: u16 = 19;
pub(super) const X29: Register = Register(29);
pub(super) const X30: Register = Register(30);
pub(super) const SP: Register = Register(31);
pub(super) const PC: Register = Register(32);

/// The bits of a return address that are part of the address. The others may be a signature: Linux gives a program 48
/// bits of addresses, and more only if it asks for an address beyond them.
pub(super) const CODE: u64 = (1 << 48) - 1;

/// The state right after the return to the caller of the hooked function: `pc` is the return address. The first frame
/// of a walk is therefore that caller.
///
/// The other registers are those that a callee preserves; they are what the caller had at the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "registers by their own names")]
pub struct Registers {
    pub pc: u64,
    pub sp: u64,
    pub fp: u64,
    /// x19 to x28.
    pub x19: [u64; 10],
}

impl Registers {
    #[inline(always)]
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor { pc: self.pc & CODE, sp: self.sp, fp: self.fp }
    }
}
