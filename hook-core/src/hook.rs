//! A hook that is in, as a value that its holder owns.
//!
//! # Safety
//! Removing writes over live code. It does so only where the bytes are exactly those that this hook wrote.

use alloc::{boxed::Box, vec, vec::Vec};
use core::{cmp::Reverse, ops::Range};

use grapnel_relocator::{CodeAddr, Isa, PcMap};

use crate::{
    Error, Liveness, PatchKind, PatchWay, Proof,
    arena::CodeSlot,
    atomic::{AtomicU64, Ordering::Relaxed},
    live::Ways,
    memory::{
        maps::Home,
        view::{Bytes, MemoryView},
    },
    patch::{self, Absent, Edit, Patch},
};

/// A function that is hooked.
///
/// Dropping the value leaves the hook in. The trampoline stays mapped, whatever becomes of the value, unless
/// [`Arena::reclaim`](crate::Arena::reclaim) gives it back once the hook is removed.
///
/// The value is a pointer: who looks for addresses of code on stacks finds none in it, wherever it was moved.
#[derive(Debug)]
pub struct Hook(pub(crate) Box<Parts>);

/// What a hook consists of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) isa: Isa,
    pub(crate) target: CodeAddr,
    /// The near redirect in padding, for a short one at the start.
    pub(crate) aside: Option<Edit>,
    pub(crate) start: Edit,
    pub(crate) ways: Ways,
    /// What of a file the function is.
    pub(crate) home: Option<Home>,
    /// The island that it shares, and where that goes.
    pub(crate) island: Option<(u64, CodeSlot)>,
    /// A call returns into the patch.
    pub(crate) watched: bool,
    /// What the chain of a set ends in, as a pointer.
    pub(crate) trampoline: CodeAddr,
    /// The function as it was, as a pointer. In the middle of a function it isn't what a chain ends in.
    pub(crate) original: CodeAddr,
    pub(crate) displaced: CodeAddr,
    pub(crate) code: Range<u64>,
    pub(crate) map: PcMap,
    pub(crate) kind: PatchKind,
    pub(crate) proof: Proof,
    pub(crate) way: PatchWay,
    /// Which one it was that went in, of all in the process; 0 before.
    pub(crate) number: u64,
    /// It isn't in: not yet, or not any more.
    pub(crate) removed: bool,
    /// A removal failed half way.
    pub(crate) torn: bool,
}

/// What became of a hook that was taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoveOutcome {
    /// The function is as it was before, byte for byte. The trampoline stays mapped: a thread may still run in it or return to it.
    /// [`Arena::reclaim`](crate::Arena::reclaim) gives it back when none can.
    CodeKept {
        /// The trampoline.
        code: Range<u64>,
        /// Padding between functions that still holds a redirect, because a thread may be about to run it.
        padding: Option<Range<u64>>,
    },
    /// The function is gone: nothing is mapped there any more, or something of another file, where nothing was written. The
    /// trampoline stays mapped.
    Gone {
        /// The trampoline.
        code: Range<u64>,
    },
}

/// Splits hooks so that one is removed before another that went in earlier: of each place there is one in a layer, the newest first.
fn layers(hooks: &[Hook], mut wanted: Vec<usize>) -> Vec<Vec<usize>> {
    let key = |at: usize| hooks.get(at).map(|hook| (hook.0.start.at, Reverse(hook.0.number)));
    let site = |at: usize| key(at).map(|(site, _)| site);
    wanted.sort_by_key(|&at| key(at));
    let mut layers: Vec<Vec<usize>> = Vec::new();
    for group in wanted.chunk_by(|&one, &other| site(one) == site(other)) {
        for (depth, &at) in group.iter().enumerate() {
            match layers.get_mut(depth) {
                Some(layer) => layer.push(at),
                None => layers.push(vec![at]),
            }
        }
    }
    layers
}

/// How many hooks went in.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

impl Hook {
    /// The function as it was: callable in its place, with the same ABI. It stays valid after the hook is removed, until
    /// its code is [reclaimed](crate::Arena::reclaim).
    pub fn original(&self) -> *const () {
        self.0.original.0 as usize as *const ()
    }

    /// The hooked function.
    pub fn target(&self) -> CodeAddr {
        self.0.target
    }

    /// The addresses of the code that was made for the hook.
    pub fn code(&self) -> Range<u64> {
        self.0.code.clone()
    }

    /// What is changed: each place with the bytes that were there and those that are. The last is the patch itself; if
    /// there is another, it is a redirect in padding that only the patch leads to. Who stops all threads can undo the
    /// hook from outside with this and [`Self::pc_map`].
    pub fn edits(&self) -> impl DoubleEndedIterator<Item = (CodeAddr, Bytes, Bytes)> + use<> {
        let edits = [self.0.aside, Some(self.0.start)];
        edits.into_iter().flatten().map(|edit| (edit.at, edit.old, edit.new))
    }

    /// Where the function's first instructions went: offsets from the patch against offsets from
    /// [`Self::displaced`].
    pub fn pc_map(&self) -> &PcMap {
        &self.0.map
    }

    /// Where the relocated instructions start, behind the landing pad that the trampoline may have.
    pub fn displaced(&self) -> CodeAddr {
        self.0.displaced
    }

    /// The shape of the patch.
    pub fn kind(&self) -> PatchKind {
        self.0.kind
    }

    /// What was known of branches into the patch.
    pub fn proof(&self) -> &Proof {
        &self.0.proof
    }

    /// How the patch was written.
    pub fn way(&self) -> PatchWay {
        self.0.way
    }

    /// Puts the original bytes back. If they are back already, nothing needs to be done, nor if the function is gone with its
    /// object.
    ///
    /// # Errors
    /// If someone else has patched the function meanwhile, or it can't be written. The hook then stays in, and this may
    /// be called again. If writing failed half way and back again, calls go to the function as if the hook were out, by way
    /// of traps, until this is called again and succeeds; where no other thread runs, until then nothing must call it.
    ///
    /// # Safety
    /// What `liveness` says of the other threads is so.
    pub unsafe fn remove(&mut self, liveness: Liveness) -> Result<RemoveOutcome, Error> {
        if self.0.removed {
            return Err(Error::AlreadyRemoved { site: self.0.start.at });
        }
        let view = MemoryView::open();
        let mut patches = [self.patch_out()];
        // SAFETY: the original bytes come back where they were, and only if this hook's are there; what `liveness`
        // says is so.
        unsafe { patch::apply(&view, &mut patches, liveness) };
        let [patch] = patches;
        // SAFETY: what `liveness` says is so, and the patch is this hook's.
        unsafe { self.conclude(&view, patch, liveness) }
    }

    /// Removes many hooks, each as [`Self::remove`] does, with one synchronisation for all: where other threads run, many times
    /// as fast as one by one. Answers for each in their order. One that can't be removed doesn't keep the others in. Of several on one
    /// function all are removed, whatever their order in the list.
    ///
    /// # Safety
    /// As [`Self::remove`].
    pub unsafe fn remove_all(hooks: &mut [Self], liveness: Liveness) -> Vec<Result<RemoveOutcome, Error>> {
        let view = MemoryView::open();
        let mut results: Vec<_> =
            hooks.iter().map(|hook| Err(Error::AlreadyRemoved { site: hook.0.start.at })).collect();
        let mut wanted: Vec<usize> = (0..hooks.len()).collect();
        wanted.retain(|&at| hooks.get(at).is_some_and(|hook| !hook.0.removed));
        let mut patches = Vec::with_capacity(wanted.len());
        let mut done = true;
        while done {
            // What another of these hooks lay upon in some other way may be laid open by now.
            done = false;
            for mut layer in layers(hooks, core::mem::take(&mut wanted)) {
                patches.clear();
                patches.extend(layer.iter().filter_map(|&at| hooks.get(at)).map(Self::patch_out));
                // SAFETY: as in `remove`.
                unsafe { patch::apply(&view, &mut patches, liveness) };
                for (&at, patch) in layer.iter().zip(patches.drain(..)) {
                    if let (Some(hook), Some(result)) = (hooks.get_mut(at), results.get_mut(at)) {
                        // SAFETY: as in `remove`.
                        *result = unsafe { hook.conclude(&view, patch, liveness) };
                    }
                }
                let count = layer.len();
                layer.retain(|&at| matches!(results.get(at), Some(Err(_))));
                done |= layer.len() < count;
                layer.retain(|&at| matches!(results.get(at), Some(Err(Error::ForeignPatch { .. }))));
                wanted.append(&mut layer);
            }
        }
        results
    }

    /// What became of the hook by the patch that was to take it out.
    ///
    /// # Safety
    /// What `liveness` says of the other threads is so.
    unsafe fn conclude(
        &mut self,
        view: &MemoryView,
        patch: Patch,
        liveness: Liveness,
    ) -> Result<RemoveOutcome, Error> {
        let Patch { state, torn, absent, .. } = patch;
        self.0.torn = torn;
        state.map_err(Error::of_removal)?;
        self.0.removed = true;
        if absent == Some(Absent::Gone) {
            return Ok(RemoveOutcome::Gone { code: self.code() });
        }
        // SAFETY: the redirect at the start is gone; what `liveness` says is so.
        let padding = unsafe { self.restore_padding(view, liveness) };
        Ok(RemoveOutcome::CodeKept { code: self.code(), padding })
    }

    /// Puts the padding back that a short patch took, unless a thread may be about to run it. Answers where it wasn't.
    ///
    /// # Safety
    /// No redirect leads there any more, and what `liveness` says of the other threads is so.
    pub(crate) unsafe fn restore_padding(&self, view: &MemoryView, liveness: Liveness) -> Option<Range<u64>> {
        let aside = self.0.aside?;
        // A thread may have taken the short redirect and not yet the near one behind it.
        // SAFETY: no other thread runs the redirect, and no redirect leads to it any more.
        let undone =
            liveness == Liveness::SingleThreaded && unsafe { self.give_padding_back(view, liveness) };
        (!undone).then(|| aside.at.0..aside.at.0 + aside.new.as_slice().len() as u64)
    }

    /// Puts the padding back, into which no thread comes any more. Answers whether it is no longer what this hook wrote.
    ///
    /// # Safety
    /// It is so, and what `liveness` says of the other threads is so.
    pub(crate) unsafe fn give_padding_back(&self, view: &MemoryView, liveness: Liveness) -> bool {
        let Some(aside) = self.0.aside else { return true };
        let (at, old) = (aside.at.0 as usize, aside.old.as_slice());
        view.differs(at, aside.new.as_slice()).is_some()
            || match liveness {
                // SAFETY: nobody runs the padding (the caller's promise).
                Liveness::SingleThreaded => unsafe { view.write_code(at, old) }.is_ok(),
                // The page may hold what others run.
                // SAFETY: as above.
                Liveness::Live => unsafe { view.write_running(at, old) }.is_ok(),
            }
    }

    /// Notes that it is in.
    pub(crate) fn went_in(&mut self, way: PatchWay) {
        (self.0.way, self.0.removed) = (way, false);
        self.0.number = NUMBERS.fetch_add(1, Relaxed) + 1;
    }

    /// The patch that puts the hook in. Padding that still holds its redirect is left as it is.
    pub(crate) fn patch_in(&self, view: &MemoryView) -> Patch {
        let there = |aside: &Edit| view.differs(aside.at.0 as usize, aside.new.as_slice()).is_none();
        let aside = self.0.aside.filter(|aside| !there(aside));
        Patch { watched: self.0.watched, ..Patch::new(self.0.isa, aside, self.0.start, self.0.ways) }
    }

    /// The patch that takes it out.
    pub(crate) fn patch_out(&self) -> Patch {
        let patch = Patch::new(self.0.isa, None, self.0.start.undone(), self.0.ways);
        Patch { leaves: true, torn: self.0.torn, home: self.0.home, ..patch }
    }
}
