//! An object as its own headers in memory describe it.
//!
//! # Safety
//! They are those of an object that is loaded, and lie in its first page, as all linkers have it.

use super::{Listed, RawHeader, header};
use core::ptr;
use grapnel_hook::module::Module;

/// The head of an ELF file with words of this machine, as far as it is needed.
#[repr(C)]
struct Head {
    ident: [u8; 16],
    _kinds: [u16; 2],
    _version: u32,
    _entry: usize,
    program_headers: usize,
    _sections: usize,
    _flags: u32,
    _sizes: [u16; 2],
    count: u16,
}

/// An object that the hooks' engine found in the list.
///
/// # Safety
/// It is loaded.
pub(super) unsafe fn of_module(module: &Module) -> Option<Listed> {
    let first = module.segments().iter().map(|segment| segment.range.start).min()?;
    // SAFETY: the module was described by the header at the start of its first segment, and is loaded.
    unsafe { at(first & !(crate::sys::PAGE - 1), module.bias() as u64, module.name()) }
}

/// An object whose file begins at an address.
///
/// # Safety
/// A page of a loaded object is readable there.
pub(super) unsafe fn at(address: usize, bias: u64, path: &[u8]) -> Option<Listed> {
    let head: *const Head = ptr::with_exposed_provenance(address);
    // SAFETY: within the page.
    let head = unsafe { head.read_unaligned() };
    let count = usize::from(head.count);
    let table = head.program_headers;
    let end = table.checked_add(count * size_of::<RawHeader>())?;
    if !head.ident.starts_with(b"\x7fELF") || end > crate::sys::PAGE {
        return None;
    }
    let first: *const RawHeader = ptr::with_exposed_provenance(address + table);
    // SAFETY: the table ends within the page.
    let headers = (0..count).map(|index| header(&unsafe { first.add(index).read_unaligned() })).collect();
    Some(Listed { bias, path: path.to_vec(), headers })
}
