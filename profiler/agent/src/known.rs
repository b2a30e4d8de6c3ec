//! Allocators of which more is known than their functions' names: jemalloc, mimalloc and tcmalloc. They get their memory from the kernel alone,
//! their `malloc` and `new` call no other function that is hooked, and what they have besides operators throws nothing.

use crate::families;
use grapnel_hook::module::Module;
use grapnel_hook::symbol;
use memchr::memmem;

/// What the names of their functions begin with.
pub(crate) const PREFIXES: [&[u8]; 3] = [b"je_", b"mi_", b"tc_"];

/// Whether an object is one of them, as a library.
pub(crate) fn is_library(module: &Module) -> bool {
    let names: [&[u8]; 3] = [b"libjemalloc", b"libmimalloc", b"libtcmalloc"];
    names.iter().any(|name| module.file_name().starts_with(name))
}

/// Whether an object is one of them or has one in it: by symbols of its own, or in the file at this path.
pub(crate) fn is_in(module: &Module, path: &[u8]) -> bool {
    const NAMES: [&[u8]; 3] = [b"\0mallctl\0", b"\0mi_malloc\0", b"\0tc_malloc\0"];
    let has_one = |names: &[u8]| NAMES.iter().any(|name| memmem::find(names, name).is_some());
    is_library(module)
        || has_one(symbol::names(module))
        || families::in_file(module, path).is_some_and(|file| has_one(file.names()))
}
