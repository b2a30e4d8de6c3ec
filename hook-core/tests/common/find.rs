//! Finding functions of loaded objects.

use grapnel_hook::module::{self, Module};

/// The loaded objects of the test process.
pub(crate) fn modules() -> Vec<Module> {
    let debug = module::r_debug_of_this_process().expect("the test program is linked dynamically");
    // SAFETY: the test loads and unloads nothing meanwhile.
    unsafe { module::loaded_modules(debug) }
}

/// The object whose file name begins so.
pub(crate) fn module(name: &str) -> Module {
    modules().into_iter().find(|m| m.file_name().starts_with(name.as_bytes())).expect(name)
}
