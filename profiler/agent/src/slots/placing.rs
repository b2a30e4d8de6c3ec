//! Hooks on functions that get slots: prepared, with what stands before them, and put in.

use super::{Slot, TABLE, TAKEN, What};
use crate::families::Role;
use crate::native::slots::{THUNK, grapnel_agent_beside_thunks, grapnel_agent_thunks};
use crate::{displaced, hooks, ledger, native, sampling};
use alloc::vec::Vec;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use grapnel_hook::{HookId, Liveness, Options, Prepared, Transaction};

/// Takes a free slot for a function and gives its thunk.
fn take(function: &Range<usize>, what: What, code: &Range<usize>) -> Option<(usize, *const ())> {
    let number = TABLE.iter().position(|slot| slot.target.start() == 0)?;
    let slot = &TABLE[number];
    TAKEN.fetch_max(number + 1, Ordering::Relaxed);
    slot.target.set(function);
    let (operator, heap) = match what {
        What::Operator(operator, _) => (operator.to_u8(), 0),
        What::Family(role, handle) => (role as u8, handle + 1),
    };
    slot.operator.store(operator, Ordering::Relaxed);
    slot.direct.begin(match what {
        What::Operator(_, calls) => calls,
        What::Family(..) => None,
    });
    slot.beginning.store(0, Ordering::Relaxed);
    slot.heap.store(heap, Ordering::Relaxed);
    slot.code.set(code);
    let beside = match what {
        What::Operator(operator, _) => operator.is_own(),
        What::Family(..) => true,
    };
    let thunks =
        if beside { &raw const grapnel_agent_beside_thunks } else { &raw const grapnel_agent_thunks };
    let thunk = thunks.wrapping_add(number * THUNK);
    Some((number, thunk.cast()))
}

/// Says where the function's own code goes on.
fn set_original(number: usize, original: *const ()) {
    TABLE[number].original.store(original.expose_provenance(), Ordering::Release);
}

/// Gives a slot back whose hook did not come about.
fn give_back(number: usize) {
    TABLE[number].target.set(&(0..0));
}

/// Lets `work` call a thunk that leads to a function which the hook of nobody leads to: as to one of the program's own heap that gives back. Does nothing
/// where no slot is free. Only where nothing is recorded yet.
pub(crate) fn with_thunk(function: *const (), work: impl FnOnce(*const ())) {
    let at = function.expose_provenance();
    if let Some((number, thunk)) = take(&(at..at + 1), What::Family(Role::Free, 0), &(0..0)) {
        set_original(number, function);
        work(thunk);
        give_back(number);
    }
}

/// Hooks on functions with slots, ready to go in.
#[derive(Debug)]
pub(crate) struct Ready {
    prepared: Prepared<'static>,
    /// Their slots.
    numbers: Vec<usize>,
    #[cfg(grapnel_attached)]
    hooks: usize,
}

/// A function that is to be hooked.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) what: What,
    /// Where it lies.
    pub(crate) range: Range<usize>,
    /// The code whose calls are its own.
    pub(crate) code: Range<usize>,
    /// Whether it is known to call no other function that is hooked.
    pub(crate) is_leaf: bool,
}

impl Wanted {
    /// What may stand before the hook, and whether that lowers the thread's gap. Of a sample, who passes it by leaves no mark:
    /// what a function calls that gives blocks would be chosen once more. What takes one back may be asked as often as one likes. A family
    /// that is known by its names alone may turn out to be none, and is `let_by` then.
    fn gate(&self, let_by: &'static AtomicBool) -> Option<(Vec<u8>, bool)> {
        let target: *const () = ptr::with_exposed_provenance(self.range.start);
        let (takes, gives, may_be_none) = match self.what {
            What::Operator(operator, _) => (operator.gives_back(), operator.gives(), false),
            What::Family(role, handle) => (role == Role::Free, role == Role::Malloc, handle != 0),
        };
        match (sampling::is_on(), takes, gives && self.is_leaf, may_be_none && !self.is_leaf) {
            (true, true, ..) => native::gates::of_taker(target).map(|gate| (gate, false)),
            (true, _, true, _) => native::gates::of_giver(target).map(|gate| (gate, true)),
            (.., true) => native::let_by::gate(target, let_by).map(|gate| (gate, false)),
            _ => None,
        }
    }
}

/// Prepares hooks on all of these functions or none. Were
/// some left out, blocks would seem to be given back in the wrong way. Only under PROCESS, or in the only thread.
pub(crate) fn prepare_all(found: &[Wanted]) -> Result<Option<Ready>, grapnel_hook::Error> {
    let mut transaction = Transaction::new();
    let mut taken: Vec<(usize, HookId)> = Vec::new();
    let give_back_all = |taken: &[(usize, HookId)]| taken.iter().for_each(|&(number, _)| give_back(number));
    for wanted in found {
        let Wanted { what, range, code, .. } = wanted;
        let Some((number, thunk)) = take(range, *what, code).filter(|_| ledger::has_room(found.len())) else {
            give_back_all(&taken);
            return Ok(None);
        };
        let target: *const () = ptr::with_exposed_provenance(range.start);
        let (gate, is_lowered) = wanted.gate(&TABLE[number].is_let_by).unwrap_or_default();
        TABLE[number].is_lowered.store(is_lowered, Ordering::Relaxed);
        TABLE[number].is_let_by.store(false, Ordering::Relaxed);
        let options = Options { size: Some(range.len()), ..Options::default() };
        taken.push((number, transaction.replace_gated(target, thunk, options, gate)));
    }
    let prepared = transaction.prepare();
    // At once: what fails later leaves their memory mapped.
    if !ledger::keeps(&prepared) {
        give_back_all(&taken);
        return Ok(None);
    }
    displaced::note(&prepared);
    for &(number, id) in &taken {
        match prepared.original(id) {
            Ok(original) => set_original(number, original),
            Err(error) => {
                give_back_all(&taken);
                return Err(error);
            }
        }
    }
    Ok(Some(Ready {
        prepared,
        numbers: taken.iter().map(|&(number, _)| number).collect(),
        #[cfg(grapnel_attached)]
        hooks: found.len(),
    }))
}

/// What these hooks will change.
#[cfg(grapnel_attached)]
pub(crate) fn changed(prepared: &Prepared<'_>) -> Vec<Range<u64>> {
    let edits = prepared.hooks().flatten().flat_map(|hook| hook.edits());
    edits.map(|(at, old, _)| at.0..at.0 + old.as_slice().len() as u64).collect()
}

impl Ready {
    /// They don't go in.
    #[cfg(grapnel_attached)]
    pub(crate) fn forgo(self) {
        self.numbers.into_iter().for_each(give_back);
    }

    /// How many functions will be hooked.
    #[cfg(grapnel_attached)]
    pub(crate) fn hooks(&self) -> usize {
        self.hooks
    }

    /// What will be changed.
    #[cfg(grapnel_attached)]
    pub(crate) fn changed(&self) -> Vec<Range<u64>> {
        changed(&self.prepared)
    }

    /// Whether calls under way may return into what will be changed.
    #[cfg(grapnel_attached)]
    pub(crate) fn is_returned_into(&self) -> bool {
        self.prepared.hooks().flatten().any(|hook| hook.is_returned_into())
    }

    /// Notes what is to change, for whoever puts the hooks in from outside. False if it can't be.
    #[cfg(grapnel_attached)]
    pub(crate) fn note(&self) -> bool {
        ledger::changes(&self.prepared)
    }

    /// Puts the hooks in.
    ///
    /// # Safety
    /// Nobody runs the functions' code meanwhile.
    pub(crate) unsafe fn commit(self) -> Result<(), grapnel_hook::Error> {
        // There was room when they were prepared; without, they stay out.
        if !ledger::changes(&self.prepared) {
            return Ok(());
        }
        let mut error = None;
        // SAFETY: the stub has the functions' ABI. When the object goes, its slots are given back. The rest is the caller's
        // promise.
        let hooks = unsafe { self.prepared.commit(Liveness::SingleThreaded) };
        for (hook, number) in hooks.into_iter().zip(self.numbers) {
            match hook {
                // For as long as the object is loaded.
                Ok(hook) => {
                    core::mem::forget(hook);
                    note_beginning(&TABLE[number]);
                }
                Err(failed) => error = Some(failed),
            }
        }
        // The slots stay: some of the hooks are in.
        error.map_or(Ok(()), Err)
    }
}

/// Notes what a slot's function begins with. Its hook has just gone in.
fn note_beginning(slot: &Slot) {
    let at = slot.target.start();
    // SAFETY: where the function lies.
    let bytes = if hooks::has_first_bytes(at) { unsafe { hooks::first_bytes(at) } } else { 0 };
    slot.beginning.store(bytes, Ordering::Relaxed);
}
