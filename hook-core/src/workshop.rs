//! From a request to a hook that is ready: planned, placed, its trampoline and island written.

use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};
use core::ops::Range;

use grapnel_relocator::{CodeAddr, PcMap, Reach, Registers, Relocated, redirect};

use crate::{
    Arena, Bytes, Error, Hook, HookId, HookPlan, PatchWay, Refusal,
    arena::CodeSlot,
    gate::Gate,
    hook::Parts,
    live::{POSITIONS, Ways},
    memory::{maps::Maps, pages::Pages},
    native::{self, NEAR_REACH, Pattern, StubKind},
    patch::Edit,
    plan::{Moving, Shape},
    seen::piece::Piece,
    surroundings::{Standing, Surroundings, standing_in},
    sys,
    transaction::{Place, Request},
};

/// A hook that only has to be patched in.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) plan: HookPlan,
    /// As it will be, but that it isn't in.
    pub(crate) hook: Hook,
    /// The redirect traps wherever a thread may still be inside the window.
    pub(crate) live: bool,
    /// How many bytes the trampoline stands for.
    pub(crate) window_len: usize,
}

impl Ready {
    /// The hook, once it was patched in.
    pub(crate) fn into_hook(self, way: PatchWay) -> Hook {
        let mut hook = self.hook;
        hook.went_in(way);
        hook
    }
}

/// Relocated code that changes no register beyond what the original does.
///
/// Where it goes on may be another hook, which shows the registers to whoever asked for them: a register that the
/// relocator takes for dead would not be what it was.
struct Faithful(Relocated);

impl Faithful {
    fn of(moved: Relocated) -> Result<Self, Registers> {
        if moved.clobbers().is_empty() { Ok(Self(moved)) } else { Err(moved.clobbers()) }
    }
}

/// How a patch leads to the replacement.
struct Way {
    /// Where the near redirect stands.
    near_at: CodeAddr,
    /// The redirect, if it reaches the replacement itself.
    direct: Option<redirect::Redirect>,
    /// The redirect must have traps in it.
    traps: bool,
    /// Instructions that don't exist are traps as well.
    undefined: bool,
    island_len: usize,
    /// Or the gate in front of it.
    replacement: CodeAddr,
    inside: bool,
    /// What comes before the trampoline.
    ahead: Vec<u8>,
}

/// What was written for a hook.
struct Filled {
    displaced: CodeAddr,
    map: PcMap,
    aside: Option<Edit>,
    start: Edit,
    ways: Ways,
}

/// What the hooks of one transaction are made with.
pub(crate) struct Workshop<'a> {
    arena: &'a mut Arena,
    view: &'a Pages<'a>,
    maps: Option<&'a Maps>,
    live: bool,
    /// The first hook on each target.
    targets: BTreeMap<CodeAddr, HookId>,
    /// Start, end and owner of the bytes that will be overwritten.
    claims: BTreeMap<u64, (u64, HookId)>,
    /// Patches of the same owner that are in.
    standing: &'a Standing,
}

/// Who has bytes that a patch would overwrite.
enum Claim {
    /// A hook of the same transaction.
    Hook(HookId),
    /// A patch that is in.
    Standing(CodeAddr),
}

impl<'a> Workshop<'a> {
    pub(crate) fn new(
        arena: &'a mut Arena,
        view: &'a Pages<'a>,
        maps: Option<&'a Maps>,
        live: bool,
        standing: &'a Standing,
    ) -> Self {
        Self { arena, view, maps, live, targets: BTreeMap::new(), claims: BTreeMap::new(), standing }
    }

    /// Plans one hook and writes its trampoline.
    pub(crate) fn prepare(&mut self, id: HookId, request: &Request) -> Result<Ready, Error> {
        let target = request.target;
        let first = *self.targets.entry(target).or_insert(id);
        if first != id {
            return Err(Error::AlreadyPlanned { target, first });
        }
        let usual = self.prepare_shaped(id, request, Shape::Usual);
        if !matches!(usual, Err(Error::NotLive { refusal: Refusal::NoIsland, .. })) {
            return usual;
        }
        Shape::others().find_map(|shape| self.prepare_shaped(id, request, shape).ok()).map_or(usual, Ok)
    }

    fn prepare_shaped(&mut self, id: HookId, request: &Request, shape: Shape) -> Result<Ready, Error> {
        let target = request.target;
        let claimed = |range: &Range<u64>| self.claimed(range).is_some();
        let around =
            Surroundings { view: self.view, maps: self.maps, claimed: &claimed, standing: self.standing };
        let (plan, moving) = match &request.place {
            Place::Entry => HookPlan::with(target, request.options, shape, &around)?,
            Place::Inside(function) => {
                HookPlan::inside(target, function.clone(), request.options, shape, &around)?
            }
        };
        for range in plan.overwritten() {
            match self.claimed(&range) {
                Some(Claim::Hook(first)) => return Err(Error::Overlaps { target, first }),
                Some(Claim::Standing(standing)) => return Err(Error::Taken { target, standing }),
                None => {}
            }
            let replacement = native::code_at(request.replacement).1;
            if range.contains(&replacement.0) || replacement == plan.target {
                return Err(Error::ReplacementInPatch { target, replacement: request.replacement });
            }
        }
        let claimed: Vec<_> = plan.overwritten().collect();
        let inside = matches!(request.place, Place::Inside(_));
        let undefined = shape == Shape::Undefined;
        let ready = self.write(plan, &moving, request, inside, undefined)?;
        self.claims.extend(claimed.into_iter().map(|range| (range.start, (range.end, id))));
        Ok(ready)
    }

    /// Whoever overwrites any of these bytes.
    fn claimed(&self, range: &Range<u64>) -> Option<Claim> {
        let last = self.claims.range(..range.end).next_back();
        if let Some((_, &(_, owner))) = last.filter(|(_, (end, _))| range.start < *end) {
            return Some(Claim::Hook(owner));
        }
        let overlaps = |edit: &&Edit| {
            edit.at.0 < range.end && range.start < edit.at.0 + edit.new.as_slice().len() as u64
        };
        standing_in(self.standing, range).find(overlaps).map(|edit| Claim::Standing(edit.at))
    }

    fn write(
        &mut self,
        plan: HookPlan,
        moving: &Moving,
        request: &Request,
        inside: bool,
        undefined: bool,
    ) -> Result<Ready, Error> {
        let isa = plan.isa;
        let gate = Gate::of(&request.gate, &plan, request.replacement)?;
        // The near redirect stands at the function's start, behind what leads it, or in padding close to it.
        let near_at = plan.stop.as_ref().map_or(plan.site.add(plan.lead as u64), |(at, _)| *at);
        let redirect = |to| native::near(isa, near_at, to).filter(|_| plan.undo.is_empty());
        let direct = redirect(request.replacement).filter(|_| gate.is_none());
        let watched = plan.returns_inside(moving);
        let traps = (self.live || watched) && inner_positions(&plan, moving).next().is_some();
        // What is ahead of the displacement is no trap, and neither is a short redirect.
        if traps && inner_positions(&plan, moving).any(|at| plan.stop.is_some() || at <= plan.lead) {
            return Err(Error::NotLive { site: plan.target, refusal: Refusal::NoIsland });
        }
        // An island of its own serves a live patch; otherwise one that is needed goes behind the trampoline.
        let behind = direct.is_none() && !traps;
        let island_len = plan.undo.len() + redirect::lengths(isa).absolute;
        let ahead = gate.as_ref().map_or(0, Gate::max_len);
        let len = ahead + plan.trampoline_max(moving) + if behind { island_len } else { 0 };

        let slot = self.allocate(&plan, moving, near_at, behind, ahead, len)?;
        let (replacement, direct, ahead) = match &gate {
            None => (request.replacement, direct, Some(Vec::new())),
            Some(gate) => {
                let at = native::pointer_to(isa, CodeAddr(gate.at(slot) as u64));
                (at, redirect(at), gate.bytes(slot))
            }
        };
        let Some(ahead) = ahead else {
            // SAFETY: nothing leads to it.
            unsafe { self.arena.discard(&slot, self.view.memory()) };
            return Err(Error::NoCodeMemory { target: plan.target, errno: sys::EINVAL });
        };
        let way = Way { near_at, direct, traps, undefined, island_len, replacement, inside, ahead };
        let mut island = None;
        match self.fill(&plan, moving, &way, slot, &mut island) {
            Ok(Filled { displaced, map, aside, start, ways }) => {
                let traps =
                    |at| start.new.as_slice().get(at..).is_none_or(|bytes| native::is_trap(isa, bytes));
                let all_trap = ways.iter().enumerate().skip(1).all(|(at, &way)| way == 0 || traps(at));
                let window_len = moving.window.len();
                let home = self.maps.and_then(|maps| maps.home(plan.site.0 as usize));
                let start_of_slot = CodeAddr(slot.at as u64);
                let trampoline = start_of_slot.add(way.ahead.len() as u64);
                let original = if inside { displaced } else { trampoline };
                let hook = Hook(Box::new(Parts {
                    isa,
                    target: plan.target,
                    aside,
                    start,
                    ways,
                    home,
                    island,
                    watched,
                    trampoline: native::pointer_to(isa, trampoline),
                    original: native::pointer_to(isa, original),
                    displaced,
                    code: start_of_slot.0..start_of_slot.0 + slot.len as u64,
                    map,
                    kind: plan.kind(),
                    proof: plan.proof().clone(),
                    way: PatchWay::ProcMem,
                    number: 0,
                    removed: true,
                    torn: false,
                }));
                Ok(Ready { plan, hook, live: all_trap, window_len })
            }
            Err(error) => {
                // SAFETY: nothing leads to the slot. The island is nobody's who isn't counted.
                unsafe {
                    self.arena.discard(&slot, self.view.memory());
                    if let Some((to, slot)) = &island {
                        self.arena.leave_island(*to, slot, self.view.memory());
                    }
                }
                Err(error)
            }
        }
    }

    /// Writes the code of a hook into its slot, and an island if one of its own is needed, which the caller has even if this
    /// fails.
    fn fill(
        &mut self,
        plan: &HookPlan,
        moving: &Moving,
        way: &Way,
        slot: CodeSlot,
        own: &mut Option<(u64, CodeSlot)>,
    ) -> Result<Filled, Error> {
        let (isa, target) = (plan.isa, plan.target);
        let Way { near_at, replacement, .. } = *way;
        let refused = |source| Error::Relocation { target, bytes: plan.original, source };
        let at = CodeAddr(slot.at as u64);
        let displaced = at.add((way.ahead.len() + plan.preamble.len()) as u64);
        let moved = Faithful::of(moving.relocation.emit(displaced).map_err(refused)?)
            .map_err(|clobbers| Error::Clobbers { target, bytes: plan.original, clobbers })?
            .0;
        let ways = ways(plan, moving, displaced, &moved);
        let mut code = Vec::with_capacity(slot.len);
        code.extend_from_slice(&way.ahead);
        code.extend_from_slice(plan.preamble);
        code.extend_from_slice(moved.bytes());

        let unreached = Error::NoCodeMemory { target, errno: sys::EINVAL };
        let mut of_redirect = ways;
        of_redirect.rotate_left(plan.lead);
        let jump = match (way.traps, &way.direct) {
            (true, _) => {
                let usual = Pattern::of(isa, near_at.0, &of_redirect).filter(|_| !way.undefined);
                let others = Pattern::undefined(isa, near_at.0, &of_redirect).filter(|_| way.undefined);
                let patterns = usual.into_iter().chain(others);
                let island = self.island(patterns, plan, way.island_len, replacement)?;
                *own = Some((replacement.0, CodeSlot { at: island.0 as usize, len: way.island_len }));
                redirect::near(isa, near_at, island).map_err(refused)?
            }
            (_, Some(jump)) => jump.clone(),
            (_, None) => {
                let island = at.add(code.len() as u64);
                let jump = island_code(plan, island, replacement, way.inside).ok_or(unreached.clone())?;
                code.extend_from_slice(jump.as_slice());
                redirect::near(isa, near_at, island).map_err(refused)?
            }
        };
        let jump: Bytes = native::LEAD.iter().take(plan.lead).chain(&jump).copied().collect();
        let (aside, new) = match plan.stop {
            None => (None, jump),
            Some((stop, old)) => {
                let short = redirect::short(isa, plan.site, stop).map_err(refused)?;
                (Some(Edit { at: stop, old, new: jump }), Bytes::new(&short))
            }
        };
        if !self.arena.write(&slot, &code, self.view.memory()) {
            return Err(unreached);
        }
        let stands_at = if way.inside { StubKind::Inside } else { StubKind::Entry };
        self.arena.note(|| Piece::trampoline(slot, plan, stands_at, way.ahead.len(), &moved));
        let start = Edit { at: plan.site, old: plan.original, new };
        Ok(Filled { displaced, map: moved.map().clone(), aside, start, ways })
    }

    /// Writes an island to the replacement, at a place where the redirect to it has its traps by one of the patterns.
    fn island(
        &mut self,
        patterns: impl Iterator<Item = Pattern>,
        plan: &HookPlan,
        len: usize,
        replacement: CodeAddr,
    ) -> Result<CodeAddr, Error> {
        // One that others were told of stands for the function that it was made for.
        let announced = self.arena.is_announced();
        let refused = |refusal| Error::NotLive { site: plan.target, refusal };
        let nowhere = refused(Refusal::NoIsland);
        let mut found = None;
        for pattern in patterns {
            let shared = if announced { None } else { self.arena.share_island(&pattern, replacement.0) };
            if let Some(at) = shared {
                return Ok(CodeAddr(at));
            }
            found = self.arena.allocate_matching(&pattern, len, self.maps).ok();
            if found.is_some() {
                break;
            }
        }
        let slot = match (found, self.maps) {
            (Some(slot), _) => slot,
            (None, Some(_)) => return Err(nowhere),
            (None, None) => return Err(Maps::read().err().map(Refusal::NoMaps).map_or(nowhere, refused)),
        };
        let at = CodeAddr(slot.at as u64);
        let code = island_code(plan, at, replacement, false);
        if !code.is_some_and(|code| self.arena.write(&slot, code.as_slice(), self.view.memory())) {
            // SAFETY: nothing leads to it.
            unsafe { self.arena.discard(&slot, self.view.memory()) };
            return Err(nowhere);
        }
        self.arena.note(|| Piece::island(slot, plan));
        self.arena.add_island(at.0, replacement.0);
        Ok(at)
    }

    fn allocate(
        &mut self,
        plan: &HookPlan,
        moving: &Moving,
        near_at: CodeAddr,
        island: bool,
        ahead: usize,
        len: usize,
    ) -> Result<CodeSlot, Error> {
        let pad = plan.preamble.len() as u64;
        // Reaches are for the start of the relocated code, which lies behind the landing pad, and a little less behind the slot's
        // start than `ahead` says.
        let moved = |reach: Reach| {
            reach.lo.0.saturating_sub(pad)..reach.hi.0.saturating_sub(pad + ahead as u64).saturating_add(1)
        };
        let jump = if island {
            let end = near_at.0.saturating_add(redirect::lengths(plan.isa).near as u64);
            end.saturating_sub(NEAR_REACH)..end.saturating_add(NEAR_REACH - len as u64)
        } else {
            0..u64::MAX
        };
        let near = plan.target.0 as usize;
        let mut last = sys::ENOMEM;
        for reach in [moving.relocation.reach(), moving.relocation.required_reach()] {
            let reach = intersection(&moved(reach), &jump);
            if reach.is_empty() {
                continue;
            }
            match self.arena.allocate(near, len, &(reach.start as usize..reach.end as usize), self.maps) {
                Ok(slot) => return Ok(slot),
                Err(errno) => last = errno,
            }
        }
        Err(Error::NoCodeMemory { target: plan.target, errno: last })
    }
}

/// Where a thread may be inside the bytes that the patch overwrites: in front of an instruction that isn't the window's first.
fn inner_positions(plan: &HookPlan, moving: &Moving) -> impl Iterator<Item = usize> {
    let patch_len = plan.patch_len;
    moving.window.offsets().filter(move |&offset| offset > 0 && offset < patch_len)
}

/// Where a thread goes on that traps in the patch: to the copy of the instruction that it was in front of.
fn ways(plan: &HookPlan, moving: &Moving, moved_at: CodeAddr, moved: &Relocated) -> Ways {
    let mut ways = [0; POSITIONS];
    for offset in moving.window.offsets().filter(|&offset| offset < plan.patch_len) {
        if let (Some(way), Some(to)) = (ways.get_mut(offset), moved.map().to_relocated(offset)) {
            *way = moved_at.add(to as u64).0;
        }
    }
    ways
}

/// The code of an island at `at` that goes to the replacement. In the middle of a function it may change no register.
fn island_code(plan: &HookPlan, at: CodeAddr, replacement: CodeAddr, inside: bool) -> Option<Bytes> {
    let behind = at.add(plan.undo.len() as u64);
    let jump = native::near(plan.isa, behind, replacement).or_else(|| {
        let allowed = !inside || redirect::costs(plan.isa).absolute.is_empty();
        native::absolute(plan.isa, behind, replacement).filter(|_| allowed)
    })?;
    Some(plan.undo.iter().chain(&jump).copied().collect())
}

fn intersection(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}
