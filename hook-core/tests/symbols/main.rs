//! Loaded objects and their symbols, compared with what the dynamic linker says.

mod files;
#[path = "../common/find.rs"]
mod find;
mod greedy;
mod hostile;
mod library;

use grapnel_hook::symbol::{self, SymbolKind};

#[test]
fn every_loaded_object_is_found_as_dl_iterate_phdr_sees_it() {
    extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, data: *mut libc::c_void) -> i32 {
        // SAFETY: the callback gets a valid structure, and `data` is the vector passed below.
        unsafe {
            let list = &mut *data.cast::<Vec<(usize, usize)>>();
            let info = &*info;
            let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
            let loads = headers.iter().filter(|p| p.p_type == libc::PT_LOAD).count();
            list.push((info.dlpi_addr as usize, loads));
        }
        0
    }
    let mut expected = Vec::<(usize, usize)>::new();
    // SAFETY: `each` fits the signature and `data` is the vector.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut expected).cast()) };
    let found: Vec<_> = find::modules().iter().map(|m| (m.bias(), m.segments().len())).collect();
    assert!(expected.len() >= 4, "{expected:x?}");
    assert_eq!(found, expected);
}

#[test]
fn every_function_of_libc_is_found_where_dlsym_finds_it() {
    let libc_so = find::module("libc.so");
    let mut names = Vec::new();
    symbol::for_each(&libc_so, &mut |name, s| {
        if s.kind == SymbolKind::Function && !s.hidden {
            names.push(name.to_vec());
        }
    });
    assert!(names.len() > 2000, "{}", names.len());
    // SAFETY: opening an object that is loaded.
    let handle = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    let mut compared = 0;
    for name in names {
        let text = std::ffi::CString::new(name.clone()).unwrap();
        // SAFETY: the handle and the name are valid.
        let expected = unsafe { libc::dlsym(handle, text.as_ptr()) } as usize;
        if expected == 0 {
            continue; // a private version
        }
        let found = symbol::find(&libc_so, &name).unwrap();
        assert_eq!(found.addr, expected, "{text:?}");
        compared += 1;
    }
    assert!(compared > 1500, "{compared}");
}

#[test]
fn an_indirect_function_is_resolved_to_what_is_called() {
    let strlen = symbol::find(&find::module("libc.so"), b"strlen").unwrap();
    assert_eq!(strlen.kind, SymbolKind::Indirect);
    // SAFETY: libc is loaded and relocated.
    let resolved = unsafe { strlen.resolve() };
    // SAFETY: the default handle and a valid name.
    let called = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"strlen".as_ptr()) };
    assert_eq!(resolved as usize, called as usize);
}

#[test]
fn old_and_private_versions_count() {
    let cfree = find::module("libc.so");
    // glibc 2.26 took cfree out of the default versions.
    let cfree = symbol::find(&cfree, b"cfree");
    if let Some(cfree) = cfree {
        assert!(cfree.hidden);
    }
    assert!(symbol::find(&find::module("ld-linux"), b"_dl_debug_state").is_some());
    let mut versions = Vec::new();
    symbol::for_each_version(&find::module("libc.so"), b"memcpy", &mut |s| versions.push(s));
    assert_eq!(versions.len(), 2);
    assert!(!symbol::find(&find::module("libc.so"), b"memcpy").unwrap().hidden);
}

#[test]
fn what_is_not_defined_is_not_found() {
    for module in find::modules() {
        assert_eq!(symbol::find(&module, b"no such symbol"), None);
        assert_eq!(symbol::find(&module, b""), None);
    }
    // A thread-local symbol's value is no address.
    assert_eq!(symbol::find(&find::module("libc.so"), b"errno"), None);
}
