//! What a batch is prepared with: sites, stubs and links, before anything leads to them.

use alloc::{collections::BTreeMap, vec::Vec};
use core::cell::{OnceCell, RefCell};

use grapnel_relocator::CodeAddr;

use super::{
    Attachment, HookSet,
    batch::Wanted,
    chain::{Chain, Key, State, Stub, What},
    site::Site,
};
use crate::{
    Error, Options,
    listen::OwnLink,
    memory::{
        maps::Maps,
        pages::Pages,
        view::{Bytes, MemoryView},
    },
    native::{self, JUMP_STUB_LEN, LINK_STUB_LEN, NEAR_REACH, StubKind},
    patch::Edit,
    plan::is_code,
    seen::piece::Piece,
    surroundings::standing_in,
    sys,
    transaction::{HookId, Place, Request},
    workshop::Workshop,
};

/// What a batch is prepared with.
pub(super) struct Bench<'a> {
    set: &'a mut HookSet,
    view: Pages<'a>,
    /// Read when they are first needed: for a listener's code, or for new code.
    maps: OnceCell<Option<Maps>>,
    live: bool,
    /// Whether functions leave the vector registers alone.
    left_alone: RefCell<BTreeMap<usize, bool>>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(set: &'a mut HookSet, view: &'a MemoryView, live: bool) -> Self {
        Self { set, view: Pages::new(view), maps: OnceCell::new(), live, left_alone: RefCell::default() }
    }

    pub(super) fn take_out(&mut self, attachment: Attachment) -> Result<(CodeAddr, Attachment), Error> {
        let missing = Error::NotAttached { number: attachment.0 };
        let target = *self.set.places.get(&attachment).ok_or(missing.clone())?;
        let site = self.set.sites.get_mut(&target).ok_or(missing.clone())?;
        let link = site.chain.links.iter_mut().find(|link| link.id == attachment && link.state == State::In);
        link.ok_or(missing)?.state = State::Going;
        self.set.touched.push(target);
        Ok((target, attachment))
    }

    pub(super) fn put_in(
        &mut self,
        target: CodeAddr,
        place: Place,
        options: Options,
        wanted: Wanted,
    ) -> Result<(CodeAddr, Attachment), Error> {
        let mut wanted = wanted;
        if let Wanted::Tell(link) = &mut wanted {
            if link.hears_returns() && native::has_shadow_stack() {
                return Err(Error::ShadowStack { target });
            }
            let ours = native::routines_leave_vectors_alone(&self.view);
            link.save_what_may_change(ours, |function| self.leaves_vectors_alone(function));
            if link.saves_all_vectors() && !native::vectors_can_be_saved() {
                return Err(Error::NoVectors { target });
            }
        }
        self.site(target, place, options)?;
        self.set.touched.push(target);
        self.set.last += 1;
        let id = Attachment(self.set.last);
        let site = self.set.sites.get_mut(&target).ok_or(Error::NotExecutable { target })?;
        let key = match &wanted {
            Wanted::Replace(function) => Key::Replace(*function),
            Wanted::Tell(link) => Key::Tell(link.key()),
        };
        if let Wanted::Replace(function) = wanted {
            site.refuse_replacement(target, function)?;
        }
        if site.chain.use_again(key, id) {
            site.publish(&[State::In, State::Going]);
            return Ok((target, id));
        }
        let kind = site.kind;
        let (what, stub) = match wanted {
            Wanted::Replace(function) => {
                let code = native::code_at(function).1;
                if !self.is_code(code) {
                    return Err(Error::NotExecutable { target: code });
                }
                (What::Replace(function), self.jump_stub(kind, target)?)
            }
            Wanted::Tell(link) => {
                let calls = link.kind(kind);
                let routine = native::routine(calls);
                let link = OwnLink::new(link);
                let address = link.range().start;
                let code = |at, word| native::link_stub(calls, at, word, routine, address, target.0);
                let stub = self.stub(target, LINK_STUB_LEN, code).inspect_err(|_| {
                    // SAFETY: no code has its address.
                    unsafe { link.free() };
                })?;
                self.set.arena.note(|| Piece::link_stub(stub.code, calls, target));
                (What::Tell(link), stub)
            }
        };
        if let Some(site) = self.set.sites.get_mut(&target) {
            site.chain.add(id, what, stub);
            // Its original can be called from now on.
            site.publish(&[State::In, State::Going]);
        }
        Ok((target, id))
    }

    /// Whether code may lie at an address, as far as that is known.
    fn is_code(&self, at: CodeAddr) -> bool {
        let maps = self.maps.get_or_init(|| Maps::read().ok()).as_ref();
        maps.is_none_or(|maps| is_code(maps, at.0 as usize))
    }

    /// Whether a function that is told of calls needs no vectors saved. It is looked at once.
    fn leaves_vectors_alone(&self, function: usize) -> bool {
        *self.left_alone.borrow_mut().entry(function).or_insert_with(|| {
            let maps = self.maps.get_or_init(|| Maps::read().ok()).as_ref();
            // Of code that no file holds nothing says whose it is, and how long it stays.
            let maps = maps.filter(|maps| maps.find(function).is_some_and(|mapping| mapping.inode != 0));
            let extent = maps.and_then(|maps| self.view.described(maps, function));
            extent.is_some_and(|extent| native::leaves_vectors_alone(&self.view, function, &extent))
        })
    }

    /// Sees to it that there is a site, with a trampoline that fits the code as it is.
    fn site(&mut self, target: CodeAddr, place: Place, options: Options) -> Result<(), Error> {
        let kind = match place {
            Place::Entry => StubKind::Entry,
            Place::Inside(_) => StubKind::Inside,
        };
        let head = match self.set.sites.get(&target) {
            Some(site) if site.is_patched() && site.kind == kind => {
                // Where others have patched on top, their code leads to the patch.
                let Edit { at, old, new: expected } = site.hook.0.start;
                let len = expected.as_slice().len();
                let found = self.view.bytes(at.0 as usize, len);
                return match site.hook.0.torn || found == old || found.as_slice().len() < len {
                    false => Ok(()),
                    true => Err(Error::NotInForce { site: at, expected, found }),
                };
            }
            // A chain is of one kind: its stubs and what it ends in agree on what lies on the stack.
            Some(site) if site.is_patched() || (site.kind != kind && site.chain.has(&[State::Coming])) => {
                return Err(Error::Taken { target, standing: target });
            }
            Some(site) => {
                let same = self.view.holds(site.hook.0.start.at.0 as usize, site.window.as_slice());
                if same && site.kind == kind && (site.live || !self.live) {
                    let edits: Vec<_> = site.edits().collect();
                    // One that this batch has attached to already is there, too.
                    if let Some(other) = edits.iter().find_map(|edit| self.overlapped(edit, &edits)) {
                        return Err(Error::Taken { target, standing: other });
                    }
                    self.set.standing.extend(edits.into_iter().map(|edit| (edit.at, edit)));
                    return Ok(());
                }
                // A thread may yet be in the head of the other kind.
                if site.kind == kind { site.head } else { self.jump_stub(kind, target)? }
            }
            None => {
                // Before anything is mapped, which might lie where there was nothing.
                let code = native::code_at(target).1;
                if !self.is_code(code) {
                    return Err(Error::NotExecutable { target: code });
                }
                self.jump_stub(kind, target)?
            }
        };
        let replacement = CodeAddr(head.code.at as u64);
        let request = Request { target, replacement, options, place, gate: Vec::new() };
        let maps = self.maps.get_or_init(|| Maps::read().ok()).as_ref();
        let mut workshop =
            Workshop::new(&mut self.set.arena, &self.view, maps, self.live, &self.set.standing);
        let ready = match workshop.prepare(HookId(0), &request) {
            Ok(ready) => ready,
            Err(error) => {
                if self.set.sites.get(&target).is_none_or(|site| site.kind != kind) {
                    self.set.spares.push((kind, head));
                }
                return Err(error);
            }
        };
        let live = ready.live;
        let window = self.view.bytes(ready.plan.site.0 as usize, ready.window_len);
        let hook = ready.hook;
        let site = match self.set.sites.remove(&target) {
            Some(mut old) => {
                old.outdated.push(core::mem::replace(&mut old.hook, hook));
                if old.kind != kind {
                    old.former_heads.push(core::mem::replace(&mut old.head, head));
                }
                Site { kind, window, live, ..old }
            }
            None => {
                let (outdated, former_heads) = (Vec::new(), Vec::new());
                Site { kind, hook, window, live, head, chain: Chain::new(), outdated, former_heads }
            }
        };
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
    fn jump_stub(&mut self, kind: StubKind, target: CodeAddr) -> Result<Stub, Error> {
        let near = |(of, stub): &(StubKind, Stub)| {
            *of == kind && (stub.code.at as u64).abs_diff(target.0) < NEAR_REACH / 2
        };
        // One that others were told of stands for the function that it was made for.
        let spare = (!self.set.arena.is_announced()).then(|| self.set.spares.iter().position(near));
        if let Some(index) = spare.flatten() {
            return Ok(self.set.spares.swap_remove(index).1);
        }
        let stub = self.stub(target, JUMP_STUB_LEN, |at, word| native::jump_stub(kind, at, word))?;
        self.set.arena.note(|| Piece::jump_stub(stub.code, kind, target));
        Ok(stub)
    }

    /// Makes a stub near the target, and a word that it can name. `code` is told where they are.
    fn stub<C: AsRef<[u8]>>(
        &mut self,
        target: CodeAddr,
        len: usize,
        code: impl FnOnce(u64, u64) -> Option<C>,
    ) -> Result<Stub, Error> {
        let nowhere = |errno| Error::NoCodeMemory { target, errno };
        // Within reach of the patch, so that its redirect can lead here at once.
        let near = target.0 as usize;
        let far = NEAR_REACH as usize - LINK_STUB_LEN - Bytes::MAX;
        let reach = near.saturating_sub(far)..near.saturating_add(far);
        let maps = self.maps.get_or_init(|| Maps::read().ok()).as_ref();
        let (arena, memory) = (&mut self.set.arena, self.view.memory());
        let slot = arena.allocate(near, len, &reach, maps).map_err(nowhere)?;
        let word = match arena.word(&slot, maps) {
            Ok(word) => word,
            Err(errno) => {
                // SAFETY: nothing leads to it.
                unsafe { arena.discard(&slot, memory) };
                return Err(nowhere(errno));
            }
        };
        let stub = Stub { code: slot, word };
        let code = code(slot.at as u64, core::ptr::from_ref(word) as usize as u64);
        if !code.is_some_and(|code| arena.write(&slot, code.as_ref(), memory)) {
            // SAFETY: nothing leads to it.
            unsafe { stub.discard(arena, memory) };
            return Err(nowhere(sys::EINVAL));
        }
        Ok(stub)
    }
}
