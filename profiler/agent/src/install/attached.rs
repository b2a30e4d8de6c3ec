//! What is hooked in a process that runs already.

use super::{Objects, heap_functions};
use crate::hooks::Hooked;
use crate::{operators, session};
use alloc::format;
use alloc::vec::Vec;
use grapnel_hook::module::Module;
use grapnel_hook::symbol::{self, Symbol};
use grapnel_trace::shared::failure;

/// What is hooked in libc whoever gives out the memory.
pub(super) fn libcs_functions(_is_recorded: bool) -> impl IntoIterator<Item = Hooked> {
    []
}

/// libc's functions.
pub(super) fn allocation_functions(
    objects: &Objects,
    libc: &Module,
    is_sampled: bool,
) -> Vec<(Hooked, Symbol)> {
    if let Some(other) = objects.others().find(|module| symbol::find(module, b"malloc").is_some()) {
        let name = format!("{}", other.file_name().escape_ascii());
        let name = if name.is_empty() { "the program" } else { name.as_str() };
        let note = format!("malloc is that of {name}, not libc's: what it gives out itself is not recorded");
        session::report_failure(failure::NOTE, note.as_bytes());
    }
    let found = |(libcs, _): (Hooked, Hooked)| symbol::find(libc, libcs.0).map(|symbol| (libcs, symbol));
    heap_functions(is_sampled).filter_map(found).collect()
}

/// Hooks on operators, which go in when all other threads stand still.
#[derive(Debug)]
pub(super) struct Several(Vec<operators::Ready>);

impl Several {
    pub(super) fn prepare(objects: &Objects) -> Self {
        Self(operators::prepare(objects.others()))
    }

    /// How many functions will be hooked.
    pub(super) fn hooks(&self) -> usize {
        self.0.iter().map(|ready| ready.hooks.hooks()).sum()
    }

    /// # Safety
    /// No other thread of the process runs, and no signal handler of this one.
    pub(super) unsafe fn commit(self, _objects: &Objects) {
        // SAFETY: the caller's promise.
        self.0.into_iter().for_each(|ready| unsafe { ready.commit() });
    }
}
