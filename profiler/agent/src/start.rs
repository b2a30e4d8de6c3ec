//! The constructor: finds the session, puts the hooks in, begins the first life.
//!
//! # Safety
//! The library is linked with `-z initfirst`: the constructor runs before any other, libc's own included, in
//! the process's only thread. It relies on nothing but the loader's work being done.

use crate::entry::{SavedRegisters, rescued, stub};
use crate::hooks::{self, Function, ORIGINALS};
use crate::lock::Quiet;
use crate::{
    context, exec, life, mappings, meter, modules, operators, reported, sampled, sampling, session, stack,
    sys,
};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use core::sync::atomic::Ordering;
use grapnel_hook::module::Module;
use grapnel_hook::{HookId, Liveness, Transaction, symbol};
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
    modules::prepare();
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
    let others = modules.iter().filter(|module| module.file_name() != b"libc.so.6" && !is_loaders(module));
    if let Some(other) = others.into_iter().find(|module| symbol::find(module, b"malloc").is_some()) {
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
    let others = exec::exec_functions().into_iter().chain(mappings::mapping_functions());
    for (name, stub, function) in functions.into_iter().chain(others) {
        let Some(symbol) = symbol::find(libc, name) else { continue };
        // Names that share their code (aligned_alloc and memalign of older glibc) share a hook.
        if asked.iter().any(|&(_, _, address, _)| address == symbol.addr) {
            continue;
        }
        let id = transaction.replace_sized(symbol.pointer(), symbol.size, stub as *const ());
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
    // SAFETY: the targets are functions of libc and the loader, which stay; the stubs have their ABI; this is
    // the only thread, and has no signal handlers yet.
    let hooks = unsafe { prepared.commit(Liveness::SingleThreaded) };
    for (hook, (name, function, ..)) in hooks.into_iter().zip(&asked) {
        match hook {
            // For as long as the process lives.
            Ok(hook) => core::mem::forget(hook),
            Err(_) if matches!(function, Function::LoaderState) || mappings::is_one(*function) => {}
            Err(error) => return Err(format!("{} can't be hooked: {error}", name.escape_ascii())),
        }
    }
    if !is_sampled {
        let others =
            modules.iter().filter(|module| module.file_name() != b"libc.so.6" && !is_loaders(module));
        operators::install(others);
        loaded.iter().for_each(|(bias, _, headers)| reported::connect(*bias, headers));
        modules::follow_operators();
    }
    Ok(())
}
