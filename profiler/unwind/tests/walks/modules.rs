//! The modules that are loaded, and their tables.

use grapnel_unwind::{ModuleInfo, ModuleTable, ProgramHeader};
use std::ffi::{CStr, c_int, c_void};

/// A module as the loader tells of it.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    /// Empty for the program.
    #[cfg_attr(target_arch = "arm", expect(dead_code, reason = "only tests of CFI choose modules"))]
    pub(crate) name: String,
    pub(crate) bias: u64,
    pub(crate) phdrs: Vec<ProgramHeader>,
}

/// All that are loaded now.
pub(crate) fn listed() -> Vec<Listed> {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, list: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid record, and the argument is the list below.
        unsafe {
            let list = &mut *list.cast::<Vec<Listed>>();
            let phdrs = std::slice::from_raw_parts((*info).dlpi_phdr, (*info).dlpi_phnum.into());
            let phdrs = phdrs.iter().map(|header| ProgramHeader {
                p_type: header.p_type,
                p_flags: header.p_flags,
                p_offset: header.p_offset as _,
                p_vaddr: header.p_vaddr as _,
                p_paddr: header.p_paddr as _,
                p_filesz: header.p_filesz as _,
                p_memsz: header.p_memsz as _,
                p_align: header.p_align as _,
            });
            list.push(Listed {
                name: CStr::from_ptr((*info).dlpi_name).to_string_lossy().into_owned(),
                bias: (*info).dlpi_addr as _,
                phdrs: phdrs.collect(),
            });
        }
        0
    }
    let mut list: Vec<Listed> = Vec::new();
    // SAFETY: as the callback says.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut list).cast()) };
    list
}

/// A table of these, numbered from 1.
///
/// # Safety
/// As for [`ModuleTable::build`].
pub(crate) unsafe fn table<'a>(modules: impl IntoIterator<Item = &'a Listed>) -> ModuleTable {
    let infos = modules.into_iter().zip(1..).map(|(m, id)| ModuleInfo { id, bias: m.bias, phdrs: &m.phdrs });
    // SAFETY: the caller's promise.
    unsafe { ModuleTable::build(infos) }
}
