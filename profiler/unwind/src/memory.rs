//! The only places where memory that Rust does not own is read.
//!
//! # Safety
//! [`read_word`] relies on its caller to have found the range readable ([`StackMemory`](crate::StackMemory) has).
//! [`mapped_slice`] relies on the promise made to [`ModuleTable::build`](crate::ModuleTable::build): a module's
//! segments stay mapped and unchanged as long as the table is in use.

use gimli::{EndianSlice, NativeEndian};

/// Bytes of a mapped module, as gimli reads them.
pub(crate) type Slice = EndianSlice<'static, NativeEndian>;

/// The bytes of a word of this machine.
pub(crate) const WORD: u64 = size_of::<usize>() as u64;

/// The word at `address`, which need not be aligned.
///
/// # Safety
/// The [`WORD`] bytes at `address` can be read.
#[inline(always)]
pub(crate) unsafe fn read_word(address: u64) -> u64 {
    #[repr(C, packed)]
    #[derive(Clone, Copy)]
    struct Unaligned(usize);
    let pointer = core::ptr::with_exposed_provenance::<Unaligned>(address as usize);
    // SAFETY: the caller promises that the bytes can be read; the type needs no alignment. The read is volatile since
    // the memory belongs to code that the compiler does not see.
    unsafe { pointer.read_volatile() }.0 as u64
}

/// The byte at `address`.
///
/// # Safety
/// It can be read.
pub(crate) unsafe fn read_byte(address: u64) -> u8 {
    let pointer = core::ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: the caller's promise. Volatile as in `read_word`.
    unsafe { pointer.read_volatile() }
}

/// The bytes from `start` to `end`.
///
/// # Safety
/// The bytes are mapped, readable and unchanged for as long as the slice is used.
pub(crate) unsafe fn mapped_slice(start: u64, end: u64) -> Slice {
    let len = end.saturating_sub(start) as usize;
    let pointer = core::ptr::with_exposed_provenance::<u8>(start as usize);
    // SAFETY: the caller's promise; the length is within one segment, hence below isize::MAX.
    EndianSlice::new(unsafe { core::slice::from_raw_parts(pointer, len) }, NativeEndian)
}
