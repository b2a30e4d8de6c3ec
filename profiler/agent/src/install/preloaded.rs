//! What is hooked at the start of a program, in its only thread.

use super::{Objects, Ready, heap_functions, not_hooked, without};
use crate::hooks::Hooked;
use crate::{debug, ending, exec, families, guests, jumps, modules, operators, reported, sandbox, session};
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use grapnel_hook::module::Module;
use grapnel_hook::symbol::Symbol;
use grapnel_hook::{Liveness, Prepared};

pub(super) const NO_LIBC: &str = if cfg!(target_os = "android") {
    "the program does not use bionic (no libc.so is loaded)"
} else {
    "the program does not use glibc (no libc.so.6 is loaded)"
};

/// None but that one.
pub(super) fn other_libc(_modules: &[Module]) -> Option<usize> {
    None
}

/// As above.
pub(super) fn is_musl(_module: &Module) -> bool {
    false
}

/// Nothing: libc is a library, with a table of its own.
pub(super) fn linked(_name: &[u8]) -> Option<Symbol> {
    None
}

/// The code of libc, and that part of it in which it calls `free` for itself.
pub(super) fn code(libc: &Module) -> Option<(Range<usize>, Range<usize>)> {
    let code = libc.segments().iter().find(|segment| segment.execute)?.range.clone();
    Some((code.clone(), code))
}

/// What is hooked in libc whoever gives out the memory.
pub(super) fn libcs_functions(is_recorded: bool) -> impl IntoIterator<Item = Hooked> {
    let at_end = debug::end_functions().or_else(ending::functions);
    let others = exec::exec_functions().into_iter().chain(jumps::jump_functions()).chain(guests::functions());
    let others = others.chain(sandbox::thread_functions()).filter(move |_| is_recorded);
    others.chain(sandbox::functions()).chain(at_end)
}

/// The functions of the heap: with stubs for libc's, and for those of others.
fn functions(is_sampled: bool) -> Vec<(Hooked, Hooked)> {
    if debug::is_on() {
        let beside = debug::allocation_functions_beside();
        return debug::allocation_functions().into_iter().zip(beside).collect();
    }
    heap_functions(is_sampled).collect()
}

/// The functions that the program calls by libc's names.
pub(super) fn allocation_functions(objects: &Objects, is_sampled: bool) -> Vec<(Hooked, Symbol)> {
    // Whoever's `malloc` it is, of another library's block nobody else can say how large it is.
    let home = |name: &[u8]| objects.called(name).map(|(module, _)| module.bias());
    let is_known = |name: &[u8]| name != b"malloc_usable_size" || home(name) == home(b"malloc");
    objects.defined(functions(is_sampled).into_iter().filter(|(libcs, _)| is_known(libcs.0)))
}

/// Hooks on allocators and on operators, which are made one object after the other: nobody else runs.
#[derive(Debug)]
pub(super) struct Several;

impl Several {
    pub(super) fn prepare(_objects: &Objects, _before: &Prepared<'_>, _places: &[usize]) -> Self {
        Self
    }

    /// # Safety
    /// This is the only thread.
    pub(super) unsafe fn commit(self, objects: &Objects) {
        // libc's are a family beside the program's where others have taken their names.
        let libcs = objects.allocator().map(|_| (objects.libc(), Vec::new()));
        let with_libc: Vec<(&Module, Vec<u8>)> =
            objects.others().map(|module| (module, families::path(module))).chain(libcs).collect();
        families::install(with_libc.iter().map(|(module, path)| (*module, &path[..])));
        operators::install(objects.others());
        if objects.allocator().is_none() {
            operators::note_blocks_of_glibc();
        }
    }
}

impl Ready {
    /// Puts the hooks in.
    ///
    /// # Errors
    /// A sentence for the user: which function, and why.
    ///
    /// # Safety
    /// No other thread of the process runs, and no signal handler of this one.
    pub(crate) unsafe fn commit(self) -> Result<(), String> {
        // SAFETY: the targets are functions of libc, the loader, and whoever was loaded with the program, which stay; the stubs
        // have their ABI; the rest is the caller's promise.
        let hooks = unsafe { self.prepared.commit(Liveness::SingleThreaded) };
        let mut failed = None;
        for (hook, &(name, function)) in hooks.into_iter().zip(&self.hooks) {
            match hook {
                // For as long as the process lives.
                Ok(hook) => core::mem::forget(hook),
                Err(error) if without(name, function).is_none() => {
                    failed.get_or_insert_with(|| not_hooked(name, &error));
                }
                // It was said when they were prepared.
                Err(_) => {}
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        crate::hooks::remember_beginnings();
        if let Some(several) = self.several {
            // SAFETY: the caller's promise.
            unsafe { several.commit(&self.objects) };
            modules::follow_operators();
        }
        if session::header().is_some() {
            self.objects.loaded.iter().for_each(|(bias, _, headers)| reported::connect(*bias, headers));
            modules::hear();
        }
        Ok(())
    }
}
