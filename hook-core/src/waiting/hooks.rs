//! The hooks that wait, in the hands of one thread.

use alloc::{boxed::Box, vec::Vec};
use core::sync::atomic::{AtomicPtr, Ordering::*};

use super::{
    NotCarriedOn, RebindingId, State, Status, WaitError, WaitId,
    kept::{Kept, Watched},
    notice, wait,
    wait::{Wait, Wanted},
};
use crate::{
    Errno, HookSet, Listener, Liveness,
    lock::Held,
    module::{self, Module},
    rebind::{Rebinding, Report},
    sys,
};

/// How many milliseconds are waited for a thread that was loading an object before any hook waited.
const PATIENCE: usize = 5000;

/// The set and the hooks that wait, held by this thread.
#[derive(Debug)]
pub struct Hooks<'a> {
    pub(super) _held: Held<'a>,
    pub(super) state: &'static State,
}

impl Hooks<'_> {
    fn kept(&mut self) -> &mut Kept {
        // SAFETY: this thread holds the lock, and `self` is borrowed for as long.
        unsafe { &mut *self.state.kept.get() }
    }

    fn kept_to_read(&self) -> &Kept {
        // SAFETY: as above.
        unsafe { &*self.state.kept.get() }
    }

    /// The set, for hooks that don't wait.
    pub fn set(&mut self) -> &mut HookSet {
        &mut self.kept().set
    }

    /// Which set it is, of those that the process has had: in a child made by fork while a thread of the parent's held the
    /// hooks, a new one begins, which knows nothing of what is in.
    pub fn generation(&self) -> u32 {
        self.state.generation.load(Relaxed)
    }

    /// Replaces a function as soon as its object is loaded, and now if it is. `object` is a soname, or how the object's
    /// path ends ([`Module::is_called`]); of several the first that has the function counts. `function` is found as by
    /// [`Lookup::find`](crate::symbol::Lookup::find). What the replacement replaces, callable in its place, is stored in
    /// `original` before the first call can reach the replacement.
    ///
    /// # Errors
    /// If the dynamic linker can't be followed; or the object is loaded, and its function can't be hooked. Then nothing
    /// waits.
    ///
    /// # Safety
    /// As [`PreparedBatch::commit`](crate::PreparedBatch::commit), whenever an object of that name is loaded. What
    /// `liveness` says of the other threads is so, for an object that is loaded now, and, the first time that a hook waits,
    /// for the dynamic linker's functions; and it will be so for later removals by unloading.
    pub unsafe fn replace(
        &mut self,
        object: &[u8],
        function: &[u8],
        replacement: *const (),
        original: Option<&'static AtomicPtr<()>>,
        liveness: Liveness,
    ) -> Result<WaitId, WaitError> {
        // SAFETY: the caller's promise.
        unsafe { self.wait(object, function, Wanted::Replace { replacement, original }, liveness) }
    }

    /// Tells a listener of the calls of a function as soon as its object is loaded, and now if it is.
    ///
    /// # Errors
    /// As [`Self::replace`].
    ///
    /// # Safety
    /// As [`Self::replace`].
    pub unsafe fn listen(
        &mut self,
        object: &[u8],
        function: &[u8],
        listener: Listener,
        liveness: Liveness,
    ) -> Result<WaitId, WaitError> {
        // SAFETY: the caller's promise.
        unsafe { self.wait(object, function, Wanted::Listen(listener), liveness) }
    }

    /// # Safety
    /// As [`Self::replace`].
    unsafe fn wait(
        &mut self,
        object: &[u8],
        function: &[u8],
        wanted: Wanted,
        liveness: Liveness,
    ) -> Result<WaitId, WaitError> {
        // SAFETY: the caller's promise.
        unsafe { self.watch(liveness) }?;
        let modules = self.modules();
        let kept = self.kept();
        kept.last += 1;
        let number = kept.last;
        let mut wait = Wait::new(number, object, function, wanted);
        if let Some(watched) = &kept.watched {
            let loaded = watched.loaded(&modules, |_| false);
            // SAFETY: the objects are loaded, and the list doesn't change; the rest is the caller's promise.
            kept.unrelocated |= unsafe { wait.arrive(&mut kept.set, &loaded, liveness) };
        }
        if let wait::State::Failed { error, .. } = wait.state {
            return Err(error);
        }
        kept.waits.push(wait);
        self.publish();
        Ok(WaitId(number))
    }

    /// Where a hook stands.
    ///
    /// # Errors
    /// If there is none of that number.
    pub fn status(&self, id: WaitId) -> Result<Status, WaitError> {
        let wait = self.kept_to_read().waits.iter().find(|wait| wait.number == id.0);
        wait.map(Wait::status).ok_or(WaitError::NoSuchWait { number: id.0 })
    }

    /// Takes a hook out, and has it wait no more.
    ///
    /// # Errors
    /// If it can't be taken out of its function: it then stays.
    ///
    /// # Safety
    /// What `liveness` says of the other threads is so.
    pub unsafe fn remove(&mut self, id: WaitId, liveness: Liveness) -> Result<(), WaitError> {
        let kept = self.kept();
        let missing = WaitError::NoSuchWait { number: id.0 };
        let index = kept.waits.iter().position(|wait| wait.number == id.0).ok_or(missing)?;
        if let Some(Status::In { attachment, .. }) = kept.waits.get(index).map(Wait::status) {
            // SAFETY: the caller's promise; the function's object is loaded, and stays so meanwhile.
            unsafe { kept.set.remove(attachment, liveness) }?;
        }
        kept.waits.swap_remove(index);
        Ok(())
    }

    /// Carries a rebinding on to every object that is loaded from now on, after it was relocated and before its
    /// constructors run, and to those that are loaded now. Words of objects that are unloaded are forgotten.
    ///
    /// # Errors
    /// If the dynamic linker can't be followed.
    ///
    /// # Safety
    /// As [`Rebinding::update`] whenever an object is loaded. What `liveness` says of the other threads is so, the first
    /// time that something waits, for the dynamic linker's functions.
    pub unsafe fn rebind(
        &mut self,
        mut rebinding: Rebinding,
        liveness: Liveness,
    ) -> Result<(RebindingId, Report), Box<NotCarriedOn>> {
        // SAFETY: the caller's promise.
        if let Err(source) = unsafe { self.watch(liveness) } {
            return Err(Box::new(NotCarriedOn { rebinding, source }));
        }
        let modules = self.modules();
        let kept = self.kept();
        rebinding.forget_others(&modules);
        let loaded = kept.watched.as_ref().map_or(Default::default(), |w| w.loaded(&modules, |_| false));
        let ready = loaded.iter().filter(|object| object.relocated).map(|object| object.module);
        // SAFETY: the objects are loaded and relocated, and the list doesn't change; the rest is the caller's promise.
        let report = unsafe { rebinding.add(ready) };
        kept.last += 1;
        let number = kept.last;
        kept.unrelocated |= loaded.iter().any(|object| !object.relocated);
        kept.rebindings.push((number, rebinding));
        self.publish();
        Ok((RebindingId(number), report))
    }

    /// A rebinding that is carried on.
    pub fn rebinding(&self, id: RebindingId) -> Option<&Rebinding> {
        self.kept_to_read()
            .rebindings
            .iter()
            .find(|(number, _)| *number == id.0)
            .map(|(_, rebinding)| rebinding)
    }

    /// Puts back what was in the words, and carries the rebinding on no more. `None` if there is none of that number.
    ///
    /// # Safety
    /// As [`Rebinding::undo`].
    pub unsafe fn unbind(&mut self, id: RebindingId) -> Option<Report> {
        let modules = self.modules();
        let kept = self.kept();
        let index = kept.rebindings.iter().position(|(number, _)| *number == id.0)?;
        let (_, mut rebinding) = kept.rebindings.swap_remove(index);
        // SAFETY: the list doesn't change meanwhile.
        Some(unsafe { rebinding.undo(&modules) })
    }

    /// Whether the moment between an object's relocation and its constructors is seen. `None` if nothing has waited yet.
    pub fn sees_relocation(&self) -> Option<bool> {
        self.kept_to_read().attached
    }

    /// The objects that are loaded. While the hooks are held, and something waits or has waited, the list doesn't change.
    fn modules(&self) -> Vec<Module> {
        let debug = self.state.debug.load(Acquire).cast_const();
        if debug.is_null() {
            return Default::default();
        }
        // SAFETY: the dynamic linker's structure; a thread that changes the list says so first and waits for the lock.
        unsafe { module::loaded_modules(debug) }
    }

    fn publish(&mut self) {
        let pending = self.kept().unrelocated;
        self.state.unrelocated.store(pending, Release);
    }

    /// Has the dynamic linker followed from now on.
    ///
    /// # Safety
    /// What `liveness` says of the other threads is so.
    unsafe fn watch(&mut self, liveness: Liveness) -> Result<(), WaitError> {
        if self.kept().watched.is_some() {
            return Ok(());
        }
        let debug = module::r_debug_of_this_process().ok_or(WaitError::NoList)?;
        let state = self.state;
        state.debug.store(debug.cast_mut(), Release);
        if self.kept().attached.is_none() {
            // SAFETY: the structure is the dynamic linker's; the rest is the caller's promise.
            let sees_relocation = unsafe { notice::attach(&mut self.kept().set, state, debug, liveness) }?;
            self.kept().attached = Some(sees_relocation);
        }
        // A thread may be changing the list that began before.
        let mut turns = 0;
        // SAFETY: as above.
        while !unsafe { module::is_settled(debug) } {
            turns += 1;
            if turns > PATIENCE {
                return Err(WaitError::Busy { errno: Errno(libc::EBUSY) });
            }
            sys::sleep_a_millisecond();
        }
        let watched = Watched::new(&self.modules(), liveness);
        self.kept().watched = Some(watched);
        Ok(())
    }
}
