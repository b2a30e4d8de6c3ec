//! What may be done with pages of memory, as the list of mappings says it.

use core::ops::Range;

use super::maps::{self, Mapping};
use crate::sys::Errno;

/// The rights of the page at an address. Without a list of mappings, those of code.
pub(super) fn of(page: usize) -> Result<i32, Errno> {
    let mut found = None;
    let listed = maps::visit(|mapping| {
        if mapping.range.contains(&page) {
            found = Some(mapping.rights());
        }
    });
    match listed {
        Ok(()) => found.ok_or(Errno(libc::ENOMEM)),
        Err(_) => Ok(libc::PROT_READ | libc::PROT_EXEC),
    }
}

/// Whether all of the pages are mapped, and so.
pub(super) fn are(pages: &Range<usize>, so: impl Fn(&Mapping) -> bool) -> Result<bool, Errno> {
    let mut so_until = pages.start;
    maps::visit(|mapping| {
        if so(&mapping) && mapping.range.contains(&so_until) {
            so_until = mapping.range.end;
        }
    })?;
    Ok(so_until >= pages.end)
}
