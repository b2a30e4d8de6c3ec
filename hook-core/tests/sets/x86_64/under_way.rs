//! A function is patched while a call of it is under way on this thread's stack, and returns into the patch.

use std::{
    arch::global_asm,
    ffi::c_void,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use grapnel_hook::{HookSet, Listener, Liveness, Transaction, listen::Entry};

use crate::{attach, remove};

global_asm!(
    ".pushsection .text.under_way, \"ax\", @progbits",
    ".p2align 4",
    ".globl calls_early",
    ".type calls_early, @function",
    "calls_early:", // (function, its argument)
    ".cfi_startproc",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    "call rdi",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    ".size calls_early, . - calls_early",
    ".p2align 4, 0xcc",
    ".popsection",
);

type Callback = extern "C" fn(*mut c_void, *mut c_void) -> u64;

unsafe extern "C" {
    safe fn calls_early(callback: Callback, set: *mut c_void) -> u64;
}

static ENTERED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn enter(_: &mut Entry, _: *mut c_void) {
    ENTERED.fetch_add(1, Relaxed);
}

pub(crate) fn run() {
    extern "C" fn attaches(_: *mut c_void, set: *mut c_void) -> u64 {
        // SAFETY: the set that `through` was given, which nobody else uses meanwhile.
        let set = unsafe { &mut *set.cast::<HookSet>() };
        let listener = Listener::new(std::ptr::null_mut()).on_enter(enter);
        attach(set, |batch| batch.listen(calls_early as *const (), listener)).unwrap().number()
    }
    extern "C" fn replaces(_: *mut c_void, _: *mut c_void) -> u64 {
        let mut transaction = Transaction::new();
        transaction.replace(calls_early as *const (), seven as *const ());
        // SAFETY: one thread, and the types agree.
        let mut hook = unsafe { transaction.commit(Liveness::SingleThreaded) }.remove(0).unwrap();
        extern "C" fn removes(hook: &mut grapnel_hook::Hook) {
            // SAFETY: one thread.
            unsafe { hook.remove(Liveness::SingleThreaded) }.unwrap();
        }
        // Left in: the frame returns into the redirect.
        REMOVE.with(|remove| remove.set(Some(Box::new(move || removes(&mut hook)))));
        8
    }
    extern "C" fn seven(_: Callback, _: *mut c_void) -> u64 {
        7
    }
    extern "C" fn nothing(_: *mut c_void, _: *mut c_void) -> u64 {
        9
    }
    std::thread_local! {
        static REMOVE: std::cell::Cell<Option<Box<dyn FnOnce()>>> = const { std::cell::Cell::new(None) };
    }

    let mut set = HookSet::new();
    for round in 1..3 {
        let number = through(attaches, &mut set);
        assert_eq!(ENTERED.load(Relaxed), round - 1);
        assert_eq!(through(nothing, &mut set), 9);
        assert_eq!(ENTERED.load(Relaxed), round);
        remove(&mut set, grapnel_hook::Attachment::from_number(number)).unwrap();
        assert_eq!(through(nothing, &mut set), 9);
        assert_eq!(ENTERED.load(Relaxed), round);
    }
    assert_eq!(through(replaces, &mut set), 8);
    assert_eq!(through(nothing, &mut set), 7);
    REMOVE.take().unwrap()();
    assert_eq!(through(nothing, &mut set), 9);
}

/// The set goes to the callback in the second register, which the function leaves alone.
fn through(callback: Callback, set: &mut HookSet) -> u64 {
    let function: extern "C" fn(Callback, *mut c_void) -> u64 = std::hint::black_box(calls_early);
    function(callback, std::ptr::from_mut(set).cast())
}
