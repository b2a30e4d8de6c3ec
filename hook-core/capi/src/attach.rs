//! One hook at a time, and what says how it is attached.
//!
//! # Safety
//! Each function here makes a batch of one request and commits it: what is promised for the two is promised here.

use std::{
    ffi::{c_uint, c_void},
    mem::transmute,
};

use engine::{
    Listener, Liveness, Probe,
    listen::{OnEnter, OnHit, OnLeave},
};

use crate::{
    batch::{
        grapnel_batch_attach, grapnel_batch_probe, grapnel_batch_remove, grapnel_batch_replace,
        grapnel_begin, grapnel_commit, grapnel_hook,
    },
    call::grapnel_call,
    error::grapnel_error,
};

/// Who may be running a function while it is patched: GRAPNEL_SINGLE_THREADED or GRAPNEL_LIVE.
#[expect(non_camel_case_types, reason = "the name in C")]
pub type grapnel_liveness = c_uint;

/// No other thread runs. Nearly every function that can be hooked at all can be hooked so. Calls of the function may be
/// under way; where one may return into the bytes that are overwritten, a trap catches it, as with GRAPNEL_LIVE.
pub const GRAPNEL_SINGLE_THREADED: grapnel_liveness = 0;

/// Other threads may be running the function. A handler for SIGTRAP is installed and stays; traps of others go on to the
/// handler that was there before. The same holds for SIGBUS on 32-bit Arm, by which some kernels tell of breakpoints in T32
/// code, and on x86-64 for SIGILL in programs that are linked for addresses below 0.8 GiB (no PIE), as soon as one of their
/// functions needs it.
///
/// Where grapnel_patch_way says GRAPNEL_REMAP, no trap goes over the function's start: a thread traps only if it was between
/// the first instructions of the function at that moment. Else, for a moment, everybody does who comes to the function. A
/// thread that traps with such a signal blocked is killed with its process, and nobody but the user can rule that out. glibc
/// blocks all signals where it ends a thread (where it runs madvise, munmap and sigprocmask), and in posix_spawn, system and
/// popen, also in their child, which has no handlers either (sigprocmask, sigaction, dup2, open, close, execve, munmap).
/// Handlers that were installed with SIGTRAP in their sa_mask block it, too. Without GRAPNEL_REMAP, hook what they run with
/// GRAPNEL_SINGLE_THREADED, before other threads begin, or while none of this goes on.
///
/// A debugger must pass these signals on (gdb: "handle SIGTRAP nostop noprint pass", and it may still take some for its
/// own): patch with GRAPNEL_SINGLE_THREADED under one.
pub const GRAPNEL_LIVE: grapnel_liveness = 1;

/// How a listener or a probe is attached: GRAPNEL_GUARDED, GRAPNEL_VECTORS and GRAPNEL_GENERAL_ONLY, joined by |, or 0.
#[expect(non_camel_case_types, reason = "the name in C")]
pub type grapnel_flags = c_uint;

/// While a guarded listener or probe runs in a thread, none is told of what that thread does.
pub const GRAPNEL_GUARDED: grapnel_flags = 1;

/// Listeners: all vector registers are seen and kept in full. Without it, those that pass arguments and results are seen,
/// and of all the low 128 bits are kept. Probes always do this, unless told otherwise.
pub const GRAPNEL_VECTORS: grapnel_flags = 2;

/// Probes: the listener and what it calls use general registers only. Several times as fast on x86-64, unless its code shows
/// this by itself. For guarded probes, and on other machines, all are saved all the same.
pub const GRAPNEL_GENERAL_ONLY: grapnel_flags = 4;

/// What is told of a call, or of a probed instruction. `data` is what was given when it was attached.
///
/// It may run in any thread, also in several at once, must not throw, and keeps errno and the registers without doing
/// anything for it. Where it is told of a call that this library makes while it changes hooks, of malloc for instance, it
/// can't change any: that is answered with an error, which takes memory. So attach a listener of malloc that calls this library with
/// GRAPNEL_GUARDED, and none to what malloc calls under its lock (brk, sbrk, mprotect). It must not be hooked itself: where its code is seen to use general
/// registers only, no others are saved for it.
#[expect(non_camel_case_types, reason = "the name in C")]
pub type grapnel_listener = Option<unsafe extern "C" fn(call: *mut grapnel_call, data: *mut c_void)>;

/// The error for flags that stand for nothing.
pub(crate) fn check(flags: grapnel_flags) -> Result<(), Box<grapnel_error>> {
    let unknown = flags & !(GRAPNEL_GUARDED | GRAPNEL_VECTORS | GRAPNEL_GENERAL_ONLY);
    if unknown == 0 { Ok(()) } else { Err(grapnel_error::unknown("flag", unknown)) }
}

/// What the engine calls a liveness.
pub(crate) fn liveness(number: grapnel_liveness) -> Result<Liveness, *mut grapnel_error> {
    match number {
        GRAPNEL_SINGLE_THREADED => Ok(Liveness::SingleThreaded),
        GRAPNEL_LIVE => Ok(Liveness::Live),
        other => Err(grapnel_error::raise(
            &format!("{other} is no liveness"),
            "use GRAPNEL_SINGLE_THREADED or GRAPNEL_LIVE",
            0,
        )),
    }
}

/// # Errors
/// If there is nobody to tell, or a flag is unknown.
pub(crate) fn listener(
    enter: grapnel_listener,
    leave: grapnel_listener,
    data: *mut c_void,
    flags: grapnel_flags,
) -> Result<Listener, Box<grapnel_error>> {
    check(flags)?;
    if enter.is_none() && leave.is_none() {
        return Err(grapnel_error::null("each of enter and leave"));
    }
    type Function = unsafe extern "C" fn(*mut grapnel_call, *mut c_void);
    let mut listener = Listener::new(data);
    if let Some(enter) = enter {
        // SAFETY: `grapnel_call` stands for what the engine passes, behind a pointer.
        listener = listener.on_enter(unsafe { transmute::<Function, OnEnter>(enter) });
    }
    if let Some(leave) = leave {
        // SAFETY: as above.
        listener = listener.on_leave(unsafe { transmute::<Function, OnLeave>(leave) });
    }
    if flags & GRAPNEL_GUARDED != 0 {
        listener = listener.guarded();
    }
    if flags & GRAPNEL_VECTORS != 0 {
        listener = listener.with_vectors();
    }
    Ok(listener)
}

/// # Errors
/// As [`listener`].
///
/// # Safety
/// With [`GRAPNEL_GENERAL_ONLY`], `hit` and all that it calls leave the vector registers alone.
pub(crate) unsafe fn probe(
    at: *const c_void,
    hit: grapnel_listener,
    data: *mut c_void,
    flags: grapnel_flags,
) -> Result<Probe, Box<grapnel_error>> {
    check(flags)?;
    let hit = hit.ok_or_else(|| grapnel_error::null("what is told of a probe").about(at as u64))?;
    type Function = unsafe extern "C" fn(*mut grapnel_call, *mut c_void);
    // SAFETY: `grapnel_call` stands for what the engine passes, behind a pointer.
    let mut probe = Probe::new(unsafe { transmute::<Function, OnHit>(hit) }, data);
    if flags & GRAPNEL_GUARDED != 0 {
        probe = probe.guarded();
    }
    if flags & GRAPNEL_GENERAL_ONLY != 0 {
        // SAFETY: the caller's promise.
        probe = unsafe { probe.general_only() };
    }
    Ok(probe)
}

/// Replaces a function: calls of `target` go to `replacement`.
///
/// What was attached last to a function is the outermost, and is reached first. If `original` isn't NULL, what
/// `replacement` replaces, callable in its place, is stored there before the first call can reach the replacement: what
/// was attached before, and within that the function. It stays valid when the hook is removed, until grapnel_reclaim is
/// called. If `hook` isn't NULL, the handle is stored there; otherwise the hook stays in for good.
///
/// A call that is still in a replacement when that is removed and attached again, and reads the newer original, goes on
/// from the newer place in the order, and may pass a second time what it has passed.
///
/// # Errors
/// If the function can't be hooked, `target` or `replacement` is NULL, or hooks are being changed at this moment by another
/// thread or around this call. Nothing has changed then, `hook` is NULL, and `original` is as it was.
///
/// # Safety
/// `target` is the start of a function, to whose first instructions no other function branches. `replacement` has the
/// same type. Both stay loaded while the hook is in or a call is under way. `original` and `hook` are NULL or may be
/// written. What `liveness` says of other threads is so. Any thread may call this, not a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_replace(
    target: *mut c_void,
    replacement: *mut c_void,
    liveness: grapnel_liveness,
    original: *mut *mut c_void,
    hook: *mut *mut grapnel_hook,
) -> *mut grapnel_error {
    let batch = grapnel_begin();
    // SAFETY: the caller's promise.
    unsafe {
        grapnel_batch_replace(batch, target, replacement, original, hook);
        grapnel_commit(batch, liveness)
    }
}

/// Tells a listener when a function is entered and when it has returned; one of `enter` and `leave` may be NULL.
///
/// Exceptions and longjmp may pass a call that is listened to; it then has no return. A call among the instructions that the
/// patch overwrites moves: what is thrown out of it passes if it is the last of them and returns to the original behind it, as
/// on x86-64 and 32-bit Arm, and else only after grapnel_announce has told unwinders. On x86-64 a call through memory that isn't
/// relative to RIP, and each call where there is a hardware shadow stack, returns to the moved code. There is room for some
/// thousand calls whose return is awaited (grapnel_missed).
///
/// # Errors
/// As grapnel_replace; also if both `enter` and `leave` are NULL or a flag is unknown, if the return is asked for in a process that has a hardware shadow stack, or vector
/// registers on a processor that can't save them.
///
/// # Safety
/// As grapnel_replace. The function returns once for each call (unlike setjmp and vfork), and doesn't look at its own
/// return address. The listener and `data` stay valid until the hook was removed and no call is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_attach(
    target: *mut c_void,
    enter: grapnel_listener,
    leave: grapnel_listener,
    data: *mut c_void,
    flags: grapnel_flags,
    liveness: grapnel_liveness,
    hook: *mut *mut grapnel_hook,
) -> *mut grapnel_error {
    let batch = grapnel_begin();
    // SAFETY: the caller's promise.
    unsafe {
        grapnel_batch_attach(batch, target, enter, leave, data, flags, hook);
        grapnel_commit(batch, liveness)
    }
}

/// Tells a listener when the instruction at `at` is about to run.
///
/// The whole function around it is looked at for branches into the instructions that are patched: it has `size` bytes at
/// `function`, or, if that is NULL, is found in its object's unwind table.
///
/// # Errors
/// As grapnel_replace; also if `hit` is NULL or a flag is unknown.
///
/// # Safety
/// As grapnel_replace and grapnel_attach. An instruction begins at `at`, and no code outside the function branches to
/// those behind it. With GRAPNEL_GENERAL_ONLY, `hit` and all that it calls leave the vector registers alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_probe(
    at: *mut c_void,
    function: *mut c_void,
    size: usize,
    hit: grapnel_listener,
    data: *mut c_void,
    flags: grapnel_flags,
    liveness: grapnel_liveness,
    hook: *mut *mut grapnel_hook,
) -> *mut grapnel_error {
    let batch = grapnel_begin();
    // SAFETY: the caller's promise.
    unsafe {
        grapnel_batch_probe(batch, at, function, size, hit, data, flags, hook);
        grapnel_commit(batch, liveness)
    }
}

/// Takes a hook out and frees the handle.
///
/// When it was the last on its function, that is then as it was before, byte for byte; if the function is gone with its
/// library, nothing is written. Calls that are under way may still be in the listener or the replacement.
///
/// # Errors
/// If someone else has patched the function meanwhile, it can't be written, or hooks are being changed at this moment.
/// Nothing has changed then, and the handle stays valid. If the handle is from before a fork during which another thread
/// changed hooks: it stays valid too, but the hook is in for good.
///
/// # Safety
/// `hook` was stored by a function of this library and wasn't removed. What `liveness` says of other threads is so. Any
/// thread may call this, not a signal handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn grapnel_remove(
    hook: *mut grapnel_hook,
    liveness: grapnel_liveness,
) -> *mut grapnel_error {
    if hook.is_null() {
        return grapnel_error::null("the hook").give();
    }
    let batch = grapnel_begin();
    // SAFETY: the caller's promise.
    unsafe {
        grapnel_batch_remove(batch, hook);
        grapnel_commit(batch, liveness)
    }
}
