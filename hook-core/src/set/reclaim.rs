//! Giving back what was removed, when no thread can reach it any more.
//!
//! # Safety
//! Frees only what `live::reach` has shown to be reached by nobody, and what is led to by nothing: words lead to it no
//! more, since it was removed.

use alloc::{boxed::Box, vec::Vec};
use core::ops::Range;

use super::{
    HookSet,
    chain::{Entry, State, Stub, What},
    site::Site,
};
use crate::{
    Arena, Doubt, Hook, Liveness,
    arena::CodeSlot,
    listen::{self, Link},
    live::{PatchingRight, Suspects},
    memory::view::MemoryView,
};

/// What became of code and data that were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Reclaimed {
    /// How many bytes of code and words were freed.
    pub freed: usize,
    /// How many were kept, because a thread is in them or may come to them.
    pub kept: usize,
    /// How many removed listeners were kept, because calls that they saw enter haven't returned, or may just be told.
    pub awaited: usize,
    /// Why it isn't known who may reach it, if so. All was kept then.
    pub doubt: Option<Doubt>,
}

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
                    right.forget_ways_into(hook.start.at.0, &hook.code);
                    // SAFETY: as above.
                    unsafe { free_hook(arena, hook, memory) };
                }
                // SAFETY: as above.
                unsafe { free_stub(arena, &site.head, memory) };
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
        let waiting = |link: &&'static Link| listen::awaited(link) > 0;
        let asked: Vec<_> =
            self.orphans.iter().map(|(_, link)| *link).filter(|link| !waiting(link)).collect();
        let mut asking = Ok(());
        if !asked.is_empty() {
            let suspects = Suspects::new(asked.iter().map(|link| range_of(link)));
            asking = suspects.ask(here, liveness);
            if asking.is_ok() {
                let held = |link: &Link| suspects.is_reached(range_of(link).start);
                free.extend(asked.into_iter().filter(|link| !held(link)));
                self.orphans.retain(|(_, link)| !free.iter().any(|freed| core::ptr::eq(*freed, *link)));
            }
        }
        for link in free {
            // SAFETY: it came from `Box::leak`. Its stub is gone, no return point has it, and no thread holds its address.
            drop(unsafe { Box::from_raw(core::ptr::from_ref(link).cast_mut()) });
        }
        asking
    }
}

fn range_of(link: &Link) -> Range<u64> {
    let start = core::ptr::from_ref(link) as usize as u64;
    start..start + size_of::<Link>() as u64
}

fn range(slot: &CodeSlot) -> Range<u64> {
    slot.at as u64..(slot.at + slot.len) as u64
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

    /// The code that may be given back. Where nothing is attached, that is all of it.
    fn suspects(&self) -> impl Iterator<Item = Range<u64>> {
        let whole =
            self.is_idle().then(|| self.hooks().flat_map(suspects_of).chain([range(&self.head.code)]));
        self.chain.gone().map(|link| range(&link.stub.code)).chain(whole.into_iter().flatten())
    }
}

/// The code that was made for a patch, and the padding that it may have taken. Islands that others share aren't asked about:
/// from there a thread comes to the head.
fn suspects_of(hook: &Hook) -> impl Iterator<Item = Range<u64>> {
    let aside = hook.aside.map(|aside| aside.at.0..aside.at.0 + aside.new.as_slice().len() as u64);
    [Some(hook.code.clone()), hook.island.as_ref().map(|(_, slot)| range(slot)), aside].into_iter().flatten()
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

/// # Safety
/// The hook is removed, and nobody reaches its code or will come to it.
unsafe fn free_hook(arena: &mut Arena, hook: &Hook, memory: &MemoryView) {
    let code = CodeSlot { at: hook.code.start as usize, len: (hook.code.end - hook.code.start) as usize };
    // SAFETY: the caller's promise.
    unsafe {
        arena.give_back(&code, memory);
        if let Some((to, slot)) = &hook.island {
            arena.leave_island(*to, slot, memory);
        }
    }
}
