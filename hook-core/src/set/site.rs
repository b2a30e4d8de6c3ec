//! One hooked place, and the chain of what is attached to it.
//!
//! ```text
//! the place --patch--> head --word--> outermost --word--> next --word--> ... --word--> trampoline --> the function
//! ```
//!
//! A link of the chain is a replacement or a stub that tells a listener. Each has a word that says what comes next
//! within: a replacement's *original* is a stub that goes there, a listener's stub goes there by itself. See [`super::chain`].
//!
//! # Safety
//! Words are stores that threads run by. What they hold is always the address of code that may be run in place of the
//! function: a link's entry, or the trampoline.

use alloc::vec::Vec;

use grapnel_relocator::CodeAddr;

use super::chain::{Chain, State, Stub};
use crate::{
    Arena, Bytes, Error, Hook,
    memory::view::MemoryView,
    native::{self, StubKind},
    patch::Edit,
};

/// A hooked place.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) kind: StubKind,
    /// The patch; "removed" while it isn't in.
    pub(super) hook: Hook,
    /// The bytes that the trampoline was made from.
    pub(super) window: Bytes,
    /// The patch can go in while threads run the code.
    pub(super) live: bool,
    /// What the patch leads to, and its word.
    pub(super) head: Stub,
    pub(super) chain: Chain,
    /// Trampolines of code that has changed since, or of the other kind.
    pub(super) outdated: Vec<Hook>,
    /// Heads of the other kind. The word of each leads to a trampoline of its own kind for good.
    pub(super) former_heads: Vec<Stub>,
}

impl Stub {
    /// Gives back one to which nothing ever led.
    ///
    /// # Safety
    /// It is so, and nobody gives it back twice.
    pub(super) unsafe fn discard(self, arena: &mut Arena, memory: &MemoryView) {
        // SAFETY: the caller's promise; only the stub names the word.
        unsafe {
            arena.discard(&self.code, memory);
            arena.give_word_back(self.word);
        }
    }
}

impl Site {
    /// What the patch changes.
    pub(super) fn edits(&self) -> impl Iterator<Item = Edit> + use<> {
        [Some(self.hook.0.start), self.hook.0.aside].into_iter().flatten()
    }

    /// Refuses a replacement that would lead to itself.
    pub(super) fn refuse_replacement(&self, target: CodeAddr, replacement: CodeAddr) -> Result<(), Error> {
        let (code, start) = (native::code_at(replacement).1, native::code_at(target).1);
        let is_in = |edit: Edit| (edit.at.0..edit.at.0 + edit.new.as_slice().len() as u64).contains(&code.0);
        if code == start || self.edits().any(is_in) {
            return Err(Error::ReplacementInPatch { target, replacement });
        }
        match self.chain.replaces_by(replacement) {
            true => Err(Error::AlreadyReplaced { target, replacement }),
            false => Ok(()),
        }
    }

    pub(super) fn is_patched(&self) -> bool {
        !self.hook.0.removed
    }

    /// Every word says what comes next, if those in these states are in.
    pub(super) fn publish(&self, states: &[State]) {
        self.chain.publish(self.hook.0.trampoline.0, self.head.word, states);
    }
}
