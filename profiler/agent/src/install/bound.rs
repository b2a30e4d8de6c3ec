//! What is to be hooked without a change in any code.

use super::{begun, way};
use crate::hooks::Hooked;
use crate::{exec, forked, guests, mappings, sandbox};
use alloc::string::String;
use alloc::vec::Vec;
use grapnel_hook::module::Module;
use grapnel_hook::symbol::Symbol;

/// The functions, and the objects that may call them.
pub(crate) struct Wanted {
    pub(crate) modules: Vec<Module>,
    pub(crate) hooks: Vec<(Hooked, Symbol)>,
}

/// Finds them.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn wanted() -> Result<Wanted, String> {
    let (objects, is_sampled) = begun()?;
    let watched = sandbox::functions().into_iter().chain(sandbox::thread_functions());
    let others = exec::exec_functions().into_iter().chain(mappings::mapping_functions()).chain(watched);
    let others = others.chain(guests::functions());
    let found = |hooked: Hooked| objects.find(hooked.0).map(|symbol| (hooked, symbol));
    let others = others.filter_map(found).chain(forked::functions().into_iter().filter_map(found).take(1));
    let hooks = way::allocation_functions(&objects, is_sampled).into_iter().chain(others).collect();
    Ok(Wanted { hooks, modules: objects.modules })
}
