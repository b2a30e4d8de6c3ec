//! The words of a chain.

use std::sync::Arc;

use grapnel_relocator::CodeAddr;
use loom::thread;

use crate::{
    arena::CodeSlot,
    atomic::{AtomicU64, Ordering::*},
    model,
};
use chain::{Chain, Key, State, Stub, What};

#[path = "../../src/set/chain.rs"]
#[expect(dead_code, reason = "it is written as a part of the crate")]
mod chain;

/// As in the crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Attachment(u64);

const FUNCTION: u64 = 0x1000;

/// A place whose links are replacements that call their original, by numbers that are their places in the order.
struct Place {
    head: &'static AtomicU64,
    words: [&'static AtomicU64; 3],
}

fn entry(link: usize) -> u64 {
    0x2000 + link as u64
}

fn word(value: u64) -> &'static AtomicU64 {
    Box::leak(Box::new(AtomicU64::new(value)))
}

impl Place {
    fn new() -> Arc<Self> {
        Arc::new(Self { head: word(FUNCTION), words: [word(0), word(0), word(0)] })
    }

    /// What a call passes, from the outermost on. It ends in the function.
    fn passed(&self) -> Vec<u64> {
        let mut passed = Vec::new();
        let mut at = self.head.load(Acquire);
        while at != FUNCTION {
            let link = at.wrapping_sub(0x2000);
            assert!(link < 3, "a word leads to {at:#x}");
            passed.push(link);
            assert!(passed.is_sorted_by(|a, b| a > b), "further and further in: {passed:?}");
            at = self.words[link as usize].load(Acquire);
        }
        passed
    }

    /// What a batch does that attaches this one, or again.
    fn attach(&self, chain: &mut Chain, link: usize) {
        let (id, function) = (Attachment(link as u64), CodeAddr(entry(link)));
        if !chain.use_again(Key::Replace(function), id) {
            let stub = Stub { code: CodeSlot { at: 0, len: 0 }, word: self.words[link] };
            chain.add(id, What::Replace(function), stub);
        }
        // Prepared, then committed.
        chain.publish(FUNCTION, self.head, &[State::In, State::Going]);
        chain.publish(FUNCTION, self.head, &[State::Coming, State::In]);
        set(chain, link, State::In);
        chain.publish(FUNCTION, self.head, &[State::In]);
        chain.retire();
    }

    fn remove(&self, chain: &mut Chain, link: usize) {
        set(chain, link, State::Going);
        chain.publish(FUNCTION, self.head, &[State::Coming, State::In]);
        set(chain, link, State::Out);
        chain.publish(FUNCTION, self.head, &[State::In]);
        chain.retire();
    }
}

fn set(chain: &mut Chain, link: usize, state: State) {
    let link = chain.links.iter_mut().find(|one| one.id == Attachment(link as u64));
    link.expect("it is there").state = state;
}

#[test]
fn a_call_passes_each_link_once_and_comes_to_the_function() {
    model(|| {
        let place = Place::new();
        let mut chain = Chain::new();
        place.attach(&mut chain, 0);
        let caller = thread::spawn({
            let place = place.clone();
            move || place.passed()
        });
        place.attach(&mut chain, 1);
        place.remove(&mut chain, 0);
        let passed = caller.join().unwrap();
        assert!([&[0][..], &[1, 0], &[1], &[]].contains(&&passed[..]) && !passed.is_empty(), "{passed:?}");
        assert_eq!(place.passed(), [1]);
    });
}

#[test]
fn what_is_attached_again_has_its_place_again() {
    model(|| {
        let place = Place::new();
        let mut chain = Chain::new();
        place.attach(&mut chain, 0);
        place.attach(&mut chain, 1);
        let caller = thread::spawn({
            let place = place.clone();
            move || place.passed()
        });
        place.remove(&mut chain, 1);
        place.attach(&mut chain, 2);
        place.remove(&mut chain, 2);
        place.attach(&mut chain, 1);
        let passed = caller.join().unwrap();
        assert_eq!(passed.last(), Some(&0), "what stays in is passed: {passed:?}");
        assert_eq!(place.passed(), [1, 0]);
    });
}
