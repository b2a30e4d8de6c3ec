//! Traps that aren't this crate's, at places where it has patched.

use std::{
    os::unix::fs::FileExt,
    sync::atomic::{AtomicUsize, Ordering::*},
};

use grapnel_hook::{Arena, Liveness, Transaction};

use crate::{code, function, samples};

extern "C" fn plus_100(x: u64) -> u64 {
    x + 100
}

pub(crate) static CAUGHT: AtomicUsize = AtomicUsize::new(0);
static PASS_ON_TO: AtomicUsize = AtomicUsize::new(0);

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t);

pub(crate) fn poke(at: *const (), bytes: &[u8]) {
    let memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
    memory.write_all_at(bytes, at as u64).unwrap();
}

/// Emulates the function behind the trap: returns 5.
pub(crate) extern "C" fn other_tool(_: i32, _: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    CAUGHT.fetch_add(1, Relaxed);
    // SAFETY: the kernel passes a valid structure; the function was entered and has pushed nothing.
    unsafe {
        let registers = &mut (*context).uc_mcontext.gregs;
        let stack = registers[libc::REG_RSP as usize] as *const i64;
        registers[libc::REG_RAX as usize] = 5;
        registers[libc::REG_RIP as usize] = stack.read();
        registers[libc::REG_RSP as usize] += 8;
    }
}

/// Knows nothing, and passes everything on to who was there before.
extern "C" fn passes_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    CAUGHT.fetch_add(100, Relaxed);
    // SAFETY: the handler that was there before, which takes these.
    let before: Handler = unsafe { std::mem::transmute(PASS_ON_TO.load(Relaxed)) };
    before(signal, info, context);
}

pub(crate) fn install(handler: Handler) -> usize {
    // SAFETY: the handlers are safe wherever this test traps.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let mut before: libc::sigaction = std::mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (handler as usize, libc::SA_SIGINFO);
        assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, &raw mut before), 0);
        before.sa_sigaction
    }
}

/// A live patch in and out again, which installs this crate's handler.
fn patch(arena: &mut Arena, target: *const ()) {
    let mut transaction = Transaction::with_arena(arena).live();
    transaction.replace(target, plus_100 as *const ());
    // SAFETY: the types agree, and no thread has the trap signal blocked.
    let mut hook = unsafe { transaction.commit(Liveness::Live) }.remove(0).unwrap();
    assert_eq!(function(target)(1), 101);
    // SAFETY: as above.
    unsafe { hook.remove(Liveness::Live) }.unwrap();
}

pub(crate) fn run() {
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let target = samples::all().into_iter().find(|s| s.name == "frame").unwrap().at;
        let first = code::bytes(target, 1);
        let mut arena = Arena::new();
        install(other_tool);
        patch(&mut arena, target);
        // Another tool's trap, where a patch was.
        poke(target, &[0xcc]);
        let mut works = function(target)(1) == 5 && CAUGHT.load(Relaxed) == 1;
        poke(target, &first);
        works &= function(target)(1) == 2;
        // A handler that comes later and passes on; then this crate's handler is in front of it again.
        PASS_ON_TO.store(install(passes_on), Relaxed);
        patch(&mut arena, target);
        poke(target, &[0xcc]);
        works &= function(target)(1) == 5 && CAUGHT.load(Relaxed) == 102;
        works &= function(target)(1) == 5 && CAUGHT.load(Relaxed) == 203;
        // SAFETY: leaves the child at once.
        unsafe { libc::_exit(if works { 7 } else { 8 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
}
