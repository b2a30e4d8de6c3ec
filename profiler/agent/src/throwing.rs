//! Whether exceptions may pass what is hooked.
//!
//! An unwinder finds the stubs of an agent that the loader has loaded. Those of an agent that was put into a process it doesn't
//! know: what a function throws through one ends the program. Functions of libc throw nothing, nor do those that [`crate::instead`]
//! calls; what a family does is known by its functions' names alone. So there families are left alone where anything that is loaded
//! could throw.

use crate::families;
use core::sync::atomic::{AtomicBool, Ordering};
use grapnel_hook::module::Module;
use grapnel_hook::symbol;
use memchr::memmem;

/// Something that can throw was loaded.
static MAY_THROW: AtomicBool = AtomicBool::new(false);

/// Whether families of an object may be hooked, with which and with what was loaded before others are.
pub(crate) fn may_have_hooks(module: &Module) -> bool {
    cfg!(not(grapnel_attached)) || !MAY_THROW.load(Ordering::Relaxed) || is_known_allocator(module)
}

/// Heeds what has been loaded, before any of its families is hooked.
pub(crate) fn heed<'m>(mut modules: impl Iterator<Item = (&'m Module, &'m [u8])>) {
    if cfg!(grapnel_attached) && modules.any(|(module, path)| throws(module, path)) {
        MAY_THROW.store(true, Ordering::Relaxed);
    }
}

/// Whether an object throws exceptions, or passes them on: it has to do with the function by which all are raised, needs a runtime of
/// C++, which may be loaded only after it, or, where its unwinder is linked into it and has no name any more, with those of libc's by
/// which unwinders find their tables. libgcc's library alone, which C programs load too, raises none.
fn throws(module: &Module, path: &[u8]) -> bool {
    const NAMES: [&[u8]; 5] = [
        b"_Unwind_RaiseException\0",
        b"dl_iterate_phdr\0",
        b"_dl_find_object\0",
        b"libstdc++.so",
        b"libc++.so",
    ];
    let has_one = |names: &[u8]| NAMES.iter().any(|name| memmem::find(names, name).is_some());
    !module.file_name().starts_with(b"libgcc_s")
        && (has_one(symbol::names(module))
            || families::in_file(module, path).is_some_and(|file| has_one(file.names())))
}

/// Whether an object is, or has in it, one of the allocators that get their memory from the kernel alone, and whose `malloc` calls no other function
/// of libc's names: by the file's name, or by symbols in the file at this path.
pub(crate) fn is_known(module: &Module, path: &[u8]) -> bool {
    const NAMES: [&[u8]; 3] = [b"\0mallctl\0", b"\0mi_malloc\0", b"\0tc_malloc\0"];
    let has_one = |names: &[u8]| NAMES.iter().any(|name| memmem::find(names, name).is_some());
    is_known_allocator(module)
        || has_one(symbol::names(module))
        || families::in_file(module, path).is_some_and(|file| has_one(file.names()))
}

/// Whether an object is an allocator of which it is known that what it has besides operators throws nothing, and that it gets its memory
/// from the kernel alone.
pub(crate) fn is_known_allocator(module: &Module) -> bool {
    let names: [&[u8]; 3] = [b"libjemalloc", b"libmimalloc", b"libtcmalloc"];
    names.iter().any(|name| module.file_name().starts_with(name))
}
