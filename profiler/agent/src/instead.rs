//! `operator new` of an allocator, in a process that runs already: the allocator's `malloc` is called in its place.
//!
//! What such an operator throws can't pass a stub here, which no unwinder knows. So the stub calls what throws nothing: `malloc`
//! of the same allocator, or for a form that is told an alignment `memalign`. Only where that gives nothing does it go on to the
//! operator's own code, with the caller's registers and nothing of itself on the stack: that asks the `new_handler`, and throws. What
//! it gives then isn't recorded. `delete`, in all forms, is the allocator's `free`.
//!
//! That is so only of allocators of which it is known that their operators do nothing else ([`is_known`]): jemalloc, mimalloc and
//! tcmalloc, each as a library of its own, and jemalloc where the program has it in itself. An operator of the program's may do
//! anything.
//!
//! # Safety
//! As in [`crate::hooks`].

use crate::entry::SavedRegisters;
use crate::families;
use crate::hooks::{self, Function, Hooked, original_as};
use crate::native::instead::stub_or_original;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::ptr;
use grapnel_hook::module::Module;
use grapnel_hook::rebind;
use grapnel_hook::symbol::{self, Symbol, SymbolKind};
use grapnel_hook::{CodeAddr, HookPlan, Options};
use grapnel_trace::Source;

type Block = *mut c_void;
type Saved<'a> = &'a SavedRegisters;

macro_rules! gives {
    ($hook:ident, $source:expr, $($stub:ident, $function:ident),+) => {
        $(stub_or_original!($stub, $hook, 1, Function::$function);)+
        unsafe extern "C" fn $hook(size: usize, saved: Saved<'_>) -> Block {
            // SAFETY: `malloc` of the operator's own allocator, which gives what the operator does.
            let block = unsafe { original_as::<unsafe extern "C" fn(usize) -> Block>(Function::Malloc)(size) };
            hooks::given(saved, block, size, $source)
        }
    };
}
gives!(new, Source::New, grapnel_agent_new, New, grapnel_agent_new_or_null, NewOrNull);
gives!(
    new_array,
    Source::NewArray,
    grapnel_agent_new_array,
    NewArray,
    grapnel_agent_new_array_or_null,
    NewArrayOrNull
);

macro_rules! gives_aligned {
    ($hook:ident, $source:expr, $($stub:ident, $function:ident),+) => {
        $(stub_or_original!($stub, $hook, 2, Function::$function);)+
        unsafe extern "C" fn $hook(size: usize, alignment: usize, saved: Saved<'_>) -> Block {
            type Call = unsafe extern "C" fn(usize, usize) -> Block;
            // SAFETY: as above, of `memalign`.
            let block = hooks::inside(|| unsafe { original_as::<Call>(Function::Memalign)(alignment, size) });
            hooks::given_as(saved, block, size, $source, alignment);
            block
        }
    };
}
gives_aligned!(
    new_aligned,
    Source::New,
    grapnel_agent_new_aligned,
    NewAligned,
    grapnel_agent_new_aligned_or_null,
    NewAlignedOrNull
);
gives_aligned!(
    new_array_aligned,
    Source::NewArray,
    grapnel_agent_new_array_aligned,
    NewArrayAligned,
    grapnel_agent_new_array_aligned_or_null,
    NewArrayAlignedOrNull
);

/// All forms of `operator new`, by their names in the Itanium C++ ABI.
const NEW: [Hooked; 8] = [
    (b"_Znwm", grapnel_agent_new, Function::New),
    (b"_Znam", grapnel_agent_new_array, Function::NewArray),
    (b"_ZnwmRKSt9nothrow_t", grapnel_agent_new_or_null, Function::NewOrNull),
    (b"_ZnamRKSt9nothrow_t", grapnel_agent_new_array_or_null, Function::NewArrayOrNull),
    (b"_ZnwmSt11align_val_t", grapnel_agent_new_aligned, Function::NewAligned),
    (b"_ZnamSt11align_val_t", grapnel_agent_new_array_aligned, Function::NewArrayAligned),
    (b"_ZnwmSt11align_val_tRKSt9nothrow_t", grapnel_agent_new_aligned_or_null, Function::NewAlignedOrNull),
    (
        b"_ZnamSt11align_val_tRKSt9nothrow_t",
        grapnel_agent_new_array_aligned_or_null,
        Function::NewArrayAlignedOrNull,
    ),
];

/// All forms of `operator delete`.
const DELETE: [&[u8]; 12] = [
    b"_ZdlPv",
    b"_ZdaPv",
    b"_ZdlPvRKSt9nothrow_t",
    b"_ZdaPvRKSt9nothrow_t",
    b"_ZdlPvm",
    b"_ZdaPvm",
    b"_ZdlPvSt11align_val_t",
    b"_ZdaPvSt11align_val_t",
    b"_ZdlPvSt11align_val_tRKSt9nothrow_t",
    b"_ZdaPvSt11align_val_tRKSt9nothrow_t",
    b"_ZdlPvmSt11align_val_t",
    b"_ZdaPvmSt11align_val_t",
];

/// Whether a hooked function is one of these.
pub(crate) fn is_one(function: Function) -> bool {
    let is_new = |(.., new): &Hooked| *new as usize == function as usize;
    matches!(function, Function::Delete) || NEW.iter().any(is_new)
}

/// How the names begin of libraries whose operators are known: what `new` gives is what `malloc` does, and `delete` is `free`. Not
/// of tcmalloc's form for debugging, which looks whether who gave out a block takes it back.
const KNOWN: [&[u8]; 4] =
    [b"libjemalloc.so", b"libmimalloc.so", b"libtcmalloc.so", b"libtcmalloc_minimal.so"];

fn function(module: &Module, name: &[u8]) -> Option<Symbol> {
    symbol::find(module, name).filter(|symbol| symbol.kind == SymbolKind::Function && symbol.size != 0)
}

/// Whether an allocator's operators do what its `malloc` and `free` do, and nothing else: it is one that is known, and its plainest
/// `delete` is its `free`, or goes there at once.
fn is_known(module: &Module) -> bool {
    let is_named = KNOWN.iter().any(|name| module.file_name().starts_with(name));
    let [free, delete] = [b"free".as_slice(), b"_ZdlPv"].map(|name| function(module, name));
    let (Some(free), Some(delete)) = (free, delete) else { return false };
    (is_named || has_jemallocs(module))
        && (free.addr == delete.addr || goes_to_free(module, delete.addr, free.addr))
}

/// Whether an object's plainest `new` is jemalloc's, with which a function of its file lies that no other has.
fn has_jemallocs(module: &Module) -> bool {
    const BESIDE: &[u8] = b"_Z13fallback_implILb0EEPvm";
    const NEAR: usize = 4096;
    let Some(new) = function(module, b"_Znwm").filter(|_| module.name().is_empty()) else { return false };
    let Some(file) = families::in_file(module, &families::path(module)) else { return false };
    let mut is_near = false;
    file.for_each(module.bias(), &mut |name, range| {
        is_near |= name == BESIDE && new.addr.wrapping_sub(range.end) < NEAR;
    });
    is_near
}

/// Whether an object's code begins with a jump to its `free`, or by the word that the loader has for that name.
fn goes_to_free(module: &Module, at: usize, free: usize) -> bool {
    const JUMP: u8 = 0xe9;
    const JUMP_BY_WORD: [u8; 2] = [0xff, 0x25];
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let bytes = |at: usize| -> Option<[u8; 10]> {
        let is_in = |at: usize| {
            let mut code = module.segments().iter().filter(|segment| segment.execute && segment.read);
            code.any(|segment| segment.range.contains(&at))
        };
        let code: *const [u8; 10] = ptr::with_exposed_provenance(at);
        // SAFETY: code of an object that is loaded, all of which can be read.
        (is_in(at) && is_in(at + 10)).then(|| unsafe { code.read_unaligned() })
    };
    let behind = |at: usize, offset: [u8; 4]| at.wrapping_add_signed(i32::from_le_bytes(offset) as isize);
    let Some([JUMP, a, b, c, d, ..]) = bytes(at) else { return false };
    let next = behind(at + 5, [a, b, c, d]);
    if next == free {
        return true;
    }
    let Some(found) = bytes(next) else { return false };
    let skipped = if found.starts_with(&ENDBR64) { ENDBR64.len() } else { 0 };
    let Some([first, second, a, b, c, d]) = found.get(skipped..).and_then(<[u8]>::first_chunk) else {
        return false;
    };
    let word = behind(next + skipped + 6, [*a, *b, *c, *d]);
    let mut is_for_free = false;
    rebind::for_each_word(module, &[b"free"], &mut |_, at| is_for_free |= at == word);
    [*first, *second] == JUMP_BY_WORD && is_for_free
}

/// The operators of an allocator that are to be hooked: all or, where one of them can't be or isn't known, none. `free`: the stub of
/// the allocator's own.
pub(crate) fn operators(module: &Module, free: unsafe extern "C" fn()) -> Vec<(Hooked, Symbol)> {
    let found = |name| function(module, name);
    let new = NEW.iter().filter_map(|&hooked| found(hooked.0).map(|symbol| (hooked, symbol)));
    let delete =
        DELETE.iter().filter_map(|&name| found(name).map(|symbol| ((name, free, Function::Delete), symbol)));
    let all: Vec<(Hooked, Symbol)> = new.chain(delete).collect();
    let asked = |(_, symbol): &(Hooked, Symbol)| {
        (CodeAddr(symbol.addr as u64), Options { size: Some(symbol.size), ..Options::default() })
    };
    let can_be = |plan: Result<HookPlan, _>| plan.is_ok_and(|plan| !plan.moves_call());
    let is_whole = is_known(module) && HookPlan::all(all.iter().map(asked)).into_iter().all(can_be);
    if is_whole { all } else { Vec::new() }
}
