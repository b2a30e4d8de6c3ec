//! One hooked place, and the chain of what is attached to it.
//!
//! ```text
//! the place --patch--> head --word--> outermost --word--> next --word--> ... --word--> trampoline --> the function
//! ```
//!
//! A link of the chain is a replacement or a stub that tells a listener. Each has a word that says what comes next
//! within: a replacement's *original* is a stub that goes there, a listener's stub goes there by itself. Whatever
//! changes, changes by single stores into words, from the innermost outwards and into the head last. A thread that is in
//! the chain meanwhile goes on along words that lead to the function at all times.
//!
//! A link that was removed keeps its place in the order and its word is kept up to date: a thread that is still in it
//! goes on to what is attached within.
//!
//! # Safety
//! Words are stores that threads run by. What they hold is always the address of code that may be run in place of the
//! function: a link's entry, or the trampoline.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::*};

use grapnel_relocator::CodeAddr;

use super::Attachment;
use crate::{Bytes, Hook, arena::CodeSlot, listen::Link, native::StubKind, patch::Edit};

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
    /// From the innermost to the outermost, removed ones among them.
    pub(super) links: Vec<Entry>,
}

/// Code that goes on where its word says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stub {
    pub(super) code: CodeSlot,
    pub(super) word: &'static AtomicU64,
}

/// A link, and whether it is in.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: Attachment,
    pub(super) what: What,
    pub(super) stub: Stub,
    pub(super) state: State,
}

/// What a link does.
#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    /// Runs a function in place of what comes within.
    Replace(CodeAddr),
    /// Tells a listener or a probe.
    Tell(&'static Link),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It is prepared.
    Coming,
    In,
    /// It is to be removed.
    Going,
    Out,
}

impl Entry {
    /// The code that the link before leads to.
    fn entry(&self) -> u64 {
        match self.what {
            What::Replace(function) => function.0,
            What::Tell(_) => self.stub.code.at as u64,
        }
    }
}

impl Site {
    /// What the patch changes.
    pub(super) fn edits(&self) -> impl Iterator<Item = Edit> + use<> {
        [Some(self.hook.start), self.hook.aside].into_iter().flatten()
    }

    pub(super) fn is_patched(&self) -> bool {
        !self.hook.removed
    }

    pub(super) fn has(&self, states: &[State]) -> bool {
        self.links.iter().any(|link| states.contains(&link.state))
    }

    /// Every word says what comes next, if those in these states are in.
    pub(super) fn publish(&self, states: &[State]) {
        let mut next = self.hook.trampoline.0;
        for link in &self.links {
            link.stub.word.store(next, Release);
            if states.contains(&link.state) {
                next = link.entry();
            }
        }
        self.head.word.store(next, Release);
    }

    /// A link that was removed and does the same, if it may be put in as the outermost: nothing that was attached after it
    /// is in.
    pub(super) fn reusable(&mut self, same: impl Fn(&What) -> bool) -> Option<&mut Entry> {
        self.links.iter_mut().rev().take_while(|link| link.state == State::Out).find(|link| same(&link.what))
    }
}
