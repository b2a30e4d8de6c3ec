//! Many attachments and removals, prepared together and committed together.
//!
//! # Safety
//! Preparing writes only code that nothing leads to yet. Committing patches functions and lets what was prepared be run.

use alloc::{boxed::Box, vec::Vec};
use core::{cell::OnceCell, ops::Range};

use grapnel_relocator::CodeAddr;

use super::{
    Attachment, HookSet,
    site::{Entry, Site, State, Stub, What},
};
use crate::{
    Error, Listener, Liveness, Options, PatchWay, Probe, Refusal,
    arena::CodeSlot,
    hook::Hook,
    listen::{self, Link},
    memory::{
        maps::Maps,
        view::{Bytes, MemoryView},
    },
    native::{self, JUMP_STUB_LEN, LINK_STUB_LEN, NEAR_REACH, StubKind},
    padding::standing_in,
    patch::{self, Edit, Patch},
    sys,
    transaction::{HookId, Place, Request},
    workshop::Workshop,
};

/// The number of a request in its batch, from 0 in the order of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(usize);

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
enum Wanted {
    Replace(CodeAddr),
    Tell(Link),
}

/// Requests that are ready to be committed.
#[derive(Debug)]
#[must_use = "nothing is attached until it is committed"]
pub struct PreparedBatch<'a> {
    set: &'a mut HookSet,
    view: MemoryView,
    /// For each request the site and the attachment.
    wishes: Vec<Result<(CodeAddr, Attachment), Error>>,
    /// The sites that are concerned, each once.
    sites: Vec<CodeAddr>,
    patches: Vec<Patch>,
    live: bool,
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
        self.attach(target, Place::Entry, options, Wanted::Tell(Link::Listener(listener)))
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
        self.attach(at, Place::Inside(function), options, Wanted::Tell(Link::Probe(probe)))
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
    pub fn prepare(self) -> PreparedBatch<'a> {
        let Self { set, wishes, live } = self;
        listen::prepare();
        // What was prepared and never committed.
        set.settle();
        let view = MemoryView::open();
        let mut bench = Bench { set, view: &view, maps: OnceCell::new(), live };
        let mut done: Vec<Result<(CodeAddr, Attachment), Error>> = wishes
            .into_iter()
            .map(|wish| match wish {
                Wish::Remove(attachment) => bench.take_out(attachment),
                Wish::Attach { target, place, options, what } => bench.put_in(target, place, options, what),
            })
            .collect();
        if let Err(errno) = set.arena.seal() {
            for wish in &mut done {
                if let Ok((target, _)) = *wish {
                    *wish = Err(Error::NotSealed { target, errno });
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

/// What a batch is prepared with.
struct Bench<'a> {
    set: &'a mut HookSet,
    view: &'a MemoryView,
    /// Read when the first new code is made.
    maps: OnceCell<Option<Maps>>,
    live: bool,
}

impl Bench<'_> {
    fn take_out(&mut self, attachment: Attachment) -> Result<(CodeAddr, Attachment), Error> {
        let missing = Error::NotAttached { number: attachment.0 };
        let target = *self.set.places.get(&attachment).ok_or(missing.clone())?;
        let site = self.set.sites.get_mut(&target).ok_or(missing.clone())?;
        let link = site.links.iter_mut().find(|link| link.id == attachment && link.state == State::In);
        link.ok_or(missing)?.state = State::Going;
        self.set.touched.push(target);
        Ok((target, attachment))
    }

    fn put_in(
        &mut self,
        target: CodeAddr,
        place: Place,
        options: Options,
        wanted: Wanted,
    ) -> Result<(CodeAddr, Attachment), Error> {
        if let Wanted::Tell(link) = wanted {
            if matches!(link, Link::Listener(listener) if listener.leave.is_some())
                && native::has_shadow_stack()
            {
                return Err(Error::ShadowStack { target });
            }
            if link.all_vectors() && !native::vectors_can_be_saved() {
                return Err(Error::NoVectors { target });
            }
        }
        self.site(target, place, options)?;
        self.set.touched.push(target);
        self.set.last += 1;
        let id = Attachment(self.set.last);
        let site = self.set.sites.get_mut(&target).ok_or(Error::NotExecutable { target })?;
        let same = |what: &What| match (what, &wanted) {
            (What::Replace(a), Wanted::Replace(b)) => a == b,
            (What::Tell(a), Wanted::Tell(b)) => a.is_same(b),
            _ => false,
        };
        if let Some(link) = site.reusable(same) {
            (link.id, link.state) = (id, State::Coming);
            return Ok((target, id));
        }
        let kind = site.kind;
        let (what, stub) = match wanted {
            Wanted::Replace(function) => (What::Replace(function), self.jump_stub(target)?),
            Wanted::Tell(link) => {
                let stub = self.stub(target, LINK_STUB_LEN)?;
                let link: &'static Link = Box::leak(Box::new(link));
                let routine = native::routine(kind, link.all_vectors());
                let (at, word) = (stub.code.at as u64, core::ptr::from_ref(stub.word) as usize as u64);
                let address = core::ptr::from_ref(link) as usize as u64;
                let code = native::link_stub(kind, at, word, routine, address, target.0);
                self.write(target, &stub.code, code.as_ref().map(|code| &code[..]))?;
                (What::Tell(link), stub)
            }
        };
        if let Some(site) = self.set.sites.get_mut(&target) {
            site.links.push(Entry { id, what, stub, state: State::Coming });
        }
        Ok((target, id))
    }

    /// Sees to it that there is a site, with a trampoline that fits the code as it is.
    fn site(&mut self, target: CodeAddr, place: Place, options: Options) -> Result<(), Error> {
        let kind = match place {
            Place::Entry => StubKind::Entry,
            Place::Inside(_) => StubKind::Inside,
        };
        let head = match self.set.sites.get(&target) {
            Some(site) if site.is_patched() && site.kind == kind => return Ok(()),
            Some(site) if site.is_patched() => return Err(Error::Taken { target, standing: target }),
            Some(site) => {
                let same = self.view.differs(site.hook.start.at.0 as usize, site.window.as_slice()).is_none();
                if same && site.kind == kind && (site.live || !self.live) {
                    let edits: Vec<_> = site.edits().collect();
                    // One that this batch has attached to already is there, too.
                    if let Some(other) = edits.iter().find_map(|edit| self.overlapped(edit, &edits)) {
                        return Err(Error::Taken { target, standing: other });
                    }
                    self.set.standing.extend(edits.into_iter().map(|edit| (edit.at, edit)));
                    return Ok(());
                }
                site.head
            }
            None => self.jump_stub(target)?,
        };
        let request = Request { target, replacement: CodeAddr(head.code.at as u64), options, place };
        let maps = self.maps.get_or_init(|| Maps::read().ok()).as_ref();
        let mut workshop = Workshop::new(&mut self.set.arena, self.view, maps, self.live, &self.set.standing);
        let ready = match workshop.prepare(HookId(0), &request) {
            Ok(ready) => ready,
            Err(error) => {
                if !self.set.sites.contains_key(&target) {
                    self.set.spares.push(head);
                }
                return Err(error);
            }
        };
        let live = ready.live;
        let window = self.view.bytes(ready.plan.site.0 as usize, ready.window_len);
        let hook = Hook { removed: true, ..ready.into_hook(PatchWay::ProcMem) };
        let links = self.set.sites.remove(&target).map(|old| old.links).unwrap_or_default();
        let site = Site { kind, hook, window, live, head, links };
        self.set.standing.extend(site.edits().map(|edit| (edit.at, edit)));
        site.publish(&[]);
        self.set.sites.insert(target, site);
        Ok(())
    }

    /// The patch of another site that has bytes of this edit.
    fn overlapped(&self, edit: &Edit, own: &[Edit]) -> Option<CodeAddr> {
        let range = edit.at.0..edit.at.0 + edit.new.as_slice().len() as u64;
        standing_in(&self.set.standing, &range)
            .find(|other| {
                range.start < other.at.0 + other.new.as_slice().len() as u64 && !own.contains(other)
            })
            .map(|other| other.at)
    }

    /// A stub that goes where its word says.
    fn jump_stub(&mut self, target: CodeAddr) -> Result<Stub, Error> {
        let near = |stub: &Stub| (stub.code.at as u64).abs_diff(target.0) < NEAR_REACH / 2;
        if let Some(index) = self.set.spares.iter().position(near) {
            return Ok(self.set.spares.swap_remove(index));
        }
        let stub = self.stub(target, JUMP_STUB_LEN)?;
        let word = core::ptr::from_ref(stub.word) as usize as u64;
        let code = native::jump_stub(stub.code.at as u64, word);
        self.write(target, &stub.code, code.as_ref().map(|code| &code[..]))?;
        Ok(stub)
    }

    /// Takes memory for code near the target, and a word that it can name.
    fn stub(&mut self, target: CodeAddr, len: usize) -> Result<Stub, Error> {
        let nowhere = |errno| Error::NoCodeMemory { target, errno };
        // Within reach of the patch, so that its redirect can lead here at once.
        let near = target.0 as usize;
        let far = NEAR_REACH as usize - LINK_STUB_LEN - Bytes::MAX;
        let reach = near.saturating_sub(far)..near.saturating_add(far);
        let maps = self.maps.get_or_init(|| Maps::read().ok()).as_ref();
        let arena = &mut self.set.arena;
        let code = arena.allocate(near, len, &reach, maps).map_err(nowhere)?;
        let word = arena.word(&code, maps).map_err(nowhere)?;
        Ok(Stub { code, word })
    }

    fn write(&self, target: CodeAddr, slot: &CodeSlot, code: Option<&[u8]>) -> Result<(), Error> {
        match code {
            Some(code) if self.set.arena.write(slot, code) => Ok(()),
            _ => Err(Error::NoCodeMemory { target, errno: sys::EINVAL }),
        }
    }
}

impl PreparedBatch<'_> {
    /// For a replacement: what it replaces, callable in its place with the same ABI, namely what was attached before it,
    /// and within that the function. For a listener or a probe: the function, or what follows the probe, as if nothing
    /// were attached. It stays valid after the removal.
    ///
    /// # Errors
    /// Why the request can't be met.
    pub fn original(&self, id: BatchId) -> Result<*const (), Error> {
        let missing = Error::NotAttached { number: id.0 as u64 };
        let (target, attachment) = self.wishes.get(id.0).ok_or(missing.clone())?.clone()?;
        let site = self.set.sites.get(&target).ok_or(missing.clone())?;
        let link = site.links.iter().find(|link| link.id == attachment).ok_or(missing)?;
        Ok(match link.what {
            What::Replace(_) => link.stub.code.at as *const (),
            What::Tell(_) => site.hook.original(),
        })
    }

    /// Patches the functions, and answers for each request in order, also for removals with what was removed. One that
    /// fails doesn't keep the others out.
    ///
    /// # Safety
    /// * Each function that is attached to begins where the request says, and no code but the function's own branches
    ///   into its first instructions. Each probed instruction begins where the request says, and all code that branches
    ///   into those behind it is in the function's range.
    /// * Each replacement has its function's ABI, stays loaded while a thread may be in it, and each function while
    ///   something is attached to it. Each listener and its data may be used by all threads, at any place where its
    ///   function is called or its probe is passed, and stay so while a thread may be in it.
    /// * A function whose return is listened to returns once for each call (`vfork`, `setjmp` and `getcontext` return
    ///   twice), and doesn't look at its return address to tell who called it.
    /// * What `liveness` says of the other threads is so.
    pub unsafe fn commit(mut self, liveness: Liveness) -> Vec<Result<Attachment, Error>> {
        let mut results = Vec::with_capacity(self.wishes.len());
        for &target in &self.sites {
            let Some(site) = self.set.sites.get(&target) else { continue };
            let stays = site.has(&[State::Coming, State::In]);
            // The last ones go when the patch is gone: should it stay, so do they.
            let going = if stays { State::In } else { State::Going };
            site.publish(&[State::Coming, State::In, going]);
            let mut patch = match (site.is_patched(), stays) {
                (false, true) => site.hook.patch_in(&self.view),
                (true, false) => site.hook.patch_out(),
                _ => continue,
            };
            if liveness == Liveness::Live && stays && !(site.live && self.live) {
                patch.state = Err(Error::NotLive { site: site.hook.start.at, refusal: Refusal::NotPrepared });
            }
            self.patches.push(patch);
        }
        if !self.patches.is_empty() {
            // SAFETY: the caller's promises. The redirects lead to heads whose words lead on.
            unsafe { patch::apply(&self.view, &mut self.patches, liveness) };
        }

        let mut patches = self.patches.iter();
        for &target in &self.sites {
            let Some(site) = self.set.sites.get_mut(&target) else { continue };
            let stays = site.has(&[State::Coming, State::In]);
            let patch = if site.is_patched() != stays { patches.next() } else { None };
            let failed = patch.and_then(|patch| patch.state.as_ref().err());
            if let Some(error) = failed {
                let error = if stays { error.clone() } else { error.clone().of_removal() };
                for wish in self.wishes.iter_mut().filter(|wish| matches!(wish, Ok((at, _)) if *at == target))
                {
                    *wish = Err(error.clone());
                }
            } else if let Some(way) = patch.and_then(|patch| patch.state.as_ref().ok()) {
                (site.hook.way, site.hook.removed) = (*way, !stays);
                if !stays {
                    // SAFETY: the redirect at the start is gone; what `liveness` says is so.
                    unsafe { site.hook.restore_padding(&self.view, liveness) };
                }
            }
            for link in &mut site.links {
                link.state = match (link.state, failed.is_some()) {
                    (State::Coming, false) | (State::Going, true) | (State::In, _) => State::In,
                    (State::Coming, true) | (State::Going, false) | (State::Out, _) => State::Out,
                };
                match link.state {
                    State::In => self.set.places.insert(link.id, target),
                    _ => self.set.places.remove(&link.id),
                };
            }
            site.publish(&[State::In]);
        }
        self.set.settle();
        results.extend(self.wishes.into_iter().map(|wish| wish.map(|(_, attachment)| attachment)));
        results
    }
}
