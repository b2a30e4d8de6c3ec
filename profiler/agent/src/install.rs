//! The hooks of a process that runs already: prepared, and put in.
//!
//! Fewer than in [`crate::start`]: other allocators than libc's, jumps and `exec` are left alone.
//!
//! # Safety
//! What is hooked is code of objects that stay, or whose going is heard of ([`crate::modules`]).

use crate::hooks::{self, Function, ORIGINALS};
use crate::{ledger, mappings, modules, operators, reported, sampled, sampling, session};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use grapnel_hook::module::Module;
use grapnel_hook::{HookId, Liveness, Prepared, Transaction, symbol};
use grapnel_trace::shared::failure;
use grapnel_unwind::ProgramHeader;

/// Hooks that are ready to go in.
#[derive(Debug)]
pub(crate) struct Ready {
    /// Name and number of each, in the order in which they were prepared.
    hooks: Vec<(&'static [u8], Function)>,
    prepared: Prepared<'static>,
    operators: Vec<operators::Ready>,
    /// Objects in which words for pools are looked for: bias, path, headers.
    programs: Vec<(u64, Vec<u8>, Vec<ProgramHeader>)>,
}

/// Does all that can fail; no byte of the program has changed afterwards.
///
/// # Errors
/// A sentence for the user: which function, and why.
pub(crate) fn prepare() -> Result<Ready, String> {
    let loaded = modules::loaded();
    let modules: Vec<Module> = loaded
        .iter()
        .map(|(bias, path, headers)| {
            // SAFETY: the headers are those of an object that is loaded and, if hooked, never unloaded.
            unsafe {
                Module::from_program_headers(path, *bias as usize, headers.as_ptr().cast(), headers.len())
            }
        })
        .collect();
    let Some(libc) = modules.iter().find(|module| is_libc(module)) else {
        return Err("the program does not use glibc (no libc.so.6 is loaded)".into());
    };
    let is_loaders =
        |module: &&Module| module.file_name().starts_with(b"ld-") || module.file_name().starts_with(b"ld.");
    let others = || modules.iter().filter(|module| !is_libc(module) && !is_loaders(module));
    if let Some(other) = others().find(|module| symbol::find(module, b"malloc").is_some()) {
        let name = other.file_name().escape_ascii();
        let name = format!("{name}");
        let name = if name.is_empty() { "the program" } else { name.as_str() };
        let note = format!("malloc is that of {name}, not libc's: what it gives out itself is not recorded");
        session::report_failure(failure::NOTE, note.as_bytes());
    }
    if let Some(code) = libc.segments().iter().find(|segment| segment.execute) {
        let free = symbol::find(libc, b"free").map_or(0, |symbol| symbol.addr);
        hooks::remember_libc(code.range.clone(), free);
    }
    let mut transaction = Transaction::new();
    let mut asked: Vec<(&[u8], Function, usize, HookId)> = Vec::new();
    let is_sampled = session::header().is_some_and(sampling::prepare);
    let functions = if is_sampled { sampled::allocation_functions() } else { hooks::allocation_functions() };
    for (name, stub, function) in functions.into_iter().chain(mappings::mapping_functions()) {
        let Some(symbol) = symbol::find(libc, name) else { continue };
        // Names that share their code (aligned_alloc and memalign of older glibc) share a hook.
        if asked.iter().any(|&(_, _, address, _)| address == symbol.addr) {
            continue;
        }
        let id = transaction.replace_sized(symbol.pointer(), symbol.size, stub as *const ());
        hooks::remember_target(function, symbol.addr);
        asked.push((name, function, symbol.addr, id));
    }
    let loader = modules.iter().find_map(|module| {
        let is_loader =
            module.file_name().starts_with(b"ld-linux") || module.file_name().starts_with(b"ld.so");
        if is_loader { symbol::find(module, b"_dl_debug_state") } else { None }
    });
    if let Some(symbol) = loader {
        let stub = hooks::grapnel_agent_loader_state as *const ();
        let id = transaction.replace_sized(symbol.pointer(), symbol.size, stub);
        asked.push((b"_dl_debug_state", Function::LoaderState, symbol.addr, id));
    }
    let prepared = transaction.prepare();
    for &(name, function, _, id) in &asked {
        match prepared.original(id) {
            Ok(original) => {
                ORIGINALS[function as usize].store(original.expose_provenance(), Ordering::Release)
            }
            // A debugger's breakpoint, most likely.
            Err(error) if matches!(function, Function::LoaderState) => session::report_failure(
                failure::NOTE,
                format!("libraries that the program loads later can't be followed: {error}").as_bytes(),
            ),
            Err(error) if mappings::is_one(function) => session::report_failure(
                failure::NOTE,
                format!("what {} does is not recorded: {error}", name.escape_ascii()).as_bytes(),
            ),
            Err(error) => return Err(format!("{} can't be hooked: {error}", name.escape_ascii())),
        }
    }
    let operators = if is_sampled { Vec::new() } else { operators::prepare(others()) };
    let programs = if is_sampled { Vec::new() } else { loaded };
    let hooks = asked.into_iter().map(|(name, function, ..)| (name, function)).collect();
    Ok(Ready { hooks, prepared, operators, programs })
}

/// Whether it is the C library whose heap is recorded.
fn is_libc(module: &Module) -> bool {
    module.file_name() == b"libc.so.6"
}

impl Ready {
    /// How many functions will be hooked.
    pub(crate) fn hooks(&self) -> usize {
        self.hooks.len() + self.operators.iter().map(|ready| ready.hooks.hooks()).sum::<usize>()
    }

    /// Notes the memory that was made for the hooks' code. False if there is no room for that.
    pub(crate) fn is_kept(&self) -> bool {
        ledger::keeps(&self.prepared)
    }

    /// Puts the hooks in.
    ///
    /// # Errors
    /// A sentence for the user: which function, and why.
    ///
    /// # Safety
    /// No other thread of the process runs, and no signal handler of this one.
    pub(crate) unsafe fn commit(self) -> Result<(), String> {
        // SAFETY: the targets are functions of libc and the loader, which stay; the stubs have their ABI; the rest is the
        // caller's promise.
        let hooks = unsafe { self.prepared.commit(Liveness::SingleThreaded) };
        for (hook, (name, function)) in hooks.into_iter().zip(&self.hooks) {
            match hook {
                Ok(hook) => {
                    ledger::changed(&hook);
                    // For as long as the process lives, or until the command undoes it.
                    core::mem::forget(hook);
                }
                Err(_) if matches!(function, Function::LoaderState) || mappings::is_one(*function) => {}
                Err(error) => return Err(format!("{} can't be hooked: {error}", name.escape_ascii())),
            }
        }
        // SAFETY: the caller's promise.
        self.operators.into_iter().for_each(|ready| unsafe { ready.commit() });
        if !self.programs.is_empty() {
            self.programs.iter().for_each(|(bias, _, headers)| reported::connect(*bias, headers));
            modules::follow_operators();
        }
        Ok(())
    }
}
