//! The handler of the trap signal, which sends a thread on that has met a trap of ours.
//!
//! It is installed by the first live patch and stays: a thread may have trapped and not yet be on its way to the handler.
//! Every other trap goes to the handler that was there before.
//!
//! # Safety
//! The handler runs in any thread at any instruction. It reads atomics, changes the program counter in the interrupted
//! context, and makes raw system calls; it uses no thread-local storage and leaves `errno` alone.

use core::{
    ffi::c_void,
    sync::atomic::{AtomicUsize, Ordering::*},
};

use super::table;
use crate::{
    native,
    sys::{self, Errno, SigAction},
};

/// The action that was there before: its handler and its flags.
static PREVIOUS: AtomicUsize = AtomicUsize::new(libc::SIG_DFL);
static PREVIOUS_FLAGS: AtomicUsize = AtomicUsize::new(0);

/// Sees to it that the handler is the one that is called.
pub(crate) fn install() -> Result<(), Errno> {
    let ours = on_trap as *const () as usize;
    let old = sys::signal_action(libc::SIGTRAP)?;
    if old.handler == ours {
        return Ok(());
    }
    PREVIOUS_FLAGS.store(old.flags, Relaxed);
    PREVIOUS.store(old.handler, Release);
    // On the alternate stack, since the interrupted one may be small. It is small itself: another signal's frame on top
    // of this one's may be too much for it, so other signals wait. Not those that the handler that was there before may
    // cause itself, for instance by calling a hooked function: a trap while its signal is blocked kills the process.
    let flags = (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER) as usize;
    let synchronous = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
    let mask = synchronous.iter().fold(!0, |mask, signal| mask & !(1u64 << (signal - 1)));
    let action = SigAction::new(ours, flags, mask);
    // SAFETY: `on_trap` is a handler of the kind that SA_SIGINFO asks for, and safe in a signal (module documentation).
    unsafe { sys::set_signal_action(libc::SIGTRAP, &action) }
}

extern "C" fn on_trap(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes valid structures, which are this handler's alone until it returns.
    let (code, context_ref) = unsafe { ((*info).si_code, &mut *context.cast::<libc::ucontext_t>()) };
    if native::is_trap_code(code)
        && let Some(way) = table::way_on(native::trap_address(context_ref))
    {
        native::set_pc(context_ref, way);
        return;
    }
    match PREVIOUS.load(Acquire) {
        libc::SIG_IGN if !native::is_trap_code(code) => {}
        // A trap that nobody handles ends the process, as it would have without this handler.
        libc::SIG_DFL | libc::SIG_IGN => {
            let default = SigAction::new(libc::SIG_DFL, 0, 0);
            // SAFETY: the default action needs no handler.
            let _ = unsafe { sys::set_signal_action(libc::SIGTRAP, &default) };
            sys::signal_this_thread(libc::SIGTRAP);
        }
        handler if PREVIOUS_FLAGS.load(Relaxed) & libc::SA_SIGINFO as usize != 0 => {
            // SAFETY: the action was installed with SA_SIGINFO, so its handler has this type.
            let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) =
                unsafe { core::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: the action was installed without SA_SIGINFO, so its handler has this type.
            let handler: extern "C" fn(i32) = unsafe { core::mem::transmute(handler) };
            handler(signal);
        }
    }
}
