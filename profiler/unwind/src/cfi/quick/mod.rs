//! From a pc to the facts that its rule is made of, for the commonest forms of call frame information and nothing else.
//!
//! gimli reads all forms, allocates, and wants a context that one thread has at a time. Where many pcs are new, as in a
//! compiler, what comes around that (a lock, signals blocked, another stack) takes longer than the look-up itself. What is
//! here takes none of these: it looks at the mapped module and at a few hundred bytes of its caller's stack, from any thread
//! and in any signal handler. In return it gives up on what is rare. Where it answers, the answer is that of gimli.
//!
//! # Safety
//! Slices of mapped memory are made here; see [`memory`](crate::memory) for what that relies on.

mod bytes;
mod entry;
mod program;

use super::facts::{Facts, FrameRegisters};
use crate::memory::mapped_slice;
use crate::module::{Module, ModuleTable, Span};
use crate::native::prefetch;
use bytes::Bytes;
use core::cmp::Ordering;
use entry::Entry;

/// Version 1; where `.eh_frame` lies as pcrel | sdata4, the number of entries as udata4, and these as datarel | sdata4.
const COMMON: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
/// What lies ahead of the entries.
const HEADER: u64 = 12;

/// The sorted table in an `.eh_frame_hdr` of the common form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchTable {
    /// The header's. What is in the table is relative to its start.
    header: Span,
    count: u32,
    eh_frame: Span,
}

impl SearchTable {
    /// Reads the header of a module, and nothing behind it.
    ///
    /// # Safety
    /// The module's header is mapped.
    pub(crate) unsafe fn read(module: &Module) -> Option<Self> {
        let header = module.eh_frame_hdr?;
        // SAFETY: the caller's promise.
        let bytes = unsafe { mapped_slice(header.start, header.end) };
        let mut bytes = Bytes(bytes.slice());
        if bytes.split(4)?.0 != COMMON {
            return None;
        }
        let at = bytes.address();
        let eh_frame = at.wrapping_add(bytes.offset()?);
        let count = bytes.u32().filter(|count| *count != 0)?;
        Some(SearchTable { header, count, eh_frame: module.rest_of_segment(eh_frame)? })
    }

    /// The offset in `.eh_frame` of the FDE that an address belongs to if it has one.
    ///
    /// The steps are those of gimli, so that it is the same one in tables that aren't sorted.
    fn find(&self, address: u64) -> Option<usize> {
        // SAFETY: within a mapped segment, as when the header was read.
        let entries = unsafe { mapped_slice(self.header.start.saturating_add(HEADER), self.header.end) };
        let (entries, _) = entries.slice().as_chunks::<8>();
        let at = |offset: [u8; 4]| self.header.start.wrapping_add_signed(i32::from_ne_bytes(offset).into());
        let (mut first, mut len) = (0, self.count as usize);
        while len > 1 {
            let half = len / 2;
            // Whichever way it goes from here, the next one is on its way: each would be waited for.
            for next in [half / 2, half + (len - half) / 2] {
                entries.get(first + next).inspect(|entry| prefetch(*entry));
            }
            let [a, b, c, d, ..] = *entries.get(first + half)?;
            match at([a, b, c, d]).cmp(&address) {
                Ordering::Equal => {
                    first += half;
                    break;
                }
                Ordering::Less => {
                    first += half;
                    len -= half;
                }
                Ordering::Greater => len = half,
            }
        }
        let [.., a, b, c, d] = *entries.get(first)?;
        at([a, b, c, d]).checked_sub(self.eh_frame.start)?.try_into().ok()
    }
}

impl ModuleTable {
    /// What [`Self::with_row_at`] would show of `pc`, and the id of its module; or nothing.
    #[inline]
    pub(crate) fn quick_facts(
        &self,
        pc: u64,
        is_return_address: bool,
        names: FrameRegisters,
    ) -> Option<(Facts, u32)> {
        let address = pc.wrapping_sub(u64::from(is_return_address));
        let module = self.code_at(address)?;
        let (section, offset) = match (&module.frames, &module.search) {
            (Some(list), _) => (list.frames, list.offset(address)?),
            (None, Some(table)) => (table.eh_frame, table.find(address)?),
            (None, None) => return None,
        };
        // SAFETY: within a mapped segment, as when the list or the table was made.
        let section = unsafe { mapped_slice(section.start, section.end) };
        let entry = Entry::read(section.slice(), offset)?;
        Some((program::facts_at(&entry, names, address)?, module.id))
    }
}
