//! What a batch has prepared, and its commit.
//!
//! # Safety
//! Committing patches functions and lets what was prepared be run.

use alloc::vec::Vec;

use grapnel_relocator::CodeAddr;

use super::{
    Attachment, BatchId, HookSet,
    chain::{State, What},
};
use crate::{
    Error, Liveness, Refusal,
    memory::view::MemoryView,
    patch::{self, Absent, Patch},
};

/// Requests that are ready to be committed.
#[derive(Debug)]
#[must_use = "nothing is attached until it is committed"]
pub struct PreparedBatch<'a> {
    pub(super) set: &'a mut HookSet,
    pub(super) view: MemoryView,
    /// For each request the site and the attachment.
    pub(super) wishes: Vec<Result<(CodeAddr, Attachment), Error>>,
    /// The sites that are concerned, each once.
    pub(super) sites: Vec<CodeAddr>,
    pub(super) patches: Vec<Patch>,
    pub(super) live: bool,
}

impl PreparedBatch<'_> {
    /// For a replacement: what it replaces, callable in its place with the same ABI, namely what was attached before it,
    /// and within that the function. For a listener or a probe: the function, or what follows the probe, as if nothing
    /// were attached. It stays valid after the removal.
    ///
    /// # Errors
    /// Why the request can't be met.
    pub fn original(&self, id: BatchId) -> Result<*const (), Error> {
        let missing = Error::NotAttached { number: id.0 as u64 };
        let (target, attachment) = self.wishes.get(id.0).ok_or(missing.clone())?.clone()?;
        let site = self.set.sites.get(&target).ok_or(missing.clone())?;
        let link = site.chain.links.iter().find(|link| link.id == attachment).ok_or(missing)?;
        Ok(match link.what {
            What::Replace(_) => link.stub.code.at as *const (),
            What::Tell(_) => site.hook.original(),
        })
    }

    /// Patches the functions, and answers for each request in order, also for removals with what was removed. One that
    /// fails doesn't keep the others out.
    ///
    /// # Safety
    /// * Each function that is attached to begins where the request says, and no code but the function's own branches
    ///   into its first instructions. Each probed instruction begins where the request says, and all code that branches
    ///   into those behind it is in the function's range.
    /// * Each replacement has its function's ABI, stays loaded while a thread may be in it, and each function while
    ///   something is attached to it. Each listener and its data may be used by all threads, at any place where its
    ///   function is called or its probe is passed, and stay so while a thread may be in it.
    /// * A function whose return is listened to returns once for each call (`vfork`, `setjmp` and `getcontext` return
    ///   twice), and doesn't look at its return address to tell who called it.
    /// * What `liveness` says of the other threads is so.
    pub unsafe fn commit(mut self, liveness: Liveness) -> Vec<Result<Attachment, Error>> {
        let mut results = Vec::with_capacity(self.wishes.len());
        for &target in &self.sites {
            let Some(site) = self.set.sites.get(&target) else { continue };
            let stays = site.chain.has(&[State::Coming, State::In]);
            // The last ones go when the patch is gone: should it stay, so do they.
            let going = if stays { State::In } else { State::Going };
            site.publish(&[State::Coming, State::In, going]);
            let mut patch = match (site.is_patched(), stays) {
                (false, true) => site.hook.patch_in(&self.view),
                (true, false) => site.hook.patch_out(),
                _ => continue,
            };
            if liveness == Liveness::Live && stays && !(site.live && self.live) {
                patch.state =
                    Err(Error::NotLive { site: site.hook.0.start.at, refusal: Refusal::NotPrepared });
            }
            self.patches.push(patch);
        }
        if !self.patches.is_empty() {
            // SAFETY: the caller's promises. The redirects lead to heads whose words lead on.
            unsafe { patch::apply(&self.view, &mut self.patches, liveness) };
        }

        let mut patches = self.patches.iter();
        for &target in &self.sites {
            let Some(site) = self.set.sites.get_mut(&target) else { continue };
            let stays = site.chain.has(&[State::Coming, State::In]);
            let patch = if site.is_patched() != stays { patches.next() } else { None };
            let failed = patch.and_then(|patch| patch.state.as_ref().err());
            if let Some(patch) = patch {
                site.hook.0.torn = !stays && patch.torn;
            }
            if let Some(error) = failed {
                let error = if stays { error.clone() } else { error.clone().of_removal() };
                for wish in self.wishes.iter_mut().filter(|wish| matches!(wish, Ok((at, _)) if *at == target))
                {
                    *wish = Err(error.clone());
                }
            } else if let Some(way) = patch.and_then(|patch| patch.state.as_ref().ok()) {
                (site.hook.0.way, site.hook.0.removed) = (*way, !stays);
                let gone = patch.is_some_and(|patch| patch.absent == Some(Absent::Gone));
                if !stays && !gone {
                    // SAFETY: the redirect at the start is gone; what `liveness` says is so.
                    unsafe { site.hook.restore_padding(&self.view, liveness) };
                }
            }
            for link in &mut site.chain.links {
                link.state = match (link.state, failed.is_some()) {
                    (State::Coming, false) | (State::Going, true) | (State::In, _) => State::In,
                    (State::Coming, true) | (State::Going, false) | (State::Out, _) => State::Out,
                };
                match link.state {
                    State::In => self.set.places.insert(link.id, target),
                    _ => self.set.places.remove(&link.id),
                };
            }
            site.publish(&[State::In]);
        }
        self.set.settle();
        results.extend(self.wishes.into_iter().map(|wish| wish.map(|(_, attachment)| attachment)));
        results
    }
}
