//! `operator new` and `operator delete`, in all their forms, wherever an object exports them.
//!
//! What the program asked for is one event, that of the operator which it called: what that calls in turn, other forms
//! and `malloc`, is part of it. How each block was asked for is noted ([`crate::shadow`]). What gives it back otherwise,
//! or seems to, is told to the trace with its stack; the analysis, which knows all that happened to the block, decides.
//!
//! Of a sample, only operators that aren't those of C++ itself are hooked: an allocator's don't call `malloc`.
//!
//! An operator that no object exports, as in a program that contains libstdc++ and shares it with nobody, is not seen.
//! What it calls is.

use crate::entry::{SavedRegisters, rescued};
use crate::families::Role;
use crate::native::slots::{DIRECT, is_passable};
use crate::record::{self, enter};
use crate::shadow::{self, Asked};
use crate::slots::{self, Calls, Frame, Wanted, What};
use crate::span::Span;
use crate::symbols::FileSymbols;
use crate::{families, hooks, known, native, sampled, sampling, session};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use grapnel_hook::module::Module;
use grapnel_hook::rebind;
use grapnel_hook::symbol::{self, SymbolKind};
use grapnel_hook::{CodeAddr, HookPlan, Options};
use grapnel_trace::shared::failure;
use grapnel_trace::{Alignment, FreedAs, Release, Source};
use memchr::memmem;

/// Which form of an operator a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operator {
    deletes: bool,
    array: bool,
    /// `delete` is told a size. `new` always is.
    sized: bool,
    /// It is told an alignment, after the size if there is one.
    aligned: bool,
    /// The same code is that of another form too: which of them was called can't be known.
    shared: bool,
    /// It is the program's own, or a library's: the compiler may have put its like into callers, where it isn't seen.
    own: bool,
}

impl Operator {
    pub(crate) fn to_u8(self) -> u8 {
        let bits = [self.deletes, self.array, self.sized, self.aligned, self.shared, self.own];
        bits.iter().rev().fold(0, |all, &bit| all << 1 | u8::from(bit))
    }

    #[inline(always)]
    pub(crate) fn from_u8(n: u8) -> Self {
        let bit = |at: u8| n >> at & 1 != 0;
        Self { deletes: bit(0), array: bit(1), sized: bit(2), aligned: bit(3), shared: bit(4), own: bit(5) }
    }

    /// What it is to an allocator that has it.
    fn role(self) -> Role {
        match (self.deletes, self.aligned) {
            (true, _) => Role::Free,
            (false, false) => Role::Malloc,
            // The alignment comes last.
            (false, true) => Role::Valloc,
        }
    }

    /// Whether it is the program's own, or a library's that isn't C++ itself.
    pub(crate) fn is_own(self) -> bool {
        self.own
    }

    /// Whether it is that of an implementation of C++ itself, and which form of it was called is known: then it does nothing
    /// but call `malloc` or `free`, or what does so in turn. Not of one that is told an alignment, and not where the program or
    /// a library has any operator of its own, which the runtime's may call.
    pub(crate) fn calls_only_libc(self) -> bool {
        !self.own && !self.shared && !self.aligned && !ANY_OWN.load(Ordering::Relaxed)
    }

    /// Whether it is a `delete`.
    pub(crate) fn gives_back(self) -> bool {
        self.deletes
    }

    /// Whether it is a `new` that is told a size alone, or no exceptions besides.
    pub(crate) fn gives(self) -> bool {
        !self.deletes && !self.aligned
    }

    /// How a block comes from it, of a `new`.
    #[inline(always)]
    fn source(self) -> Source {
        if self.array { Source::NewArray } else { Source::New }
    }

    /// What a caller with these registers said of the block.
    fn asked(self, saved: &SavedRegisters) -> Asked {
        let (size, alignment) = match (self.deletes, self.sized) {
            (false, _) => (saved.argument(0), saved.argument(1)),
            (true, true) => (saved.argument(1), saved.argument(2)),
            (true, false) => (0, saved.argument(1)),
        };
        let align_log2 = self.aligned.then(|| alignment.checked_ilog2().unwrap_or(0) as u8);
        Asked { array: self.array, align_log2, size: size as usize }
    }
}

impl Asked {
    pub(crate) fn alignment(self) -> Alignment {
        self.align_log2.map_or(Alignment::NONE, |log2| Alignment::of(1 << (log2 & 63)))
    }
}

const fn new(array: bool, aligned: bool) -> Operator {
    Operator { deletes: false, array, sized: true, aligned, shared: false, own: false }
}

const fn delete(array: bool, sized: bool, aligned: bool) -> Operator {
    Operator { deletes: true, array, sized, aligned, shared: false, own: false }
}

/// The letter of `size_t` in names: it is `unsigned long`, or `unsigned int` where that has a word.
#[cfg(target_pointer_width = "64")]
macro_rules! size_t {
    () => {
        "m"
    };
}
#[cfg(target_pointer_width = "32")]
macro_rules! size_t {
    () => {
        "j"
    };
}

/// A name with a `size_t` in it.
macro_rules! sized {
    ($before:literal, $after:literal) => {
        concat!($before, size_t!(), $after).as_bytes()
    };
}

/// The names by the Itanium C++ ABI.
const NAMES: [(&[u8], Operator); 20] = [
    (sized!("_Znw", ""), new(false, false)),
    (sized!("_Zna", ""), new(true, false)),
    (sized!("_Znw", "RKSt9nothrow_t"), new(false, false)),
    (sized!("_Zna", "RKSt9nothrow_t"), new(true, false)),
    (sized!("_Znw", "St11align_val_t"), new(false, true)),
    (sized!("_Zna", "St11align_val_t"), new(true, true)),
    (sized!("_Znw", "St11align_val_tRKSt9nothrow_t"), new(false, true)),
    (sized!("_Zna", "St11align_val_tRKSt9nothrow_t"), new(true, true)),
    (b"_ZdlPv", delete(false, false, false)),
    (b"_ZdaPv", delete(true, false, false)),
    (b"_ZdlPvRKSt9nothrow_t", delete(false, false, false)),
    (b"_ZdaPvRKSt9nothrow_t", delete(true, false, false)),
    (sized!("_ZdlPv", ""), delete(false, true, false)),
    (sized!("_ZdaPv", ""), delete(true, true, false)),
    (b"_ZdlPvSt11align_val_t", delete(false, false, true)),
    (b"_ZdaPvSt11align_val_t", delete(true, false, true)),
    (b"_ZdlPvSt11align_val_tRKSt9nothrow_t", delete(false, false, true)),
    (b"_ZdaPvSt11align_val_tRKSt9nothrow_t", delete(true, false, true)),
    (sized!("_ZdlPv", "St11align_val_t"), delete(false, true, true)),
    (sized!("_ZdaPv", "St11align_val_t"), delete(true, true, true)),
];

/// What is recorded before an operator's own code runs: what `delete` gives back.
pub(crate) fn before(saved: &SavedRegisters, operator: Operator, original: usize, frame: &Frame) {
    let block = saved.argument(0);
    if sampling::is_on() {
        return match operator.deletes {
            true => sampled::given_back(saved, block, original),
            false => sampling::choose(block as usize, frame),
        };
    }
    if !operator.deletes {
        return record::expect(saved);
    }
    if block != 0 {
        give_back(saved, operator, original, block, shadow::take(block as usize));
    }
}

/// Records that a block is given back of which this was noted.
#[inline(never)]
fn give_back(saved: &SavedRegisters, operator: Operator, original: usize, block: u64, entry: u16) {
    let asked = operator.asked(saved);
    let fits = asked.is_like(entry, operator.sized)
        || operator.shared
        || (operator.own && entry == 0)
        || shadow::is_incomplete();
    rescued(saved, ptr::null_mut(), original, || {
        enter(saved, |context| {
            if fits {
                return context.plain(record::FREE, block);
            }
            let release = if operator.array { Release::DeleteArray } else { Release::Delete };
            let size = operator.sized.then_some(asked.size as u64);
            let said = FreedAs { thread: 0, stack: 0, release, alignment: asked.alignment(), size };
            context.freed_as(saved, said, record::FREE, block);
        });
    });
}

/// As [`before`], of a `delete` that [calls only `free`](Operator::calls_only_libc) and a block that is given back as it was got, where
/// that is seen at once. Whether it was; otherwise nothing was done.
#[inline(always)]
pub(crate) fn is_simply_deleted<const NUMBERED: bool>(
    saved: &SavedRegisters,
    operator: Operator,
    original: usize,
) -> bool {
    let block = saved.argument(0);
    let Some(entry) = shadow::entry(block as usize) else { return false };
    let size = if operator.sized { saved.argument(1) as usize } else { 0 };
    let asked = Asked { array: operator.array, align_log2: None, size };
    // Nothing is noted of the block at 0.
    asked.is_like(entry.load(Ordering::Relaxed), operator.sized)
        && record::plain_quickly::<NUMBERED>(saved, original, record::FREE, block, Some(entry))
}

/// What is recorded afterwards: what `new` gave. `noted`: see [`Frame::note`].
pub(crate) fn after(saved: &SavedRegisters, operator: Operator, block: usize, noted: usize) {
    if operator.deletes || block == 0 {
        return;
    }
    let asked = operator.asked(saved);
    if sampling::is_on() {
        let mean = sampling::chosen_before(noted);
        return sampled::given_by_operator(saved, block, &asked, operator.source(), mean);
    }
    families::has_asked(asked.size);
    rescued(saved, ptr::with_exposed_provenance_mut(block), 0, || {
        let place = if operator.shared { None } else { shadow::expect(block) };
        enter(saved, |context| {
            let source = operator.source();
            context.alloc_aligned(saved, block as u64, asked.size as u64, source, asked.alignment());
        });
        if let Some(place) = place {
            place.note(asked);
        }
    });
}

/// As [`after`], of a `new` that [calls only `malloc`](Operator::calls_only_libc).
#[inline(always)]
pub(crate) fn after_simple_new(saved: &SavedRegisters, operator: Operator, block: usize) {
    if block == 0 {
        return;
    }
    let size = saved.argument(0);
    rescued(saved, ptr::with_exposed_provenance_mut(block), 0, || {
        let place = shadow::expect(block);
        enter(saved, |context| context.alloc(saved, block as u64, size, operator.source()));
        if let Some(place) = place {
            place.note(Asked { array: operator.array, align_log2: None, size: size as usize });
        }
    });
}

/// Whether an object is an implementation of C++ itself, whose operators call nothing but `malloc` and its kin, the
/// `new_handler`, and each other.
fn is_runtime(module: &Module) -> bool {
    is_of_libcxx(module) || module.file_name().starts_with(b"libstdc++.so")
}

fn is_of_libcxx(module: &Module) -> bool {
    [&b"libc++.so"[..], b"libc++abi.so"].iter().any(|name| module.file_name().starts_with(name))
}

/// The code of C++ itself, where it is a library's: of libstdc++, or of libc++ and what that builds on.
static RUNTIMES: [Span; 3] = [const { Span::empty() }; 3];

/// Keeps where that of an object lies. Only under PROCESS, or in the only thread.
fn remember_runtime(module: &Module) {
    let Some(code) = module.segments().iter().find(|segment| segment.execute) else { return };
    let place = RUNTIMES.iter().find(|kept| [0, code.range.start].contains(&kept.start()));
    if let Some(kept) = place {
        kept.set(&code.range);
    }
}

/// Whether code at an address is C++'s own.
pub(crate) fn is_of_runtime(address: usize) -> bool {
    RUNTIMES.iter().any(|code| code.holds(address))
}

/// The code whose calls are part of an operator with this range.
fn own_code(module: &Module, range: &Range<usize>) -> Range<usize> {
    if is_of_libcxx(module) {
        // Its operators share a function that isn't exported.
        let holds = |code: &&grapnel_hook::module::Segment| code.execute && code.range.contains(&range.start);
        return module.segments().iter().find(holds).map_or(range.clone(), |code| code.range.clone());
    }
    // In libstdc++ each calls malloc itself, and what else lies around them allocates for exceptions. A program's own may call
    // anything.
    if is_runtime(module) { range.clone() } else { 0..usize::MAX }
}

/// Looks whether an object has operators that it doesn't export, as where libstdc++ is linked into it: what they give is `malloc`'s, and
/// what they are given back may be of operators that are hooked.
pub(crate) fn heed_hidden(module: &Module, file: &FileSymbols) {
    const DELETE: &[u8] = b"_ZdlPv";
    // What is imported has its version behind its name, or is not defined.
    let is_named = memmem::find(file.names(), b"\0_ZdlPv\0").is_some();
    if !is_named || is_runtime(module) || symbol::find(module, DELETE).is_some() {
        return;
    }
    let mut is_defined = false;
    file.for_each(module.bias(), &mut |name, _| is_defined |= name == DELETE);
    if is_defined {
        shadow::is_now_incomplete();
    }
}

/// The same of an object without a table of symbols: whether it throws, has what C++ calls its exceptions by, and calls no `delete` of others.
/// Not of what is larger than any such library's constants: to read it would take as long as the program's start.
pub(crate) fn heed_stripped(module: &Module) {
    const MOST: usize = 32 << 20;
    const THROWS: [&[u8]; 3] = [b"_Unwind_Resume\0", b"dl_iterate_phdr\0", b"_dl_find_object\0"];
    let names = symbol::names(module);
    let has = |name: &[u8]| memmem::find(names, name).is_some();
    // Whether it is so is asked only where operators are hooked that may be told from others.
    let is_asked = cfg!(not(grapnel_attached)) && !sampling::is_on();
    if !is_asked || is_runtime(module) || has(b"_ZdlPv") || !THROWS.iter().any(|name| has(name)) {
        return;
    }
    let constants = module.segments().iter().filter(|segment| segment.read && !segment.write);
    let mut contents = constants.filter(|segment| segment.range.len() <= MOST).map(|segment| {
        let start = ptr::with_exposed_provenance(segment.range.start);
        // SAFETY: a segment that can be read and isn't written to, of an object that is loaded as long as this looks.
        unsafe { core::slice::from_raw_parts::<u8>(start, segment.range.len()) }
    });
    // The name of `std::bad_alloc`'s type, which lies beside the operators that throw it.
    if contents.any(|bytes| memmem::find(bytes, b"St9bad_alloc\0").is_some()) {
        shadow::is_now_incomplete();
    }
}

/// Hooks the operators that these objects export. None of their code runs meanwhile. Only under PROCESS, or in the only
/// thread.
pub(crate) fn install<'m>(modules: impl Iterator<Item = &'m Module>) {
    for ready in prepare(modules) {
        // SAFETY: the caller's promise.
        unsafe { ready.commit() };
    }
}

/// What is loaded with the program has no operators of its own, and its blocks are those of glibc's `malloc`.
#[cfg(not(grapnel_attached))]
pub(crate) fn note_blocks_of_glibc() {
    if !sampling::is_on() && !ANY_OWN.load(Ordering::Relaxed) && cfg!(not(target_os = "android")) {
        shadow::blocks_are_chunks();
    }
}

/// Hooks on the operators of an object, ready to go in.
#[derive(Debug)]
pub(crate) struct Ready {
    /// The object's.
    name: String,
    pub(crate) hooks: slots::Ready,
}

/// Prepares hooks on the operators that these objects export. Only under PROCESS, or in the only thread.
///
/// In a process that is attached to there are none: no unwinder knows the stubs there, and what an operator throws through one
/// would end the program.
pub(crate) fn prepare<'m>(modules: impl Iterator<Item = &'m Module>) -> Vec<Ready> {
    let mut all = Vec::new();
    let modules: Vec<&Module> = modules.collect();
    if cfg!(grapnel_attached) || !is_passable(&modules) {
        return all;
    }
    for module in modules {
        if is_runtime(module) {
            remember_runtime(module);
            // What they call is what is recorded of a sample: a second hook in each call would cost more than all the rest.
            if sampling::is_on() {
                continue;
            }
        }
        let (mut found, heap) = exported(module);
        let is_leaf = known::is_library(module);
        if is_leaf && sampling::is_on() {
            let starts: Vec<usize> = found.iter().map(|(_, range)| range.start).collect();
            // What is no more than another of them would be chosen twice.
            // SAFETY: functions of the object, which is loaded.
            let other = |at| unsafe { native::gates::is_only_jump_to(at) };
            found.retain(|(operator, range)| {
                operator.deletes || !other(range.start).is_some_and(|other| starts.contains(&other))
            });
        }
        if found.is_empty() {
            continue;
        }
        let words = words(module);
        let what = |(operator, range): (Operator, Range<usize>)| {
            if let Some((handle, code)) = &heap {
                return Wanted {
                    what: What::Family(operator.role(), *handle),
                    range,
                    code: code.clone(),
                    is_leaf,
                };
            }
            let code = own_code(module, &range);
            let calls = if operator.own { None } else { calls(module, range.start, &words) };
            Wanted { what: What::Operator(operator, calls), range, code, is_leaf }
        };
        let found: Vec<_> = found.into_iter().map(what).collect();
        let name = format!("{}", module.file_name().escape_ascii());
        match slots::prepare_all(&found) {
            Ok(Some(hooks)) => all.push(Ready { name, hooks }),
            Ok(None) => not_hooked(&name, "there are more operators than grapnel has room for"),
            Err(error) => not_hooked(&name, &format!("{error}")),
        }
    }
    all
}

fn not_hooked(name: &str, why: &str) {
    shadow::is_now_incomplete();
    let note = format!(
        "new and delete of {name} are seen as malloc and free, and no block is said to be given back in the wrong way: {why}"
    );
    session::report_failure(failure::NOTE, note.as_bytes());
}

impl Ready {
    /// Puts the hooks in.
    ///
    /// # Safety
    /// Nobody runs the object's code meanwhile.
    pub(crate) unsafe fn commit(self) {
        // SAFETY: the caller's promise.
        if let Err(error) = unsafe { self.hooks.commit() } {
            not_hooked(&self.name, &format!("{error}"));
        }
    }
}

/// The operators of a C++ runtime that come to no more than a call of `malloc`, or for the others `free`, and which of these they
/// call on their way, by the places of their names in this list.
const SIMPLE: [(&[u8], &[u8], &[usize]); 6] = [
    (sized!("_Znw", ""), b"malloc", &[]),
    (sized!("_Zna", ""), b"malloc", &[0]),
    (b"_ZdlPv", b"free", &[]),
    (sized!("_ZdlPv", ""), b"free", &[2]),
    (b"_ZdaPv", b"free", &[2]),
    (sized!("_ZdaPv", ""), b"free", &[2, 4]),
];

/// The names by which such a runtime calls others.
const CALLED: [&[u8]; 8] =
    [SIMPLE[0].0, SIMPLE[1].0, SIMPLE[2].0, SIMPLE[3].0, SIMPLE[4].0, SIMPLE[5].0, b"malloc", b"free"];

/// Stands for more than one word.
const SEVERAL: usize = 1;

/// For each of these names the word by which an object calls it; 0 where there is none.
fn words(module: &Module) -> [usize; CALLED.len()] {
    let mut words = [0; CALLED.len()];
    if DIRECT && is_runtime(module) {
        rebind::for_each_word(module, &CALLED, &mut |number, at| {
            let is_one = words[number] == 0 && at.is_multiple_of(align_of::<usize>());
            words[number] = if is_one { at } else { SEVERAL };
        });
    }
    words
}

/// By which words a runtime's operator at an address calls others, if it is a simple one.
fn calls(module: &Module, address: usize, words: &[usize; CALLED.len()]) -> Option<Calls> {
    let lies_at = |name: &[u8]| symbol::find(module, name).map_or(0, |symbol| symbol.addr);
    let (_, libc, through) = SIMPLE.iter().find(|(name, ..)| lies_at(name) == address)?;
    let libc = CALLED.iter().position(|name| name == libc)?;
    let mut calls = Calls { libc: words[libc], others: Default::default() };
    for (to, &number) in calls.others.iter_mut().zip(*through) {
        *to = [words[number], lies_at(SIMPLE[number].0)];
    }
    let is_clear = calls.libc != SEVERAL && calls.others.iter().all(|[word, _]| *word != SEVERAL);
    is_clear.then_some(calls)
}

/// Whether an object that isn't C++ itself was seen to export an operator.
///
/// Set for the program and what is loaded with it before any of them runs. Those that come later are called by nobody who was
/// there before.
static ANY_OWN: AtomicBool = AtomicBool::new(false);

/// An operator, and its code.
type Exported = (Operator, Range<usize>);

/// The operators that an object exports and that are not hooked, each code once.
///
/// One that throws is left out if a call of its own would return to the trampoline: what is thrown by that may not come back. One
/// at the end of what moves returns to the original, as that of libstdc++'s forms with `nothrow`, which call those without.
///
/// Where one is the same code as a function of another heap, all that this object has is of that heap: its handle, and the object's code.
fn exported(module: &Module) -> (Vec<Exported>, Option<(u32, Range<usize>)>) {
    let own = !is_runtime(module);
    let (mut candidates, mut heap) = (Vec::new(), None);
    for (name, operator) in NAMES {
        let Some(symbol) = symbol::find(module, name) else { continue };
        if own {
            ANY_OWN.store(true, Ordering::Relaxed);
            shadow::blocks_may_be_close();
        }
        heap = heap.or_else(|| {
            let handle = slots::handle_at(symbol.addr).filter(|&handle| handle != 0)?;
            let mut code = module.segments().iter().filter(|segment| segment.execute);
            Some((handle, code.find(|segment| segment.range.contains(&symbol.addr))?.range.clone()))
        });
        if symbol.kind != SymbolKind::Function || slots::is_hooked(symbol.addr) {
            continue;
        }
        // One function for `malloc` and `new`, or for `free` and `delete`: which of them was called can't be known.
        if hooks::is_target(symbol.addr) {
            // Of a sample that isn't asked: what is noted is which blocks were recorded.
            if !sampling::is_on() {
                shadow::do_without(operator.deletes);
            }
            continue;
        }
        candidates.push((Operator { own, ..operator }, symbol));
    }
    let throwing = candidates.iter().filter(|(operator, _)| !operator.deletes);
    let options = |size| Options { size: Some(size), ..Options::default() };
    let planned =
        HookPlan::all(throwing.map(|(_, symbol)| (CodeAddr(symbol.addr as u64), options(symbol.size))));
    let mut returns = planned.into_iter().map(|plan| plan.is_ok_and(|plan| plan.moves_call()));
    let mut found: Vec<(Operator, Range<usize>)> = Vec::new();
    for (operator, symbol) in candidates {
        if !operator.deletes && returns.next().unwrap_or(true) {
            continue;
        }
        match found.iter_mut().find(|(_, range)| range.start == symbol.addr) {
            Some((other, _)) => other.shared |= *other != operator,
            None => found.push((operator, symbol.range())),
        }
    }
    (found, heap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_comes_back_from_its_number() {
        let mut numbers: Vec<u8> = Vec::new();
        for (_, operator) in NAMES {
            assert_eq!(Operator::from_u8(operator.to_u8()), operator);
            let marked = Operator { shared: true, own: true, ..operator };
            assert_eq!(Operator::from_u8(marked.to_u8()), marked);
            numbers.push(operator.to_u8());
        }
        numbers.sort_unstable();
        numbers.dedup();
        // Those that may not throw are as those that may.
        assert_eq!(numbers.len(), 12);
    }
}
