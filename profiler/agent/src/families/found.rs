//! Which families an object has, by the names of its functions, and the hooks on them.

use super::{Role, before, not_recorded, nothing_is_given_back};
use crate::hooks::{self, Function};
use crate::slots::{self, Wanted, What};
use crate::symbols::{self, FileSymbols};
use crate::{heaps, known, native, operators, sampling};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use core::ptr;
#[cfg(grapnel_attached)]
use grapnel_hook::Prepared;
use grapnel_hook::module::Module;
use grapnel_hook::symbol::{self, SymbolKind};
use grapnel_trace::HeapKind;
use memchr::memmem;

/// What a family's functions are called behind its prefix. The first four, and one of the three behind them, make one, the first and the fourth one that
/// may be.
/// `reallocarray` isn't among them: libc's, and those that hand on to it, end in `realloc`.
const NAMES: [(&[u8], Role); 36] = [
    (b"malloc", Role::Malloc),
    (b"calloc", Role::Calloc),
    (b"realloc", Role::Realloc),
    (b"free", Role::Free),
    (b"memalign", Role::Memalign),
    (b"aligned_alloc", Role::Memalign),
    (b"posix_memalign", Role::PosixMemalign),
    (b"valloc", Role::Valloc),
    (b"pvalloc", Role::Valloc),
    (b"cfree", Role::Free),
    (b"free_sized", Role::Free),
    (b"free_aligned_sized", Role::Free),
    // jemalloc's, with flags behind the arguments.
    (b"mallocx", Role::Malloc),
    (b"rallocx", Role::Realloc),
    (b"dallocx", Role::Free),
    (b"sdallocx", Role::Free),
    // mimalloc's.
    (b"zalloc", Role::Zalloc),
    (b"malloc_small", Role::Malloc),
    (b"zalloc_small", Role::Zalloc),
    (b"mallocn", Role::Calloc),
    (b"reallocn", Role::ReallocArray),
    (b"malloc_aligned", Role::Valloc),
    (b"zalloc_aligned", Role::Valloc),
    (b"calloc_aligned", Role::Calloc),
    (b"realloc_aligned", Role::Realloc),
    (b"free_size", Role::Free),
    (b"free_aligned", Role::Free),
    (b"free_size_aligned", Role::Free),
    (b"new_n", Role::Calloc),
    (b"malloc_aligned_at", Role::Valloc),
    (b"zalloc_aligned_at", Role::Valloc),
    (b"calloc_aligned_at", Role::Calloc),
    (b"realloc_aligned_at", Role::Realloc),
    (b"reallocf", Role::Realloc),
    (b"rezalloc", Role::Realloc),
    (b"recalloc", Role::ReallocArray),
];

/// Whether functions at these places of [`NAMES`] make a family.
fn is_whole(found: u64) -> bool {
    const FIRST: u64 = 0b1111;
    const ALIGNED: u64 = 0b111 << 4;
    found & FIRST == FIRST && found & ALIGNED != 0
}

/// Whether functions at these places of [`NAMES`] may make one.
fn is_candidate(found: u64) -> bool {
    const GIVES_AND_TAKES: u64 = 0b1001;
    found & GIVES_AND_TAKES == GIVES_AND_TAKES
}

/// Functions of an object whose names have a prefix in common.
#[derive(Debug, PartialEq, Eq)]
struct Family {
    prefix: Vec<u8>,
    functions: Vec<(Role, Range<usize>)>,
    /// The places of [`NAMES`] that were found.
    found: u64,
}

/// Tells of names and where the functions lie that have them.
pub(crate) type Visit<'v> = dyn FnMut(&[u8], Range<usize>) + 'v;

/// More prefixes than any object has families.
const MOST: usize = 64;

/// What the name of one function of each family ends with.
const MALLOC: &[u8] = b"malloc";

/// Whether any of these names, each of which ends with a 0, is one of a family's function: to look through all symbols of a large
/// library takes milliseconds, and nearly all have no such name, or `malloc`'s own, which they take from libc. Then it is asked
/// whether they `define` it.
fn may_have_families(names: &[u8], define: impl FnOnce() -> bool) -> bool {
    let ends = memmem::find_iter(names, b"malloc\0");
    let mut is_there = false;
    for at in ends {
        // Not the end of a longer name.
        if at == 0 || names[at - 1] == 0 {
            is_there = true;
        } else {
            return true;
        }
    }
    is_there && define()
}

/// The families among all functions that `visit` tells of, whole or not.
fn families(visit: &dyn Fn(&mut Visit<'_>)) -> Vec<Family> {
    let mut all: Vec<Family> = Vec::new();
    visit(&mut |name, _| {
        if let Some(prefix) = name.strip_suffix(MALLOC)
            && all.len() < MOST
            && !all.iter().any(|family| family.prefix == prefix)
        {
            all.push(Family { prefix: prefix.to_vec(), functions: Vec::new(), found: 0 });
        }
    });
    if all.is_empty() {
        return all;
    }
    visit(&mut |name, range| {
        for family in &mut all {
            let Some(rest) = name.strip_prefix(&family.prefix[..]) else { continue };
            let Some(at) = NAMES.iter().position(|(known, _)| *known == rest) else { continue };
            family.found |= 1 << at;
            if !family.functions.iter().any(|(_, other)| other.start == range.start) {
                family.functions.push((NAMES[at].1, range.clone()));
            }
        }
    });
    all
}

/// The object's first segment, as it lies in memory.
fn beginning(module: &Module) -> &[u8] {
    let readable = module.segments().iter().filter(|segment| segment.read);
    readable.min_by_key(|segment| segment.range.start).map_or(&[], |segment| {
        let start = ptr::with_exposed_provenance(segment.range.start);
        // SAFETY: a readable segment of an object that is loaded for as long as the module is used, and whose headers nobody
        // writes to.
        unsafe { core::slice::from_raw_parts(start, segment.range.len()) }
    })
}

/// The path of an object's file.
pub(crate) fn path(module: &Module) -> Vec<u8> {
    match module.name() {
        b"" => b"/proc/self/exe".to_vec(),
        name => name.to_vec(),
    }
}

/// Tells the families of an object from those of others with their names. Not 0.
fn origin(path: &[u8]) -> u32 {
    let mix = |hash: u32, &byte: &u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    path.iter().fold(0x811c_9dc5, mix) | 1
}

/// The symbol table of an object's file, if it has one.
pub(crate) fn in_file(module: &Module, path: &[u8]) -> Option<FileSymbols> {
    symbols::read(path, beginning(module))
}

/// Hooks on a family, ready to go in.
#[derive(Debug)]
pub(crate) struct Ready {
    name: Vec<u8>,
    /// That of its heap.
    handle: u32,
    pub(crate) hooks: slots::Ready,
}

/// What can't be recorded of families, told at once: there is room for one note.
#[derive(Debug, Default)]
struct Lacks(Vec<(Vec<u8>, String)>);

impl Lacks {
    fn add(&mut self, name: Vec<u8>, why: &dyn core::fmt::Display) {
        self.0.push((name, format!("{why}")));
    }

    fn tell(self) {
        let mut lacks = self.0.into_iter();
        if let Some((name, mut why)) = lacks.next() {
            for (name, other) in lacks {
                why += &format!("; nor what {} gives: {other}", name.escape_ascii());
            }
            not_recorded(&name, &why);
        }
    }
}

/// Hooks the families of these objects, but for the functions that are hooked already. None of their code runs meanwhile.
/// Only under PROCESS, or in the only thread. The handles of their heaps.
pub(crate) fn install<'m>(modules: impl Iterator<Item = (&'m Module, &'m [u8])>) -> Vec<u32> {
    let (mut lacks, mut handles) = (Lacks::default(), Vec::new());
    prepare(modules, &[], &mut |found| match found {
        // At once: the next one may lie where this one's hooks do.
        // SAFETY: the caller's promise.
        Ok(Ready { name, handle, hooks }) => match unsafe { hooks.commit() } {
            Ok(()) => handles.push(handle),
            Err(error) => {
                // Some of its hooks may be in.
                if handle != 0 {
                    slots::let_by(handle);
                    heaps::close(handle.into());
                }
                lacks.add(name, &error);
            }
        },
        Err((name, error)) => lacks.add(name, &error),
    });
    lacks.tell();
    handles
}

/// Prepares hooks on the families of these objects, but for the functions that are hooked already, and for those of which a call under way may
/// return into what will be changed, or that lie where hooks of `before` or of others of them do. Those are of functions that begin at these `places`. Only under PROCESS.
#[cfg(grapnel_attached)]
pub(crate) fn ready<'m>(
    modules: impl Iterator<Item = (&'m Module, &'m [u8])>,
    before: &Prepared<'_>,
    places: &[usize],
) -> Vec<slots::Ready> {
    let (mut lacks, mut all) = (Lacks::default(), Vec::<slots::Ready>::new());
    let mut changed = slots::changed(before);
    prepare(modules, places, &mut |found| match found {
        Ok(Ready { name, hooks, .. }) => {
            let changes = hooks.changed();
            if hooks.is_returned_into() {
                hooks.forgo();
                lacks.add(name, &"a call under way may return into what would change");
            } else if changes.iter().any(|range| overlaps(&changed, range)) {
                hooks.forgo();
                lacks.add(name, &"it lies too near to another function that is hooked");
            } else {
                changed.extend(changes);
                all.push(hooks);
            }
        }
        Err((name, error)) => lacks.add(name, &error),
    });
    lacks.tell();
    all
}

/// Whether one range has bytes that one of these has, too.
#[cfg(grapnel_attached)]
fn overlaps(all: &[Range<u64>], range: &Range<u64>) -> bool {
    all.iter().any(|other| other.start < range.end && range.start < other.end)
}

/// Takes a family's hooks, or its name and why there are none.
type Take<'t> = dyn FnMut(Result<Ready, (Vec<u8>, grapnel_hook::Error)>) + 't;

/// Prepares hooks on families and hands each one's over. None on functions at these places.
fn prepare<'m>(modules: impl Iterator<Item = (&'m Module, &'m [u8])>, places: &[usize], take: &mut Take<'_>) {
    for (module, path) in modules {
        let Some(code) = module.segments().iter().find(|segment| segment.execute) else { continue };
        // Our own stubs have such names.
        if code.range.contains(&(before as *const ()).addr()) {
            continue;
        }
        let found = found_in(module, path);
        // Where functions of this object lie, and their heap. A function of two names makes of both families one.
        let mut known: Vec<(usize, u32)> = Vec::new();
        for mut family in found {
            let starts: Vec<usize> = family.functions.iter().map(|(_, range)| range.start).collect();
            let (is_own, is_whole) = (family.is_own(), is_whole(family.found));
            let same = known.iter().find(|(start, _)| starts.contains(start)).map(|&(_, handle)| handle);
            if !is_own && same.is_none() && !is_whole && !is_candidate(family.found) {
                continue;
            }
            family.functions.retain(|(_, range)| {
                code.range.contains(&range.start)
                    && !places.contains(&range.start)
                    && !hooks::is_target(range.start)
                    && !slots::is_hooked(range.start)
            });
            let name = match (&family.prefix[..], module.file_name()) {
                (b"" | b"__libc_", file) if !file.is_empty() => file.to_vec(),
                (prefix, _) => [prefix, b"malloc"].concat(),
            };
            let added = || match is_whole {
                true => heaps::allocator(HeapKind::Allocator, &name, 0),
                false => heaps::allocator(HeapKind::Candidate, &name, origin(path)),
            };
            let handle = if is_own { Some(0) } else { same.or_else(added) };
            let Some(handle) = handle else { continue };
            known.extend(starts.into_iter().map(|start| (start, handle)));
            if family.functions.is_empty() || (handle == 0 && sampling::is_on()) {
                continue;
            }
            let is_leaf =
                is_whole && (known::is_library(module) || known::PREFIXES.contains(&&family.prefix[..]));
            let wanted = |(role, range): (Role, Range<usize>)| {
                let what = What::Family(role, handle);
                Wanted { what, range, code: code.range.clone(), is_leaf }
            };
            let mut wanted: Vec<_> = family.functions.into_iter().map(wanted).collect();
            let mut hooks = slots::prepare_all(&wanted);
            if hooks.is_err() && wanted.iter().any(does_nothing) {
                // A `free` that does nothing may be too short: then nothing is seen to be given back by it.
                wanted.retain(|wanted| !does_nothing(wanted));
                hooks = slots::prepare_all(&wanted);
                if hooks.is_ok() {
                    nothing_is_given_back(&name);
                }
            }
            match hooks {
                Ok(hooks) => {
                    if let Some(hooks) = hooks {
                        take(Ok(Ready { name, handle, hooks }));
                    }
                }
                Err(error) => take(Err((name, error))),
            }
        }
    }
}

/// Whether that is a `free` that returns at once.
fn does_nothing(wanted: &Wanted) -> bool {
    matches!(wanted.what, What::Family(Role::Free, _)) && native::returns_at_once(wanted.range.start)
}

impl Family {
    /// Whether it has the `malloc` that the program calls.
    fn is_own(&self) -> bool {
        let own = hooks::target(Function::Malloc);
        self.functions.iter().any(|(_, range)| range.start == own)
    }
}

/// What may be a family in an object, in the order in which they are given heaps. Heeds its operators, too.
fn found_in(module: &Module, path: &[u8]) -> Vec<Family> {
    let has_exported = may_have_families(symbol::names(module), || symbol::find(module, MALLOC).is_some());
    let exported = |each: &mut Visit<'_>| {
        if !has_exported {
            return;
        }
        symbol::for_each(module, &mut |name, symbol| {
            if symbol.kind == SymbolKind::Function && symbol.size != 0 {
                each(name, symbol.range());
            }
        });
    };
    let in_file = in_file(module, path);
    match &in_file {
        Some(file) => operators::heed_hidden(module, file),
        None => operators::heed_stripped(module),
    }
    let in_file = in_file.filter(|file| may_have_families(file.names(), || true));
    let listed = |each: &mut Visit<'_>| {
        exported(each);
        if let Some(file) = &in_file {
            file.for_each(module.bias(), each);
        }
    };
    let mut found = families(&listed);
    // The program's heap is that of the `malloc` that it calls. libc's others may serve it where its own allocator hasn't all.
    // What has no prefix gives the object's heap its name. What only may be a family comes to the others.
    found.sort_by_key(|family| (!family.is_own() && !is_whole(family.found), family.prefix.len()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[&str]) -> Vec<(Vec<u8>, usize, bool)> {
        let visit = |each: &mut Visit<'_>| {
            for (at, name) in names.iter().enumerate() {
                each(name.as_bytes(), at * 16..at * 16 + 16);
            }
        };
        let all = families(&visit).into_iter();
        all.map(|family| (family.prefix, family.functions.len(), is_whole(family.found))).collect()
    }

    #[test]
    fn a_family_has_a_prefix_and_all_that_makes_one() {
        let names = [
            "je_malloc",
            "je_calloc",
            "je_realloc",
            "je_free",
            "je_memalign",
            "je_mallocx",
            "je_large_malloc",
            "g_malloc",
            "g_realloc",
            "g_free",
            "malloc",
            "free",
            "rpmalloc",
            "rpcalloc",
            "rprealloc",
            "rpfree",
            "rpaligned_alloc",
            "je_arena_new",
        ];
        let found = found(&names);
        let row =
            |prefix: &str| found.iter().find(|row| row.0 == prefix.as_bytes()).map(|row| (row.1, row.2));
        assert_eq!(row("je_"), Some((6, true)));
        assert_eq!(row("rp"), Some((5, true)));
        assert_eq!(row("g_"), Some((3, false)));
        assert_eq!(row(""), Some((2, false)));
        assert_eq!(row("je_large_"), Some((1, false)));
        assert_eq!(found.len(), 5);
        assert_eq!(
            [0b1111, 0b1001, 0b1011, 0b1110, 0b0111].map(is_candidate),
            [true, true, true, false, false]
        );
    }

    #[test]
    fn objects_without_such_a_name_are_passed_over() {
        let may = |names: &str, defined| may_have_families(names.as_bytes(), || defined);
        assert!(!may("\0malloc_usable_size\0mallocx\0free\0", true));
        // The last one has no end.
        assert!(!may("\0free\0je_malloc", true));
        for names in ["\0malloc\0free\0", "malloc\0free\0"] {
            assert!(may(names, true) && !may(names, false), "{names:?}");
        }
        assert!(may("\0malloc\0je_malloc\0", false));
        assert!(may("\0free\0je_malloc\0malloc\0", false));
    }
}
