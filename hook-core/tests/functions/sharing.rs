//! Hooks that meet others: on the same function, in the same bytes, from someone else, in a child process, far away.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use grapnel_hook::{Arena, CodeWay, Error, Hook, HookId, Liveness, PatchWay, Transaction};

use crate::{code, function, poke::poke, samples};

extern "C" fn plus_100(x: u64) -> u64 {
    x + 100
}

fn at(name: &str) -> *const () {
    samples::all().into_iter().find(|s| s.name == name).unwrap().at
}

fn put(target: *const (), replacement: *const ()) -> Result<Hook, Error> {
    let mut transaction = Transaction::new();
    transaction.replace(target, replacement);
    // SAFETY: one thread, and the types agree.
    unsafe { transaction.commit(Liveness::SingleThreaded) }.remove(0)
}

fn take(hook: &mut Hook) -> Result<(), Error> {
    // SAFETY: one thread.
    unsafe { hook.remove(Liveness::SingleThreaded) }.map(drop)
}

pub(crate) fn run() {
    one_address_twice();
    #[cfg(target_arch = "x86_64")]
    overlapping_patches();
    two_hooks_on_one_function();
    #[cfg(target_arch = "x86_64")]
    entered_by_a_hooked_function();
    someone_elses_patch();
    #[cfg(target_arch = "x86_64")]
    all_removed_at_once();
    #[cfg(target_arch = "x86_64")]
    removed_at_once_in_any_order();
    changed_before_commit();
    replacement_out_of_reach();
    replacement_in_the_patch();
    written_and_then_protected();
    a_child_has_an_arena_of_its_own();
    without_proc();
}

fn one_address_twice() {
    let mut transaction = Transaction::new();
    let first = transaction.replace(at("frame"), plus_100 as *const ());
    transaction.replace(at("compact"), plus_100 as *const ());
    let second = transaction.replace(at("frame"), plus_100 as *const ());
    let prepared = transaction.prepare();
    assert!(matches!(prepared.original(second), Err(Error::AlreadyPlanned { first: f, .. }) if f == first));
    assert!(prepared.original(first).is_ok());
    // Nothing is committed: nothing changes.
    drop(prepared);
    assert_eq!(function(at("frame"))(1), 2);
}

/// Elsewhere a patch is one instruction, or as long as the longest.
#[cfg(target_arch = "x86_64")]
fn overlapping_patches() {
    let mut transaction = Transaction::new();
    let first = transaction.replace(at("wide_immediate"), plus_100 as *const ());
    let inside = (at("compact") as usize + 1) as *const ();
    transaction.replace(at("compact"), plus_100 as *const ());
    let second = transaction.replace(inside, plus_100 as *const ());
    let prepared = transaction.prepare();
    assert!(prepared.original(first).is_ok());
    assert!(matches!(prepared.original(second), Err(Error::Overlaps { first, .. }) if first.index() == 1));
}

fn two_hooks_on_one_function() {
    static INNER: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn doubled(x: u64) -> u64 {
        function(INNER.load(Relaxed) as *const ())(x) * 2
    }
    let target = at("frame");
    let before = code::bytes(target, 48);
    let mut first = put(target, plus_100 as *const ()).unwrap();
    let mut second = put(target, doubled as *const ()).unwrap();
    INNER.store(second.original() as usize, Relaxed);
    assert_eq!(function(target)(1), 202);
    assert_eq!(function(first.original())(1), 2);
    // The first one's bytes are under the second one's.
    assert!(matches!(take(&mut first), Err(Error::ForeignPatch { .. })));
    assert_eq!(function(target)(1), 202);
    take(&mut second).unwrap();
    assert_eq!(function(target)(1), 101);
    take(&mut first).unwrap();
    assert_eq!(code::bytes(target, 48), before);
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.entered, \"ax\", @progbits",
    ".p2align 4",
    // As glibc's `mempcpy`, which goes on in the middle of `memmove`.
    "like_mempcpy:",
    ".cfi_startproc",
    "mov rax, rdi; add rax, rdx; jmp 7f",
    ".cfi_endproc",
    ".p2align 4",
    "like_memmove:",
    ".cfi_startproc",
    "push rdi; 7: pop rax; inc rax; nop; ret",
    ".cfi_endproc",
    ".popsection",
);

/// A patch over the one function's start hides nothing of the branch behind it, whoever made the patch.
#[cfg(target_arch = "x86_64")]
fn entered_by_a_hooked_function() {
    unsafe extern "C" {
        fn like_mempcpy();
        fn like_memmove();
    }
    let (enters, entered) = (like_mempcpy as *const (), like_memmove as *const ());
    let refused = || {
        let error = put(entered, plus_100 as *const ()).unwrap_err();
        assert!(matches!(error, Error::InboundBranch { .. }), "{error}");
        assert_eq!(error.address().0, enters as u64 + 6, "{error}");
    };
    refused();
    let mut hook = put(enters, plus_100 as *const ()).unwrap();
    refused();
    take(&mut hook).unwrap();
    let before = code::bytes(enters, 6);
    // A debugger's breakpoint, and an address that is pushed for a return.
    for patch in [&[0xcc][..], &[0x68, 0, 0, 0, 0x12, 0xc3]] {
        poke(enters, patch);
        refused();
        poke(enters, &before);
    }
    assert_eq!(function(entered)(1), 2);
}

fn someone_elses_patch() {
    let target = at("frame");
    let before = code::bytes(target, 48);
    let mut hook = put(target, plus_100 as *const ()).unwrap();
    let ours = code::bytes(target, 5);
    poke(target, &[0xcc]);
    let error = take(&mut hook).unwrap_err();
    assert!(matches!(&error, Error::ForeignPatch { found, .. } if found.as_slice()[0] == 0xcc));
    assert_eq!(code::bytes(target, 5)[0], 0xcc, "it is left alone");
    poke(target, &ours[..1]);
    take(&mut hook).unwrap();
    assert_eq!(code::bytes(target, 48), before);
}

/// The first one's bytes are under the second one's; of another function somebody else has changed a byte.
#[cfg(target_arch = "x86_64")]
fn all_removed_at_once() {
    let names = ["frame", "frame", "compact", "wide_immediate"];
    let before = names.map(|name| code::bytes(at(name), 48));
    let mut hooks = names.map(|name| put(at(name), plus_100 as *const ()).unwrap());
    let ours = code::bytes(at("compact"), 1);
    poke(at("compact"), &[0xcc]);
    // SAFETY: what runs them are calls of this thread.
    let results = unsafe { Hook::remove_all(&mut hooks, Liveness::SingleThreaded) };
    assert!(matches!(results[2], Err(Error::ForeignPatch { .. })), "{results:?}");
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3, "{results:?}");
    poke(at("compact"), &ours);
    for liveness in [Liveness::SingleThreaded, Liveness::Live] {
        // SAFETY: as above.
        let again = unsafe { Hook::remove_all(&mut hooks, liveness) };
        for (at, result) in again.iter().enumerate() {
            let first = liveness == Liveness::SingleThreaded;
            match result {
                Ok(_) => assert!(at == 2 && first, "{again:?}"),
                Err(error) => assert!(matches!(error, Error::AlreadyRemoved { .. }) && (at != 2 || !first)),
            }
        }
    }
    assert_eq!(names.map(|name| code::bytes(at(name), 48)), before);
}

/// Three hooks on one function, some with one replacement, so that their patches are alike.
#[cfg(target_arch = "x86_64")]
fn removed_at_once_in_any_order() {
    extern "C" fn plus_200(x: u64) -> u64 {
        x + 200
    }
    let target = at("frame");
    let before = code::bytes(target, 8);
    let (p, q) = (plus_100 as *const (), plus_200 as *const ());
    for replacements in [[p, p, p], [p, q, p], [q, p, p], [p, p, q]] {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut hooks: Vec<_> =
                replacements.into_iter().map(|replacement| Some(put(target, replacement).unwrap())).collect();
            let mut hooks: Vec<_> = order.into_iter().map(|at: usize| hooks[at].take().unwrap()).collect();
            // SAFETY: one thread.
            let results = unsafe { Hook::remove_all(&mut hooks, Liveness::SingleThreaded) };
            assert!(results.iter().all(Result::is_ok), "{order:?}: {results:?}");
            assert_eq!(code::bytes(target, 8), before, "{order:?}");
        }
    }
}

/// The same while other threads may run. It leaves handlers of signals.
#[cfg(target_arch = "x86_64")]
pub(crate) fn all_removed_at_once_live() {
    let names = ["frame", "wide_immediate"];
    let before = names.map(|name| code::bytes(at(name), 5));
    let mut transaction = Transaction::new().live();
    for name in names {
        transaction.replace(at(name), plus_100 as *const ());
    }
    // SAFETY: the types agree, and no thread has the signal of traps blocked.
    let hooks: Result<Vec<_>, _> = unsafe { transaction.commit(Liveness::Live) }.into_iter().collect();
    let mut hooks = hooks.unwrap();
    assert_eq!(names.map(|name| function(at(name))(1)), [101; 2]);
    // SAFETY: as above.
    let results = unsafe { Hook::remove_all(&mut hooks, Liveness::Live) };
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(names.map(|name| code::bytes(at(name), 5)), before);
}

fn changed_before_commit() {
    let target = at("frame");
    let before = code::bytes(target, 48);
    let mut transaction = Transaction::new();
    transaction.replace(target, plus_100 as *const ());
    let prepared = transaction.prepare();
    poke(target, &[0x90]);
    // SAFETY: one thread, and the types agree.
    let results = unsafe { prepared.commit(Liveness::SingleThreaded) };
    assert!(matches!(&results[0], Err(Error::Changed { .. })));
    poke(target, &before[..1]);
    assert_eq!(code::bytes(target, 48), before);
}

/// A function that adds 100, out of reach of a redirect.
struct Far {
    address: usize,
    text: &'static [u8],
    /// What is added to the address to call it.
    pointer: usize,
}

/// `lea rax, [rdi + 100]; ret`
#[cfg(target_arch = "x86_64")]
const FAR: Far = Far { address: 0x1000_0000_0000, text: &[0x48, 0x8d, 0x47, 0x64, 0xc3], pointer: 0 };
/// `add x0, x0, #100; ret`
#[cfg(target_arch = "aarch64")]
const FAR: Far =
    Far { address: 0x1000_0000_0000, text: &[0, 0x90, 1, 0x91, 0xc0, 3, 0x5f, 0xd6], pointer: 0 };
/// `adds r0, #100; adc r1, r1, #0; bx lr`, in T32
#[cfg(target_arch = "arm")]
const FAR: Far = Far { address: 0x6000_0000, text: &[0x64, 0x30, 0x41, 0xf1, 0, 1, 0x70, 0x47], pointer: 1 };

/// The redirect goes through an island in the slot.
fn replacement_out_of_reach() {
    let Far { address, text, pointer } = FAR;
    // SAFETY: a new mapping at a place that is free, filled before it is run.
    let far = unsafe {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let page = libc::mmap(address as *mut _, 4096, rights, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        std::ptr::copy_nonoverlapping(text.as_ptr(), page.cast(), text.len());
        libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_EXEC);
        page.cast_const().cast::<()>().wrapping_byte_add(pointer)
    };
    let there = |name: &&str| samples::all().iter().any(|sample| sample.name == *name);
    for name in ["frame", "literal", "no_room"].into_iter().filter(there) {
        let target = at(name);
        let before = code::bytes(target, 48);
        let plain = function(target)(1);
        let mut hook = put(target, far).unwrap();
        assert_eq!(function(target)(1), 101);
        assert_eq!(function(hook.original())(1), plain);
        take(&mut hook).unwrap();
        assert_eq!(code::bytes(target, 48), before);
    }
}

fn replacement_in_the_patch() {
    let target = at("frame");
    let error = put(target, code::start(target).wrapping_byte_add(2)).unwrap_err();
    assert!(matches!(error, Error::ReplacementInPatch { .. }));
}

fn written_and_then_protected() {
    let mut arena = Arena::with_protection_only();
    let mut hooks = Vec::new();
    // A sealed region takes nothing more: each transaction gets a new one.
    for name in ["frame", "literal", "call"] {
        let mut transaction = Transaction::with_arena(&mut arena);
        transaction.replace(at(name), plus_100 as *const ());
        // SAFETY: one thread, and the types agree.
        hooks.push(unsafe { transaction.commit(Liveness::SingleThreaded) }.remove(0).unwrap());
        assert_eq!(code::writable_code(), Vec::<String>::new());
        assert_eq!(function(at(name))(1), 101);
    }
    assert_eq!(arena.regions().map(|(_, way)| way).collect::<Vec<_>>(), [CodeWay::Protect; 3]);
    assert_eq!(function(hooks[0].original())(1), 2);
    assert_eq!(function(hooks[1].original())(1), 41);
    for hook in &mut hooks {
        take(hook).unwrap();
    }
}

/// The views of one file are shared with the child. What the child hooks must not end up in the parent's code.
fn a_child_has_an_arena_of_its_own() {
    let mut arena = Arena::new();
    let mut put_in = |name: &str| {
        let mut transaction = Transaction::with_arena(&mut arena);
        let id: HookId = transaction.replace(at(name), plus_100 as *const ());
        assert_eq!(id.index(), 0);
        // SAFETY: one thread, and the types agree.
        unsafe { transaction.commit(Liveness::SingleThreaded) }.remove(0).unwrap()
    };
    let mut before_fork = put_in("frame");
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut in_child = put_in("literal");
        let works = function(at("literal"))(1) == 101
            && function(in_child.original())(1) == 41
            && function(at("frame"))(1) == 101
            && function(before_fork.original())(1) == 2
            && take(&mut in_child).is_ok()
            && take(&mut before_fork).is_ok()
            && function(at("frame"))(1) == 2;
        // SAFETY: leaves the child at once.
        unsafe { libc::_exit(if works { 7 } else { 8 }) };
    }
    let mut in_parent = put_in("call");
    let mut status = 0;
    // SAFETY: `status` is valid for writes.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
    assert_eq!(function(in_parent.original())(1), 12);
    assert_eq!(function(before_fork.original())(1), 2);
    assert_eq!(function(at("frame"))(1), 101);
    assert_eq!(function(at("literal"))(1), 41);
    take(&mut before_fork).unwrap();
    take(&mut in_parent).unwrap();
    assert_eq!(arena.regions().count(), 1);
}

/// Without /proc/self/mem code is written through its own pages, and while other threads may run it by an exchange of these.
fn without_proc() {
    crate::without_proc_mem(|| {
        let works = ["frame", "literal", "call", "compact"].into_iter().all(|name| {
            let target = at(name);
            let (plain, before) = (function(target)(1), code::bytes(target, 48));
            let mut hook = put(target, plus_100 as *const ()).unwrap();
            let hooked = hook.way() == PatchWay::Protect
                && function(target)(1) == 101
                && function(hook.original())(1) == plain;
            hooked && take(&mut hook).is_ok() && code::bytes(target, 48) == before
        });
        let live = || {
            let before = code::bytes(at("frame"), 48);
            let mut transaction = Transaction::new().live();
            transaction.replace(at("frame"), plus_100 as *const ());
            // SAFETY: the types agree, and no thread has the trap signal blocked.
            let mut hook = unsafe { transaction.commit(Liveness::Live) }.remove(0).unwrap();
            let hooked = hook.way() == PatchWay::Exchange && function(at("frame"))(1) == 101;
            // SAFETY: as above.
            let removed = unsafe { hook.remove(Liveness::Live) }.is_ok();
            hooked && removed && code::bytes(at("frame"), 48) == before && code::writable_code().is_empty()
        };
        works && live()
    });
}
