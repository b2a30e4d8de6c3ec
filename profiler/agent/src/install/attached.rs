//! What is hooked in a process that runs already.

use super::{Objects, Ready, heap_functions, without};
use crate::hooks::{Function, Hooked};
use crate::ledger::{self, LEDGER};
use crate::{families, guests, instead, modules, reported, sandbox, session, slots, throwing};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;
use grapnel_hook::Prepared;
use grapnel_hook::module::Module;
use grapnel_hook::symbol::{self, Symbol, SymbolKind};
use grapnel_trace::attached::{FUNCTIONS, Mapping};
use grapnel_trace::shared::failure;

pub(super) const NO_LIBC: &str = "the program uses neither glibc nor musl (no libc.so.6 and no ld-musl is loaded), and has no malloc and free of its own";

/// musl's library, or, of a static program, that itself.
pub(super) fn other_libc(modules: &[Module]) -> Option<usize> {
    modules.iter().position(is_musl).or_else(|| linked(b"malloc").map(|_| 0))
}

/// Whether it is musl: its dynamic linker and its library are one.
pub(super) fn is_musl(module: &Module) -> bool {
    module.file_name().starts_with(b"ld-musl-") || module.file_name() == b"libc.so"
}

/// A function of a static program, which the command has looked for.
pub(super) fn linked(name: &[u8]) -> Option<Symbol> {
    let index = FUNCTIONS.iter().position(|known| known.as_bytes() == name)?;
    let range = LEDGER.linked.functions[index].range();
    let (addr, size) = (range.start as usize, (range.end - range.start) as usize);
    (size != 0).then_some(Symbol { addr, size, kind: SymbolKind::Function, hidden: false })
}

/// The code that is libc's, and that part of it in which it calls `free` for itself: musl has none.
pub(super) fn code(libc: &Module) -> Option<(Range<usize>, Range<usize>)> {
    if linked(b"malloc").is_some() {
        let [allocator, end] = [&LEDGER.linked.allocator, &LEDGER.linked.thread_end].map(Mapping::range);
        let [allocator, end] = [allocator, end].map(|range| range.start as usize..range.end as usize);
        return Some((allocator, end));
    }
    let code = libc.segments().iter().find(|segment| segment.execute)?.range.clone();
    let own = if is_musl(libc) { 0..0 } else { code.clone() };
    Some((code, own))
}

const CANT_NOTE: &str = "what would change can't be noted";

/// What is hooked in libc whoever gives out the memory.
pub(super) fn libcs_functions(_is_recorded: bool) -> impl IntoIterator<Item = Hooked> {
    sandbox::functions().into_iter().chain(guests::functions())
}

/// The functions that the program calls by libc's names.
pub(super) fn allocation_functions(objects: &Objects, is_sampled: bool) -> Vec<(Hooked, Symbol)> {
    if linked(b"malloc").is_none() {
        let mut functions = objects.defined(heap_functions(is_sampled));
        if let Some(allocator) = objects.allocator()
            && symbol::find(allocator, b"_Znwm").is_some()
        {
            functions.extend(operators(objects, allocator, is_sampled));
        }
        return functions;
    }
    // A static program's functions lie beside their callers, which were compiled with them as the case may be.
    let found = |(libcs, beside): (Hooked, Hooked)| objects.find(libcs.0).map(|symbol| (beside, symbol));
    heap_functions(is_sampled).filter_map(found).collect()
}

/// The operators of the allocator whose `malloc` is the program's, which has such.
fn operators(objects: &Objects, allocator: &Module, is_sampled: bool) -> Vec<(Hooked, Symbol)> {
    // What is called in their place must be the allocator's own.
    let is_its =
        |name: &&[u8]| objects.called(name).is_some_and(|(module, _)| core::ptr::eq(module, allocator));
    let are_its = [&b"malloc"[..], b"free", b"memalign"].iter().all(is_its);
    let free = heap_functions(is_sampled).find(|(_, (.., function))| matches!(function, Function::Free));
    // In a sample of allocations what is called is what the filter was made for.
    let free = free.filter(|_| are_its && !is_sampled);
    let found = free.map(|(_, (_, stub, _))| instead::operators(allocator, stub));
    let found = found.unwrap_or_default();
    if found.is_empty() {
        let name = format!("{}", allocator.file_name().escape_ascii());
        let name = if name.is_empty() { "the program" } else { name.as_str() };
        let note = format!(
            "new and delete are those of {name}: what new gives out is not recorded, only malloc and its kin"
        );
        session::report_failure(failure::NOTE, note.as_bytes());
    }
    found
}

/// Hooks on other allocators, and on functions of the program's own that have other names. Operators of C++ have none here: no
/// unwinder knows the stubs, and what one throws would end the program.
#[derive(Debug)]
pub(super) struct Several(Vec<slots::Ready>);

impl Several {
    /// `before`: what is hooked besides, of functions that begin at these `places`.
    pub(super) fn prepare(objects: &Objects, before: &Prepared<'_>, places: &[usize]) -> Self {
        // libc's are a family beside the program's where others have taken their names.
        let libcs = objects.allocator().map(|_| (objects.libc(), Vec::new()));
        let others: Vec<_> = objects.others().map(|module| (module, families::path(module))).collect();
        // What a family's function throws would end the program, as what an operator throws.
        throwing::heed(others.iter().map(|(module, path)| (*module, &path[..])));
        let others = others.into_iter().filter(|(module, _)| throwing::may_have_hooks(module));
        let all: Vec<(&Module, Vec<u8>)> = others.chain(libcs).collect();
        Self(families::ready(all.iter().map(|(module, path)| (*module, &path[..])), before, places))
    }

    /// How many functions will be hooked.
    fn hooks(&self) -> usize {
        self.0.iter().map(slots::Ready::hooks).sum()
    }

    fn note(&self) -> bool {
        self.0.iter().all(slots::Ready::note)
    }
}

impl Ready {
    /// Notes what is to change, for the command, which makes the changes while all threads stand. Those that calls under way
    /// would return into stay out: that takes a handler for traps, which nobody brings into a process that runs.
    ///
    /// # Errors
    /// A sentence for the user: which function, and why.
    pub(crate) fn note(&self) -> Result<(), String> {
        if !ledger::has_room(self.hooks.len() + self.several.as_ref().map_or(0, Several::hooks)) {
            return Err("too many functions are to be hooked".into());
        }
        for (hook, &(name, function)) in self.prepared.hooks().zip(&self.hooks) {
            let Ok(hook) = hook else { continue };
            if !hook.is_returned_into() {
                if !ledger::change(&hook) {
                    return Err(format!("{} can't be hooked: {CANT_NOTE}", name.escape_ascii()));
                }
                continue;
            }
            let why = "a call under way may return into what would change";
            let Some(lost) = without(name, function) else {
                return Err(format!("{} can't be hooked: {why}", name.escape_ascii()));
            };
            session::report_failure(failure::NOTE, format!("{lost}: {why}").as_bytes());
        }
        if !self.several.iter().all(Several::note) {
            return Err(format!("other allocators can't be hooked: {CANT_NOTE}"));
        }
        Ok(())
    }

    /// Goes on with what takes hooks that are in.
    pub(crate) fn go_on(self) {
        if self.several.is_some() {
            modules::follow_operators();
        }
        self.objects.loaded.iter().for_each(|(bias, _, headers)| reported::connect(*bias, headers));
        modules::hear();
    }
}
