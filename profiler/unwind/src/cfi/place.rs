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

    /// What a frame is whose pc has no CFI.
    pub(crate) fn without_cfi(&self, scratch: &mut CfiScratch, pc: u64, is_return_address: bool) -> NoCfi {
        if let Some(module) = self.code_at(pc) {
            let starts_here = with_row(module, scratch, pc, |row| row.fde.initial_address() == pc);
            if is_return_address && starts_here == Some(true) {
                return NoCfi::MadeUp(module.id);
            }
            return NoCfi::FramePointer(module.id);
        }
        // A module's data is never code; other memory may be a JIT compiler's.
        if self.module_at(pc).is_some() || !page_is_readable(pc) {
            return NoCfi::NotCode;
        }
        NoCfi::FramePointer(0)
    }
}
