//! What is attached to one place, from the innermost to the outermost, and the words that lead through it.
//!
//! Each link has a word that says what comes next within, and the head has one that says what is outermost. Whatever changes,
//! changes by single stores into words, from the innermost outwards and into the head last. A thread that is in the chain
//! meanwhile goes on along words that lead to the function at all times, further and further in.
//!
//! A link that was removed keeps its place in the order and its word is kept up to date: a thread that is still in it
//! goes on to what is attached within. Where nothing is, that is the function, and will be.

use alloc::{collections::BTreeMap, vec::Vec};

use grapnel_relocator::CodeAddr;

use super::Attachment;
use crate::{
    arena::CodeSlot,
    atomic::{AtomicU64, Ordering::*},
    listen::{LinkKey, OwnLink},
};

/// The links of a place.
#[derive(Debug)]
pub(super) struct Chain {
    /// From the innermost to the outermost, removed ones among them that have others within.
    pub(super) links: Vec<Entry>,
    /// Those that were removed and have none within: their words lead to the function for good.
    pub(super) retired: BTreeMap<Key, Vec<Entry>>,
    /// The outermost place that was given.
    last: u64,
}

/// What a link does, in comparable form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Replace(CodeAddr),
    Tell(LinkKey),
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
    /// Its place in the order, which it keeps: higher further out.
    place: u64,
    pub(super) state: State,
}

/// What a link does.
#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    /// Runs a function in place of what comes within.
    Replace(CodeAddr),
    /// Tells a listener or a probe.
    Tell(OwnLink),
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
    fn key(&self) -> Key {
        match self.what {
            What::Replace(function) => Key::Replace(function),
            What::Tell(link) => Key::Tell(link.key()),
        }
    }

    /// The code that the link before leads to.
    fn entry(&self) -> u64 {
        match self.what {
            What::Replace(function) => function.0,
            What::Tell(_) => self.stub.code.at as u64,
        }
    }
}

impl Chain {
    /// With room for one link.
    pub(super) fn new() -> Self {
        Self { links: Vec::with_capacity(1), retired: BTreeMap::new(), last: 0 }
    }

    pub(super) fn has(&self, states: &[State]) -> bool {
        self.links.iter().any(|link| states.contains(&link.state))
    }

    /// Whether a function is in, or coming, as a replacement.
    pub(super) fn replaces_by(&self, function: CodeAddr) -> bool {
        let stays = |link: &&Entry| matches!(link.state, State::Coming | State::In);
        self.links.iter().filter(stays).any(|link| link.key() == Key::Replace(function))
    }

    /// Every word says what comes next, if those in these states are in. Within all is `function`.
    pub(super) fn publish(&self, function: u64, head: &AtomicU64, states: &[State]) {
        let mut next = function;
        for link in &self.links {
            link.stub.word.store(next, Release);
            if states.contains(&link.state) {
                next = link.entry();
            }
        }
        head.store(next, Release);
    }

    /// Puts a link that was removed and does the same in again as the outermost, if it may be: nothing is in whose place is
    /// further out. A thread that is still in the link has passed that already.
    pub(super) fn use_again(&mut self, key: Key, id: Attachment) -> bool {
        let standing = self.links.iter().rev().find(|link| link.state != State::Out).map(|link| link.place);
        let fits = |link: &Entry| link.state == State::Out && standing.is_none_or(|place| place < link.place);
        // The outermost of those that do the same, so that a thread that is in one between them isn't told by both.
        if let Some(link) = self.links.iter_mut().rev().find(|link| fits(link) && link.key() == key) {
            (link.id, link.state) = (id, State::Coming);
            return true;
        }
        let Some(same) = self.retired.get_mut(&key) else { return false };
        if !same.last().is_some_and(fits) {
            return false;
        }
        let found = same.pop().map(|link| Entry { id, state: State::Coming, ..link });
        if same.is_empty() {
            self.retired.remove(&key);
        }
        if let Some(link) = found {
            let at = self.links.partition_point(|other| other.place < link.place);
            self.links.insert(at, link);
        }
        true
    }

    /// Puts a new link in as the outermost.
    pub(super) fn add(&mut self, id: Attachment, what: What, stub: Stub) {
        self.last += 1;
        self.links.push(Entry { id, what, stub, place: self.last, state: State::Coming });
    }

    /// Sets those aside that nothing changes for any more, so that attaching takes no longer for their number.
    pub(super) fn retire(&mut self) {
        let inner = self.links.iter().position(|link| link.state != State::Out).unwrap_or(self.links.len());
        for link in self.links.drain(..inner) {
            let same = self.retired.entry(link.key()).or_default();
            same.insert(same.partition_point(|other| other.place < link.place), link);
        }
    }

    /// What was removed.
    pub(super) fn gone(&self) -> impl Iterator<Item = &Entry> {
        let out = self.links.iter().filter(|link| link.state == State::Out);
        self.retired.values().flatten().chain(out)
    }
}
