//! The registers that a walk starts from.

use super::frame_pointers::FramePointer;
use crate::start::Cursor;

pub(super) const R4: usize = 4;
pub(super) const R7: usize = 7;
pub(super) const R11: usize = 11;
pub(super) const SP: usize = 13;
pub(super) const LR: usize = 14;
pub(super) const PC: usize = 15;

/// The state right after the return to the caller of the hooked function: `pc` is the return address, whose bit 0 says
/// that the caller is T32 code. The first frame of a walk is therefore that caller.
///
/// The other registers are those that a callee preserves; they are what the caller had at the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "registers by their own names")]
pub struct Registers {
    pub pc: u32,
    pub sp: u32,
    /// r4 to r11.
    pub r4: [u32; 8],
}

impl Registers {
    #[inline(always)]
    pub(crate) fn cursor(&self) -> Cursor {
        let [_, _, _, r7, _, _, _, r11] = self.r4;
        Cursor { pc: self.pc.into(), sp: self.sp.into(), fp: FramePointer::pair(r7, r11) }
    }
}
