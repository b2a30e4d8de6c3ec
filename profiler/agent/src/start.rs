//! The constructor: finds the session, puts the hooks in, begins the first life.
//!
//! # Safety
//! The library is linked with `-z initfirst`: the constructor runs before any other, libc's own included, in
//! the process's only thread. It relies on nothing but the loader's work being done.

use crate::entry::{SavedRegisters, rescued, stub};
use crate::lock::Quiet;
use crate::sandbox::{self, clock};
use crate::{
    bound, debug, exec, forked, forking, install, life, listing, meter, modules, native, session, stack, sys,
    tls,
};
use alloc::string::String;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::Ordering;
use grapnel_trace::shared::{SESSION_VARIABLE, failure, segment_state, session_flags};

#[cfg(grapnel_cdylib)]
stub!(grapnel_agent_start, start, 3);
#[cfg_attr(not(grapnel_cdylib), expect(dead_code, reason = "the constructor of the library form"))]
unsafe extern "C" fn start(
    count: c_int,
    arguments: *const *const c_char,
    environment: *mut *mut c_char,
    saved: &SavedRegisters,
) {
    rescued(saved, ptr::null_mut(), 0, || {
        let _quiet = Quiet::new();
        let mut start = Start { count, arguments, environment };
        let start = (&raw mut start).cast();
        // It takes more stack than a program may have been given.
        match sys::map_anonymous(STACK) {
            Some(stack) => {
                // SAFETY: a new stack, whole pages; the loader passes the process's own arguments and environment to constructors.
                unsafe { native::call_on(stack.expose_provenance() + STACK, begin_with, start) };
                sys::unmap(stack, STACK);
            }
            // SAFETY: as above.
            None => unsafe { begin_with(start) },
        }
    });
}

/// The bytes of stack that all of it is done on.
const STACK: usize = 256 << 10;

/// What a constructor is called with.
struct Start {
    count: c_int,
    arguments: *const *const c_char,
    environment: *mut *mut c_char,
}

/// # Safety
/// As a constructor is called, with a [`Start`].
unsafe extern "C" fn begin_with(start: *mut c_void) {
    // SAFETY: the caller's promise.
    let Start { count, arguments, environment } = unsafe { start.cast::<Start>().read() };
    // SAFETY: as above.
    unsafe { begin(count, arguments, environment) };
}

/// # Safety
/// As a constructor is called.
unsafe fn begin(count: c_int, arguments: *const *const c_char, environment: *mut *mut c_char) {
    // SAFETY: the caller's promise.
    let Some(path) = (unsafe { variable(environment, SESSION_VARIABLE.as_bytes()) }) else {
        // SAFETY: as above.
        if unsafe { debug::wanted(environment) } {
            tls::prepare();
            grapnel_unwind::ask_before_probing(sandbox::refuses_number);
            debug::begin(install);
        }
        return;
    };
    let opened = session::open(path);
    if let Some(header) = session::header().filter(|_| opened) {
        // The exec that led here is done; see `exec`.
        let _ = header.execs.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |execs| execs.checked_sub(1));
    }
    let Some(variables) = exec::prepare() else { return };
    // SAFETY: as above.
    let debugged = unsafe { debug::wanted(environment) };
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
    if !sys::has_such_pages() {
        return session::report_failure(failure::HOOK, b"the kernel's pages are larger than 4 KiB");
    }
    tls::prepare();
    clock::prepare();
    grapnel_unwind::ask_before_probing(sandbox::refuses_number);
    listing::prepare();
    modules::update(None);
    if !life::prepare() || !stack::prepare() {
        return session::report_failure(failure::MEMORY, b"no memory, or a kernel older than 4.14");
    }
    if debugged && header.sample_bytes.load(Ordering::Relaxed) != 0 {
        debug::leave(format_args!("what grapnel records is a sample"));
    } else if debugged && bound::is_wanted() {
        debug::leave(format_args!("grapnel records through tables of addresses"));
    } else if debugged {
        debug::prepare();
    }
    if let Err(message) = install() {
        life::end();
        if debugged {
            debug::leave(format_args!("{message}"));
        }
        return session::report_failure(failure::HOOK, message.as_bytes());
    }
    segment.agent_bytes.store(crate::heap::mapped(), Ordering::Relaxed);
    meter::prepare(&segment.meter);
    // SAFETY: the function is this library's, which is never unloaded.
    unsafe {
        libc::pthread_atfork(
            Some(grapnel_agent_forks),
            Some(grapnel_agent_has_forked),
            Some(grapnel_agent_forked),
        );
    }
    let took = sys::monotonic_ns().saturating_sub(segment.started_ns.load(Ordering::Relaxed));
    segment.meter.startup_ns.store(took, Ordering::Relaxed);
    session::announce(segment, segment_state::READY);
    life::begin();
}

/// Puts the hooks in.
///
/// # Errors
/// A sentence for the user: which function, and why.
fn install() -> Result<(), String> {
    if bound::is_wanted() {
        return bound::install();
    }
    let ready = install::prepare()?;
    // SAFETY: this is the only thread, and has no signal handlers yet but those that wait for a call.
    unsafe { ready.commit() }
}

/// The value of a variable.
///
/// # Safety
/// `environment` is a null-terminated array of strings, which stay.
pub(crate) unsafe fn variable<'a>(environment: *mut *mut c_char, name: &[u8]) -> Option<&'a CStr> {
    for index in 0.. {
        // SAFETY: the array ends with a null pointer, at which this loop ends.
        let entry = unsafe { *environment.add(index) };
        if entry.is_null() {
            return None;
        }
        // SAFETY: an entry is a zero-terminated string.
        let text = unsafe { CStr::from_ptr(entry) };
        if let Some([b'=', value @ ..]) = text.to_bytes_with_nul().strip_prefix(name) {
            return CStr::from_bytes_with_nul(value).ok();
        }
    }
    None
}

/// Runs before each fork that libc makes, behind all that the program does then.
unsafe extern "C" fn forks(saved: &SavedRegisters) {
    rescued(saved, ptr::null_mut(), 0, forking::begin);
}
stub!(grapnel_agent_forks, forks, 0);

/// Runs in the parent afterwards, before all that the program does then.
unsafe extern "C" fn has_forked(saved: &SavedRegisters) {
    rescued(saved, ptr::null_mut(), 0, forking::end);
}
stub!(grapnel_agent_has_forked, has_forked, 0);

/// Runs in each child of a fork that libc makes; others are noticed at their first event.
unsafe extern "C" fn forked(saved: &SavedRegisters) {
    rescued(saved, ptr::null_mut(), 0, || {
        forking::renew();
        forked::begin(Some(saved));
    });
}
stub!(grapnel_agent_forked, forked, 0);
