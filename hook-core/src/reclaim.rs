//! Giving back the code of hooks that were removed, when no thread can reach it any more.
//!
//! # Safety
//! Frees only what `live::reach` has shown to be reached by nobody, and what nothing leads to: the patch is gone, or never went in.

use alloc::vec::Vec;
use core::ops::Range;

use crate::{
    Arena, Doubt, Hook, Liveness,
    arena::CodeSlot,
    live::{PatchingRight, Suspects},
    memory::view::MemoryView,
};

/// What became of code and data that were removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Reclaimed {
    /// How many bytes of code and words were freed.
    pub freed: usize,
    /// How many were kept, because a thread is in them or may come to them. On AArch64 a thread that ran a hook has an address of
    /// its code in X16 or X17 until something else uses these, as calls of other libraries do.
    pub kept: usize,
    /// How many removed listeners were kept, because calls that they saw enter haven't returned, or may just be told.
    pub awaited: usize,
    /// Why it isn't known who may reach it, if so. All was kept then.
    pub doubt: Option<Doubt>,
}

impl Arena {
    /// Frees the code of those of these hooks that are removed and that no thread can reach any more: by its registers, or by its
    /// stack. They are taken out of the list. The others stay in it, and can be asked for again later, as those do that are in,
    /// or whose code lies in another arena.
    ///
    /// The code of hooks that were prepared with this arena and never went in is freed as well. What others were told of
    /// ([`Self::announce_to`]) is kept for good.
    ///
    /// Memory goes back to the system when all of a region was given back. Before that it serves further hooks where it was made
    /// by [`CodeWay::ProcMem`](crate::CodeWay::ProcMem): children made by fork share what was made by
    /// [`CodeWay::TwoViews`](crate::CodeWay::TwoViews), which comes first unless [other ways](Self::with_ways) are asked for.
    ///
    /// With [`Liveness::Live`] threads are interrupted as by [`HookSet::reclaim`](crate::HookSet::reclaim).
    ///
    /// # Safety
    /// * What `liveness` says is so; with [`Liveness::SingleThreaded`] no other thread is in a call that one of these hooks had to do
    ///   with.
    /// * Nobody calls an [`original`](Hook::original) any more of a hook that was removed or that never went in, and no thread is
    ///   in a replacement that will.
    /// * Nobody else, a set or another transaction among them, hooked one of the functions while this hook was in: the code
    ///   that was moved for that leads to the code that is freed here, also when both hooks are out.
    /// * No coroutine that isn't running now was left in the first instructions of a hooked function.
    pub unsafe fn reclaim(&mut self, hooks: &mut Vec<Hook>, liveness: Liveness) -> Reclaimed {
        let mut local = 0usize;
        let here = core::hint::black_box(core::ptr::from_mut(&mut local)) as usize;
        // SAFETY: the caller's promise.
        unsafe { self.reclaim_below(hooks, here, liveness) }
    }

    /// In a frame below `here`, so that the addresses in it don't count.
    ///
    /// # Safety
    /// As [`Self::reclaim`].
    #[inline(never)]
    unsafe fn reclaim_below(&mut self, hooks: &mut Vec<Hook>, here: usize, liveness: Liveness) -> Reclaimed {
        let before = self.used();
        let memory = MemoryView::open();
        let mut left = core::mem::take(&mut self.left);
        let out = |arena: &Self, hook: &Hook| hook.0.removed && arena.holds(hook.0.code.start);
        let suspects = {
            let all = hooks.iter().chain(&left).filter(|hook| out(self, hook));
            Suspects::new(all.flat_map(suspects_of))
        };
        let asked = suspects.ask(here, liveness).and_then(|()| {
            let right = PatchingRight::for_the_table().map_err(Doubt::NotAsked)?;
            for list in [&mut *hooks, &mut left] {
                list.retain(|hook| {
                    let free = out(self, hook)
                        && suspects_of(hook).all(|range| !suspects.is_reached(range.start))
                        // Else it is tried again another time.
                        // SAFETY: the caller's promise: nobody is in the padding or will come there.
                        && unsafe { hook.give_padding_back(&memory, liveness) };
                    if free {
                        // SAFETY: the caller's promise, and what the threads answered.
                        unsafe { free_hook(self, hook, &memory, &right) };
                    }
                    !free
                });
            }
            Ok(())
        });
        self.trim();
        let kept = hooks.iter().chain(&left).filter(|hook| out(self, hook)).flat_map(suspects_of);
        let kept = kept.map(|range| (range.end - range.start) as usize).sum();
        self.left = left;
        Reclaimed { freed: before - self.used(), kept, awaited: 0, doubt: asked.err() }
    }
}

/// The code that was made for a patch, and the padding that it may have taken. Of an island that others share, who is in it counts as
/// reaching this patch's code.
pub(crate) fn suspects_of(hook: &Hook) -> impl Iterator<Item = Range<u64>> {
    let parts = &*hook.0;
    let aside = parts.aside.map(|aside| aside.at.0..aside.at.0 + aside.new.as_slice().len() as u64);
    let island = parts.island.as_ref().map(|(_, slot)| range(slot));
    [Some(parts.code.clone()), island, aside].into_iter().flatten()
}

pub(crate) fn range(slot: &CodeSlot) -> Range<u64> {
    slot.at as u64..(slot.at + slot.len) as u64
}

/// # Safety
/// The hook isn't in, and nobody reaches its code or will come to it.
pub(crate) unsafe fn free_hook(arena: &mut Arena, hook: &Hook, memory: &MemoryView, right: &PatchingRight) {
    let parts = &*hook.0;
    right.forget_ways_into(parts.start.at.0, &parts.code);
    let len = (parts.code.end - parts.code.start) as usize;
    let code = CodeSlot { at: parts.code.start as usize, len };
    // SAFETY: the caller's promise.
    unsafe {
        arena.give_back(&code, memory);
        if let Some((to, slot)) = &parts.island {
            arena.leave_island(*to, slot, memory);
        }
    }
}
