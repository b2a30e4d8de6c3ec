//! Gates: what a call runs before the displaced instructions, right in front of them.
//!
//! ```text
//! slot = traps, way out, gate, trampoline, island
//!                        ^ a multiple of 64
//! way out = a jump to the replacement
//! ```

use alloc::vec::Vec;

use grapnel_relocator::{CodeAddr, Isa, redirect};

use crate::{Error, HookPlan, arena::CodeSlot, native};

/// The longest gate.
const MAX_LEN: usize = 4096;
/// A multiple of this is where a gate begins.
const ALIGN: usize = 64;

/// How many bytes in front of a [gate](crate::Transaction::replace_gated) for this function its way out begins: the jump to the
/// replacement.
pub fn way_out(target: *const ()) -> usize {
    redirect::lengths(native::code_at(CodeAddr(target as usize as u64)).0).absolute
}

/// A gate, and where its way out leads.
pub(crate) struct Gate<'g> {
    code: &'g [u8],
    replacement: CodeAddr,
    isa: Isa,
}

impl<'g> Gate<'g> {
    /// # Errors
    /// If it can't be put there.
    pub(crate) fn of(code: &'g [u8], plan: &HookPlan, replacement: CodeAddr) -> Result<Option<Self>, Error> {
        if code.len() > MAX_LEN || !code.len().is_multiple_of(native::trap(plan.isa).len()) {
            return Err(Error::BadGate { target: plan.target, len: code.len() });
        }
        Ok((!code.is_empty()).then_some(Self { code, replacement, isa: plan.isa }))
    }

    fn way_out(&self) -> usize {
        redirect::lengths(self.isa).absolute
    }

    /// How many bytes it may take, wherever it comes to stand.
    pub(crate) fn max_len(&self) -> usize {
        self.way_out() + ALIGN - 1 + self.code.len()
    }

    /// Where it stands in a slot.
    pub(crate) fn at(&self, slot: CodeSlot) -> usize {
        (slot.at + self.way_out()).next_multiple_of(ALIGN)
    }

    /// The bytes of a slot up to its end.
    pub(crate) fn bytes(&self, slot: CodeSlot) -> Option<Vec<u8>> {
        let (at, fill) = (self.at(slot), native::trap(self.isa));
        let way_out = at - self.way_out();
        let jump = native::absolute(self.isa, CodeAddr(way_out as u64), self.replacement)?;
        let mut bytes: Vec<u8> = fill.iter().cycle().take(at - slot.at).copied().collect();
        bytes.get_mut(way_out - slot.at..)?.get_mut(..jump.len())?.copy_from_slice(&jump);
        bytes.extend_from_slice(self.code);
        Some(bytes)
    }
}
