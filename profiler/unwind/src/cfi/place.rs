//! What a pc is, by the call frame information of its module or for the lack of it.

use super::{CfiScratch, Row, with_row};
use crate::module::{Module, ModuleTable};
use crate::probe::page_is_readable;

/// How code that is not in a module, or has no CFI, is treated.
pub(crate) enum NoCfi {
    /// In a module, or at least in memory: follow the frame pointer.
    FramePointer(u32),
    /// A return address that no call pushed: it is the first byte of a function, and no code lies before it. The
    /// stack of a coroutine begins so (`__start_context` of makecontext).
    MadeUp(u32),
    /// No code can be here.
    NotCode,
}

impl ModuleTable {
    /// Shows the row for `pc` to `found`.
    ///
    /// The trap: a return address may be the first byte after its function, when the call does not return. So the
    /// call is looked up instead.
    pub(crate) fn with_row_at<R>(
        &self,
        scratch: &mut CfiScratch,
        pc: u64,
        is_return_address: bool,
        found: impl FnOnce(&Module, Row<'_>) -> R,
    ) -> Option<R> {
        let address = pc.wrapping_sub(u64::from(is_return_address));
        let module = self.code_at(address)?;
        with_row(module, scratch, address, |row| found(module, row))
    }

    /// What a frame is whose pc has no CFI. `returns_to` says whether a call lies before an address.
    pub(crate) fn without_cfi(
        &self,
        scratch: &mut CfiScratch,
        pc: u64,
        is_return_address: bool,
        returns_to: fn(u64) -> bool,
    ) -> NoCfi {
        if let Some(module) = self.code_at(pc) {
            let starts_here = with_row(module, scratch, pc, |row| row.fde.initial_address() == pc);
            if is_return_address && starts_here == Some(true) {
                return NoCfi::MadeUp(module.id);
            }
            return NoCfi::FramePointer(module.id);
        }
        // A JIT compiler's code may be anywhere. In a module's data it is rare, and what points there most often points at data. Elsewhere not
        // even a call is asked for: interpreters push addresses of their own, and jump.
        let address = pc.wrapping_sub(u64::from(is_return_address));
        let is_data = is_return_address && self.module_at(address).is_some() && !returns_to(pc);
        if is_data || !page_is_readable(address) {
            return NoCfi::NotCode;
        }
        NoCfi::FramePointer(self.module_at(address).unwrap_or(0))
    }
}
