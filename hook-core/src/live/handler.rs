//! The handler of the signals of traps, which sends a thread on that has met a trap of ours.
//!
//! It is installed by the first live patch and stays: a thread may have trapped and not yet be on its way to the handler.
//! Every other signal of these kinds goes to the handler that was there before.
//!
//! # Safety
//! The handler runs in any thread at any instruction. It reads atomics, changes the program counter in the interrupted
//! context, and makes raw system calls; it uses no thread-local storage and leaves `errno` alone.

use core::{
    ffi::c_void,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::*},
};

use grapnel_relocator::{CodeAddr, Isa};

use super::table;
use crate::{
    native,
    sys::{self, Errno, SigAction},
};

/// What somebody else does about a signal.
struct Action {
    handler: AtomicUsize,
    flags: AtomicUsize,
}

impl Action {
    const fn new() -> Self {
        Self { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicUsize::new(0) }
    }

    fn set(&self, action: &SigAction) {
        self.flags.store(action.flags, Relaxed);
        self.handler.store(action.handler, Release);
    }
}

/// The actions for a signal that were there before.
struct Others {
    signal: i32,
    previous: Action,
    /// The one before the first time, which nobody passes on to but this handler.
    first: Action,
    known: AtomicBool,
}

static OTHERS: [Others; native::TRAP_SIGNALS.len()] = {
    let mut others = [const { Others::of(0) }; native::TRAP_SIGNALS.len()];
    let mut i = 0;
    while i < others.len() {
        others[i].signal = native::TRAP_SIGNALS[i];
        i += 1;
    }
    others
};

impl Others {
    const fn of(signal: i32) -> Self {
        Self { signal, previous: Action::new(), first: Action::new(), known: AtomicBool::new(false) }
    }
}

/// Traps that are being passed on: the context, and where the handler's frame is.
static PASSING: [(AtomicUsize, AtomicUsize); 16] = [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 16];

/// This trap is being passed on.
struct Passing(Option<&'static AtomicUsize>);

impl Passing {
    /// `None` if the trap comes from who it was passed on to: by a call, so further down on the same stack. An entry that was
    /// left behind by a jump out of that handler isn't taken for it.
    fn begin(context: usize, here: usize) -> Option<Self> {
        let of_this = |entry: &&(AtomicUsize, AtomicUsize)| entry.0.load(Acquire) == context;
        if let Some((_, frame)) = PASSING.iter().find(of_this) {
            if here < frame.load(Relaxed) {
                return None;
            }
            frame.store(here, Relaxed);
            return Some(Self(None));
        }
        let take = |entry: &&(AtomicUsize, AtomicUsize)| {
            entry.0.compare_exchange(0, context, AcqRel, Relaxed).is_ok()
        };
        // With no room left it goes on as if it were not noted.
        let entry = PASSING.iter().find(take);
        if let Some((_, frame)) = entry {
            frame.store(here, Relaxed);
        }
        Some(Self(entry.map(|entry| &entry.0)))
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if let Some(context) = self.0 {
            context.store(0, Release);
        }
    }
}

fn way_on(signal: i32, pc: u64) -> Option<u64> {
    // Where the pointer doesn't tell the instruction set, a trap may go unseen, and counts as ours.
    table::way_on(pc, || is_trap(signal, native::code_at(CodeAddr(pc)).0, pc))
}

/// Whether what is there now is a trap that the signal tells of.
fn is_trap(signal: i32, isa: Isa, pc: u64) -> bool {
    let mut code = [0; 4];
    let found = sys::copy_memory(pc as usize, &mut code).ok().and_then(|n| code.get(..n));
    found.is_some_and(|code| native::tells_of(signal, isa, code))
}

/// Whether each patch needs a handler of this signal: it tells of the traps that are written first.
pub(crate) fn is_usual(signal: i32) -> bool {
    native::ISAS.iter().any(|&isa| native::tells_of(signal, isa, native::trap(isa)))
}

/// Sees to it that the handler is the one that is called for the signals that are wanted.
pub(crate) fn install(wanted: impl Fn(i32) -> bool) -> Result<(), Errno> {
    OTHERS.iter().filter(|others| wanted(others.signal)).try_for_each(install_for)
}

fn install_for(others: &Others) -> Result<(), Errno> {
    let ours = on_trap as *const () as usize;
    let old = sys::signal_action(others.signal)?;
    if old.handler == ours {
        return Ok(());
    }
    if !others.known.swap(true, AcqRel) {
        others.first.set(&old);
    }
    others.previous.set(&old);
    // On the alternate stack, since the interrupted one may be small. It is small itself: another signal's frame on top
    // of this one's may be too much for it, so other signals wait. Not those that the handler that was there before may
    // cause itself, for instance by calling a hooked function: a trap while its signal is blocked kills the process.
    let flags = (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER) as usize;
    let synchronous = [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
    let mask = synchronous.iter().fold(!0, |mask, signal| mask & !(1u64 << (signal - 1)));
    let action = SigAction::new(ours, flags, mask);
    // SAFETY: `on_trap` is a handler of the kind that SA_SIGINFO asks for, and safe in a signal (module documentation).
    unsafe { sys::set_signal_action(others.signal, &action) }
}

/// Whether a signal that isn't ours may be ignored: the thread wouldn't cause it again at once.
fn may_be_ignored(signal: i32, code: i32, context: &libc::ucontext_t) -> bool {
    let pc = native::trap_address(signal, context);
    match signal {
        libc::SIGTRAP => !native::is_trap_code(signal, code),
        // Sent by a process, and no trap of somebody else's.
        _ => code <= 0 && !native::ISAS.iter().any(|&isa| is_trap(signal, isa, pc)),
    }
}

pub(super) extern "C" fn on_trap(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes valid structures, which are this handler's alone until it returns.
    let (code, context_ref) = unsafe { ((*info).si_code, &mut *context.cast::<libc::ucontext_t>()) };
    if native::is_trap_code(signal, code)
        && let Some(way) = way_on(signal, native::trap_address(signal, context_ref))
    {
        native::set_pc(context_ref, way);
        return;
    }
    let Some(others) = OTHERS.iter().find(|others| others.signal == signal) else { return };
    let mut local = 0usize;
    let here = core::hint::black_box(core::ptr::from_mut(&mut local)) as usize;
    let passing = Passing::begin(context as usize, here);
    // Who passes on what came from here to the handler that was there before has it come here again.
    let comes_back = passing.is_none();
    let action = if comes_back { &others.first } else { &others.previous };
    match action.handler.load(Acquire) {
        libc::SIG_IGN if may_be_ignored(signal, code, context_ref) => {}
        // A trap that nobody handles ends the process, as it would have without this handler.
        libc::SIG_DFL | libc::SIG_IGN => {
            let default = SigAction::new(libc::SIG_DFL, 0, 0);
            // SAFETY: the default action needs no handler.
            let _ = unsafe { sys::set_signal_action(signal, &default) };
            sys::signal_this_thread(signal);
        }
        handler if action.flags.load(Relaxed) & libc::SA_SIGINFO as usize != 0 => {
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
