//! One hook that waits for its object.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, Ordering::*};

use super::{Status, WaitError};
use crate::{
    Attachment, Error, HookSet, Listener, Liveness, Options, Refusal,
    module::Module,
    symbol::{Lookup, Symbol, SymbolKind},
};

/// What is to be done with a function.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted {
    Replace { replacement: *const (), original: Option<&'static AtomicPtr<()>> },
    Listen(Listener),
}

/// A hook that waits, or is in.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) number: u64,
    object: Vec<u8>,
    function: Vec<u8>,
    wanted: Wanted,
    pub(super) state: State,
}

/// An object, by where it lies. The dynamic linker itself is in the list of each namespace, by other names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    bias: usize,
    start: usize,
}

impl Identity {
    pub(super) fn of(module: &Module) -> Self {
        let start = module.segments().first().map_or(0, |segment| segment.range.start);
        Self { bias: module.bias(), start }
    }

    pub(super) fn is(self, module: &Module) -> bool {
        self == Self::of(module)
    }
}

/// An object that is loaded.
#[derive(Debug)]
pub(super) struct Loaded<'a> {
    pub(super) module: &'a Module,
    pub(super) lookup: Lookup<'a>,
    /// None of its code has run.
    pub(super) fresh: bool,
    pub(super) relocated: bool,
}

#[derive(Debug)]
pub(super) enum State {
    /// `gone` is where the function was, if the hook was in and its object was unloaded.
    Waiting {
        gone: Option<usize>,
    },
    In {
        object: Identity,
        function: usize,
        attachment: Attachment,
    },
    /// It isn't tried again in this object.
    Failed {
        object: Identity,
        error: WaitError,
    },
}

/// How often a hook is tried again while another thread patches code.
const TRIES: usize = 1000;

impl Wait {
    pub(super) fn new(number: u64, object: &[u8], function: &[u8], wanted: Wanted) -> Self {
        let state = State::Waiting { gone: None };
        Self { number, object: object.into(), function: function.into(), wanted, state }
    }

    pub(super) fn status(&self) -> Status {
        match &self.state {
            State::Waiting { gone: None } => Status::Waiting,
            State::Waiting { gone: Some(function) } => Status::Unloaded { function: *function as *const () },
            State::In { function, attachment, .. } => {
                Status::In { function: *function as *const (), attachment: *attachment }
            }
            State::Failed { error, .. } => Status::Failed(error.clone()),
        }
    }

    /// The object that it is in, or failed in, is gone. What the set has of it is forgotten already, unless the function
    /// lies elsewhere: an indirect one may.
    ///
    /// # Safety
    /// What `liveness` says of the other threads is so.
    pub(super) unsafe fn leave(&mut self, set: &mut HookSet, modules: &[Module], liveness: Liveness) {
        match &self.state {
            State::In { object, function, attachment } if !modules.iter().any(|module| object.is(module)) => {
                // SAFETY: the caller's promise. It answers that nothing is attached if that was forgotten.
                let _ = unsafe { set.remove(*attachment, liveness) };
                self.state = State::Waiting { gone: Some(*function) };
            }
            State::Failed { object, .. } if !modules.iter().any(|module| object.is(module)) => {
                self.state = State::Waiting { gone: None };
            }
            _ => {}
        }
    }

    /// Looks for the object, and puts the hook in. Answers whether it has to come back when the object is relocated.
    ///
    /// # Safety
    /// What is said of the objects is so, and what `liveness` says of the other threads. The rest is as for
    /// [`PreparedBatch::commit`](crate::PreparedBatch::commit).
    pub(super) unsafe fn arrive(
        &mut self,
        set: &mut HookSet,
        objects: &[Loaded<'_>],
        liveness: Liveness,
    ) -> bool {
        if !matches!(self.state, State::Waiting { .. }) {
            return false;
        }
        let mut failed = None;
        for object in objects.iter().filter(|object| object.module.is_called(&self.object)) {
            let module = object.module;
            let symbol = match object.lookup.find(&self.function) {
                Ok(symbol) => symbol,
                Err(error) => {
                    failed = failed.or(Some((module, error.into())));
                    continue;
                }
            };
            if symbol.kind == SymbolKind::Indirect && !object.relocated {
                return true;
            }
            // SAFETY: the object is loaded; an indirect function's is relocated.
            let function = unsafe { symbol.resolve() };
            // A function that was chosen may be another object's.
            let unused = object.fresh && module.holds_code(function as usize);
            let liveness = if unused { Liveness::SingleThreaded } else { liveness };
            // SAFETY: nobody runs an object's code before its constructors; else the caller's promise.
            match unsafe { self.attach(set, function, &symbol, liveness) } {
                Ok(attachment) => {
                    let object = Identity::of(module);
                    self.state = State::In { object, function: function as usize, attachment };
                    return false;
                }
                Err(error) => failed = failed.or(Some((module, error.into()))),
            }
        }
        if let Some((module, error)) = failed {
            self.state = State::Failed { object: Identity::of(module), error };
        }
        false
    }

    /// # Safety
    /// As [`Self::arrive`].
    unsafe fn attach(
        &self,
        set: &mut HookSet,
        function: *const (),
        symbol: &Symbol,
        liveness: Liveness,
    ) -> Result<Attachment, Error> {
        // The size of an indirect symbol is that of its resolver.
        let size = (symbol.kind != SymbolKind::Indirect && symbol.size > 0).then_some(symbol.size);
        let options = Options { size, ..Options::default() };
        for _ in 0..TRIES {
            let mut batch = set.begin();
            if liveness == Liveness::Live {
                batch = batch.live();
            }
            let id = match self.wanted {
                Wanted::Replace { replacement, .. } => batch.replace_with(function, replacement, options),
                Wanted::Listen(listener) => batch.listen_with(function, listener, options),
            };
            let prepared = batch.prepare();
            if let Wanted::Replace { original: Some(original), .. } = self.wanted {
                original.store(prepared.original(id)?.cast_mut(), Release);
            }
            // SAFETY: the caller's promise.
            let result = unsafe { prepared.commit(liveness) }.pop();
            match result.unwrap_or(Err(Error::NotAttached { number: 0 })) {
                Err(Error::NotLive { refusal: Refusal::Busy, .. }) => crate::sys::sleep_a_millisecond(),
                result => return result,
            }
        }
        let site = grapnel_relocator::CodeAddr(function as usize as u64);
        Err(Error::NotLive { site, refusal: Refusal::Busy })
    }
}
