//! What hooking one function would take. A plan reads the function and changes nothing.

use alloc::{boxed::Box, vec, vec::Vec};
use core::ops::Range;

use grapnel_relocator::{
    CodeAddr, Isa, RelocationPlan, Window, WindowOptions,
    flow::{self, Reason, Verdict},
    redirect,
};

use crate::{
    Error,
    memory::{
        maps::Maps,
        pages::Pages,
        view::{Bytes, MemoryView},
    },
    module::Module,
    native::{self, Pad},
    surroundings::{Inbound, Standing, Surroundings},
};

/// The longest function that is decoded whole for branches into its window.
pub(crate) const EXTENT_MAX: usize = 1 << 20;

/// How far before and behind the patch of a function of unknown length its jumps are followed.
const FOLLOWED: Range<usize> = 1024..4096;

/// The most padding behind a function that a patch may take.
const MAX_PADDING: usize = 16;

/// Whether a function can lie at an address that is to be hooked, or to be called.
pub(crate) fn is_code(maps: &Maps, at: usize) -> bool {
    // SAFETY: the object stays for as long as that takes: the caller is about to patch its code, or to have it called.
    unsafe { Module::is_code(maps, at) }
}

/// What the caller knows and wants of one hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The function's length in bytes, from its symbol. Without it the unwind table of its object is asked, then the symbols that
    /// the object exports, and then, with the feature `files`, those that only its files have: these are opened then.
    pub size: Option<usize>,
    /// Padding behind the function may be overwritten: `nop` and `int3` up to the next multiple of 16.
    pub use_padding: bool,
    /// Refuse what can't be proved safe.
    pub require_proof: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { size: None, use_padding: true, require_proof: false }
    }
}

/// What is known of branches into the bytes that are overwritten.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proof {
    /// The whole function was seen, and nothing in it branches there.
    Proven,
    /// No such branch was seen, and this is what could not be seen.
    Assumed(Reason),
    /// Where the function ends isn't known. What its direct jumps reach close by was seen, and nothing there branches there.
    ExtentUnknown,
    /// The function was seen, but not all that goes with it: its unwind entry begins before it, as one does that several functions of
    /// hand-written code share, or it jumps to more code elsewhere than is looked at. In what was seen nothing branches there.
    MoreElsewhere,
}

impl core::fmt::Display for Proof {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Proven => f.write_str("no branch leads into the patch"),
            Self::ExtentUnknown => f.write_str("the function's length isn't known"),
            Self::MoreElsewhere => f.write_str("more code goes with the function than was looked at"),
            Self::Assumed(Reason::IndirectJump(culprit)) => {
                write!(f, "an indirect jump may go anywhere: {culprit}")
            }
            Self::Assumed(Reason::LoopsToStart(culprit)) => {
                write!(f, "a loop goes through the function's start: {culprit}")
            }
            Self::Assumed(Reason::Unreached(at)) => {
                write!(f, "how the code at {at} is reached isn't known")
            }
            Self::Assumed(Reason::Undecodable(at)) => write!(f, "the bytes at {at} are no instruction"),
            Self::Assumed(reason) => write!(f, "{reason:?}"),
        }
    }
}

/// The shape of the patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PatchKind {
    /// A near redirect at the function's start.
    Near,
    /// A near redirect that runs over the padding behind a short function.
    NearOverPadding,
    /// A short redirect at the function's start, to a near one in padding close by.
    Short,
}

/// How one function would be hooked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookPlan {
    pub(crate) isa: Isa,
    pub(crate) target: CodeAddr,
    /// Where the patch goes: behind the landing pad, if the function begins with one.
    pub(crate) site: CodeAddr,
    pub(crate) patch_len: usize,
    pub(crate) original: Bytes,
    /// What the trampoline begins with, before the code that moves: the landing pad, so that it can be called through a
    /// pointer as the function can; in the middle of a function, what takes back what stubs left on the stack.
    pub(crate) preamble: &'static [u8],
    /// What the way to the replacement begins with, which undoes the landing pad.
    pub(crate) undo: &'static [u8],
    /// How many bytes of [`native::LEAD`] are ahead of the redirect.
    pub(crate) lead: usize,
    /// For a short patch, the padding that takes the near redirect, and what is there.
    pub(crate) stop: Option<(CodeAddr, Bytes)>,
    kind: PatchKind,
    proof: Proof,
    calls: Calls,
}

/// What becomes of the calls among the instructions that move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Calls {
    /// One returns to the trampoline.
    moved: bool,
    /// The last returns to the original.
    returns_past: bool,
}

impl Calls {
    fn of(relocation: &RelocationPlan) -> Self {
        Self { moved: relocation.calls().next().is_some(), returns_past: relocation.returns_past() }
    }
}

/// Which patch is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The shortest that leads anywhere near, and if the function is too short for it, [`Self::Short`].
    Usual,
    /// A near redirect with so many bytes ahead of it.
    Led(usize),
    /// A short redirect to a near one in padding.
    Short,
    /// As usual, to an island that is found by instructions that don't exist.
    Undefined,
}

impl Shape {
    /// What may do where no island can be had for the usual one.
    pub(crate) fn others() -> impl Iterator<Item = Self> {
        (1..=native::LEAD.len()).map(Self::Led).chain([Self::Short, Self::Undefined])
    }

    fn lead(self) -> usize {
        match self {
            Self::Led(lead) => lead,
            Self::Usual | Self::Short | Self::Undefined => 0,
        }
    }
}

/// The code that moves. It is large, and needed only until the trampoline is written.
#[derive(Debug)]
pub(crate) struct Moving {
    pub(crate) window: Window,
    pub(crate) relocation: RelocationPlan,
}

type Planned = Result<(HookPlan, Box<Moving>), Error>;

/// Lends `work` the process as it is now, where no other hook is.
fn looking<R>(work: impl FnOnce(&Surroundings<'_>) -> R) -> R {
    let (view, maps, standing) = (MemoryView::open(), Maps::read().ok(), Standing::new());
    let view = Pages::new(&view);
    work(&Surroundings::unclaimed(&view, maps.as_ref(), &standing))
}

impl HookPlan {
    /// Plans a hook on the function at `target` without changing anything.
    ///
    /// # Errors
    /// If the code can't be read or hooked, with the reason and a remedy.
    pub fn new(target: CodeAddr, options: Options) -> Result<Self, Error> {
        looking(|around| Self::usual(target, options, around))
    }

    /// As [`HookPlan::new`] of each of these functions, by one look at the process: to read what is mapped costs more than most plans.
    /// As if each were the only one to be hooked.
    pub fn all(functions: impl IntoIterator<Item = (CodeAddr, Options)>) -> Vec<Result<Self, Error>> {
        // Before the look: whoever finds the functions may load or unload something.
        let functions: Vec<_> = functions.into_iter().collect();
        if functions.is_empty() {
            return Vec::new();
        }
        looking(|around| {
            functions.into_iter().map(|(target, options)| Self::usual(target, options, around)).collect()
        })
    }

    fn usual(target: CodeAddr, options: Options, around: &Surroundings<'_>) -> Result<Self, Error> {
        Self::with(target, options, Shape::Usual, around).map(|(plan, _)| plan)
    }

    /// Plans a probe at an instruction of the function whose addresses are given, or are those of the unwind entry or of the
    /// symbol around it.
    ///
    /// # Errors
    /// If the code can't be read or probed, or the function around it isn't known, with the reason and a remedy.
    pub fn probe(at: CodeAddr, function: Option<Range<u64>>, options: Options) -> Result<Self, Error> {
        looking(|around| Self::inside(at, function, options, Shape::Usual, around).map(|(plan, _)| plan))
    }

    pub(crate) fn inside(
        target: CodeAddr,
        function: Option<Range<u64>>,
        options: Options,
        shape: Shape,
        around: &Surroundings<'_>,
    ) -> Planned {
        let (isa, target) = native::code_at(target);
        let maps = around.maps;
        if maps.is_some_and(|maps| !is_code(maps, target.0 as usize)) {
            return Err(Error::NotExecutable { target });
        }
        let described = || {
            let range = around.view.extent(maps?, target.0 as usize)?;
            Some(range.start as u64..range.end as u64)
        };
        let function = function
            .map(|range| native::code_at(CodeAddr(range.start)).1.0..range.end)
            .or_else(described)
            .filter(|range| range.contains(&target.0) && range.end - range.start <= EXTENT_MAX as u64)
            .ok_or(Error::NoFunction { target })?;
        let len = (function.end - function.start) as usize;
        // With the padding that may follow.
        let mut bytes = vec![0; len + MAX_PADDING];
        let read = around.read(function.start as usize, &mut bytes);
        bytes.truncate(read);
        let Some(code) = bytes.get(..len) else { return Err(Error::Unreadable { target }) };
        let offset = (target.0 - function.start) as usize;
        let behind = bytes.get(offset..).unwrap_or(&[]);
        let refused = |source| Error::Relocation { target, bytes: Bytes::new(behind), source };
        let lead = shape.lead();
        let patch_len = lead + redirect::lengths(isa).near;
        let wanted = WindowOptions {
            extent: Some(len - offset),
            allow_padding: options.use_padding,
            entry: offset == 0,
            ..WindowOptions::default()
        };
        let wanted =
            WindowOptions { allow_padding: padding_is_free(target, patch_len, wanted, around), ..wanted };
        let moving = moving(isa, target, behind, patch_len, wanted).map_err(refused)?;
        let Moving { window, relocation } = &*moving;
        let range = offset..offset + window.len();
        let from = CodeAddr(function.start);
        let verdict = flow::check_inside(isa, code, from, range, &flow::Surroundings::default());
        let original = Bytes::new(behind.get(..patch_len).unwrap_or(&[]));
        let proof = proof(verdict, target, Bytes::new(behind))?;
        if entry_around(target, around).is_none() {
            refuse_reached(isa, target, target, window.len(), Bytes::new(behind), around)?;
        }
        let whole = refuse_entered(isa, target, target, patch_len, &function, Bytes::new(behind), around)?;
        let proof = proof.of_what_was_seen(whole);
        let kind = if window.code_len() < patch_len { PatchKind::NearOverPadding } else { PatchKind::Near };
        let preamble = native::AFTER_PROBE;
        let site = target;
        let calls = Calls::of(relocation);
        let (undo, stop): (&[u8], _) = (&[], None);
        let plan =
            Self { isa, target, site, patch_len, original, preamble, undo, lead, stop, kind, proof, calls };
        Ok((plan.proved_as(options, Bytes::new(behind))?, moving))
    }

    /// The plan, if it is proved or needn't be.
    fn proved_as(self, options: Options, bytes: Bytes) -> Result<Self, Error> {
        match self.proof {
            Proof::Proven => Ok(self),
            _ if options.require_proof => {
                Err(Error::Unproved { target: self.target, bytes, proof: self.proof })
            }
            _ => Ok(self),
        }
    }

    pub(crate) fn with(
        target: CodeAddr,
        options: Options,
        shape: Shape,
        around: &Surroundings<'_>,
    ) -> Planned {
        let (isa, target) = native::code_at(target);
        let maps = around.maps;
        let at = target.0 as usize;
        if maps.is_some_and(|maps| !is_code(maps, at)) {
            return Err(Error::NotExecutable { target });
        }
        let described = || maps.and_then(|maps| around.view.extent(maps, at));
        let size = options.size.or_else(|| described().map(|range| range.end - at)).filter(|&size| size > 0);
        let wanted = size.unwrap_or(0).clamp(2 * native::MAX_INST_LEN + 20, EXTENT_MAX);
        let mut bytes = vec![0; wanted];
        let n = around.read(at, &mut bytes);
        bytes.truncate(n);
        if bytes.is_empty() {
            return Err(Error::Unreadable { target });
        }
        let pad =
            native::landing_pad(isa, &bytes).filter(|pad| size.is_none_or(|size| size > pad.bytes.len()));
        // A function that is too short behind its landing pad may still have room for the patch from its start on.
        let function = Function { isa, target, bytes: &bytes, size };
        let mut first = function.near(pad, shape.lead(), options, around);
        if pad.is_some() && first.is_err() && native::PADS_MAY_GO {
            first = function.near(None, shape.lead(), options, around).or(first);
        }
        let (plan, moving) = match (first, shape) {
            (Ok(planned), Shape::Usual | Shape::Led(_) | Shape::Undefined) => planned,
            (Err(refused), Shape::Led(_) | Shape::Undefined) => return Err(refused),
            (Err(refused), _) => function.short(options, around).ok_or(refused)?,
            (Ok(usual), Shape::Short) => function.short(options, around).unwrap_or(usual),
        };
        Ok((plan.proved_as(options, Bytes::new(&bytes))?, moving))
    }

    /// The function.
    pub fn target(&self) -> CodeAddr {
        self.target
    }

    /// Where the patch would go, and how many bytes it would change there.
    pub fn patch(&self) -> (CodeAddr, usize) {
        (self.site, self.patch_len)
    }

    /// The shape of the patch.
    pub fn kind(&self) -> PatchKind {
        self.kind
    }

    /// What is known of branches into it.
    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// Whether a call moves into the trampoline and returns there. What is thrown from there does not find the function's
    /// own handlers, nor its callers, unless unwind entries are asked for.
    pub fn moves_call(&self) -> bool {
        self.calls.moved
    }

    /// Whether the last of the instructions that move is a call which returns past the trampoline, to the original behind
    /// it. What is thrown from there passes as ever.
    pub fn returns_past(&self) -> bool {
        self.calls.returns_past
    }

    /// How long the trampoline can get, with what it begins with.
    pub(crate) fn trampoline_max(&self, moving: &Moving) -> usize {
        self.preamble.len() + moving.relocation.max_len()
    }

    /// Whether a call in the window returns into the bytes that the patch overwrites. A frame of the function may be on
    /// some stack then, even on that of who patches.
    pub(crate) fn returns_inside(&self, moving: &Moving) -> bool {
        let behind = |call: usize| moving.window.offsets().find(|&offset| offset > call);
        moving.relocation.calls().filter_map(behind).any(|offset| offset < self.patch_len)
    }

    /// Everything that the patch overwrites.
    pub(crate) fn overwritten(&self) -> impl Iterator<Item = Range<u64>> {
        let stop = self.stop.as_ref().map(|(at, found)| at.0..at.0 + found.as_slice().len() as u64);
        core::iter::once(self.site.0..self.site.0 + self.patch_len as u64).chain(stop)
    }
}

/// The window that a patch takes, and its relocation. Where returns are checked each call returns to where it was made from,
/// which is asked about only if it makes a difference. Both are large, and go into their box at once.
fn moving(
    isa: Isa,
    at: CodeAddr,
    bytes: &[u8],
    patch_len: usize,
    options: WindowOptions,
) -> Result<Box<Moving>, grapnel_relocator::Error> {
    let plan = |options| {
        let window = Window::decode_with(isa, at, bytes, patch_len, options)?;
        let relocation = RelocationPlan::new(&window)?;
        Ok(Box::new(Moving { window, relocation }))
    };
    let moving: Box<Moving> = plan(options)?;
    match moving.relocation.returns_past() && native::has_shadow_stack() {
        true => plan(WindowOptions { shadow_stack: true, ..options }),
        false => Ok(moving),
    }
}

/// A function whose entry is to be patched.
struct Function<'a> {
    isa: Isa,
    target: CodeAddr,
    bytes: &'a [u8],
    size: Option<usize>,
}

impl Function<'_> {
    fn near(&self, pad: Option<Pad>, lead: usize, options: Options, around: &Surroundings<'_>) -> Planned {
        let patch_len = lead + redirect::lengths(self.isa).near;
        let (plan, moving) = self.shaped(pad, patch_len, options.use_padding, None, around)?;
        Ok((HookPlan { lead, ..plan }, moving))
    }

    /// A shorter patch, which leads to a near redirect in padding that it reaches.
    fn short(&self, options: Options, around: &Surroundings<'_>) -> Option<(HookPlan, Box<Moving>)> {
        let lengths = redirect::lengths(self.isa);
        if lengths.short >= lengths.near {
            return None;
        }
        let stop = around.padding_near(self.isa, self.target, lengths.near)?;
        let found = around.view.bytes(stop.0 as usize, lengths.near);
        self.shaped(None, lengths.short, options.use_padding, Some((stop, found)), around).ok()
    }

    fn shaped(
        &self,
        pad: Option<Pad>,
        patch_len: usize,
        allow_padding: bool,
        stop: Option<(CodeAddr, Bytes)>,
        around: &Surroundings<'_>,
    ) -> Planned {
        let Self { isa, target, bytes, size } = *self;
        let Pad { bytes: preamble, undo } = pad.unwrap_or(Pad { bytes: &[], undo: &[] });
        let site = target.add(preamble.len() as u64);
        let refused = |source| Error::Relocation { target, bytes: Bytes::new(bytes), source };
        let behind = bytes.get(preamble.len()..).unwrap_or(&[]);
        let extent = size.map(|size| size.saturating_sub(preamble.len()));
        let options = WindowOptions { extent, allow_padding, ..WindowOptions::default() };
        let allow_padding = padding_is_free(site, patch_len, options, around);
        let options = WindowOptions { allow_padding, ..options };
        let moving = moving(isa, site, behind, patch_len, options).map_err(refused)?;
        let Moving { window, relocation } = &*moving;
        let proof = match extent.and_then(|extent| behind.get(..extent)) {
            None => {
                refuse_reached(isa, target, site, window.len(), Bytes::new(bytes), around)?;
                Proof::ExtentUnknown
            }
            Some(function) => {
                let proof = proof(flow::check(isa, function, site, window.len()), target, Bytes::new(bytes))?;
                // A symbol names less than a function whose cold part lies elsewhere, or that goes on behind a label of its own. And
                // functions of hand-written code may share an entry.
                let begins = entry_around(site, around).map(|range| range.start as u64);
                if begins.is_none_or(|begins| begins < target.0) {
                    refuse_reached(isa, target, site, window.len(), Bytes::new(bytes), around)?;
                }
                proof.of_what_was_seen(begins.is_none_or(|begins| begins >= target.0))
            }
        };
        let own = target.0..site.0.saturating_add(extent.unwrap_or(window.len()) as u64);
        let whole = refuse_entered(isa, target, site, patch_len, &own, Bytes::new(bytes), around)?;
        let proof = proof.of_what_was_seen(whole);
        let kind = match (&stop, window.code_len() < patch_len) {
            (Some(_), _) => PatchKind::Short,
            (None, true) => PatchKind::NearOverPadding,
            (None, false) => PatchKind::Near,
        };
        let original = Bytes::new(behind.get(..patch_len).unwrap_or(&[]));
        let calls = Calls::of(relocation);
        let lead = 0;
        let plan = HookPlan {
            isa,
            target,
            site,
            patch_len,
            original,
            preamble,
            undo,
            lead,
            stop,
            kind,
            proof,
            calls,
        };
        Ok((plan, moving))
    }
}

fn proof(verdict: Verdict, target: CodeAddr, bytes: Bytes) -> Result<Proof, Error> {
    match verdict {
        Verdict::Proven => Ok(Proof::Proven),
        Verdict::Assumed(reason) => Ok(Proof::Assumed(reason)),
        Verdict::Refused(culprit) => Err(Error::InboundBranch { target, bytes, culprit }),
        _ => Ok(Proof::ExtentUnknown),
    }
}

/// Whether what a patch would take behind its function may be padding: whatever has an unwind entry there is code, be it
/// made of `nop`.
fn padding_is_free(
    site: CodeAddr,
    patch_len: usize,
    options: WindowOptions,
    around: &Surroundings<'_>,
) -> bool {
    // One of unknown length may end anywhere behind its first byte.
    let behind = options.extent.unwrap_or(1)..patch_len;
    let own = site.0 as usize;
    let is_code = |maps, offset: usize| around.view.neighbour(maps, own, own.wrapping_add(offset)).is_some();
    options.allow_padding
        && !around.maps.is_some_and(|maps| behind.clone().any(|offset| is_code(maps, offset)))
}

/// The addresses that the function's unwind entry says, if it has one.
fn entry_around(at: CodeAddr, around: &Surroundings<'_>) -> Option<Range<usize>> {
    around.view.described(around.maps?, at.0 as usize)
}

/// Refuses a patch into which another function is seen to branch; `own` are the addresses of the hooked one. Answers whether
/// all was looked at that it jumps to.
fn refuse_entered(
    isa: Isa,
    target: CodeAddr,
    site: CodeAddr,
    patch_len: usize,
    own: &Range<u64>,
    bytes: Bytes,
    around: &Surroundings<'_>,
) -> Result<bool, Error> {
    let patch = site.0..site.0.saturating_add(patch_len as u64);
    let Some(maps) = around.maps else { return Ok(true) };
    match native::branch_into(isa, &patch, own, maps, around) {
        Inbound::From(culprit) => Err(Error::InboundBranch { target, bytes, culprit }),
        Inbound::Nothing => Ok(true),
        Inbound::MoreElsewhere => Ok(false),
    }
}

impl Proof {
    /// The same if not all that goes with the function was seen.
    fn of_what_was_seen(self, whole: bool) -> Self {
        if self == Self::Proven && !whole { Self::MoreElsewhere } else { self }
    }
}

/// Refuses a patch into which code leads that the function's jumps reach.
fn refuse_reached(
    isa: Isa,
    target: CodeAddr,
    site: CodeAddr,
    window_len: usize,
    bytes: Bytes,
    around: &Surroundings<'_>,
) -> Result<(), Error> {
    let at = site.0 as usize;
    let (from, code) = around.code_around(at, FOLLOWED.start, FOLLOWED.end);
    let window = at - from..at - from + window_len;
    match flow::reached_inside(isa, &code, CodeAddr(from as u64), window) {
        Some(culprit) => Err(Error::InboundBranch { target, bytes, culprit }),
        None => Ok(()),
    }
}
