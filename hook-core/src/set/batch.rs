//! Many attachments and removals, prepared together and committed together.
//!
//! # Safety
//! Preparing writes only code that nothing leads to yet. Committing patches functions and lets what was prepared be run.

use alloc::vec::Vec;
use core::ops::Range;

use grapnel_relocator::CodeAddr;

use super::{Attachment, HookSet, bench::Bench, commit::PreparedBatch};
use crate::{
    Error, Listener, Liveness, Options, Probe,
    listen::{self, Link},
    memory::view::MemoryView,
    transaction::Place,
};

/// The number of a request in its batch, from 0 in the order of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub(super) usize);

impl BatchId {
    /// The number.
    pub fn index(self) -> usize {
        self.0
    }
}

/// What is to be attached and removed.
#[derive(Debug)]
pub struct Batch<'a> {
    set: &'a mut HookSet,
    wishes: Vec<Wish>,
    live: bool,
}

#[derive(Debug)]
enum Wish {
    Attach { target: CodeAddr, place: Place, options: Options, what: Wanted },
    Remove(Attachment),
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Wanted {
    Replace(CodeAddr),
    Tell(Link),
}

impl<'a> Batch<'a> {
    pub(super) fn new(set: &'a mut HookSet) -> Self {
        Self { set, wishes: Vec::new(), live: false }
    }

    /// Prepares what is attached such that it may go in while other threads run the functions ([`Liveness::Live`]).
    #[must_use]
    pub fn live(mut self) -> Self {
        self.live = true;
        self
    }

    /// Asks for a function to be replaced.
    ///
    /// Each attachment has an original of its own ([`PreparedBatch::original`]). If a replacement is removed and attached
    /// again while a call is still in it, and that call reads the newer original, it goes on from the newer place in the
    /// order, and may pass a second time what it has passed. Where that matters, use a function for each attachment, or
    /// attach it again when the calls are over.
    pub fn replace(&mut self, target: *const (), replacement: *const ()) -> BatchId {
        self.replace_with(target, replacement, Options::default())
    }

    /// The same with what is known of the function.
    pub fn replace_with(&mut self, target: *const (), replacement: *const (), options: Options) -> BatchId {
        let what = Wanted::Replace(CodeAddr(replacement as usize as u64));
        self.attach(target, Place::Entry, options, what)
    }

    /// Asks for a function's calls to be told to a listener.
    pub fn listen(&mut self, target: *const (), listener: Listener) -> BatchId {
        self.listen_with(target, listener, Options::default())
    }

    /// The same with what is known of the function.
    pub fn listen_with(&mut self, target: *const (), listener: Listener, options: Options) -> BatchId {
        self.attach(target, Place::Entry, options, Wanted::Tell(listener.into()))
    }

    /// Asks for a probe at an instruction. The addresses of its function are found in its object's unwind table.
    pub fn probe(&mut self, at: *const (), probe: Probe) -> BatchId {
        self.probe_with(at, None, probe, Options::default())
    }

    /// The same with what is known of the function: its addresses, all of which are looked at for branches into the patch.
    /// Of the options the size doesn't count.
    pub fn probe_with(
        &mut self,
        at: *const (),
        function: Option<Range<u64>>,
        probe: Probe,
        options: Options,
    ) -> BatchId {
        self.attach(at, Place::Inside(function), options, Wanted::Tell(probe.into()))
    }

    /// Asks for something to be removed.
    pub fn remove(&mut self, attachment: Attachment) -> BatchId {
        self.wishes.push(Wish::Remove(attachment));
        BatchId(self.wishes.len() - 1)
    }

    fn attach(&mut self, target: *const (), place: Place, options: Options, what: Wanted) -> BatchId {
        let target = CodeAddr(target as usize as u64);
        self.wishes.push(Wish::Attach { target, place, options, what });
        BatchId(self.wishes.len() - 1)
    }

    /// Does everything that can fail but the patching. The originals are known afterwards; no byte of live code has
    /// changed, and nothing that is attached has.
    ///
    /// Where the set has patched a function already, nothing is attached if that patch isn't in force any more
    /// ([`Error::NotInForce`]). What others have put over it counts as leading to it, as a hook does.
    pub fn prepare(self) -> PreparedBatch<'a> {
        let Self { set, wishes, live } = self;
        listen::prepare();
        // What was prepared and never committed.
        set.settle();
        let view = MemoryView::open();
        let mut bench = Bench::new(set, &view, live);
        let mut done: Vec<Result<(CodeAddr, Attachment), Error>> = wishes
            .into_iter()
            .map(|wish| match wish {
                Wish::Remove(attachment) => bench.take_out(attachment),
                Wish::Attach { target, place, options, what } => bench.put_in(target, place, options, what),
            })
            .collect();
        if let Err(why) = set.arena.finish(&view, live) {
            for wish in &mut done {
                if let Ok((target, _)) = *wish {
                    *wish = Err(why.of(target));
                }
            }
        }
        let mut sites: Vec<CodeAddr> = done.iter().flatten().map(|(target, _)| *target).collect();
        sites.sort_unstable();
        sites.dedup();
        // Room, so that nothing is allocated once code has begun to change.
        let patches = Vec::with_capacity(sites.len());
        PreparedBatch { set, view, wishes: done, sites, patches, live }
    }

    /// Prepares and commits.
    ///
    /// # Safety
    /// As [`PreparedBatch::commit`].
    pub unsafe fn commit(self, liveness: Liveness) -> Vec<Result<Attachment, Error>> {
        // SAFETY: the caller's promise.
        unsafe { self.prepare().commit(liveness) }
    }
}
