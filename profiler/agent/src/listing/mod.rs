//! The dynamic linker's list of loaded objects, as the agent takes it.
//!
//! An agent that was loaded before the program asks `dl_iterate_phdr` (`preloaded`); one that was put into a process that
//! runs calls no function of libc, and reads the list itself (`attached`). What is in a namespace of its own
//! (`dlmopen`, auditors) is in the list alone.

#[cfg(grapnel_attached)]
pub(crate) mod attached;
mod in_memory;
#[cfg(not(grapnel_attached))]
mod preloaded;

#[cfg(grapnel_attached)]
pub(crate) use attached::{executable, frames, is_unloading, listed};
#[cfg(not(grapnel_attached))]
pub(crate) use preloaded::{executable, frames, is_unloading, kept, listed, prepare};

use alloc::vec::Vec;
use grapnel_unwind::ProgramHeader;

/// A program header as it lies in memory.
#[cfg(target_pointer_width = "64")]
pub(crate) type RawHeader = libc::Elf64_Phdr;
#[cfg(target_pointer_width = "32")]
pub(crate) type RawHeader = libc::Elf32_Phdr;

/// A program header that lies in memory.
fn header(raw: &RawHeader) -> ProgramHeader {
    ProgramHeader {
        p_type: raw.p_type,
        p_flags: raw.p_flags,
        p_offset: raw.p_offset as _,
        p_vaddr: raw.p_vaddr as _,
        p_paddr: raw.p_paddr as _,
        p_filesz: raw.p_filesz as _,
        p_memsz: raw.p_memsz as _,
        p_align: raw.p_align as _,
    }
}

/// Program headers as they lie in memory.
pub(crate) fn raw_headers(headers: &[ProgramHeader]) -> Vec<RawHeader> {
    let raw = |header: &ProgramHeader| RawHeader {
        p_type: header.p_type,
        p_flags: header.p_flags,
        p_offset: header.p_offset as _,
        p_vaddr: header.p_vaddr as _,
        p_paddr: header.p_paddr as _,
        p_filesz: header.p_filesz as _,
        p_memsz: header.p_memsz as _,
        p_align: header.p_align as _,
    };
    headers.iter().map(raw).collect()
}

/// An object as the dynamic linker lists it.
pub(crate) struct Listed {
    pub(crate) bias: u64,
    pub(crate) path: Vec<u8>,
    pub(crate) headers: Vec<ProgramHeader>,
}
