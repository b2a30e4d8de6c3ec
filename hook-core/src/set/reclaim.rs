//! Giving back what was removed, when no thread can reach it any more.
//!
//! # Safety
//! Frees only what `live::reach` has shown to be reached by nobody, and what is led to by nothing: words lead to it no
//! more, since it was removed.

use alloc::vec::Vec;
use core::ops::Range;

use super::{
    HookSet,
    chain::{Entry, State, Stub, What},
    site::Site,
};
use crate::{
    Arena, Doubt, Hook, Liveness, Reclaimed,
    listen::{self, OwnLink},
    live::{PatchingRight, Suspects},
    memory::view::MemoryView,
    reclaim::{free_hook, range, suspects_of},
};

impl HookSet {
    /// Frees what was removed and what no thread can reach any more: by its registers, or by its stack. The rest is kept, and
    /// can be asked for again later.
    ///
    /// With [`Liveness::Live`] every other thread is interrupted once, by a signal that the program has no handler for. A
    /// thread's system call may answer `EINTR` for that, where the kernel doesn't begin it anew by itself. No thread
    /// waits for another. A thread that has the signal blocked, or takes signals by `sigwait`, gets none: it is a
    /// [`Doubt::NoAnswer`].
    ///
    /// # Safety
    /// * What `liveness` says is so; with [`Liveness::SingleThreaded`] no other thread is in a call that something removed
    ///   had to do with.
    /// * Nobody calls an [`original`](super::PreparedBatch::original) any more of what was removed, and no thread is in a
    ///   replacement that will.
    /// * Nobody else, another set or transaction among them, hooked one of the functions while it was patched by this set: the
    ///   code that was moved for that leads to the code that is freed here, also when both hooks are out.
    /// * No coroutine that isn't running now was left in a listener, in a probe, or in the first instructions of a hooked
    ///   function.
    pub unsafe fn reclaim(&mut self, liveness: Liveness) -> Reclaimed {
        let mut local = 0usize;
        let here = core::hint::black_box(core::ptr::from_mut(&mut local)) as usize;
        // SAFETY: the caller's promise.
        unsafe { self.reclaim_below(here, liveness) }
    }

    /// In a frame below `here`, so that the addresses in it don't count.
    ///
    /// # Safety
    /// As [`Self::reclaim`].
    #[inline(never)]
    unsafe fn reclaim_below(&mut self, here: usize, liveness: Liveness) -> Reclaimed {
        // What was prepared and never committed counts as removed.
        self.settle();
        let before = self.arena.used();
        let memory = MemoryView::open();
        for (_, spare) in core::mem::take(&mut self.spares) {
            // SAFETY: it was made for what then could not be attached.
            unsafe { spare.discard(&mut self.arena, &memory) };
        }
        let suspects = Suspects::new(self.sites.values().flat_map(Site::suspects));
        let asked = suspects.ask(here, liveness).and_then(|()| {
            let right = PatchingRight::for_the_table().map_err(Doubt::NotAsked)?;
            // SAFETY: the caller's promise, and what the threads answered.
            unsafe { self.free(&suspects, &memory, liveness, &right) };
            Ok(())
        });
        let doubt = asked.err();
        let doubt = doubt.or(self.free_orphans(here, liveness).err());
        self.arena.trim();
        let kept =
            self.sites.values().flat_map(Site::suspects).map(|range| (range.end - range.start) as usize);
        Reclaimed { freed: before - self.arena.used(), kept: kept.sum(), awaited: self.orphans.len(), doubt }
    }

    /// # Safety
    /// Nobody reaches what the suspects say isn't reached, or will come to it. What `liveness` says is so.
    unsafe fn free(
        &mut self,
        suspects: &Suspects,
        memory: &MemoryView,
        liveness: Liveness,
        right: &PatchingRight,
    ) {
        let Self { arena, sites, orphans, .. } = self;
        sites.retain(|_, site| {
            let entire = site.is_idle()
                && site.suspects().all(|range| !suspects.is_reached(range.start))
                // Else it is tried again another time.
                // SAFETY: the caller's promise: nobody is in the padding or will come there.
                && site.hooks().all(|hook| unsafe { hook.give_padding_back(memory, liveness) });
            let reached =
                |link: &mut Entry| link.state == State::Out && !suspects.is_reached(link.stub.code.at as u64);
            let mut gone: Vec<Entry> = site.chain.links.extract_if(.., reached).collect();
            for same in site.chain.retired.values_mut() {
                gone.extend(same.extract_if(.., reached));
            }
            site.chain.retired.retain(|_, same| !same.is_empty());
            for link in gone {
                // SAFETY: the caller's promise; the word is that of the stub.
                unsafe { free_stub(arena, &link.stub, memory) };
                if let Entry { id, what: What::Tell(link), .. } = link {
                    orphans.push((id, link));
                }
            }
            if entire {
                for hook in site.hooks() {
                    // SAFETY: as above.
                    unsafe { free_hook(arena, hook, memory, right) };
                }
                for head in site.heads() {
                    // SAFETY: as above.
                    unsafe { free_stub(arena, head, memory) };
                }
            }
            !entire
        });
    }

    /// Frees links that no call waits for and whose address no thread holds.
    fn free_orphans(&mut self, here: usize, liveness: Liveness) -> Result<(), Doubt> {
        let mut free = Vec::new();
        self.orphans.retain(|(_, link)| {
            listen::settle(link);
            let quiet = !link.hears_returns();
            if quiet {
                free.push(*link);
            }
            !quiet
        });
        // Their stubs are gone, so that none begins to wait; but one may have returned just now.
        let waiting = |link: &OwnLink| listen::awaited(link) > 0;
        let asked: Vec<_> =
            self.orphans.iter().map(|(_, link)| *link).filter(|link| !waiting(link)).collect();
        let mut asking = Ok(());
        if !asked.is_empty() {
            let suspects = Suspects::new(asked.iter().map(OwnLink::range));
            asking = suspects.ask(here, liveness);
            if asking.is_ok() {
                free.extend(asked.into_iter().filter(|link| !suspects.is_reached(link.range().start)));
                self.orphans.retain(|(_, link)| !free.contains(link));
            }
        }
        for link in free {
            // SAFETY: its stub is gone, no return point has it, and no thread holds its address.
            unsafe { link.free() };
        }
        asking
    }
}

impl Site {
    /// Nothing is attached.
    fn is_idle(&self) -> bool {
        !self.is_patched() && self.chain.links.iter().all(|link| link.state == State::Out)
    }

    /// What it is patched with, and what it was before its code changed.
    fn hooks(&self) -> impl Iterator<Item = &Hook> {
        self.outdated.iter().chain([&self.hook])
    }

    /// What a patch led to, and leads to.
    fn heads(&self) -> impl Iterator<Item = &Stub> {
        self.former_heads.iter().chain([&self.head])
    }

    /// The code that may be given back. Where nothing is attached, that is all of it.
    fn suspects(&self) -> impl Iterator<Item = Range<u64>> {
        let heads = || self.heads().map(|head| range(&head.code));
        let whole = self.is_idle().then(|| self.hooks().flat_map(suspects_of).chain(heads()));
        self.chain.gone().map(|link| range(&link.stub.code)).chain(whole.into_iter().flatten())
    }
}

/// # Safety
/// Nobody reaches the stub or will come to it.
unsafe fn free_stub(arena: &mut Arena, stub: &Stub, memory: &MemoryView) {
    // SAFETY: the caller's promise; only the stub names the word.
    unsafe {
        arena.give_back(&stub.code, memory);
        arena.give_word_back(stub.word);
    }
}
