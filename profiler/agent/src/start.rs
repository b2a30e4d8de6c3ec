//! The constructor: finds the session, puts the hooks in, begins the first life.
//!
//! # Safety
//! The library is linked with `-z initfirst`: the constructor runs before any other, libc's own included, in
//! the process's only thread. It relies on nothing but the loader's work being done.

use crate::entry::{SavedRegisters, rescued, stub};
use crate::hooks::{self, Function, ORIGINALS};
use crate::lock::Quiet;
use crate::{
    context, ending, exec, families, jumps, life, listing, mappings, meter, modules, operators, reported,
    sampled, sampling, session, stack, sys,
};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use core::sync::atomic::Ordering;
use grapnel_hook::module::Module;
use grapnel_hook::symbol::{self, SymbolKind};
use grapnel_hook::{HookId, Liveness, Transaction};
use grapnel_trace::shared::{SESSION_VARIABLE, failure, segment_state, session_flags};

#[cfg(grapnel_cdylib)]
stub!(grapnel_agent_start, start, "rcx");
#[cfg_attr(not(grapnel_cdylib), expect(dead_code, reason = "the constructor of the library form"))]
unsafe extern "C" fn start(
    count: c_int,
    arguments: *const *const c_char,
    environment: *mut *mut c_char,
    saved: &SavedRegisters,
) {
    rescued(saved, ptr::null_mut(), 0, || {
        let _quiet = Quiet::new();
        // SAFETY: the loader passes the process's own arguments and environment to constructors.
        unsafe { begin(count, arguments, environment) };
    });
}

/// # Safety
/// As a constructor is called.
unsafe fn begin(count: c_int, arguments: *const *const c_char, environment: *mut *mut c_char) {
    // SAFETY: the caller's promise.
    let Some(path) = (unsafe { session_path(environment) }) else { return };
    let opened = session::open(path);
    if let Some(header) = session::header().filter(|_| opened) {
        // The exec that led here is done; see `exec`.
        let _ = header.execs.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |execs| execs.checked_sub(1));
    }
    let Some(variables) = exec::prepare() else { return };
    // SAFETY: the process's own environment, which nobody has read yet.
    unsafe { exec::clean(environment, variables) };
    let Some(header) = session::header().filter(|header| opened && !session::is_over(header)) else { return };
    let Some(segment) = session::take_segment() else {
        header.unfollowed.fetch_add(1, Ordering::Relaxed);
        return;
    };
    // SAFETY: the process's own arguments: `count` zero-terminated strings.
    let argument = |index| unsafe { CStr::from_ptr(*arguments.add(index)).to_bytes() };
    segment.arguments.store(count as u32, Ordering::Relaxed);
    segment.command.set((0..count as usize).map(argument));
    let mut buffer = [0; 4096];
    segment.executable.set([sys::read_link(c"/proc/self/exe", &mut buffer)]);
    if header.flags.load(Ordering::Relaxed) & session_flags::OFF != 0 {
        return session::announce(segment, segment_state::READY);
    }
    listing::prepare();
    modules::update(None);
    if !life::prepare() || !stack::prepare() {
        return session::report_failure(failure::MEMORY, b"no memory, or a kernel older than 4.14");
    }
    if let Err(message) = install() {
        life::end();
        return session::report_failure(failure::HOOK, message.as_bytes());
    }
    segment.agent_bytes.store(crate::heap::mapped(), Ordering::Relaxed);
    meter::prepare(&segment.meter);
    // SAFETY: the function is this library's, which is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(grapnel_agent_forked)) };
    let took = sys::monotonic_ns().saturating_sub(segment.started_ns.load(Ordering::Relaxed));
    segment.meter.startup_ns.store(took, Ordering::Relaxed);
    session::announce(segment, segment_state::READY);
    life::begin();
}

/// # Safety
/// `environment` is a null-terminated array of strings.
unsafe fn session_path<'a>(environment: *mut *mut c_char) -> Option<&'a CStr> {
    for index in 0.. {
        // SAFETY: the array ends with a null pointer, at which this loop ends.
        let entry = unsafe { *environment.add(index) };
        if entry.is_null() {
            return None;
        }
        // SAFETY: an entry is a zero-terminated string.
        let text = unsafe { CStr::from_ptr(entry) };
        let value = text.to_bytes_with_nul().strip_prefix(SESSION_VARIABLE.as_bytes());
        if let Some([b'=', path @ ..]) = value {
            return CStr::from_bytes_with_nul(path).ok();
        }
    }
    None
}

/// Runs in each child of a fork that libc makes; others are noticed at their first event.
unsafe extern "C" fn forked(saved: &SavedRegisters) {
    rescued(saved, ptr::null_mut(), 0, || {
        let _ = context::revive();
    });
}
stub!(grapnel_agent_forked, forked, "rdi");

/// Puts the hooks in.
///
/// # Errors
/// A sentence for the user: which function, and why.
fn install() -> Result<(), String> {
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
    let libc = modules.iter().find(|module| module.file_name() == b"libc.so.6");
    let Some(libc) = libc else {
        return Err("the program does not use glibc (no libc.so.6 is loaded)".into());
    };
    let is_loaders =
        |module: &&Module| module.file_name().starts_with(b"ld-") || module.file_name().starts_with(b"ld.");
    let is_libcs = |module: &Module| module.file_name() == b"libc.so.6";
    // In the order in which the loader looks for them: whose function the program calls by libc's name.
    let called = |name: &[u8]| {
        modules.iter().filter(|module| !is_loaders(module)).find_map(|module| {
            let symbol = symbol::find(module, name)?;
            (symbol.kind == SymbolKind::Function && symbol.size != 0).then_some((module, symbol))
        })
    };
    let allocator = called(b"malloc").map(|(module, _)| module).filter(|module| !is_libcs(module));
    // The program's own code maps what it likes.
    if let Some(allocator) = allocator.filter(|module| !module.file_name().is_empty())
        && let Some(code) = allocator.segments().iter().find(|segment| segment.execute)
    {
        hooks::remember_allocator(code.range.clone());
    }
    if let Some(code) = libc.segments().iter().find(|segment| segment.execute) {
        let free = symbol::find(libc, b"free").map_or(0, |symbol| symbol.addr);
        hooks::remember_libc(code.range.clone(), free);
    }
    let mut transaction = Transaction::new();
    let mut asked: Vec<(&[u8], Function, usize, HookId)> = Vec::new();
    let is_sampled = session::header().is_some_and(sampling::prepare);
    let (libcs, beside) = if is_sampled {
        (sampled::allocation_functions(), sampled::allocation_functions_beside())
    } else {
        (hooks::allocation_functions(), hooks::allocation_functions_beside())
    };
    let functions = libcs.into_iter().zip(beside).map(|((name, stub, function), (_, beside, _))| {
        // libc's functions can be interposed, and their callers count on nothing.
        match called(name) {
            Some((module, symbol)) if !is_libcs(module) => (name, beside, function, Some(symbol)),
            found => (name, stub, function, found.map(|(_, symbol)| symbol)),
        }
    });
    let others = exec::exec_functions().into_iter().chain(mappings::mapping_functions());
    let others = others.chain(jumps::jump_functions()).chain(ending::functions());
    let others = others.map(|(name, stub, function)| (name, stub, function, None));
    for (name, stub, function, found) in functions.chain(others) {
        let found = found.or_else(|| symbol::find(libc, name));
        let Some(symbol) = found else { continue };
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
            Err(error) if matches!(function, Function::Exit) => session::report_failure(
                failure::NOTE,
                format!("there will be no look for leaks at the end: {error}").as_bytes(),
            ),
            Err(error) if mappings::is_one(function) => session::report_failure(
                failure::NOTE,
                format!("what {} does is not recorded: {error}", name.escape_ascii()).as_bytes(),
            ),
            Err(error) if jumps::is_one(function) => session::report_failure(
                failure::NOTE,
                format!("operators of the program that it leaves by a jump hide events: {error}").as_bytes(),
            ),
            Err(error) => return Err(format!("{} can't be hooked: {error}", name.escape_ascii())),
        }
    }
    // SAFETY: the targets are functions of libc, the loader, and whoever was loaded with the program, which stay; the stubs
    // have their ABI; this is the only thread, and has no signal handlers yet.
    let hooks = unsafe { prepared.commit(Liveness::SingleThreaded) };
    for (hook, (name, function, ..)) in hooks.into_iter().zip(&asked) {
        match hook {
            // For as long as the process lives.
            Ok(hook) => core::mem::forget(hook),
            Err(_)
                if matches!(function, Function::LoaderState | Function::Exit)
                    || mappings::is_one(*function)
                    || jumps::is_one(*function) => {}
            Err(error) => return Err(format!("{} can't be hooked: {error}", name.escape_ascii())),
        }
    }
    if !is_sampled {
        let others = || modules.iter().filter(|module| !is_libcs(module) && !is_loaders(module));
        let path = |module: &'_ Module| match module.name() {
            b"" => b"/proc/self/exe".to_vec(),
            name => name.to_vec(),
        };
        // libc's are a family beside the program's where others have taken their names.
        let with_libc: Vec<(&Module, Vec<u8>)> = others()
            .map(|module| (module, path(module)))
            .chain(allocator.map(|_| (libc, Vec::new())))
            .collect();
        families::install(with_libc.iter().map(|(module, path)| (*module, &path[..])));
        operators::install(others());
        loaded.iter().for_each(|(bias, _, headers)| reported::connect(*bias, headers));
        modules::follow_operators();
    }
    Ok(())
}
