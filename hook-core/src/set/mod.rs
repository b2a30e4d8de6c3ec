//! Functions with any number of hooks each, in a defined order, that go in and out in any order.
//!
//! A [`HookSet`] holds what its owner attached: replacements and [listeners](crate::Listener) to functions,
//! [probes](crate::Probe) to instructions. What was attached last to a function is the outermost: it is reached first,
//! and what it calls as its original, or what follows it, is what was attached before it. The innermost one's original is
//! the function.
//!
//! The function is patched when the first is attached, and gets its bytes back when the last is removed. In between,
//! attaching and removing are stores into words of memory, and no code changes.
//!
//! ```
//! use core::ffi::c_void;
//! use grapnel_hook::{HookSet, Listener, Liveness, listen::{Entry, Exit}};
//!
//! extern "C" fn double(x: u64) -> u64 {
//!     core::hint::black_box(x) * 2
//! }
//! unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
//!     // SAFETY: the function has one argument, of any value.
//!     unsafe { call.set_argument(0, call.argument(0) + 1) };
//! }
//! unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
//!     let result = call.result();
//!     call.set_result(result + 100);
//! }
//! let double: extern "C" fn(u64) -> u64 = core::hint::black_box(double);
//!
//! let mut set = HookSet::new();
//! let mut batch = set.begin();
//! let listener = Listener::new(core::ptr::null_mut()).on_enter(enter).on_leave(leave);
//! batch.listen(double as *const (), listener);
//! // SAFETY: one thread runs, and the listener changes what the function has.
//! let attached = unsafe { batch.commit(Liveness::SingleThreaded) }.remove(0)?;
//! assert_eq!(double(5), 112);
//! // SAFETY: one thread runs.
//! unsafe { set.remove(attached, Liveness::SingleThreaded) }?;
//! assert_eq!(double(5), 10);
//! # Ok::<(), grapnel_hook::Error>(())
//! ```
//!
//! What was removed may still be under way in other threads, so its code is kept, and its listener's data must be good
//! for as long as a call may be in it. [`HookSet::awaited`] says how many calls a listener has seen enter and not
//! return. The code is used again when the same is attached again to the same function and nothing that is in was
//! attached meanwhile. [`HookSet::reclaim`] asks all threads what they may still come to, and frees the rest. So going in and
//! out without end takes no memory: with the same data by itself, with ever new data if that is called now and then.
//!
//! # Safety
//! Stubs are written before anything leads to them. See `chain` for the words, and `patch` for the code.

mod batch;
mod bench;
mod chain;
mod commit;
mod forget;
mod reclaim;
mod site;

use alloc::{collections::BTreeMap, vec::Vec};
use core::ops::Range;

use grapnel_relocator::CodeAddr;

pub use crate::reclaim::Reclaimed;
pub use batch::{Batch, BatchId};
use chain::{State, Stub, What};
pub use commit::PreparedBatch;
use site::Site;

use crate::{
    Arena, CodeWay, Error, Hook, Liveness,
    listen::{self, OwnLink},
    native::StubKind,
    seen::{Audience, SeenError},
    surroundings::Standing,
};

/// Something that was attached, by its number in its set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attachment(u64);

impl Attachment {
    /// The number.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The attachment of that number, for who keeps numbers.
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// Everything that one owner attached.
///
/// Dropping the value leaves it all in.
#[derive(Debug)]
pub struct HookSet {
    arena: Arena,
    /// By the function's or the probed instruction's address. One that was hooked once stays here.
    sites: BTreeMap<CodeAddr, Site>,
    /// Where each is that is in.
    places: BTreeMap<Attachment, CodeAddr>,
    /// What the patches change that are in, or that a batch in preparation puts in.
    standing: Standing,
    /// The sites that such a batch concerns.
    touched: Vec<CodeAddr>,
    /// Jump stubs that were made for what then could not be attached.
    spares: Vec<(StubKind, Stub)>,
    /// Links whose stubs are gone, and whose address a thread may still hold.
    orphans: Vec<(Attachment, OwnLink)>,
    last: u64,
}

impl Default for HookSet {
    fn default() -> Self {
        Self::with_arena(Arena::for_reuse())
    }
}

impl HookSet {
    /// A set with nothing attached.
    pub fn new() -> Self {
        Self::default()
    }

    /// A set whose code goes into this memory. By itself a set makes memory by [`CodeWay::ProcMem`] first, in which what was
    /// removed makes room at once.
    pub fn with_arena(arena: Arena) -> Self {
        Self {
            arena,
            sites: BTreeMap::new(),
            places: BTreeMap::new(),
            standing: Standing::default(),
            touched: Vec::new(),
            spares: Vec::new(),
            orphans: Vec::new(),
            last: 0,
        }
    }

    /// Tells others of the code that is made from now on: see [`seen`](crate::seen).
    ///
    /// # Errors
    /// As [`Arena::announce_to`].
    ///
    /// # Safety
    /// As [`Arena::announce_to`].
    pub unsafe fn announce_to(&mut self, audience: Audience) -> Result<(), SeenError> {
        // SAFETY: the caller's promise.
        unsafe { self.arena.announce_to(audience) }
    }

    /// Begins to collect what is to be attached and removed. Nothing is read or changed yet.
    pub fn begin(&mut self) -> Batch<'_> {
        Batch::new(self)
    }

    /// Removes one. The function has its own bytes back if it was the last; where they are back already, or the function is gone
    /// with its object, nothing is written.
    ///
    /// # Errors
    /// If someone else has patched the function meanwhile, or it can't be written: it then stays attached.
    ///
    /// # Safety
    /// What `liveness` says of the other threads is so.
    pub unsafe fn remove(&mut self, attachment: Attachment, liveness: Liveness) -> Result<(), Error> {
        let mut batch = self.begin();
        batch.remove(attachment);
        // SAFETY: the caller's promise; nothing is attached.
        let mut results = unsafe { batch.commit(liveness) };
        results.pop().map_or(Err(Error::NotAttached { number: attachment.0 }), |result| result.map(drop))
    }

    /// What is attached to a function or an instruction, from the outermost to the innermost.
    pub fn attached(&self, target: CodeAddr) -> impl Iterator<Item = Attachment> + '_ {
        let links = self.sites.get(&target).map_or(&[][..], |site| &site.chain.links);
        links.iter().rev().filter(|link| link.state == State::In).map(|link| link.id)
    }

    /// How many calls a listener has seen enter and not yet return, also after it was removed. Calls that were left by
    /// an exception or `longjmp` are among them until their places are needed.
    pub fn awaited(&self, attachment: Attachment) -> usize {
        let mut links = self
            .sites
            .values()
            .flat_map(|site| site.chain.links.iter().chain(site.chain.retired.values().flatten()));
        let what = links.find(|link| link.id == attachment).map(|link| link.what);
        let orphan =
            || self.orphans.iter().find(|(id, _)| *id == attachment).map(|(_, link)| What::Tell(*link));
        match what.or_else(orphan) {
            Some(What::Tell(link)) => listen::awaited(&link),
            _ => 0,
        }
    }

    /// The patch at a function or an instruction to which something is attached.
    pub fn patch(&self, target: CodeAddr) -> Option<&Hook> {
        self.sites.get(&target).filter(|site| site.is_patched()).map(|site| &site.hook)
    }

    /// The regions that hold code, also that of what was removed, and how each was made.
    pub fn regions(&self) -> impl Iterator<Item = (Range<usize>, CodeWay)> + '_ {
        self.arena.regions()
    }

    /// How much code and data was made for the set and not freed, in bytes.
    pub fn kept(&self) -> usize {
        self.arena.used()
    }

    /// Forgets what was prepared and not committed.
    fn settle(&mut self) {
        for target in core::mem::take(&mut self.touched) {
            let Some(site) = self.sites.get_mut(&target) else { continue };
            for link in &mut site.chain.links {
                link.state = match link.state {
                    State::Coming | State::Out => State::Out,
                    State::Going | State::In => State::In,
                };
            }
            site.chain.retire();
            for edit in site.edits() {
                match site.is_patched() {
                    true => self.standing.insert(edit.at, edit),
                    false => self.standing.remove(&edit.at),
                };
            }
        }
    }
}
