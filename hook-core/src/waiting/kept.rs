//! What a [`Waiting`](super::Waiting) keeps, and what happens when objects come and go.
//!
//! # Safety
//! It is touched by the holder of the lock alone, while the list of objects doesn't change.

use alloc::vec::Vec;
use core::ops::Range;

use super::wait::{Identity, Loaded, Wait};
use crate::{
    HookSet, Liveness,
    module::Module,
    rebind::{self, Rebinding},
    symbol::Lookup,
};

/// What the lock protects.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) set: HookSet,
    pub(super) waits: Vec<Wait>,
    pub(super) rebindings: Vec<(u64, Rebinding)>,
    /// `Some` once the dynamic linker's functions are hooked: whether relocation is seen.
    pub(super) attached: Option<bool>,
    /// `Some` once the list of objects was read.
    pub(super) watched: Option<Watched>,
    /// The last number that was given.
    pub(super) last: u64,
    /// Something waits for objects to be relocated.
    pub(super) unrelocated: bool,
}

/// The objects that were loaded when the list was seen last.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) liveness: Liveness,
    objects: Vec<Object>,
}

#[derive(Debug)]
struct Object {
    identity: Identity,
    ranges: Vec<Range<u64>>,
    relocated: bool,
}

impl Object {
    fn of(module: &Module, relocated: bool) -> Self {
        let ranges = module.segments().iter().map(|s| s.range.start as u64..s.range.end as u64);
        Self { identity: Identity::of(module), ranges: ranges.collect(), relocated }
    }
}

impl Watched {
    /// The objects have been there for long.
    pub(super) fn new(modules: &[Module], liveness: Liveness) -> Self {
        let objects = modules.iter().map(|module| Object::of(module, true)).collect();
        Self { liveness, objects }
    }

    /// Takes over a new list. Answers for each object whether it is new, and whether it wasn't relocated before and is now.
    fn take_over(&mut self, modules: &[Module]) -> Vec<(bool, bool)> {
        let before = core::mem::take(&mut self.objects);
        let mut answers = Vec::with_capacity(modules.len());
        for module in modules {
            let known = before.iter().find(|object| object.identity.is(module));
            let was = known.is_some_and(|object| object.relocated);
            let relocated = was || rebind::is_relocated(module);
            answers.push((known.is_none(), relocated && !was));
            self.objects.push(Object::of(module, relocated));
        }
        answers
    }

    /// The addresses of objects that are no longer in the list.
    fn gone(&self, modules: &[Module]) -> Vec<Range<u64>> {
        let stays = |object: &Object| modules.iter().any(|module| object.identity.is(module));
        let gone = self.objects.iter().filter(|object| !stays(object));
        gone.flat_map(|object| object.ranges.iter().cloned()).collect()
    }

    fn is_relocated(&self, module: &Module) -> bool {
        self.objects.iter().any(|object| object.relocated && object.identity.is(module))
    }

    /// The objects as hooks look for them.
    pub(super) fn loaded<'a>(&self, modules: &'a [Module], fresh: impl Fn(usize) -> bool) -> Vec<Loaded<'a>> {
        let object = |(i, module)| Loaded {
            module,
            lookup: Lookup::new(module),
            fresh: fresh(i),
            relocated: self.is_relocated(module),
        };
        modules.iter().enumerate().map(object).collect()
    }
}

impl Kept {
    /// The list of objects has changed.
    ///
    /// # Safety
    /// `modules` is the list as it is now, and it doesn't change meanwhile. What is new has not run any code.
    pub(super) unsafe fn changed(&mut self, modules: &[Module]) {
        let Some(watched) = &mut self.watched else { return };
        let liveness = watched.liveness;
        let gone = watched.gone(modules);
        if !gone.is_empty() {
            self.set.forget(&gone);
            for wait in &mut self.waits {
                // SAFETY: what `liveness` says was promised for all hooks that wait.
                unsafe { wait.leave(&mut self.set, modules, liveness) };
            }
            for (_, rebinding) in &mut self.rebindings {
                rebinding.forget_others(modules);
            }
        }
        let answers = watched.take_over(modules);
        let fresh: Vec<bool> = answers.iter().map(|&(new, _)| new).collect();
        let turned: Vec<bool> = answers.iter().map(|&(_, turned)| turned).collect();
        // SAFETY: the caller's promise.
        unsafe { self.arrive(modules, &fresh, &turned) };
    }

    /// What was mapped is relocated by now.
    ///
    /// # Safety
    /// As [`Self::changed`]: what was not known to be relocated has not run any code.
    pub(super) unsafe fn relocated(&mut self, modules: &[Module]) {
        let Some(watched) = &mut self.watched else { return };
        let turned = modules.iter().map(|module| {
            let object = watched.objects.iter_mut().find(|object| object.identity.is(module));
            object.is_some_and(|object| !core::mem::replace(&mut object.relocated, true))
        });
        let turned: Vec<bool> = turned.collect();
        // SAFETY: the caller's promise.
        unsafe { self.arrive(modules, &turned, &turned) };
    }

    /// # Safety
    /// As [`Self::changed`]; of each object it is said whether none of its code has run, and whether it was relocated just
    /// now.
    unsafe fn arrive(&mut self, modules: &[Module], fresh: &[bool], turned: &[bool]) {
        let Some(watched) = &self.watched else { return };
        let loaded = watched.loaded(modules, |i| fresh.get(i) == Some(&true));
        let mut pending = false;
        for wait in &mut self.waits {
            // SAFETY: the caller's promise; what `liveness` says was promised for all hooks that wait.
            pending |= unsafe { wait.arrive(&mut self.set, &loaded, watched.liveness) };
        }
        let turned = modules.iter().zip(turned).filter(|&(_, turned)| *turned).map(|(module, _)| module);
        for (_, rebinding) in &mut self.rebindings {
            // SAFETY: these objects are relocated, and the replacement is what was promised.
            unsafe { rebinding.add(turned.clone()) };
        }
        let all = loaded.iter().all(|object| object.relocated);
        self.unrelocated = pending || (!all && !self.rebindings.is_empty());
    }
}
