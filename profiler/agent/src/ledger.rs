//! What the agent maps and changes in a process that it was put into while it ran: noted, for the command to undo.
//!
//! An agent that was loaded at the start stays, and notes nothing.

#[cfg(grapnel_attached)]
pub(crate) use attached::{
    LEDGER, change, changes, has_room, is_of_others, keeps, mapped, namespace, unmapped, with_maps, word,
};
#[cfg(not(grapnel_attached))]
pub(crate) use preloaded::{changes, has_room, is_of_others, keeps, mapped, namespace, unmapped, word};

#[cfg(grapnel_attached)]
mod attached {
    use core::ptr;
    use core::sync::atomic::Ordering;
    use grapnel_hook::{Prepared, PreparedHook, maps};
    use grapnel_trace::attached::Ledger;

    /// Read and written by the command, which finds it by its name.
    #[unsafe(export_name = "grapnel_agent_ledger")]
    pub(crate) static LEDGER: Ledger = Ledger::new();

    /// Memory was mapped. False: it can't be noted, and must go again.
    pub(crate) fn mapped(start: usize, len: usize) -> bool {
        LEDGER.add(start as u64, len as u64)
    }

    /// Memory, or a part of it, was unmapped.
    pub(crate) fn unmapped(start: usize, len: usize) {
        LEDGER.remove(start as u64, len as u64);
    }

    /// Whether so many functions can be hooked, with what each may change.
    pub(crate) fn has_room(hooks: usize) -> bool {
        LEDGER.room() >= 2 * hooks
    }

    /// The memory that was made for hooks' code. False: it can't be noted, and they must not go in.
    pub(crate) fn keeps(prepared: &Prepared<'_>) -> bool {
        prepared.regions().all(|(region, _)| mapped(region.start, region.len()))
    }

    /// Functions are about to be hooked. False: that can't be noted, and they must not be.
    pub(crate) fn changes(prepared: &Prepared<'_>) -> bool {
        prepared.hooks().flatten().all(|hook| change(&hook))
    }

    /// The same for one of them.
    pub(crate) fn change(hook: &PreparedHook<'_>) -> bool {
        let code = hook.displaced().0;
        hook.edits().rev().enumerate().all(|(index, (at, old, new))| {
            // Those of the patch itself; nobody runs the padding.
            let ways = hook.pc_map().iter().filter(|_| index == 0);
            LEDGER.change(at.0, old.as_slice(), new.as_slice(), code, ways)
        })
    }

    /// The namespace of process ids that the command found the process in.
    pub(crate) fn namespace() -> u64 {
        LEDGER.namespace.load(Ordering::Relaxed)
    }

    /// Whether code at an address is that of a static program's libc, besides the allocator, which maps for itself.
    pub(crate) fn is_of_others(address: usize) -> bool {
        LEDGER.linked.others.iter().any(|function| function.range().contains(&(address as u64)))
    }

    /// Takes what the command has read of `/proc`, for where the process sees none: until the hooks are prepared, when it is
    /// about to become stale.
    pub(crate) fn with_maps<T>(work: impl FnOnce() -> T) -> T {
        let range = LEDGER.maps.range();
        let start: *const u8 = ptr::with_exposed_provenance(range.start as usize);
        if !start.is_null() {
            // SAFETY: the command has mapped so many bytes there, which stay as long as the agent does, and nobody writes to.
            maps::give(unsafe { core::slice::from_raw_parts(start, (range.end - range.start) as usize) });
        }
        let done = work();
        maps::give(b"");
        done
    }

    /// A word of the program's is about to get a value.
    pub(crate) fn word(at: usize, old: usize, new: usize) -> bool {
        LEDGER.change(at as u64, &old.to_ne_bytes(), &new.to_ne_bytes(), 0, core::iter::empty())
    }
}

#[cfg(not(grapnel_attached))]
mod preloaded {
    use grapnel_hook::Prepared;

    /// Noted for [`crate::debug`] alone.
    pub(crate) fn mapped(start: usize, len: usize) -> bool {
        crate::debug::own::mapped(start, len);
        true
    }

    /// As above.
    pub(crate) fn unmapped(start: usize, len: usize) {
        crate::debug::own::unmapped(start, len);
    }

    /// Nothing is noted.
    #[inline(always)]
    pub(crate) fn has_room(_hooks: usize) -> bool {
        true
    }

    /// Nothing is noted.
    #[inline(always)]
    pub(crate) fn keeps(_prepared: &Prepared<'_>) -> bool {
        true
    }

    /// Nothing is noted.
    #[inline(always)]
    pub(crate) fn changes(_prepared: &Prepared<'_>) -> bool {
        true
    }

    /// A program that is loaded has them in libc.
    pub(crate) fn is_of_others(_address: usize) -> bool {
        false
    }

    /// Nobody has looked for it.
    pub(crate) fn namespace() -> u64 {
        0
    }

    /// Nothing is noted.
    #[inline(always)]
    pub(crate) fn word(_at: usize, _old: usize, _new: usize) -> bool {
        true
    }
}
