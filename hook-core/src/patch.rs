//! Changing live code from known bytes to others, many places at once.
//!
//! # Safety
//! Writes over code. Every write is preceded by a look at what is there: bytes that aren't the expected ones are left
//! alone. Between the look and the write someone else may patch the same place; nothing on Linux can rule that out.

use alloc::vec::Vec;
use core::slice::IterMut;

use grapnel_relocator::{CodeAddr, Isa};

use crate::{
    Error, Liveness, PatchWay, Refusal,
    live::{self, PatchingRight, Ways},
    memory::{
        maps::{Home, Maps},
        pages::Pages,
        remap::Remapping,
        runs::{self, Piece},
        view::{Bytes, MemoryView, Unwritten},
    },
    native,
    sys::Errno,
};

/// One run of code bytes that a patch changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) at: CodeAddr,
    pub(crate) old: Bytes,
    pub(crate) new: Bytes,
}

impl Edit {
    /// The same backwards.
    pub(crate) fn undone(self) -> Self {
        Self { at: self.at, old: self.new, new: self.old }
    }
}

/// One patch: bytes at a function's start, and perhaps others that only they lead to.
#[derive(Debug)]
pub(crate) struct Patch {
    pub(crate) isa: Isa,
    /// Padding that is changed before the start.
    pub(crate) aside: Option<Edit>,
    pub(crate) start: Edit,
    /// Where a thread goes on that traps in the patch.
    pub(crate) ways: Ways,
    /// A call returns into the bytes, perhaps of a frame on the stack of who patches: traps there need their handler.
    pub(crate) watched: bool,
    /// It takes a hook out.
    pub(crate) leaves: bool,
    /// What of a file the function was when it was hooked.
    pub(crate) home: Option<Home>,
    /// The hook that it takes out isn't there any more, and nothing is written.
    pub(crate) absent: Option<Absent>,
    /// An attempt has failed half way, and what was there before could not be put back: each byte is the old one, the new
    /// one or a trap's.
    pub(crate) torn: bool,
    /// Something of it may be written.
    pub(crate) begun: bool,
    /// It was made at once, by pages that were mapped anew.
    pub(crate) at_once: bool,
    /// What became of it.
    pub(crate) state: Result<PatchWay, Error>,
}

/// Why there is no hook to be taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Absent {
    /// The function has its bytes: somebody else put them back, or its object was loaded again.
    Out,
    /// There is no memory, or it is of another file.
    Gone,
}

impl Patch {
    pub(crate) fn new(isa: Isa, aside: Option<Edit>, start: Edit, ways: Ways) -> Self {
        Self {
            isa,
            aside,
            start,
            ways,
            watched: false,
            leaves: false,
            home: None,
            absent: None,
            torn: false,
            begun: false,
            at_once: false,
            state: Ok(PatchWay::ProcMem),
        }
    }

    /// Leaves the patch out if any of its bytes isn't what it should be.
    fn look(&mut self, pages: &Pages<'_>) {
        for edit in [self.aside.as_ref(), Some(&self.start)].into_iter().flatten() {
            let found = pages.bytes(edit.at.0 as usize, edit.old.as_slice().len());
            if found != edit.old && !self.is_torn(edit, &found) {
                self.absent = if self.leaves { self.absence(edit, &found) } else { None };
                if self.absent.is_some() {
                    return;
                }
                self.state = Err(Error::Changed { site: edit.at, expected: edit.old, found });
                return;
            }
        }
    }

    /// Whether other bytes than this hook's mean that it isn't there any more. Pages of no file may be somebody's copy of those
    /// that were there.
    fn absence(&self, edit: &Edit, found: &Bytes) -> Option<Absent> {
        if *found == edit.new {
            return Some(Absent::Out);
        }
        let (maps, at) = (Maps::read().ok()?, edit.at.0 as usize);
        let is_another = |home| self.home.is_some_and(|before| before != home);
        let gone = maps.find(at).is_none() || maps.home(at).is_some_and(is_another);
        gone.then_some(Absent::Gone)
    }

    /// Leaves the patch out if its bytes are known not to be ones that can be written while others run them.
    fn judge(&mut self, view: &MemoryView) {
        for edit in [self.aside, Some(self.start)].into_iter().flatten() {
            let site = edit.at;
            if view.shares_unit(site.0 as usize, edit.new.as_slice().len()) == Ok(true) {
                self.state = Err(Error::NotLive { site, refusal: Refusal::SharedWord });
                return;
            }
            let refused = match view.may_write_running(site.0 as usize, edit.new.as_slice().len()) {
                Ok(true) => continue,
                Ok(false) => Unwritten { way: PatchWay::Exchange, errno: Errno(libc::EACCES) }.at(site),
                Err(errno) => Error::NotLive { site, refusal: Refusal::NoProc(errno) },
            };
            self.state = Err(refused);
            return;
        }
    }

    /// Whether that is what an attempt has left that failed half way.
    fn is_torn(&self, edit: &Edit, found: &Bytes) -> bool {
        let (found, old, new) = (found.as_slice(), edit.old.as_slice(), edit.new.as_slice());
        let traps = native::trap(self.isa).iter().cycle();
        let mut bytes = found.iter().zip(old).zip(new).zip(traps);
        self.torn
            && found.len() == old.len()
            && bytes.all(|(((found, old), new), trap)| [old, new, trap].contains(&found))
    }
}

/// Makes the patches. Each says in its state whether it was made. Where one fails half way, what was there before is put back;
/// should that fail as well, it is torn.
///
/// # Safety
/// The bytes are code that the caller may change, every patch leaves code that does what its callers expect, and what
/// `liveness` says of the other threads is so.
pub(crate) unsafe fn apply(view: &MemoryView, patches: &mut [Patch], liveness: Liveness) {
    let look = |patches: &mut [Patch]| {
        let pages = Pages::new(view);
        patches.iter_mut().for_each(|patch| patch.look(&pages));
    };
    match liveness {
        Liveness::SingleThreaded => {
            look(patches);
            // SAFETY: the caller's promise: nobody runs the code meanwhile.
            unsafe { apply_alone(view, patches) }
        }
        // The right comes first: whoever had it before may have patched what is looked at.
        Liveness::Live => match PatchingRight::begin() {
            Ok(right) => {
                look(patches);
                good(patches).for_each(|patch| patch.judge(view));
                hear(patches, &right, |_| true);
                // SAFETY: the caller's promise.
                unsafe {
                    apply_live(view, patches, &right);
                    put_back(view, patches, &right);
                }
                return settle(view, patches);
            }
            Err(refusal) => {
                look(patches);
                good(patches)
                    .for_each(|patch| patch.state = Err(Error::NotLive { site: patch.start.at, refusal }));
            }
        },
    }
    settle(view, patches);
}

/// Takes back what was left half way.
///
/// # Safety
/// As [`apply`].
unsafe fn put_back(view: &MemoryView, patches: &[Patch], right: &PatchingRight) {
    let failed = |patch: &Patch| matches!(patch.state, Err(Error::Write { .. })) && patch.is_left_torn(view);
    for patch in patches.iter().filter(|patch| patch.begun && failed(patch)) {
        let start = patch.start.undone();
        let back = Patch { torn: true, ..Patch::new(patch.isa, None, start, patch.ways) };
        // SAFETY: what was there before, by the same steps: from the first on, whoever comes here traps and finds its way.
        unsafe { apply_live(view, &mut [back], right) };
    }
}

/// From now on a trap where a patch was is another's.
fn settle(view: &MemoryView, patches: &mut [Patch]) {
    for patch in patches {
        patch.torn = patch.is_left_torn(view);
        match (&patch.state, patch.absent) {
            // What traps there is another's. No thread has trapped in this patch and is yet to be sent on: its object could not
            // have been unloaded while its code ran.
            (Ok(_), Some(Absent::Gone)) => live::forget_ways(patch.start.at.0, &patch.ways),
            (Ok(_), _) => live::leave(patch.start.at.0, patch.leaves),
            (Err(_), _) => {}
        }
    }
}

/// # Safety
/// As [`apply`]; no other thread runs the code.
unsafe fn apply_alone(view: &MemoryView, patches: &mut [Patch]) {
    if good(patches).any(|patch| patch.watched) {
        let right = PatchingRight::for_traps();
        if let Ok(right) = &right {
            hear(patches, right, |patch| patch.watched);
        }
        for patch in good(patches).filter(|patch| patch.watched) {
            match &right {
                Ok(right) => {
                    right.enter(patch.start.at.0, patch.ways);
                }
                Err(refusal) => {
                    patch.state = Err(Error::NotLive { site: patch.start.at, refusal: *refusal });
                }
            }
        }
    }
    good(patches).for_each(|patch| patch.begun = true);
    let mut pieces = Vec::with_capacity(patches.len());
    for edit_of in [|patch: &Patch| patch.aside, |patch: &Patch| Some(patch.start)] {
        pieces.clear();
        let good = patches.iter().enumerate().filter(|(_, patch)| patch.is_good());
        let edits = good.filter_map(|(owner, patch)| Some((owner, edit_of(patch)?)));
        pieces.extend(edits.map(|(owner, edit)| Piece { at: edit.at.0 as usize, bytes: edit.new, owner }));
        // SAFETY: the caller's promise; the bytes were looked at.
        unsafe {
            runs::write(view, &mut pieces, |owner, written| {
                let Some(patch) = patches.get_mut(owner) else { return };
                let site = edit_of(patch).map_or(patch.start.at, |edit| edit.at);
                patch.state = written.map_err(|why| why.at(site));
            });
        }
    }
    native::synchronise_this_core();
}

/// The protocol of [`crate::live`].
///
/// # Safety
/// As [`apply`].
unsafe fn apply_live(view: &MemoryView, patches: &mut [Patch], right: &PatchingRight) {
    right.expect(patches.len());
    let mut remapping = Remapping::of(
        view,
        patches
            .iter()
            .enumerate()
            .filter(|(_, patch)| patch.is_good() && !patch.is_one_store())
            .map(|(owner, patch)| Piece { at: patch.start.at.0 as usize, bytes: patch.start.new, owner }),
    );
    for patch in good(patches) {
        right.enter(patch.start.at.0, patch.ways);
        patch.begun = true;
        if let Some(edit) = patch.aside {
            // SAFETY: padding, which nobody runs (the plan's proof).
            let written = unsafe { view.write_running(edit.at.0 as usize, edit.new.as_slice()) };
            note(&mut patch.state, edit.at, written);
        }
    }
    // What can be put in for everybody at once traps nobody at its start.
    remapping.keep(|owner| patches.get(owner).is_some_and(Patch::is_good));
    let made = |owner: usize| {
        if let Some(patch) = patches.get_mut(owner) {
            (patch.state, patch.at_once) = (Ok(PatchWay::Remap), true);
        }
    };
    // SAFETY: the caller's promise. A thread that was inside before finds a trap at each place where an instruction started.
    unsafe { remapping.carry_out(view, made) };
    for patch in good(patches).filter(|patch| !patch.at_once) {
        if patch.is_one_store() {
            let new = patch.start.new;
            // SAFETY: whoever runs the bytes finds the old ones or the new ones; where a thread may be inside, the new
            // ones trap.
            unsafe { patch.write(view, 0, Some(new.as_slice())) };
            continue;
        }
        // The redirect's own traps are inside from the first step on: another's half would be an instruction with its first half.
        let (trap, new) = (native::trap(patch.isa), patch.start.new);
        let traps: Bytes = trap.iter().chain(new.as_slice().iter().skip(trap.len())).copied().collect();
        // SAFETY: units of the shortest instruction's length, where instructions start. Whoever runs one traps, and the
        // handler knows where to go on.
        unsafe { patch.write_units(view, patch.first_traps(), &traps) };
        if patch.state.is_err() && !patch.torn {
            let old = patch.start.old;
            // SAFETY: what was there before, where instructions start. Should that fail as well, the traps are as good.
            unsafe { patch.write_units(view, patch.first_traps(), &old) };
        }
    }
    if let Err(errno) = right.synchronise() {
        // The bytes that were there before are as good as the traps, one by one. Where they aren't known to be, traps stay.
        for patch in good(patches).filter(|patch| !patch.at_once) {
            let old = patch.start.old;
            if patch.is_one_store() {
                // SAFETY: as above, backwards.
                unsafe { patch.write(view, 0, Some(old.as_slice())) };
            } else if !patch.torn {
                // SAFETY: what was there before, where instructions start.
                unsafe { patch.write_units(view, patch.first_traps(), &old) };
            }
            patch.state = Err(Error::NotLive { site: patch.start.at, refusal: Refusal::Kernel(errno) });
        }
        return;
    }
    // From here on a failure leaves traps behind. With their handler the function does what it did before.
    for patch in good(patches).filter(|patch| patch.goes_by_steps()) {
        let new = patch.start.new;
        // SAFETY: the start traps on every core, so nobody comes here from it. A thread that was inside before finds a
        // trap at each place where an instruction started, and these are none of them.
        unsafe { patch.write_units(view, patch.rest(), &new) };
    }
    // It worked a moment ago, and has no reason to fail later; if it did, the traps would still be right.
    let _ = right.synchronise();
    for patch in good(patches).filter(|patch| patch.goes_by_steps()) {
        let new = patch.start.new;
        let (isa, code) = (patch.isa, new);
        let is_there =
            move |at: &usize| code.as_slice().get(*at..).is_some_and(|code| native::is_trap(isa, code));
        // SAFETY: starts of instructions, behind which the rest is complete on every core; or the instruction behind
        // begins with the next unit, and that is as good before as after.
        unsafe { patch.write_units(view, patch.positions().filter(|at| !is_there(at)), &new) };
    }
    let _ = right.synchronise();
}

impl Patch {
    /// Whether it is still to be made.
    fn is_good(&self) -> bool {
        self.state.is_ok() && self.absent.is_none()
    }

    /// Whether it has failed, and what was there before isn't.
    fn is_left_torn(&self, view: &MemoryView) -> bool {
        let old = self.start.old.as_slice();
        (self.begun || self.torn)
            && self.state.is_err()
            && view.differs(self.start.at.0 as usize, old).is_some()
    }

    /// Whether a trap in it is one that the signal tells of.
    fn wants(&self, signal: i32) -> bool {
        let of_code = |code: &Bytes, at: usize| {
            code.as_slice().get(at..).is_some_and(|code| native::tells_of(signal, self.isa, code))
        };
        self.positions().any(|at| of_code(&self.start.old, at) || of_code(&self.start.new, at))
    }

    /// Everybody sees the whole patch or nothing of it.
    fn is_one_store(&self) -> bool {
        native::is_one_store(self.start.at, self.start.new.as_slice().len())
    }

    /// Others may see a half of it, so it is made by the steps of [`crate::live`].
    fn goes_by_steps(&self) -> bool {
        !self.at_once && !self.is_one_store()
    }

    /// The places of units of the patch: as many bytes as a trap has, which instructions are multiples of.
    fn units(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.start.new.as_slice().len()).step_by(native::trap(self.isa).len())
    }

    /// Where instructions start, in the window or in the redirect.
    fn positions(&self) -> impl Iterator<Item = usize> + use<> {
        let ways = self.ways;
        self.units().filter(move |&at| at == 0 || ways.get(at).is_some_and(|&way| way != 0))
    }

    /// The other units.
    fn rest(&self) -> impl Iterator<Item = usize> + use<> {
        let ways = self.ways;
        self.units().skip(1).filter(move |&at| ways.get(at).is_none_or(|&way| way == 0))
    }

    /// Which units become traps first: the start, and those where instructions start inside the window. When a hook is
    /// taken out, the latter are traps since it went in, or no thread was inside at that time.
    fn first_traps(&self) -> impl Iterator<Item = usize> + use<> {
        let (isa, new) = (self.isa, self.start.new);
        let traps = move |at| new.as_slice().get(at..).is_some_and(|bytes| native::is_trap(isa, bytes));
        self.positions().filter(move |&at| at == 0 || traps(at))
    }

    /// Writes units, those side by side at once.
    ///
    /// # Safety
    /// As [`MemoryView::write_running`], for each unit by itself.
    unsafe fn write_units(
        &mut self,
        view: &MemoryView,
        mut units: impl Iterator<Item = usize>,
        code: &Bytes,
    ) {
        let unit = native::trap(self.isa).len();
        let mut next = units.next();
        while let Some(start) = next {
            let mut end = start + unit;
            next = units.next();
            while next == Some(end) {
                end += unit;
                next = units.next();
            }
            // SAFETY: the caller's promise.
            unsafe { self.write(view, start, code.as_slice().get(start..end.min(code.as_slice().len()))) };
        }
    }

    /// Writes bytes of the patch.
    ///
    /// # Safety
    /// As [`MemoryView::write_running`].
    unsafe fn write(&mut self, view: &MemoryView, at: usize, bytes: Option<&[u8]>) {
        let Some(bytes) = bytes else { return };
        // SAFETY: the caller's promise.
        let written = unsafe { view.write_running(self.start.at.0 as usize + at, bytes) };
        note(&mut self.state, self.start.at, written);
    }
}

/// Leaves patches out in which a trap is one of whose signal nobody would hear. All are asked for at once, and one by one only
/// where that is refused.
fn hear(patches: &mut [Patch], right: &PatchingRight, which: impl Fn(&Patch) -> bool) {
    let wanted = |signal| patches.iter().any(|patch| patch.is_good() && which(patch) && patch.wants(signal));
    if right.hear(wanted).is_ok() {
        return;
    }
    for patch in good(patches).filter(|patch| which(patch)) {
        if let Err(refusal) = right.hear(|signal| patch.wants(signal)) {
            patch.state = Err(Error::NotLive { site: patch.start.at, refusal });
        }
    }
}

fn good(patches: &mut [Patch]) -> impl Iterator<Item = &mut Patch> {
    let all: IterMut<'_, Patch> = patches.iter_mut();
    all.filter(|patch| patch.is_good())
}

/// What was written last says how; a failure stays.
fn note(state: &mut Result<PatchWay, Error>, site: CodeAddr, written: Result<PatchWay, Unwritten>) {
    if state.is_ok() {
        *state = written.map_err(|why| why.at(site));
    }
}
