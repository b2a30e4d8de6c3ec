//! The hooks: which functions get them, prepared, and put in.
//!
//! At the start of a program (`preloaded`) that is all that there is to record. In a process that runs already (`attached`)
//! allocators by other names than libc's, jumps and `exec` are left alone.
//!
//! # Safety
//! What is hooked is code of objects that stay, or whose going is heard of ([`crate::modules`]).

#[cfg(grapnel_attached)]
mod attached;
#[cfg(not(grapnel_attached))]
pub(crate) mod bound;
#[cfg(not(grapnel_attached))]
mod preloaded;

#[cfg(grapnel_attached)]
use attached as way;
#[cfg(not(grapnel_attached))]
use preloaded as way;

use crate::hooks::{self, Function, Hooked, ORIGINALS};
use crate::{
    displaced, families, forked, known, ledger, listing, mappings, modules, native, sampled, sampling,
    session,
};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use grapnel_hook::module::Module;
use grapnel_hook::symbol::{self, Symbol, SymbolKind};
use grapnel_hook::{HookId, Options, Prepared, Transaction};
use grapnel_trace::shared::failure;
use grapnel_unwind::ProgramHeader;

/// What is loaded when the hooks are prepared.
#[derive(Debug)]
struct Objects {
    modules: Vec<Module>,
    /// Bias, path and program headers of each.
    loaded: Vec<(u64, Vec<u8>, Vec<ProgramHeader>)>,
    /// Which of them is libc.
    libc: usize,
}

impl Objects {
    /// # Errors
    /// A sentence for the user.
    fn read() -> Result<Self, String> {
        let loaded = modules::loaded();
        let described = |(bias, path, headers): &(u64, Vec<u8>, Vec<ProgramHeader>)| {
            let headers = listing::raw_headers(headers);
            // SAFETY: the headers are those of an object that is loaded and, if hooked, never unloaded.
            unsafe {
                Module::from_program_headers(path, *bias as usize, headers.as_ptr().cast(), headers.len())
            }
        };
        let modules: Vec<Module> = loaded.iter().map(described).collect();
        let libc = modules.iter().position(is_libc).or_else(|| way::other_libc(&modules));
        let Some(libc) = libc else { return Err(way::NO_LIBC.into()) };
        Ok(Self { modules, loaded, libc })
    }

    fn libc(&self) -> &Module {
        &self.modules[self.libc]
    }

    /// libc's function of this name.
    fn find(&self, name: &[u8]) -> Option<Symbol> {
        way::linked(name).or_else(|| symbol::find(self.libc(), name))
    }

    /// The program and its libraries, but for libc and the dynamic linker.
    fn others(&self) -> impl Iterator<Item = &Module> {
        let libc = self.libc();
        self.modules.iter().filter(move |&module| !core::ptr::eq(module, libc) && !is_loader(module))
    }

    /// In the order in which the loader looks for it: whose function the program calls by this name.
    fn called(&self, name: &[u8]) -> Option<(&Module, Symbol)> {
        self.modules.iter().filter(|module| !is_loader(module)).find_map(|module| {
            let symbol = symbol::find(module, name)?;
            (symbol.kind == SymbolKind::Function && symbol.size != 0).then_some((module, symbol))
        })
    }

    fn is_libcs(&self, module: &Module) -> bool {
        core::ptr::eq(module, self.libc())
    }

    /// Whose `malloc` the program's is, if it isn't libc's.
    fn allocator(&self) -> Option<&Module> {
        self.called(b"malloc").map(|(module, _)| module).filter(|module| !self.is_libcs(module))
    }

    /// Where the functions lie that the program calls by these names, each with the hook for libc's or for others'.
    fn defined(&self, functions: impl IntoIterator<Item = (Hooked, Hooked)>) -> Vec<(Hooked, Symbol)> {
        // The program's own code maps what it likes.
        if let Some(allocator) = self.allocator().filter(|module| !module.file_name().is_empty())
            && let Some(code) = allocator.segments().iter().find(|segment| segment.execute)
        {
            hooks::remember_allocator(&code.range);
        }
        let is_leaf = |module| sampling::is_on() && known::is_in(module, &families::path(module));
        let found = functions.into_iter().map(|(libcs, beside)| match self.called(libcs.0) {
            // libc's functions can be interposed, and their callers count on nothing.
            Some((module, symbol)) if !self.is_libcs(module) => {
                let is_leaf = matches!(beside.2, Function::Malloc) && is_leaf(module);
                Some((if is_leaf { sampled::LEAF_MALLOC } else { beside }, symbol))
            }
            Some((_, symbol)) => Some((libcs, symbol)),
            None => self.find(libcs.0).map(|symbol| (libcs, symbol)),
        });
        found.flatten().collect()
    }

    fn loader_state(&self) -> Option<Symbol> {
        let mut loaders = self.modules.iter().filter(|module| {
            let name = module.file_name();
            name.starts_with(b"ld-linux")
                || name.starts_with(b"ld.so")
                || BIONIC_LOADERS.contains(&name)
                || way::is_musl(module)
        });
        // All of bionic's dynamic linker's own names begin with `__dl_`.
        let names: [&[u8]; 3] = [b"_dl_debug_state", b"__dl_rtld_db_dlactivity", b"rtld_db_dlactivity"];
        loaders.find_map(|module| names.iter().find_map(|name| symbol::find(module, name)))
    }
}

/// The file of the C library whose heap is recorded: glibc's, or bionic's.
pub(crate) const LIBC: &[u8] = if cfg!(target_os = "android") { b"libc.so" } else { b"libc.so.6" };

/// The files of bionic's dynamic linker.
const BIONIC_LOADERS: [&[u8]; 2] = [b"linker64", b"linker"];

/// Whether it is that C library.
fn is_libc(module: &Module) -> bool {
    module.file_name() == LIBC
}

fn is_loader(module: &Module) -> bool {
    let name = module.file_name();
    name.starts_with(b"ld-") || name.starts_with(b"ld.") || BIONIC_LOADERS.contains(&name)
}

/// Hooks that are ready to go in: who puts them in depends on the way.
#[derive(Debug)]
pub(crate) struct Ready {
    /// Name and number of each, in the order in which they were prepared.
    hooks: Vec<(&'static [u8], Function)>,
    prepared: Prepared<'static>,
    /// Those on functions of which there may be several.
    several: Option<way::Several>,
    objects: Objects,
}

/// What is loaded, with libc known to the hooks, and whether only some allocations are recorded.
///
/// # Errors
/// A sentence for the user.
fn begun() -> Result<(Objects, bool), String> {
    let objects = Objects::read()?;
    let free = objects.find(b"free").map_or(0, |symbol| symbol.addr);
    if let Some((code, own)) = way::code(objects.libc()) {
        hooks::remember_libc(&code, &own, free);
    }
    let threads = objects.modules.iter().find(|module| module.file_name() == b"libpthread.so.0");
    let code = threads.and_then(|module| module.segments().iter().find(|segment| segment.execute));
    if let Some(code) = code {
        hooks::remember_threads(&code.range);
    }
    let is_sampled = session::header().is_some_and(sampling::prepare);
    Ok((objects, is_sampled))
}

/// Does all that can fail; no byte of the program has changed afterwards.
///
/// # Errors
/// A sentence for the user: which function, and why.
pub(crate) fn prepare() -> Result<Ready, String> {
    native::prepare();
    let (objects, is_sampled) = begun()?;
    let mut transaction = Transaction::new();
    let mut asked: Vec<(&[u8], Function, usize, HookId)> = Vec::new();
    // Without a recording the functions of `crate::debug` are all that there is.
    let is_recorded = session::header().is_some();
    let mapping = mappings::mapping_functions().into_iter().filter(|_| is_recorded);
    let libcs = way::libcs_functions(is_recorded).into_iter().chain(mapping);
    let found = |hooked: Hooked| objects.find(hooked.0).map(|symbol| (hooked, symbol));
    let forks = forked::functions().into_iter().filter(|_| is_recorded).filter_map(found).take(1);
    let libcs = libcs.filter_map(found).chain(forks);
    let functions = way::allocation_functions(&objects, is_sampled).into_iter().chain(libcs);
    for ((name, stub, function), symbol) in functions {
        // Names that share their code (aligned_alloc and memalign of older glibc) share a hook.
        if asked.iter().any(|&(_, _, address, _)| address == symbol.addr) {
            continue;
        }
        let at = symbol.pointer();
        let (gate, stub) = native::gates::of(at, stub).unwrap_or((Vec::new(), stub));
        let options = Options { size: Some(symbol.size), ..Options::default() };
        let id = transaction.replace_gated(at, stub as *const (), options, gate);
        hooks::remember_target(function, &symbol.range());
        asked.push((name, function, symbol.addr, id));
    }
    if let Some(symbol) = objects.loader_state() {
        let stub = hooks::grapnel_agent_loader_state as *const ();
        let id = transaction.replace_sized(symbol.pointer(), symbol.size, stub);
        asked.push((b"_dl_debug_state", Function::LoaderState, symbol.addr, id));
    }
    let prepared = transaction.prepare();
    // At once: what fails later leaves their memory mapped.
    if !ledger::keeps(&prepared) {
        return Err("no room to note what is mapped".into());
    }
    displaced::note(&prepared);
    for &(name, function, _, id) in &asked {
        match prepared.original(id) {
            Ok(original) => {
                ORIGINALS[function as usize].store(original.expose_provenance(), Ordering::Release)
            }
            Err(error) => {
                let lost = without(name, function).ok_or_else(|| not_hooked(name, &error))?;
                if let Function::Free = function {
                    // Whoever calls the original in passing calls it itself.
                    ORIGINALS[function as usize].store(hooks::target(function), Ordering::Release);
                }
                say_lost(&lost, &error);
            }
        }
    }
    let places: Vec<usize> = asked.iter().map(|&(_, _, address, _)| address).collect();
    let several = is_recorded.then(|| way::Several::prepare(&objects, &prepared, &places));
    let hooks = asked.into_iter().map(|(name, function, ..)| (name, function)).collect();
    Ok(Ready { hooks, prepared, several, objects })
}

/// The functions that get memory for the program's heap: stubs for libc's, and for others that may have taken their names.
fn heap_functions(is_sampled: bool) -> impl Iterator<Item = (Hooked, Hooked)> {
    let (libcs, beside) = if is_sampled {
        (sampled::allocation_functions(), sampled::allocation_functions_beside())
    } else {
        (hooks::allocation_functions(), hooks::allocation_functions_beside())
    };
    libcs.into_iter().zip(beside)
}

/// What is lost if a function can't be hooked, by a debugger's breakpoint most likely; `None` if nothing is recorded then.
fn without(name: &[u8], function: Function) -> Option<String> {
    match function {
        Function::Free if native::returns_at_once(hooks::target(function)) => {
            Some("nothing is seen to be given back: the program's free does nothing".into())
        }
        Function::LoaderState => Some("libraries that the program loads later can't be followed".into()),
        #[cfg(not(grapnel_attached))]
        Function::Exit if crate::debug::is_on() => Some("nothing is done at the program's end".into()),
        Function::Exit => Some("there will be no look for leaks at the end".into()),
        Function::Longjmp | Function::LongjmpChecked => {
            Some("operators of the program that it leaves by a jump hide events".into())
        }
        Function::Prctl | Function::Syscall => {
            Some("filters for system calls (seccomp) that the program installs may not be noticed".into())
        }
        #[cfg(grapnel_attached)]
        _ if crate::instead::is_one(function) => {
            Some(format!("what {} does is not recorded", name.escape_ascii()))
        }
        Function::Fork => {
            Some("a handler of a signal that forks while its thread records may spoil the recording".into())
        }
        Function::Clone => Some(
            "processes that share memory and threads' variables with the program may spoil the recording"
                .into(),
        ),
        Function::PthreadCreate => Some("filters for system calls (seccomp) count for all threads".into()),
        Function::Mprotect | Function::PkeyMprotect | Function::Madvise => {
            Some(format!("stacks that {} makes unreadable may be looked at", name.escape_ascii()))
        }
        _ if mappings::is_one(function) => Some(format!("what {} does is not recorded", name.escape_ascii())),
        _ => None,
    }
}

/// Tells the user, in a recording or on standard error.
fn say_lost(lost: &str, error: &grapnel_hook::Error) {
    let text = format!("{lost}: {error}");
    session::report_failure(failure::NOTE, text.as_bytes());
    #[cfg(not(grapnel_attached))]
    if crate::debug::is_on() {
        crate::debug::line(format_args!("{text}"));
    }
}

fn not_hooked(name: &[u8], error: &grapnel_hook::Error) -> String {
    let instead = match error {
        grapnel_hook::Error::Unreadable { .. } => "; `--via got` does without",
        _ => "",
    };
    format!("{} can't be hooked: {error}{instead}", name.escape_ascii())
}
