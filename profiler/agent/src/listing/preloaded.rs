//! Through `dl_iterate_phdr`, and by the linker's list itself what is in other namespaces than the program.
//!
//! # Safety
//! It is called where its lock is free or this thread's.

use super::{Listed, header, in_memory};
use crate::forking::Listing;
use crate::{own_stack, sys};
use alloc::vec::Vec;
use core::ffi::{CStr, c_void};
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use grapnel_hook::module::{self, RDebug};
use grapnel_hook::symbol;

type Each = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> i32;

/// Calls libc's `dl_iterate_phdr`.
///
/// # Safety
/// `each` takes what the linker gives it, and `argument`.
unsafe fn iterate(each: Each, argument: *mut c_void) {
    type Iterate = unsafe extern "C" fn(Option<Each>, *mut c_void) -> i32;
    let iterate: Iterate = match ITERATE.load(Ordering::Relaxed) {
        0 => libc::dl_iterate_phdr,
        // SAFETY: the address of libc's function of that name and type.
        address => unsafe {
            core::mem::transmute::<*const (), Iterate>(ptr::with_exposed_provenance(address))
        },
    };
    // A fork of this moment would leave a child in which the lock is taken for ever.
    let _listing = Listing::begin();
    // SAFETY: the caller's promise.
    unsafe { iterate(Some(each), argument) };
}

/// Does `work` while no object that is loaded goes: under the lock that the dynamic linker has for its list, which it takes to
/// unload one. The thread may take it again meanwhile.
pub(crate) fn kept(work: &mut dyn FnMut()) {
    unsafe extern "C" fn once(_: *mut libc::dl_phdr_info, _: usize, work: *mut c_void) -> i32 {
        // SAFETY: what is passed below, which outlives the call.
        (unsafe { &mut *work.cast::<&mut dyn FnMut()>() })();
        1
    }
    let mut work: &mut dyn FnMut() = work;
    // SAFETY: `once` takes a pointer to such a reference.
    unsafe { iterate(once, (&raw mut work).cast()) };
}

/// The objects, where the list is at rest.
pub(crate) fn listed() -> Vec<Listed> {
    let mut list = in_namespace_of_program();
    if let Some(others) = other_namespaces() {
        kept(&mut || {
            // SAFETY: the list is at rest, and nobody changes it while the linker's lock is this thread's.
            let others = unsafe { module::loaded_modules(others) };
            // SAFETY: as above.
            list.extend(others.iter().filter_map(|module| unsafe { in_memory::of_module(module) }));
        });
    }
    list
}

/// Whether the linker is unloading objects.
pub(crate) fn is_unloading() -> bool {
    // SAFETY: null, or the linker's structure.
    unsafe { module::is_unloading(ptr::with_exposed_provenance(DEBUG.load(Ordering::Relaxed))) }
}

/// Where the linker's lists of the objects in other namespaces begin, if there are any.
fn other_namespaces() -> Option<*const RDebug> {
    let first = DEBUG.load(Ordering::Relaxed);
    if first == 0 {
        return None;
    }
    // SAFETY: the linker's structure, which stays.
    let others = unsafe { module::next_namespace(ptr::with_exposed_provenance(first)) };
    (!others.is_null()).then_some(others)
}

/// Those that `dl_iterate_phdr` tells of.
fn in_namespace_of_program() -> Vec<Listed> {
    unsafe extern "C" fn one(info: *mut libc::dl_phdr_info, _: usize, list: *mut c_void) -> i32 {
        // SAFETY: the linker passes a live description, whose program headers are mapped; `list` is ours.
        unsafe {
            let (info, list) = (&*info, &mut *list.cast::<Vec<Listed>>());
            let mut headers = Vec::new();
            if !info.dlpi_phdr.is_null() {
                let raw = core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
                headers.extend(raw.iter().map(header));
            }
            let name = if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) };
            list.push(Listed { bias: info.dlpi_addr as _, path: name.to_bytes().to_vec(), headers });
        }
        0
    }
    let mut list: Vec<Listed> = Vec::new();
    // SAFETY: `one` takes what the linker gives it, and the list that is passed here.
    unsafe { iterate(one, (&raw mut list).cast()) };
    list
}

/// The path of the program's file; the part of `buffer` that was filled.
pub(crate) fn executable(buffer: &mut [u8; 4096]) -> &[u8] {
    sys::read_link(c"/proc/self/exe", buffer)
}

/// Nothing: a program that is loaded says so by itself.
pub(crate) fn frames() -> Option<Range<u64>> {
    None
}

/// libc's `dl_iterate_phdr`: the program may have one of its own, by which the name would lead there.
static ITERATE: AtomicUsize = AtomicUsize::new(0);

/// The linker's structure for debuggers, which leads to its lists.
static DEBUG: AtomicUsize = AtomicUsize::new(0);

/// Finds what [`listed`] calls and reads. At the start.
pub(crate) fn prepare() {
    let Some(debug) = module::r_debug_of_this_process() else { return };
    DEBUG.store(debug.expose_provenance(), Ordering::Relaxed);
    // SAFETY: the linker's own list, at rest: this is the only thread.
    let modules = unsafe { module::loaded_modules(debug) };
    own_stack::prepare(&modules);
    let libc = modules.iter().find(|module| module.file_name() == crate::install::LIBC);
    if let Some(symbol) = libc.and_then(|libc| symbol::find(libc, b"dl_iterate_phdr")) {
        ITERATE.store(symbol.addr, Ordering::Relaxed);
    }
}
