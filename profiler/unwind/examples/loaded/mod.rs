//! The libraries that an example is given by their paths, and all else that is loaded then.

use grapnel_unwind::{ModuleInfo, ModuleTable, ProgramHeader};
use std::ffi::{CStr, CString, c_int, c_void};

/// A module as the loader tells of it.
pub(crate) struct Loaded {
    /// Empty for the program.
    pub(crate) name: String,
    pub(crate) bias: u64,
    pub(crate) phdrs: &'static [ProgramHeader],
}

unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, list: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid record, and the argument is the list below.
    unsafe {
        let phdrs = (*info).dlpi_phdr.cast::<ProgramHeader>();
        (*list.cast::<Vec<Loaded>>()).push(Loaded {
            name: CStr::from_ptr((*info).dlpi_name).to_string_lossy().into_owned(),
            bias: (*info).dlpi_addr,
            phdrs: std::slice::from_raw_parts(phdrs, (*info).dlpi_phnum.into()),
        });
    }
    0
}

/// Loads the libraries whose paths are the program's arguments; all modules that are loaded then, and their table.
pub(crate) fn from_arguments() -> (Vec<Loaded>, ModuleTable) {
    for path in std::env::args().skip(1) {
        let name = CString::new(path.as_str()).expect("no NUL");
        // SAFETY: the libraries named are trusted to have harmless constructors.
        if unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.is_null() {
            eprintln!("{path} can't be loaded");
        }
    }
    let mut list: Vec<Loaded> = Vec::new();
    // SAFETY: nothing is unloaded.
    let table = unsafe {
        libc::dl_iterate_phdr(Some(add), (&raw mut list).cast());
        let infos = list.iter().zip(1..).map(|(m, id)| ModuleInfo { id, bias: m.bias, phdrs: m.phdrs });
        ModuleTable::build(infos)
    };
    (list, table)
}
