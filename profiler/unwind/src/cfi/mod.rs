//! From a pc to its row of call frame information, read from the mapped module.
//!
//! # Safety
//! Slices of mapped memory are made here; see [`memory`](crate::memory) for what that relies on.

mod columns;
mod facts;
mod place;
mod quick;

use crate::memory::{Slice, mapped_slice};
use crate::module::{Module, Span};
use alloc::vec::Vec;
use gimli::{
    BaseAddresses, CieOrFde, EhFrame, EhFrameHdr, FrameDescriptionEntry, NativeEndian, UnwindContext,
    UnwindSection, UnwindTableRow, Vendor,
};

pub(crate) use columns::{Columns, Names};
pub(crate) use facts::{Cfa, Facts, FrameRegisters, Said};
pub(crate) use place::NoCfi;
pub(crate) use quick::SearchTable;

/// CFI is what the 64-bit instruction sets have.
const ADDRESS_BYTES: u8 = 8;

/// Memory that parsing needs, kept from one lookup to the next.
#[derive(Debug)]
pub struct CfiScratch {
    context: UnwindContext<usize>,
}

impl CfiScratch {
    /// Allocates what parsing will need.
    pub fn new() -> Self {
        CfiScratch { context: UnwindContext::new() }
    }
}

impl Default for CfiScratch {
    fn default() -> Self {
        Self::new()
    }
}

/// The row for an address, with what is needed to interpret it.
pub(crate) struct Row<'a> {
    pub(crate) row: &'a UnwindTableRow<usize>,
    pub(crate) section: &'a EhFrame<Slice>,
    pub(crate) fde: &'a FrameDescriptionEntry<Slice>,
}

/// Finds the row for the instruction at `address` and shows it to `found`.
///
/// Returns `None` where the module has no CFI for the address, or CFI that can't be parsed.
pub(crate) fn with_row<R>(
    module: &Module,
    scratch: &mut CfiScratch,
    address: u64,
    found: impl FnOnce(Row<'_>) -> R,
) -> Option<R> {
    let (section, bases, fde) = match &module.frames {
        Some(list) => list.find(module, address)?,
        None => find(module, address)?,
    };
    let row = fde.unwind_info_for_address(&section, &bases, &mut scratch.context, address).ok()?;
    Some(found(Row { row, section: &section, fde: &fde }))
}

type Found = (EhFrame<Slice>, BaseAddresses, FrameDescriptionEntry<Slice>);

/// The entry for an address, by the table in the header.
fn find(module: &Module, address: u64) -> Option<Found> {
    let hdr = module.eh_frame_hdr?;
    // SAFETY: `hdr` was clamped to a mapped segment when the table was built.
    let hdr_slice = unsafe { mapped_slice(hdr.start, hdr.end) };
    let bases = BaseAddresses::default().set_text(module.text).set_eh_frame_hdr(hdr.start);
    let parsed = EhFrameHdr::new(hdr_slice.slice(), NativeEndian).parse(&bases, ADDRESS_BYTES).ok()?;
    let eh_frame_start = parsed.eh_frame_ptr().direct().ok()?;
    let bases = bases.set_eh_frame(eh_frame_start);
    // SAFETY: the span lies in one mapped segment.
    let section = unsafe { section(module.rest_of_segment(eh_frame_start)?) };
    let fde = match parsed.table() {
        Some(table) => {
            let pointer = table.lookup(address, &bases).ok()?;
            let offset = table.pointer_to_offset(pointer).ok()?;
            section.fde_from_offset(&bases, offset, EhFrame::cie_from_offset).ok()?
        }
        None => section.fde_for_address(&bases, address, EhFrame::cie_from_offset).ok()?,
    };
    Some((section, bases, fde))
}

/// # Safety
/// The span lies in one mapped segment.
unsafe fn section(span: Span) -> EhFrame<Slice> {
    // SAFETY: the caller's promise.
    let mut section = EhFrame::new(unsafe { mapped_slice(span.start, span.end) }.slice(), NativeEndian);
    section.set_address_size(ADDRESS_BYTES);
    // Signed return addresses; the instruction has no other meaning where these are unknown.
    section.set_vendor(Vendor::AArch64);
    section
}

/// Where the entries lie of an `.eh_frame` without a header.
#[derive(Debug)]
pub(crate) struct FrameList {
    frames: Span,
    /// First addresses, in ascending order, and offsets of what is said of them.
    entries: Vec<(u64, usize)>,
}

impl FrameList {
    /// Reads all of them, up to what can't be made sense of. `text` is the module's.
    ///
    /// # Safety
    /// The span lies in one mapped segment.
    pub(crate) unsafe fn read(frames: Span, text: u64) -> Self {
        // SAFETY: the caller's promise.
        let section = unsafe { section(frames) };
        let bases = BaseAddresses::default().set_text(text).set_eh_frame(frames.start);
        let (mut all, mut entries) = (section.entries(&bases), Vec::new());
        while let Ok(Some(entry)) = all.next() {
            if let CieOrFde::Fde(entry) = entry
                && let Ok(entry) = entry.parse(EhFrame::cie_from_offset)
            {
                entries.push((entry.initial_address(), entry.offset()));
            }
        }
        entries.sort_unstable();
        Self { frames, entries }
    }

    /// The offset of what is said of the last function up to an address.
    fn offset(&self, address: u64) -> Option<usize> {
        let after = self.entries.partition_point(|(start, _)| *start <= address);
        self.entries.get(after.checked_sub(1)?).map(|(_, offset)| *offset)
    }

    fn find(&self, module: &Module, address: u64) -> Option<Found> {
        let offset = self.offset(address)?;
        // SAFETY: the span lies in one mapped segment, as when the list was made.
        let section = unsafe { section(self.frames) };
        let bases = BaseAddresses::default().set_text(module.text).set_eh_frame(self.frames.start);
        let fde = section.fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset).ok()?;
        Some((section, bases, fde))
    }
}
