//! Many hooks, prepared together and committed together.
//!
//! # Safety
//! Preparing writes only memory that no thread runs yet. Committing writes over live code: that is the one unsafe
//! step, and its caller answers for the replacements and for the other threads.

use alloc::vec::Vec;
use core::ops::Range;

use grapnel_relocator::{CodeAddr, PcMap, Reach, redirect};

use crate::{
    Arena, Bytes, CodeWay, Error, Hook, HookPlan, Liveness, Options, PatchWay,
    arena::CodeSlot,
    hook::Edit,
    memory::{maps::Maps, view::MemoryView},
    native::{self, ISA, NEAR_REACH},
};

/// The number of a hook in its transaction, from 0 in the order in which they were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HookId(usize);

impl HookId {
    /// The number.
    pub fn index(self) -> usize {
        self.0
    }
}

/// What is to be hooked.
#[derive(Debug, Default)]
pub struct Transaction<'a> {
    arena: Memory<'a>,
    requests: Vec<Request>,
}

#[derive(Debug)]
struct Request {
    target: CodeAddr,
    replacement: CodeAddr,
    options: Options,
}

#[derive(Debug)]
enum Memory<'a> {
    Own(Arena),
    Lent(&'a mut Arena),
}

impl Default for Memory<'_> {
    fn default() -> Self {
        Self::Own(Arena::new())
    }
}

impl Memory<'_> {
    fn get(&mut self) -> &mut Arena {
        match self {
            Self::Own(arena) => arena,
            Self::Lent(arena) => arena,
        }
    }
}

impl Transaction<'static> {
    /// A transaction with an arena of its own.
    pub fn new() -> Self {
        Self::default()
    }
}

impl<'a> Transaction<'a> {
    /// A transaction whose trampolines go into an arena that serves others as well.
    pub fn with_arena(arena: &'a mut Arena) -> Self {
        Self { arena: Memory::Lent(arena), requests: Vec::new() }
    }

    /// Asks for a function to be replaced. Nothing is read or changed yet.
    pub fn replace(&mut self, target: *const (), replacement: *const ()) -> HookId {
        self.replace_with(target, replacement, Options::default())
    }

    /// The same for a function whose length in bytes is known, from its symbol.
    pub fn replace_sized(&mut self, target: *const (), size: usize, replacement: *const ()) -> HookId {
        self.replace_with(target, replacement, Options { size: Some(size), ..Options::default() })
    }

    /// The same with everything that can be chosen.
    pub fn replace_with(&mut self, target: *const (), replacement: *const (), options: Options) -> HookId {
        let id = HookId(self.requests.len());
        self.requests.push(Request { target: address(target), replacement: address(replacement), options });
        id
    }

    /// Does everything that can fail. The originals are known and their trampolines written afterwards; no byte of
    /// live code has changed.
    pub fn prepare(mut self) -> Prepared<'a> {
        let view = MemoryView::open();
        let maps = Maps::read().ok();
        let mut hooks: Vec<Result<Ready, Error>> = Vec::with_capacity(self.requests.len());
        for (i, request) in self.requests.iter().enumerate() {
            let ready = self.requests.iter().take(i).position(|r| r.target == request.target).map_or_else(
                || ready(request, self.arena.get(), &view, maps.as_ref(), &hooks),
                |first| Err(Error::AlreadyPlanned { target: request.target, first: HookId(first) }),
            );
            hooks.push(ready);
        }
        if let Err(errno) = self.arena.get().seal() {
            for hook in &mut hooks {
                if let Ok(ready) = hook {
                    *hook = Err(Error::NotSealed { target: ready.plan.target, errno });
                }
            }
        }
        // Room for the results, so that nothing is allocated once code has begun to change.
        let results = Vec::with_capacity(hooks.len());
        Prepared { arena: self.arena, view, hooks, results }
    }

    /// Prepares and commits.
    ///
    /// # Safety
    /// As [`Prepared::commit`].
    pub unsafe fn commit(self, liveness: Liveness) -> Vec<Result<Hook, Error>> {
        // SAFETY: the caller's promise.
        unsafe { self.prepare().commit(liveness) }
    }
}

/// Hooks that are ready to go in.
///
/// Dropping it without a commit changes nothing. The trampolines stay mapped, because their addresses are known.
#[derive(Debug)]
pub struct Prepared<'a> {
    arena: Memory<'a>,
    view: MemoryView,
    hooks: Vec<Result<Ready, Error>>,
    results: Vec<Result<Hook, Error>>,
}

#[derive(Debug)]
struct Ready {
    plan: HookPlan,
    slot: CodeSlot,
    map: PcMap,
    /// In the order in which they are to be made.
    edits: [Option<Edit>; 2],
}

impl Prepared<'_> {
    /// The function as it is now, callable in its place with the same ABI, before and after the commit.
    ///
    /// # Errors
    /// Why the function can't be hooked. An id of another transaction answers for the hook of that number, or
    /// [`Error::NotExecutable`] if there is none.
    pub fn original(&self, id: HookId) -> Result<*const (), Error> {
        match self.hooks.get(id.0) {
            Some(Ok(ready)) => Ok(ready.slot.at as *const ()),
            Some(Err(error)) => Err(error.clone()),
            None => Err(Error::NotExecutable { target: CodeAddr(0) }),
        }
    }

    /// The plan of each hook, or why there is none, in the order of the ids.
    pub fn plans(&self) -> impl Iterator<Item = Result<&HookPlan, &Error>> {
        self.hooks.iter().map(|hook| hook.as_ref().map(|ready| &ready.plan))
    }

    /// The regions that hold code for these hooks, among them those that were there before, and how each was made.
    pub fn regions(&self) -> impl Iterator<Item = (Range<usize>, CodeWay)> + '_ {
        match &self.arena {
            Memory::Own(arena) => arena.regions(),
            Memory::Lent(arena) => arena.regions(),
        }
    }

    /// Patches the functions, and answers for each in the order of the ids. One that fails doesn't keep the others out.
    ///
    /// # Safety
    /// * Each target is the start of a function, and no code but the function's own branches into its first
    ///   instructions.
    /// * Each replacement has its target's ABI and stays loaded for as long as the hook is in; each target stays loaded
    ///   until its hook is removed or dropped.
    /// * What `liveness` says of the other threads is so.
    pub unsafe fn commit(mut self, liveness: Liveness) -> Vec<Result<Hook, Error>> {
        let Liveness::SingleThreaded = liveness;
        let mut results = core::mem::take(&mut self.results);
        for hook in self.hooks {
            // SAFETY: the caller's promise.
            results.push(hook.and_then(|ready| unsafe { write(&self.view, ready) }));
        }
        native::synchronise_this_core();
        results
    }
}

/// # Safety
/// As [`Prepared::commit`] for one hook.
unsafe fn write(view: &MemoryView, ready: Ready) -> Result<Hook, Error> {
    for edit in ready.edits.iter().flatten() {
        if let Some(found) = view.differs(edit.at.0 as usize, edit.old.as_slice()) {
            return Err(Error::Changed { site: edit.at, expected: edit.old, found });
        }
    }
    let mut way = PatchWay::ProcMem;
    for edit in ready.edits.iter().flatten() {
        // SAFETY: the caller's promise; the bytes are those that the plan was made for (checked just now).
        way = unsafe { view.write_code(edit.at.0 as usize, edit.new.as_slice()) }
            .map_err(|errno| Error::Write { site: edit.at, errno })?;
    }
    let start = ready.slot.at as u64;
    Ok(Hook {
        target: ready.plan.target,
        edits: ready.edits,
        trampoline: CodeAddr(start),
        code: start..start + ready.slot.len as u64,
        map: ready.map,
        kind: ready.plan.kind(),
        proof: ready.plan.proof().clone(),
        way,
        removed: false,
    })
}

/// Plans one hook and writes its trampoline.
fn ready(
    request: &Request,
    arena: &mut Arena,
    view: &MemoryView,
    maps: Option<&Maps>,
    earlier: &[Result<Ready, Error>],
) -> Result<Ready, Error> {
    let target = request.target;
    let plan = HookPlan::with(target, request.options, view, maps)?;
    for range in plan.overwritten() {
        let overlaps = |ready: &Ready| {
            ready.plan.overwritten().any(|other| range.start < other.end && other.start < range.end)
        };
        if let Some(first) = earlier.iter().position(|e| e.as_ref().is_ok_and(overlaps)) {
            return Err(Error::Overlaps { target, first: HookId(first) });
        }
        if range.contains(&request.replacement.0) {
            return Err(Error::ReplacementInPatch { target, replacement: request.replacement });
        }
    }
    // The near redirect stands at the function's start, or in padding close to it.
    let near_at = plan.stop.as_ref().map_or(plan.site, |(at, _)| *at);
    let direct = redirect::near(ISA, near_at, request.replacement).ok();
    let island_len = if direct.is_some() { 0 } else { redirect::lengths(ISA).absolute };
    let len = plan.trampoline_max() + island_len;
    let slot = allocate(&plan, near_at, direct.is_none(), len, arena, maps)?;
    let start = CodeAddr(slot.at as u64);

    let refused = |source| Error::Relocation { target, bytes: plan.original, source };
    let moved = plan.relocation.emit(start.add(plan.pad().len() as u64)).map_err(refused)?;
    let mut code = Vec::with_capacity(len);
    code.extend_from_slice(plan.pad());
    code.extend_from_slice(moved.bytes());
    let jump = match direct {
        Some(jump) => jump,
        None => {
            let island = start.add(code.len() as u64);
            code.extend_from_slice(&redirect::absolute(ISA, island, request.replacement).map_err(refused)?);
            redirect::near(ISA, near_at, island).map_err(refused)?
        }
    };
    if !arena.write(&slot, &code) {
        return Err(Error::NoCodeMemory { target, errno: crate::sys::EINVAL });
    }
    let jump = Bytes::new(&jump);
    let edits = match plan.stop {
        None => [None, Some(Edit { at: plan.site, old: plan.original, new: jump })],
        Some((stop, old)) => {
            let short = redirect::short(ISA, plan.site, stop).map_err(refused)?;
            let first = Edit { at: stop, old, new: jump };
            [Some(first), Some(Edit { at: plan.site, old: plan.original, new: Bytes::new(&short) })]
        }
    };
    Ok(Ready { slot, map: moved.map().clone(), edits, plan })
}

fn allocate(
    plan: &HookPlan,
    near_at: CodeAddr,
    island: bool,
    len: usize,
    arena: &mut Arena,
    maps: Option<&Maps>,
) -> Result<CodeSlot, Error> {
    let pad = plan.pad().len() as u64;
    // Reaches are for the start of the relocated code, which lies behind the landing pad.
    let moved =
        |reach: Reach| reach.lo.0.saturating_sub(pad)..reach.hi.0.saturating_sub(pad).saturating_add(1);
    let all = 0..u64::MAX;
    let jump = if island {
        let end = near_at.0 + redirect::lengths(ISA).near as u64;
        end.saturating_sub(NEAR_REACH)..end.saturating_add(NEAR_REACH - len as u64)
    } else {
        all
    };
    let near = plan.target.0 as usize;
    let mut last = crate::sys::ENOMEM;
    for reach in [plan.relocation.reach(), plan.relocation.required_reach()] {
        let reach = intersection(&moved(reach), &jump);
        if reach.is_empty() {
            continue;
        }
        match arena.allocate(near, len, &(reach.start as usize..reach.end as usize), maps) {
            Ok(slot) => return Ok(slot),
            Err(errno) => last = errno,
        }
    }
    Err(Error::NoCodeMemory { target: plan.target, errno: last })
}

fn intersection(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}

fn address(pointer: *const ()) -> CodeAddr {
    CodeAddr(pointer as usize as u64)
}
