//! A hook that is in, as a value that its holder owns.
//!
//! # Safety
//! Removing writes over live code. It does so only where the bytes are exactly those that this hook wrote.

use core::ops::Range;

use grapnel_relocator::{CodeAddr, PcMap};

use crate::{
    Error, Liveness, PatchKind, PatchWay, Proof,
    memory::view::{Bytes, MemoryView},
    native,
};

/// One run of code bytes that a patch changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) at: CodeAddr,
    pub(crate) old: Bytes,
    pub(crate) new: Bytes,
}

/// A function that is hooked.
///
/// Dropping the value leaves the hook in. The trampoline stays mapped for good, whatever becomes of the value.
#[derive(Debug)]
pub struct Hook {
    pub(crate) target: CodeAddr,
    /// In the order in which they are made; undone in the reverse order. The last one is at the function's start.
    pub(crate) edits: [Option<Edit>; 2],
    pub(crate) trampoline: CodeAddr,
    pub(crate) code: Range<u64>,
    pub(crate) map: PcMap,
    pub(crate) kind: PatchKind,
    pub(crate) proof: Proof,
    pub(crate) way: PatchWay,
    pub(crate) removed: bool,
}

/// What became of a hook that was taken out. Its function is as it was before, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoveOutcome {
    /// The trampoline stays mapped: a thread may still run in it or return to it, and nothing shows that none does.
    CodeKept {
        /// The code that is kept.
        code: Range<u64>,
    },
}

impl Hook {
    /// The function as it was: callable in its place, with the same ABI. It stays valid after the hook is removed.
    pub fn original(&self) -> *const () {
        self.trampoline.0 as usize as *const ()
    }

    /// The hooked function.
    pub fn target(&self) -> CodeAddr {
        self.target
    }

    /// The addresses of the code that was made for the hook.
    pub fn code(&self) -> Range<u64> {
        self.code.clone()
    }

    /// Where the function's first instructions went: offsets from the patch against offsets from
    /// [`Self::displaced`].
    pub fn pc_map(&self) -> &PcMap {
        &self.map
    }

    /// Where the relocated instructions start, behind the landing pad that the trampoline may have.
    pub fn displaced(&self) -> CodeAddr {
        let site = self.edits.iter().flatten().last().map_or(self.target, |edit| edit.at);
        self.trampoline.offset(site.displacement_from(self.target))
    }

    /// The shape of the patch.
    pub fn kind(&self) -> PatchKind {
        self.kind
    }

    /// What was known of branches into the patch.
    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// How the patch was written.
    pub fn way(&self) -> PatchWay {
        self.way
    }

    /// Puts the original bytes back.
    ///
    /// # Errors
    /// If someone else has patched the function meanwhile, or it can't be written. The hook then stays in, and this may
    /// be called again.
    ///
    /// # Safety
    /// What `liveness` says of the other threads is so.
    pub unsafe fn remove(&mut self, liveness: Liveness) -> Result<RemoveOutcome, Error> {
        let Some(start) = self.edits.iter().flatten().last().filter(|_| !self.removed) else {
            return Err(Error::AlreadyRemoved { site: self.target });
        };
        let Liveness::SingleThreaded = liveness;
        let view = MemoryView::open();
        let foreign = |edit: &Edit| {
            let found = view.differs(edit.at.0 as usize, edit.new.as_slice())?;
            Some(Error::ForeignPatch { site: edit.at, expected: edit.new, found })
        };
        if let Some(error) = foreign(start) {
            return Err(error);
        }
        for edit in self.edits.iter().flatten().rev() {
            // Behind the function's start only padding was changed. If someone took it over, it is theirs.
            if foreign(edit).is_some() {
                continue;
            }
            // SAFETY: the bytes are exactly what this hook wrote (checked just now), and no other thread runs them.
            unsafe { view.write_code(edit.at.0 as usize, edit.old.as_slice()) }
                .map_err(|errno| Error::Write { site: edit.at, errno })?;
        }
        native::synchronise_this_core();
        self.removed = true;
        Ok(RemoveOutcome::CodeKept { code: self.code() })
    }
}
