//! Whether exceptions may pass what is hooked.
//!
//! An unwinder finds the stubs of an agent that the loader has loaded. Those of an agent that was put into a process it doesn't
//! know: what a function throws through one ends the program. Functions of libc throw nothing, nor do those that [`crate::instead`]
//! calls; what a family does is known by its functions' names alone. So there families are left alone where anything that is loaded
//! could throw.

use crate::{families, known};
use core::sync::atomic::{AtomicBool, Ordering};
use grapnel_hook::module::Module;
use grapnel_hook::symbol;
use memchr::memmem;

/// Something that can throw was loaded.
static MAY_THROW: AtomicBool = AtomicBool::new(false);

/// Whether families of an object may be hooked, with which and with what was loaded before others are.
pub(crate) fn may_have_hooks(module: &Module) -> bool {
    cfg!(not(grapnel_attached)) || !MAY_THROW.load(Ordering::Relaxed) || known::is_library(module)
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
