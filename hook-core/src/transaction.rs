//! Many hooks, prepared together and committed together.
//!
//! # Safety
//! Preparing writes only memory that no thread runs yet. Committing writes over live code: that is the one unsafe
//! step, and its caller answers for the replacements and for the other threads.

use alloc::{boxed::Box, vec::Vec};
use core::ops::Range;

use grapnel_relocator::{CodeAddr, PcMap};

use crate::{
    Arena, CodeWay, Error, Hook, HookPlan, Liveness, Options, Refusal,
    memory::{
        maps::Maps,
        pages::Pages,
        view::{Bytes, MemoryView},
    },
    patch::{self, Patch},
    surroundings::Standing,
    workshop::{Ready, Workshop},
};

/// The number of a hook in its transaction, from 0 in the order in which they were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HookId(pub(crate) usize);

impl HookId {
    /// The number.
    pub fn index(self) -> usize {
        self.0
    }
}

/// What is to be hooked.
#[derive(Debug, Default)]
pub struct Transaction<'a> {
    arena: Memory<'a>,
    requests: Vec<Request>,
    live: bool,
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) target: CodeAddr,
    pub(crate) replacement: CodeAddr,
    pub(crate) options: Options,
    pub(crate) place: Place,
    /// What each call runs first; empty for nothing.
    pub(crate) gate: Vec<u8>,
}

/// Where a patch goes.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// At a function's entry.
    Entry,
    /// At an instruction of the function with these addresses, if they are known.
    Inside(Option<Range<u64>>),
}

#[derive(Debug)]
enum Memory<'a> {
    Own(Box<Arena>),
    Lent(&'a mut Arena),
}

impl Default for Memory<'_> {
    fn default() -> Self {
        Self::Own(Box::default())
    }
}

impl Memory<'_> {
    fn get(&mut self) -> &mut Arena {
        match self {
            Self::Own(arena) => arena,
            Self::Lent(arena) => arena,
        }
    }

    /// Sees to it that so many hooks can be left without an allocation.
    fn leave_room(&mut self, hooks: usize) {
        if let Self::Lent(arena) = self {
            arena.left.reserve(hooks);
        }
    }

    /// Notes the code of a hook that doesn't go in, for who will give it back. What is in an arena of the transaction's own stays.
    fn leave(&mut self, hook: Hook) {
        if let Self::Lent(arena) = self {
            arena.left.push(hook);
        }
    }
}

impl Transaction<'static> {
    /// A transaction with an arena of its own, whose memory stays for good.
    pub fn new() -> Self {
        Self::default()
    }
}

impl<'a> Transaction<'a> {
    /// A transaction whose trampolines go into an arena that serves others as well, and that can give back
    /// ([`Arena::reclaim`]) what was removed.
    pub fn with_arena(arena: &'a mut Arena) -> Self {
        Self { arena: Memory::Lent(arena), requests: Vec::new(), live: false }
    }

    /// Asks for a function to be replaced. Nothing is read or changed yet.
    pub fn replace(&mut self, target: *const (), replacement: *const ()) -> HookId {
        self.replace_with(target, replacement, Options::default())
    }

    /// The same for a function whose length in bytes is known, from its symbol.
    pub fn replace_sized(&mut self, target: *const (), size: usize, replacement: *const ()) -> HookId {
        self.replace_with(target, replacement, Options { size: Some(size), ..Options::default() })
    }

    /// The same with everything that can be chosen.
    pub fn replace_with(&mut self, target: *const (), replacement: *const (), options: Options) -> HookId {
        self.replace_gated(target, replacement, options, Vec::new())
    }

    /// The same, with a *gate*: a few instructions of the caller's own that each call runs first, and that decide where it goes. They
    /// stand right in front of the function's displaced instructions, so that a call which they let pass costs no jump to a replacement
    /// and back.
    ///
    /// The call goes on to the function where the gate ends, and to the replacement where the gate jumps to its own first byte less
    /// [`way_out`](crate::way_out) bytes. An empty one is no gate.
    ///
    /// The gate is code of the target's instruction set, at most 4096 bytes, that runs at any address that is a multiple of 64: so it
    /// and the displaced instructions may share a cache line. It is come to by a jump, perhaps an indirect one, for which it needs
    /// a landing pad where these are enforced. It may change only what a call may change and no argument is in, leaves the stack as
    /// it is, and doesn't fault: to unwinders and debuggers a thread in it is in front of the function's first instruction.
    ///
    /// The [original](Prepared::original) is behind the gate, and [`Hook::code`] begins before it.
    ///
    /// Where there can't be such a gate the hook fails with [`Error::BadGate`].
    pub fn replace_gated(
        &mut self,
        target: *const (),
        replacement: *const (),
        options: Options,
        gate: Vec<u8>,
    ) -> HookId {
        let id = HookId(self.requests.len());
        let (target, replacement) = (address(target), address(replacement));
        self.requests.push(Request { target, replacement, options, place: Place::Entry, gate });
        id
    }

    /// Prepares the hooks such that they may go in while other threads run the functions ([`Liveness::Live`]). Their
    /// islands are then put at particular addresses, which may take a page for each.
    #[must_use]
    pub fn live(mut self) -> Self {
        self.live = true;
        self
    }

    /// Does everything that can fail. The originals are known and their trampolines written afterwards; no byte of
    /// live code has changed.
    pub fn prepare(mut self) -> Prepared<'a> {
        let view = MemoryView::open();
        let maps = Maps::read().ok();
        let mut hooks: Vec<Result<Ready, Error>> = Vec::with_capacity(self.requests.len());
        let standing = Standing::new();
        let pages = Pages::new(&view);
        let mut workshop = Workshop::new(self.arena.get(), &pages, maps.as_ref(), self.live, &standing);
        for (i, request) in self.requests.iter().enumerate() {
            hooks.push(workshop.prepare(HookId(i), request));
        }
        self.arena.leave_room(hooks.len());
        if let Err(why) = self.arena.get().finish(&view, self.live) {
            for hook in &mut hooks {
                let Ok(ready) = hook else { continue };
                let error = why.of(ready.plan.target);
                if let Ok(ready) = core::mem::replace(hook, Err(error)) {
                    self.arena.leave(ready.hook);
                }
            }
        }
        // Room for the results, so that nothing is allocated once code has begun to change.
        let results = Vec::with_capacity(hooks.len());
        Prepared { arena: self.arena, view, hooks, results }
    }

    /// Prepares and commits.
    ///
    /// # Safety
    /// As [`Prepared::commit`].
    pub unsafe fn commit(self, liveness: Liveness) -> Vec<Result<Hook, Error>> {
        // SAFETY: the caller's promise.
        unsafe { self.prepare().commit(liveness) }
    }
}

/// Hooks that are ready to go in.
///
/// Dropping it without a commit changes nothing. The trampolines stay mapped, because their addresses are known, until
/// [`Arena::reclaim`] gives them back.
#[derive(Debug)]
pub struct Prepared<'a> {
    arena: Memory<'a>,
    view: MemoryView,
    hooks: Vec<Result<Ready, Error>>,
    results: Vec<Result<Hook, Error>>,
}

/// A hook that is ready to go in: what it will change.
#[derive(Debug)]
pub struct PreparedHook<'p>(&'p Ready);

impl PreparedHook<'_> {
    /// As [`Hook::edits`] once it is in.
    pub fn edits(&self) -> impl DoubleEndedIterator<Item = (CodeAddr, Bytes, Bytes)> + use<> {
        self.0.hook.edits()
    }

    /// As [`Hook::pc_map`] once it is in.
    pub fn pc_map(&self) -> &PcMap {
        self.0.hook.pc_map()
    }

    /// As [`Hook::displaced`] once it is in.
    pub fn displaced(&self) -> CodeAddr {
        self.0.hook.displaced()
    }

    /// Where in the code that is made for the hook a thread is, to whoever asks, in front of an instruction of the function: all
    /// before that has been executed and nothing of it, and the stack is as it is there. Addresses of code, each range with
    /// that instruction's. Who walks the stack of a thread that a signal stopped goes on with the function's own entry.
    pub fn stands_for(&self) -> impl Iterator<Item = (Range<u64>, CodeAddr)> + '_ {
        let parts = &*self.0.hook.0;
        let (displaced, site) = (parts.displaced.0, parts.start.at);
        let gate = (parts.code.start..displaced, parts.target);
        let exact = move |(from, to)| {
            let at = displaced + to as u64;
            (at..at + 1, site.add(from as u64))
        };
        // What the way to the replacement undoes first is the function's first instruction.
        let island = displaced + parts.map.code_len() as u64..parts.code.end;
        let island = self.0.plan.undo.is_empty().then_some((island, parts.target));
        core::iter::once(gate).chain(parts.map.iter().map(exact)).chain(island)
    }

    /// Whether calls under way may return into what will be changed. A commit sees to that with traps; who changes code by
    /// other means leaves such a hook out.
    pub fn is_returned_into(&self) -> bool {
        self.0.hook.0.watched
    }
}

impl Prepared<'_> {
    /// The function as it is now, callable in its place with the same ABI, before and after the commit.
    ///
    /// # Errors
    /// Why the function can't be hooked. An id of another transaction answers for the hook of that number, or
    /// [`Error::NotExecutable`] if there is none.
    pub fn original(&self, id: HookId) -> Result<*const (), Error> {
        match self.hooks.get(id.0) {
            Some(Ok(ready)) => Ok(ready.hook.original()),
            Some(Err(error)) => Err(error.clone()),
            None => Err(Error::NotExecutable { target: CodeAddr(0) }),
        }
    }

    /// The plan of each hook, or why there is none, in the order of the ids.
    pub fn plans(&self) -> impl Iterator<Item = Result<&HookPlan, &Error>> {
        self.hooks.iter().map(|hook| hook.as_ref().map(|ready| &ready.plan))
    }

    /// The regions that hold code for these hooks, among them those that were there before, and how each was made.
    pub fn regions(&self) -> impl Iterator<Item = (Range<usize>, CodeWay)> + '_ {
        match &self.arena {
            Memory::Own(arena) => arena.regions(),
            Memory::Lent(arena) => arena.regions(),
        }
    }

    /// What each hook will change, or why it can't go in, in the order of the ids. Who may have to undo them from outside at
    /// any moment notes it before the commit.
    pub fn hooks(&self) -> impl Iterator<Item = Result<PreparedHook<'_>, &Error>> {
        self.hooks.iter().map(|hook| hook.as_ref().map(PreparedHook))
    }

    /// Patches the functions, and answers for each in the order of the ids. One that fails doesn't keep the others out.
    ///
    /// # Safety
    /// * Each target is the start of a function, and no code but the function's own branches into its first
    ///   instructions.
    /// * Each replacement has its target's ABI and stays loaded for as long as the hook is in; each target stays loaded
    ///   until its hook is removed or dropped.
    /// * What `liveness` says of the other threads is so.
    pub unsafe fn commit(mut self, liveness: Liveness) -> Vec<Result<Hook, Error>> {
        let mut results = core::mem::take(&mut self.results);
        let mut patches: Vec<Patch> = Vec::with_capacity(self.hooks.len());
        for ready in self.hooks.iter().flatten() {
            let parts = &*ready.hook.0;
            let patch = Patch::new(parts.isa, parts.aside, parts.start, parts.ways);
            let mut patch = Patch { watched: parts.watched, ..patch };
            if liveness == Liveness::Live && !ready.live {
                patch.state = Err(Error::NotLive { site: parts.start.at, refusal: Refusal::NotPrepared });
            }
            patches.push(patch);
        }
        // SAFETY: the caller's promises. The trampolines and islands that the redirects lead to are in place.
        unsafe { patch::apply(&self.view, &mut patches, liveness) };
        let mut patches = patches.into_iter();
        for hook in core::mem::take(&mut self.hooks) {
            results.push(hook.and_then(|ready| {
                let site = ready.hook.0.start.at;
                let patch = patches.next().ok_or(Error::AlreadyRemoved { site })?;
                match patch.state {
                    Ok(way) => Ok(ready.into_hook(way)),
                    Err(error) => {
                        // The traps of one that could not be put back lead to its code.
                        if !patch.torn {
                            self.arena.leave(ready.hook);
                        }
                        Err(error)
                    }
                }
            }));
        }
        results
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        for ready in core::mem::take(&mut self.hooks).into_iter().flatten() {
            self.arena.leave(ready.hook);
        }
    }
}

fn address(pointer: *const ()) -> CodeAddr {
    CodeAddr(pointer as usize as u64)
}
