//! Blocks that were given back otherwise than they were got: `new[]` and `free`, a wrong size passed to `operator delete`.
//!
//! The agent sends how a block is given back where that seems not to fit ([`FreedAs`]). Here it is compared with how the
//! block was got, which decides.

use crate::hash::FoldHash;
use crate::live::{Block, LiveBlocks};
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::{Alignment, FreedAs, Release, Source};
use std::collections::HashMap;

/// What is wrong with how a block was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// By a function of another family.
    Function,
    /// With another alignment, or without one, or with one where there was none.
    Alignment,
    /// With another size.
    Size,
}

/// Blocks of one stack that another gave back in the wrong way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// What is wrong.
    pub fault: Fault,
    /// How many blocks.
    pub count: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The node of the stack that got them.
    pub got_by: u32,
    /// Which functions gave them.
    pub source: Source,
    /// The alignment that the first of them was asked to have.
    pub alignment: Alignment,
    /// The size of the first of them.
    pub size: u64,
    /// How the first of them was given back, and by which stack.
    pub freed: FreedAs,
}

type Key = (u32, u32, Source, Release, Fault);

/// Finds the mismatches of a trace.
#[derive(Debug, Default)]
pub(crate) struct Mismatches {
    /// How a thread gives back a block next.
    announced: HashMap<u32, FreedAs, FoldHash>,
    found: HashMap<Key, Mismatch, FoldHash>,
}

/// More than any program has: what a hostile trace can make us keep.
const MOST: usize = 1 << 16;

impl Mismatches {
    /// Whether no thread is about to give back a block in a doubtful way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.announced.is_empty()
    }

    /// Notes how the thread's next event gives back a block.
    pub(crate) fn announce(&mut self, said: FreedAs) {
        if self.announced.len() < MOST {
            self.announced.insert(said.thread, said);
        }
    }

    /// Looks at an event before it changes the live set.
    pub(crate) fn look(&mut self, event: &HeapEvent, live: &LiveBlocks) {
        let Some(freed) = self.announced.remove(&event.thread()) else { return };
        let (HeapEvent::Free { address, .. } | HeapEvent::ReallocBegin { address, .. }) = *event else {
            return;
        };
        let Some(block) = live.at(address) else { return };
        let Some(fault) = fault(&block, &freed) else { return };
        let key = (block.stack, freed.stack, block.source, freed.release, fault);
        if self.found.len() >= MOST && !self.found.contains_key(&key) {
            return;
        }
        let mismatch = self.found.entry(key).or_insert(Mismatch {
            fault,
            count: 0,
            bytes: 0,
            got_by: block.stack,
            source: block.source,
            alignment: block.alignment,
            size: block.size,
            freed,
        });
        mismatch.count += 1;
        mismatch.bytes = mismatch.bytes.saturating_add(block.size);
    }

    /// All that were found, under the first of equal stacks, the most frequent first.
    pub(crate) fn finish(self, canonical: &[u32]) -> Vec<Mismatch> {
        let same = |stack: u32| canonical.get(stack as usize).copied().unwrap_or(stack);
        let mut merged: HashMap<Key, Mismatch, FoldHash> = HashMap::default();
        let mut found: Vec<Mismatch> = self.found.into_values().collect();
        let order = |mismatch: &Mismatch| (mismatch.got_by, mismatch.freed.stack);
        found.sort_by_key(order);
        for mut mismatch in found {
            mismatch.got_by = same(mismatch.got_by);
            mismatch.freed.stack = same(mismatch.freed.stack);
            let Mismatch { got_by, source, fault, freed, .. } = mismatch;
            merged
                .entry((got_by, freed.stack, source, freed.release, fault))
                .and_modify(|sum| {
                    sum.count += mismatch.count;
                    sum.bytes = sum.bytes.saturating_add(mismatch.bytes);
                })
                .or_insert(mismatch);
        }
        let mut all: Vec<Mismatch> = merged.into_values().collect();
        all.sort_by(|a, b| b.count.cmp(&a.count).then(order(a).cmp(&order(b))));
        all
    }
}

/// Functions that belong together.
#[derive(PartialEq, Eq)]
enum Family {
    C,
    New,
    NewArray,
}

fn fault(block: &Block, freed: &FreedAs) -> Option<Fault> {
    let got = match block.source {
        Source::New => Family::New,
        Source::NewArray => Family::NewArray,
        _ => Family::C,
    };
    let freed_by = match freed.release {
        Release::Delete => Family::New,
        Release::DeleteArray => Family::NewArray,
        _ => Family::C,
    };
    if got != freed_by {
        return Some(Fault::Function);
    }
    if got == Family::C {
        return None;
    }
    // Beyond what is kept of a block's alignment, all are alike.
    let kept = |alignment: Alignment| alignment.to_u8().min(crate::blocks::ALIGNMENT);
    if kept(block.alignment) != kept(freed.alignment) {
        return Some(Fault::Alignment);
    }
    freed.size.is_some_and(|size| size != block.size).then_some(Fault::Size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(source: Source, alignment: u64) -> Block {
        Block { size: 100, stack: 1, thread: 0, source, alignment: Alignment::of(alignment), mean: 0 }
    }

    fn freed(release: Release, alignment: u64, size: Option<u64>) -> FreedAs {
        FreedAs { thread: 0, stack: 2, release, alignment: Alignment::of(alignment), size }
    }

    #[test]
    fn each_family_is_given_back_by_its_own() {
        use Release::{Delete, DeleteArray, Free, Realloc};
        let rows = [
            (Source::Malloc, [true, true, false, false]),
            (Source::Calloc, [true, true, false, false]),
            (Source::Realloc, [true, true, false, false]),
            (Source::Aligned, [true, true, false, false]),
            (Source::New, [false, false, true, false]),
            (Source::NewArray, [false, false, false, true]),
        ];
        for (source, right) in rows {
            for (release, right) in [Free, Realloc, Delete, DeleteArray].into_iter().zip(right) {
                let found = fault(&block(source, 0), &freed(release, 0, None));
                assert_eq!(found, (!right).then_some(Fault::Function), "{source:?} {release:?}");
            }
        }
    }

    #[test]
    fn size_and_alignment_are_as_they_were() {
        let new = block(Source::New, 0);
        assert_eq!(fault(&new, &freed(Release::Delete, 0, Some(100))), None);
        assert_eq!(fault(&new, &freed(Release::Delete, 0, Some(101))), Some(Fault::Size));
        assert_eq!(fault(&new, &freed(Release::Delete, 64, Some(101))), Some(Fault::Alignment));
        let wide = block(Source::New, 64);
        assert_eq!(fault(&wide, &freed(Release::Delete, 64, None)), None);
        assert_eq!(fault(&wide, &freed(Release::Delete, 32, None)), Some(Fault::Alignment));
        assert_eq!(fault(&wide, &freed(Release::Delete, 0, None)), Some(Fault::Alignment));
        // What aligned functions of C gave has no alignment when it is freed.
        assert_eq!(fault(&block(Source::Aligned, 64), &freed(Release::Free, 0, None)), None);
    }
}
